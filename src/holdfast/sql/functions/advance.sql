-- Move the heads of the lanes forward: the reason why claiming never slows down.
--
-- Every queue that claims from the beginning of its index walks over the entries
-- of jobs done since the oldest snapshot that anyone holds: 39,000 jobs/s fell to
-- 6,700 after 600,000 jobs under one open report. A claim here reads from
-- lane.head on, and the head moves past what is done.
--
-- A head may lag, but it must never pass a job that is or will be pending. A
-- transaction may take a place (a seq) early and commit late:
--
--      inserter A   takes 100 ........................... commits
--      inserter B      takes 101, commits
--      claim              takes 101; is the first pending job now 102? No: 100 is to come.
--
-- So the *safe* head only moves up to a proven place:
--
--   1. Take S = nextval(job_seq).
--   2. Note who holds RowExclusiveLock on `job` at this moment. Every inserter
--      holds it before it takes a place and until it ends, so whoever took one
--      below S is either among them or has ended.
--   3. Once all of those have ended, nothing at or below S can still appear:
--      head = least(first pending place from the old head on, S + 1).
--
-- A prepared transaction holds its lock without a process, and changes its name
-- at a restart: while there is one, nothing is proven.
--
-- A transaction that enqueued and stays open for minutes would hold all heads
-- back. When a safe head lags by more than 10,000 places, claims read from the
-- first pending place instead, and each run of this duty looks between the two
-- for jobs that came late and gives them a new place.
--
-- A sequence that stands below a place it has reached before was reset, restored
-- or replicated: new jobs would stand behind the heads. Then everything starts over.
--
-- Claims commit without waiting for the disk; a head moved past a claim is
-- written later in the same log, so a crash that loses the claim loses the move.
create or replace function holdfast.advance()
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  s bigint;
  holders text[];
  proof holdfast.head_proof;
  proven bigint;
  moved integer;
begin
  perform holdfast.check_isolation('advance');
  if not pg_try_advisory_xact_lock(holdfast.duty_lock('advance')) then
    return 0;
  end if;

  -- The place first, then who holds the lock: in this order, or it proves nothing.
  s := nextval('holdfast.job_seq');
  holders := holdfast.writers();
  select p.* into proof from holdfast.head_proof p;
  if s <= proof.top or s < (select max(l.head) from holdfast.lane l) then
    perform holdfast.repair_sequence();
    return 0;
  end if;

  if holders = '{}' then
    proven := s;
    -- Noted only now and then, so that an idle database stays idle.
    if proof.seq is not null or proof.top is null or s > proof.top + 100 then
      perform holdfast.note_proof(null, null, s);
    end if;
  elsif holders is not null then
    if not proof.holders && holders then
      proven := proof.seq;
    end if;
    if proven is not null or proof.seq is null then
      perform holdfast.note_proof(s, holders, s);
    end if;
  end if;

  if proven is null then
    return holdfast.advance_eagerly(s);
  end if;
  update holdfast.lane l
  set head = n.head, safe_head = n.head
  from (
    select l.id, least(coalesce(f.seq, proven + 1), proven + 1) as head
    from holdfast.lane l
    left join lateral (
      select j.seq
      from holdfast.job j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.safe_head
      order by j.seq
      limit 1
    ) f on true
  ) n
  where l.id = n.id
    -- A move of a few places is not worth a new version of the row.
    and (n.head > l.safe_head + 500 or n.head < l.head);
  get diagnostics moved = row_count;
  return moved;
end
$$;
comment on function holdfast.advance() is 'Move the heads of the lanes past what is done; returns how many moved.';

create or replace function holdfast.note_proof(seq bigint, holders text[], top bigint)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.head_proof (seq, holders, taken_at, top)
  values (note_proof.seq, note_proof.holders, holdfast.clock(), note_proof.top)
  on conflict (only_row) do update
    set seq = excluded.seq, holders = excluded.holders, taken_at = excluded.taken_at, top = excluded.top
$$;
comment on function holdfast.note_proof(bigint, text[], bigint) is 'Keep the proof under way, or none, and how far the sequence has come.';

