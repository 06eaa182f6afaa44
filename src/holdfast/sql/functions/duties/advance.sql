-- Move the heads of the lanes forward: this is why claiming never slows down.
--
-- A queue that claims from the beginning of its index walks over the entries of all
-- jobs done since the oldest snapshot that anyone holds: 39,000 jobs/s fell to 6,700
-- after 600,000 jobs under one open report. A claim reads from the head of its lane, and
-- the head moves past what is done.
--
-- A head may lag, but it must never pass a job that is or will be pending. A
-- transaction may take a place (a seq) early and commit late:
--
--      inserter A   takes 100 ........................... commits
--      inserter B      takes 101, commits
--      claim              takes 101; is the first pending job now 102? No: 100 is to come.
--
-- The safe head
--
-- The *safe* head only moves up to a proven place. Each run of this duty
--
--   1. takes S = nextval(job_seq),
--   2. then notes the *writers*: transactions that hold RowExclusiveLock on `job` or
--      `live`. Every inserter takes that lock before it takes a place, and holds it to
--      its end. So a writer that is first seen in this run began after the previous run
--      and took only places above the S of that run. That S is the writer's `since`.
--
-- No job can still appear at or below the least `since` of the open writers (or S, if
-- there are none): head = least(first pending place, that + 1).
--
-- A prepared transaction holds its lock without a process, and changes its name at a
-- restart, so it may look new although it is old. Its `since` is 0, and nothing is
-- proven while one is open.
--
-- The eager head: transactions that stay open
--
-- A transaction that enqueued and stays open for minutes would hold all heads back. If
-- it has been open for 5 seconds, and a safe head lags by more than 10,000 places, claims
-- read from the first pending place instead (the *eager* head). Jobs that commit late
-- between the two heads get a new place, or the head goes back to them if they are very
-- many. Late jobs can only come from a writer that has ended since the last run, so the
-- search for them begins at its `since`, not at the safe head.
--
-- A transaction that has cancelled or claimed a waiting job and stays open leaves that job
-- pending for all others. The eager head passes such a job once its lock is 5 to 10
-- seconds old. The transaction that holds the lock, its *locker*, is noted with the first
-- place that was passed. When the locker has ended, the jobs from that place on are treated
-- like late ones.
--
-- A locker is the number in `xmax`, not a session: a savepoint has its own number and may be
-- rolled back alone, and a prepared transaction keeps its number through a restart. If
-- several transactions lock a row at once, `xmax` is a multixact. It is taken for a number
-- that has ended, so no head passes that row.
--
-- Failures
--
-- If the sequence stands below a place it has reached before, it was reset, restored or
-- replicated, and new jobs would stand behind the heads. Then all heads start over.
--
-- Claims commit without waiting for the disk. The move of a head past a claim is written
-- later in the same log, so a crash that loses the claim loses the move too.
--
-- Scheduled jobs
--
-- The index of scheduled jobs has a mark of the same kind, `due_from`: no scheduled job is
-- due before it. A job is scheduled only for a time after its writer took the lock. So when
-- a writer has ended, the index is searched from the last time when that writer was not there.
-- A second mark, `promote_from`, also passes scheduled jobs that have a locker: promote() reads
-- from there.
--
-- The body is long on purpose: its steps share the proof, and their order is the proof.
-- holdfast: role worker
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
  patience constant interval := '5 seconds';
  now_at timestamptz := holdfast.clock();
  s bigint; -- the place that this run takes
  open text[]; -- the writers that are open now
  watch holdfast.writer_watch; -- the notes of the last run, updated by this one
  seen record; -- the known facts about the open writers
  late record; -- from where the writers that have ended may have left jobs
  unlocked record; -- the same for the lockers that have ended
  set_back boolean; -- the clock was set back since the last run
  next_xid xid8 := pg_snapshot_xmax(pg_current_snapshot());
  promote_from timestamptz;
  moved integer;
