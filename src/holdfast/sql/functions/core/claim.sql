-- Claim up to `amount` pending jobs for one worker, most urgent first.
--
-- Locked rows are skipped, so claims never wait for each other. The worker must present
-- the lease to report on these jobs. The caller makes the lease, so that it can ask
-- claimed(worker, lease) if the reply is lost.
--
-- Higher priorities go first. Within a priority, suspects go first, then returned jobs,
-- then fresh ones; each kind in the order of arrival across all lanes. So a job is
-- overtaken only by jobs of the same claim. A claim takes at most one suspect, as its last
-- job. It ends at 16 MiB of payloads and headers, but takes at least one job. A busy
-- worker can claim only jobs `above` a given priority.
--
-- Each lane is read from its head, never from the beginning of the index: see advance.sql.
-- A look into a lane costs 2 to 5 µs, and lanes outside the claim cost nothing. The
-- plans are pinned: with a table that was never analyzed, or an eager JIT, a claim takes 4
-- to 40 times as long.
-- holdfast: role worker
create or replace function holdfast.claim(
  worker uuid default null,
  lease uuid default null,
  queues text[] default null,
  tasks text[] default null,
  amount integer default 10,
  above integer default null
)
returns setof holdfast.claimed_job
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at constant timestamptz := holdfast.clock();
  consumer constant uuid := coalesce(claim.worker, gen_random_uuid());
  new_lease constant uuid := coalesce(claim.lease, gen_random_uuid());
  known_tasks text[] := claim.tasks;
  room constant bigint := 16 * 1024 * 1024;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform holdfast.check_isolation('claim');
  end if;
  if claim.amount is null or claim.amount not between 1 and 10000 then
    perform holdfast.refuse_value('amount', claim.amount::text, 'must be between 1 and 10000');
  end if;
  if claim.tasks is null then -- lanes are found by their task
    known_tasks := holdfast.tasks_of(claim.queues);
  end if;

  -- The worker is checked only by statements that lock `live` first: see look_after_gone().
  --
  -- The fast path: a small claim where one lane alone has work, as nearly always when a
  -- worker was woken. It locks and takes in one statement. With take() instead of an update
  -- of its own, a claim of one job would cost 10 µs more of 110.
  return query
    with lanes as materialized (
      select l.*
      from holdfast.lanes_at_work(claim.queues, known_tasks, claim.above) l
      where claim.amount <= 100
      limit 2
    )
    update holdfast.live j
    set
      state = 'claimed',
      worker_id = consumer,
      lease = new_lease,
      attempt = j.attempt + 1,
      claimed_at = case when greatest(j.run_at, j.created_at) > now_at then holdfast.clock() else now_at end,
      changed_at = now_at
    from (
      -- In the order of the lane, as they are read: an ORDER BY here would sort them.
      select j.row_id, l.queue, l.priority, sum(j.bytes) over () as total
      from holdfast.attending(consumer, now_at)
      cross join lanes l
      cross join lateral (
        select
          j.ctid as row_id,
          holdfast.bytes_at_most(j.payload) + coalesce(holdfast.bytes_at_most(j.headers), 0) as bytes
        from holdfast.live j
        where j.lane_id = l.id
          and j.state = 'pending'
          and j.seq >= l.first
          and j.attempt < j.max_attempts
        order by j.seq
        limit claim.amount
        for update skip locked
      ) j
      where l.kind <> 2
        and (select count(*) from lanes) = 1
    ) p
    where j.ctid = p.row_id
      and p.total <= room -- otherwise claim_by_level() measures the payloads one by one
    returning
      j.id, j.task, j.payload, j.attempt, j.lease, j.max_attempts, p.queue, p.priority::integer,
      false, j.worker_id, j.created_at, j.headers;
  if not found then
    perform holdfast.attending(consumer, now_at);
    if not found then
      perform holdfast.attend(consumer, now_at, claim.queues, claim.tasks);
    end if;
    return query
      select j.*
      from holdfast.claim_by_level(
        claim.queues, known_tasks, claim.above, claim.amount, room, consumer, new_lease, now_at) j;
  end if;
end
$$;
comment on function holdfast.claim(uuid, uuid, text[], text[], integer, integer) is
  'Claim up to amount pending jobs for one worker under one lease, most urgent first; with above, only jobs '
  'above that priority. A missing worker id or lease is generated.';

create or replace function holdfast.attending(worker uuid, now_at timestamptz)
returns setof boolean
language sql stable
as $$
  select true
  from holdfast.worker w
  where w.id = attending.worker
    and w.lost_at is null
    and w.left_at is null
    and w.heartbeat_at > now_at - w.lease_time / 3
$$;
comment on function holdfast.attending(uuid, timestamptz) is
  'Return a row if a worker is known and sent a heartbeat recently.';

-- A caller whose claim's reply was lost asks for it here.
-- holdfast: role worker
create or replace function holdfast.claimed(worker uuid, lease uuid)
returns setof holdfast.claimed_job
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
  select
    j.id, j.task, j.payload, j.attempt, j.lease, j.max_attempts, l.queue, l.priority::integer,
    l.kind = 2, j.worker_id, j.created_at, j.headers
  from holdfast.live j
  join holdfast.lane l on l.id = j.lane_id
  where j.worker_id = claimed.worker
    and j.state = 'claimed'
    and j.lease = claimed.lease
  order by l.priority desc, l.kind desc, j.seq
$$;
comment on function holdfast.claimed(uuid, uuid) is
  'Return the jobs that a worker holds under a lease. Call it after a claim whose reply was lost.';