-- The transactions that may have taken a place and not yet ended, or null if
-- one of them is prepared.
create or replace function holdfast.writers()
returns text[]
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select case
    when coalesce(bool_or(k.pid is null), false) then null
    else coalesce(array_agg(k.virtualtransaction || ' ' || k.pid) filter (where k.pid <> pg_backend_pid()), '{}')
  end
  from pg_locks k
  where k.locktype = 'relation'
    and k.relation = 'holdfast.job'::regclass
    and k.database = (select d.oid from pg_database d where d.datname = current_database())
    and k.mode = 'RowExclusiveLock'
$$;
comment on function holdfast.writers() is 'The open transactions that may have taken a place in a lane; null if one of them is prepared.';

-- While a proof is held up by a long transaction: late jobs between the safe
-- head and the head get a new place, and lanes that lag get an eager head.
create or replace function holdfast.advance_eagerly(s bigint)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  moved integer;
begin
  update holdfast.job j
  set seq = o.new_seq
  from (
    select late.id, nextval('holdfast.job_seq') as new_seq
    from (
      select j.id
      from holdfast.lane l
      cross join lateral (
        select j.id, j.seq
        from holdfast.job j
        where j.lane_id = l.id
          and j.state = 'pending'
          and j.seq >= l.safe_head
          and j.seq < l.head
        order by j.seq
        limit 5000
        for update skip locked
      ) j
      where l.head > l.safe_head
      order by j.seq
    ) late
  ) o
  where j.id = o.id;

  update holdfast.lane l
  set head = n.head
  from (
    select l.id, coalesce(f.seq, s) as head
    from holdfast.lane l
    left join lateral (
      select j.seq
      from holdfast.job j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.head
      order by j.seq
      limit 1
    ) f on true
  ) n
  where l.id = n.id
    and n.head > l.safe_head + 10000
    and n.head > l.head + 500;
  get diagnostics moved = row_count;
  return moved;
end
$$;
comment on function holdfast.advance_eagerly(bigint) is 'Let claims read past what a long transaction holds back, and bring in what comes late.';

-- The sequence stands below a place it has reached before: it was reset,
-- restored or replicated. Heads start over, and the sequence moves above
-- everything, with room for places that open transactions took before.
create or replace function holdfast.repair_sequence()
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  reached bigint;
begin
  select greatest(
    (select max(l.head) from holdfast.lane l),
    (select max(j.seq) from holdfast.job j),
    (select max(p.top) from holdfast.head_proof p),
    nextval('holdfast.job_seq'))
  into reached;
  perform setval('holdfast.job_seq', reached + 10000);
  perform holdfast.note_proof(null, null, reached);
  update holdfast.lane set head = 0, safe_head = 0 where head <> 0 or safe_head <> 0;
  perform holdfast.note('repair', 'job_seq', jsonb_build_object('reached', reached));
end
$$;
comment on function holdfast.repair_sequence() is 'Set the heads back and the sequence forward after the sequence was reset.';

-- Whatever stands behind a head is found once a minute, and the head goes back to it.
create or replace function holdfast.check_heads()
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  repaired integer;
begin
  perform holdfast.check_isolation('check_heads');
  -- Not while the heads move.
  perform pg_advisory_xact_lock(holdfast.duty_lock('advance'));
  with behind as (
    select l.id, f.seq
    from holdfast.lane l
    cross join lateral (
      select j.seq
      from holdfast.job j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq < l.safe_head
      order by j.seq
      limit 1
    ) f
  ),
  moved as (
    update holdfast.lane l
    set head = b.seq, safe_head = b.seq
    from behind b
    where l.id = b.id
    returning l.id, l.head
  )
  insert into holdfast.audit (at, who, action, target, detail)
  select holdfast.clock(), session_user, 'repair', 'lane ' || m.id, jsonb_build_object('head', m.head)
  from moved m;
  get diagnostics repaired = row_count;
  return repaired;
end
$$;
comment on function holdfast.check_heads() is 'Find jobs behind the head of their lane and move the head back; returns how many lanes were repaired.';