begin
  perform holdfast.check_isolation('advance');
  if not holdfast.try_duty('advance') then
    return 0;
  end if;

  -- Take the place first and read the writers second: only this order proves anything.
  s := nextval('holdfast.job_seq');
  open := holdfast.writers();
  select w.* into watch from holdfast.writer_watch w;
  if s <= watch.top or s < (select max(l.head) from holdfast.lane l) then
    perform holdfast.repair_sequence();
    return 0;
  end if;
  -- If the clock was set back, the noted times of writers say nothing about scheduled jobs.
  set_back := coalesce(now_at < watch.at, false);
  -- Every 5 seconds old_xid becomes the number noted 5 seconds before (mark_xid). So open
  -- transactions below old_xid are older than `patience`, and heads no longer wait for them.
  if (watch.mark_at between now_at - patience and now_at) is not true then
    watch.old_xid := coalesce(watch.mark_xid, '0');
    watch.mark_xid := next_xid;
    watch.mark_at := now_at;
  end if;
  watch.old_xid := least(watch.old_xid, next_xid); -- above it only in a database restored elsewhere

  select
    coalesce(array_agg(w.writer), '{}') as writers,
    coalesce(array_agg(w.since), '{}') as since,
    coalesce(array_agg(w.since_at), '{}') as since_at,
    coalesce(array_agg(w.seen_at), '{}') as seen_at,
    coalesce(min(w.since), s) as proven,
    coalesce(min(w.since) filter (where w.seen_at > now_at - patience), s) as waited_for
  into seen
  from (
    select
      o.writer,
      case when o.writer like 'prepared %' then 0 else coalesce(w.since, watch.seq, 0) end as since,
      case
        when set_back or o.writer like 'prepared %' then '-infinity'
        else coalesce(w.since_at, watch.at, '-infinity')
      end as since_at,
      coalesce(w.seen_at, now_at) as seen_at
    from unnest(open) o (writer)
    left join unnest(watch.writers, watch.since, watch.since_at, watch.seen_at) w (
      writer, since, since_at, seen_at)
      on w.writer = o.writer
  ) w;

  select least(watch.seq, min(w.since)) as seq, least(watch.at, min(w.since_at)) as at into late
  from unnest(watch.writers, watch.since, watch.since_at) w (writer, since, since_at)
  where w.writer <> all(open);
  -- First find out which lockers have ended, then look for the jobs that they left.
  with ended as (
    delete from holdfast.locker k where not holdfast.is_open(k.xid, next_xid) returning k.seq, k.run_at
  )
  select min(e.seq) as seq, min(e.run_at) as run_at, count(*) > 0 as any into unlocked from ended e;
  perform holdfast.take_in_late(least(coalesce(late.seq, 0), unlocked.seq));
  if unlocked.seq is not null then
    perform holdfast.note_still_locked(unlocked.seq);
  end if;
  moved := holdfast.advance_safely(seen.proven, next_xid);
  if seen.waited_for > seen.proven + 10000 then
    moved := moved + holdfast.advance_eagerly(seen.waited_for, watch.old_xid);
  end if;

  -- Write only if something has changed, so that an idle database stays idle.
  if watch.seq is null or open <> '{}' or watch.writers <> '{}' or s > watch.top + 100 or set_back
    or unlocked.any or watch.promote_from < watch.due_from
  then
    promote_from := holdfast.promote_from(
      case when set_back then '-infinity' else least(watch.promote_from, unlocked.run_at) end,
      late.at, now_at, watch.old_xid);
    insert into holdfast.writer_watch
      (seq, at, writers, since, since_at, seen_at, top, due_from, promote_from, old_xid, mark_xid, mark_at)
    values (
      s, now_at, seen.writers, seen.since, seen.since_at, seen.seen_at, s,
      holdfast.due_from(case when set_back then '-infinity' else watch.due_from end, late.at, now_at),
      promote_from, watch.old_xid, watch.mark_xid, watch.mark_at)
    on conflict (only_row) do update set
      (seq, at, writers, since, since_at, seen_at, top, due_from, promote_from, old_xid, mark_xid,
        mark_at) = (
        excluded.seq, excluded.at, excluded.writers, excluded.since, excluded.since_at, excluded.seen_at,
          excluded.top,
        excluded.due_from, excluded.promote_from, excluded.old_xid, excluded.mark_xid, excluded.mark_at);
  end if;
  if holdfast.is_old((select d.done_at from holdfast.duty d where d.name = 'advance'), now_at) then
    perform holdfast.note_done('advance', now_at);
  end if;
  return moved;
end
$$;
comment on function holdfast.advance() is
  'Move the heads of the lanes past the jobs that are done. Returns how many heads moved.';

-- Each move writes a new version of the lane's row, so a move must gain enough places. With
-- more lanes it must gain more.
--
-- Every enqueue and claim walks over dead versions, which cannot be cleaned up while an old
-- snapshot is held. So the step also grows with their number. Then both the dead versions
-- and the index entries that a claim walks over grow only with the square root of the jobs
-- done.
create or replace function holdfast.head_step()
returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select greatest(
    500 + 5 * pg_stat_get_live_tuples('holdfast.lane'::regclass),
      pg_stat_get_dead_tuples('holdfast.lane'::regclass))
$$;
comment on function holdfast.head_step() is 'Return how many places a move of a head must gain.';

-- Move the heads up to `proven`: no job can still appear at or below it.
create or replace function holdfast.advance_safely(proven bigint, next_xid xid8)
returns integer
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  step bigint := holdfast.head_step();
  moved integer;
begin
  update holdfast.lane l
  set
    safe_head = n.head,
    head = case when n.waits and n.head < l.head then n.head else greatest(l.head, n.head) end
  from (
    -- The eager head may have passed a locked job on purpose, so only a job that is not locked
    -- (`waits`) pulls it back.
    select l.id, coalesce(f.seq, proven + 1) as head, not coalesce(f.is_locked, true) as waits
    from holdfast.lane l
    left join lateral (
      select j.seq, holdfast.is_open(holdfast.long_xid(j.xmax, next_xid), next_xid) as is_locked
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq between l.safe_head and proven
      order by j.seq
      limit 1
    ) f on true
    where proven + 1 > l.safe_head + step
  ) n
  where l.id = n.id
    and (n.head > l.safe_head + step or (n.waits and n.head < l.head));
  get diagnostics moved = row_count;
  return moved;
end
$$;
comment on function holdfast.advance_safely(bigint, xid8) is
  'Move the heads up to a place below which no job can appear any more.';

-- Let claims find jobs that came late, at or above `from_seq`, between a safe head and the
-- head that is ahead of it. They get a new place. If one lane has a thousand or more, its
-- head goes back to them instead. Workers that their commit woke found nothing, so they are
-- woken again.
create or replace function holdfast.take_in_late(from_seq bigint)
returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  many constant integer := 1000;
  lanes integer[];
begin
  with late as materialized (
    select l.id as lane_id, j.place, j.seq, count(*) over (partition by l.id) >= many as are_many
    from holdfast.lane l
    cross join lateral (
      select j.ctid as place, j.seq
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= greatest(l.safe_head, from_seq)
        and j.seq < l.head
      order by j.seq
      limit many
      for update skip locked
    ) j
    where l.head > l.safe_head
  ),
  back as (
    update holdfast.lane l
    set head = f.seq
    from (select late.lane_id, min(late.seq) as seq from late where late.are_many group by late.lane_id) f
    where l.id = f.lane_id
  ),
  placed as (
    update holdfast.live j
    set seq = o.new_seq
    from (
      select late.place, nextval('holdfast.job_seq') as new_seq
      from (select late.place from late where not late.are_many order by late.seq) late
    ) o
    where j.ctid = o.place
  )
  select array_agg(distinct late.lane_id) into lanes from late;
  if lanes is not null then
    perform holdfast.wake_lanes(lanes);
  end if;
end
$$;
comment on function holdfast.take_in_late(bigint) is
  'Make jobs that came late reachable for claims: give them a new place, or move the head back if they are '
  'many.';

-- Let claims read past what a long transaction holds back: past places of jobs still to
-- come, and past jobs that a locker below `old_xid` holds. The passed jobs are read twice: to
-- find the new head, and to note their lockers. The second read notes whatever transaction
-- holds them by then.
--
-- Each savepoint is a locker of its own. With more than a thousand, no locked job is passed.
create or replace function holdfast.advance_eagerly(most bigint, old_xid xid8)
returns integer
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  step bigint := holdfast.head_step();
  next_xid xid8 := pg_snapshot_xmax(pg_current_snapshot());
  moved integer;
begin
  with n as materialized (
    select l.id, f.is_locked, f.seq as first,
      coalesce(case when f.is_locked then u.seq else f.seq end, most) as head
    from holdfast.lane l
    left join lateral (
      select j.seq, holdfast.is_open(holdfast.long_xid(j.xmax, next_xid), old_xid) as is_locked
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq between l.head and most
      order by j.seq
      limit 1
    ) f on true
    left join lateral (
      select j.seq
      from holdfast.live j
      where f.is_locked
        and j.lane_id = l.id
        and j.state = 'pending'
        and j.seq between f.seq and most
        and not holdfast.is_open(holdfast.long_xid(j.xmax, next_xid), old_xid)
      order by j.seq
      limit 1
    ) u on true
    where most > l.safe_head + 10000
  ),
  ahead as materialized (
    select n.*
    from n
    join holdfast.lane l on l.id = n.id
    where n.head > l.safe_head + 10000
      and n.head > l.head + step
  ),
  locked as materialized (
    select holdfast.long_xid(j.xmax, next_xid) as xid, min(j.seq) as seq
    from ahead a
    cross join lateral (
      select j.xmax, j.seq
      from holdfast.live j
      where j.lane_id = a.id
        and j.state = 'pending'
        and j.seq >= a.first
        and j.seq < a.head
    ) j
    where a.is_locked
    group by 1
  ),
  few as (
    select (select count(*) from locked) + (select count(*) from holdfast.locker) <= 1000 as are_few
  ),
  noted as (
    insert into holdfast.locker (xid, seq)
    select k.xid, k.seq from locked k, few where few.are_few
    on conflict (xid) do update set seq = least(locker.seq, excluded.seq)
  )
  update holdfast.lane l
  set head = a.head
  from ahead a, few
  where l.id = a.id
    and (few.are_few or a.is_locked is distinct from true);
  get diagnostics moved = row_count;
  return moved;
end
$$;
comment on function holdfast.advance_eagerly(bigint, xid8) is
  'Let claims read past what a long transaction holds back, up to a given place.';

-- Note the transactions that now lock the jobs that were passed. When a locker has ended,
-- another transaction may have waited for its lock and hold it.
create or replace function holdfast.note_still_locked(from_seq bigint)
returns void
language sql volatile
as $$
  insert into holdfast.locker (xid, seq)
  select holdfast.long_xid(j.xmax, pg_snapshot_xmax(pg_current_snapshot())), min(j.seq)
  from holdfast.lane l
  cross join lateral (
    select j.xmax, j.seq
    from holdfast.live j
    where j.lane_id = l.id
      and j.state = 'pending'
      and j.seq >= greatest(l.safe_head, from_seq)
      and j.seq < l.head
  ) j
  where l.head > l.safe_head
  group by 1
  on conflict (xid) do update set seq = least(locker.seq, excluded.seq)
$$;
comment on function holdfast.note_still_locked(bigint) is
  'Record which transactions lock the jobs between the safe heads and the heads, from a given place on.';

-- Return the full number of a transaction from the 32 bits that a row has: the one nearest to
-- `next_xid`. This function and is_open() have no SET clause, so that PostgreSQL inlines them.
create or replace function holdfast.long_xid(xid xid, next_xid xid8)
returns xid8
language sql immutable
as $$
  select greatest(
    next_xid::text::bigint - 2147483648
      + (xid::text::bigint - next_xid::text::bigint % 4294967296 + 6442450944) % 4294967296,
    0)::text::xid8
$$;
comment on function holdfast.long_xid(xid, xid8) is
  'Return the full number of a transaction from the part of it that a row has.';

-- Return whether a transaction or savepoint is open and has a number less than `below`. That may
-- be at most the next number: PostgreSQL refuses to tell the status of a future transaction.
create or replace function holdfast.is_open(xid xid8, below xid8)
returns boolean
language sql volatile
as $$
  select case when xid < below then coalesce(pg_xact_status(xid) = 'in progress', false) else false end
$$;
comment on function holdfast.is_open(xid8, xid8) is
  'Return whether the transaction with this number is open and older than another number.';

-- Return the time before which no scheduled job is due: the time of the first scheduled job,
-- at most a second ago. The search begins at the last such time, or at the time from which jobs may have
-- come late. The second is for writers that read the clock before they took the lock.
create or replace function holdfast.due_from(due_from timestamptz, late_at timestamptz, now_at timestamptz)
returns timestamptz
language plpgsql volatile
as $$
declare
  looked_from timestamptz := coalesce(least(due_from.due_from, late_at - interval '1 second'), '-infinity');
begin
  return least(
    (select min(j.run_at) from holdfast.live j where j.state = 'scheduled' and j.run_at >= looked_from),
    now_at - interval '1 second');
end
$$;
comment on function holdfast.due_from(timestamptz, timestamptz, timestamptz) is
  'Return a time before which no scheduled job is due, from the last such time and the time from which jobs'
  ' may have come late.';

-- Return the time from which promote() reads. It is like due_from(), but passes jobs that a
-- locker below `old_xid` holds.
create or replace function holdfast.promote_from(
  promote_from timestamptz, late_at timestamptz, now_at timestamptz, old_xid xid8)
returns timestamptz
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  looked_from timestamptz := coalesce(
    least(promote_from.promote_from, late_at - interval '1 second'), '-infinity');
  until timestamptz := now_at - interval '1 second';
  next_xid xid8 := pg_snapshot_xmax(pg_current_snapshot());
  first record;
  next_at timestamptz;
  are_few boolean;
begin
  select j.run_at, holdfast.is_open(holdfast.long_xid(j.xmax, next_xid), old_xid) as is_locked
  into first
  from holdfast.live j
  where j.state = 'scheduled'
    and j.run_at >= looked_from
    and j.run_at < until
  order by j.run_at
  limit 1;
  if first.is_locked is distinct from true then
    return coalesce(first.run_at, until);
  end if;
  next_at := coalesce(
    (
      select j.run_at
      from holdfast.live j
      where j.state = 'scheduled'
        and j.run_at >= first.run_at
        and j.run_at < until
        and not holdfast.is_open(holdfast.long_xid(j.xmax, next_xid), old_xid)
      order by j.run_at
      limit 1
    ),
    until);
  with locked as materialized (
    select holdfast.long_xid(j.xmax, next_xid) as xid, min(j.run_at) as run_at
    from (
      select j.xmax, j.run_at
      from holdfast.live j
      where j.state = 'scheduled'
        and j.run_at >= first.run_at
        and j.run_at < next_at
    ) j
    group by 1
  ),
  few as (
    select (select count(*) from locked) + (select count(*) from holdfast.locker) <= 1000 as are_few
  ),
  noted as (
    insert into holdfast.locker (xid, run_at)
    select k.xid, k.run_at from locked k, few where few.are_few
    on conflict (xid) do update set run_at = least(locker.run_at, excluded.run_at)
  )
  select few.are_few into are_few from few;
  return case when are_few then next_at else first.run_at end;
end
$$;
comment on function holdfast.promote_from(timestamptz, timestamptz, timestamptz, xid8) is
  'Return the time from which promote() reads, from the last such time and the time from which jobs may '
  'have come late.';

-- Return the open transactions that may have taken a place. The names of prepared ones begin
-- with 'prepared'.
create or replace function holdfast.writers()
returns text[]
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(
    array_agg(distinct coalesce(k.virtualtransaction || ' ' || k.pid, 'prepared ' || k.virtualtransaction)),
    '{}')
  from pg_locks k
  where k.locktype = 'relation'
    and k.relation in ('holdfast.job'::regclass, 'holdfast.live'::regclass)
    and k.database = (select d.oid from pg_database d where d.datname = current_database())
    and k.mode = 'RowExclusiveLock'
    and k.pid is distinct from pg_backend_pid()
$$;
comment on function holdfast.writers() is
  'Return the open transactions that may have taken a place in a lane; the names of prepared ones begin '
  'with "prepared".';

-- Repair a sequence that stands below a place it has reached before: it was reset, restored
-- or replicated. Heads start over, and the sequence moves above everything, with room for
-- places that open transactions have taken.
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
    (select max(j.seq) from holdfast.live j),
    (select max(w.top) from holdfast.writer_watch w),
    nextval('holdfast.job_seq'))
  into reached;
  perform setval('holdfast.job_seq', reached + 10000);
  -- Nothing is known about the writers that are open now.
  insert into holdfast.writer_watch (seq, at, top)
  values (0, '-infinity', reached)
  on conflict (only_row) do update set
    (seq, at, writers, since, since_at, seen_at, top)
    = (excluded.seq, excluded.at, '{}', '{}', '{}', '{}', excluded.top);
  update holdfast.lane set head = 0, safe_head = 0 where head <> 0 or safe_head <> 0;
  perform holdfast.note('repair', 'job_seq', jsonb_build_object('reached', reached));
end
$$;
comment on function holdfast.repair_sequence() is
  'Set the heads back and the sequence forward after the sequence was reset.';

-- Find jobs behind a head and move the head back to them. upkeep() runs this every few
-- minutes, in case a promise above was broken.
-- holdfast: role worker
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
  begun_at timestamptz;
  repaired integer;
  lanes integer[];
begin
  perform holdfast.check_isolation('check_heads');
  -- advance() must not move heads meanwhile.
  perform holdfast.await_duty('advance');
  begun_at := holdfast.clock();
  -- Look again for late jobs that were locked when advance() looked.
  perform holdfast.take_in_late(0);
  update holdfast.writer_watch w
  set promote_from = j.run_at
  from (
    select j.run_at
    from holdfast.live j
    where j.state = 'scheduled'
      and j.run_at >= (select w.due_from from holdfast.writer_watch w)
      and j.run_at < (select w.promote_from from holdfast.writer_watch w)
    order by j.run_at
    limit 1
    for update skip locked
  ) j;
  with behind as (
    select l.id, f.seq
    from holdfast.lane l
    cross join lateral (
      select j.seq
      from holdfast.live j
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
  ),
  due as (
    update holdfast.writer_watch w
    set due_from = f.run_at, promote_from = f.run_at
    from (select min(j.run_at) as run_at from holdfast.live j where j.state = 'scheduled') f
    where f.run_at < w.due_from
    returning w.due_from
  ),
  noted as (
    insert into holdfast.audit (at, who, action, target, detail)
    select holdfast.clock(), session_user, 'repair', 'lane ' || m.id, jsonb_build_object('head', m.head)
    from moved m
    union all
    select holdfast.clock(), session_user, 'repair', 'due_from', jsonb_build_object('due_from', d.due_from)
    from due d
    returning id
  )
  select (select count(*) from noted), (select array_agg(m.id) from moved m) into repaired, lanes;
  if lanes is not null then
    perform holdfast.wake_lanes(lanes);
  end if;
  perform holdfast.note_look('check_heads', begun_at);
  return repaired;
end
$$;
comment on function holdfast.check_heads() is
  'Find jobs behind the head of their lane, or behind the mark of scheduled jobs, and move it back. Returns'
  ' how many were repaired.';
