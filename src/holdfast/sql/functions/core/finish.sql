-- Report the outcomes of many jobs in one statement.
--
-- Outcomes:
--
--   completed     the job has ended, and may have a result
--   cancelled     the job has ended
--   failed        the job is tried again by the retry policy, or after `delays`, or not at all if
--                 `retries` is false
--   snoozed       the job is tried again after `delays`, and the snooze uses up no attempt
--   released      the job never started: it is pending at once, and its attempt is refunded
--   interrupted   the job is pending at once, and its attempt stays counted
--
-- The other arrays are as long as `ids`, or null. Without an outcome a job is completed. A single
-- lease is used for all ids.
--
-- A report is accepted only under the lease of the current claim. Refused reports are returned,
-- each with its SQLSTATE. If the reply was lost and a report is repeated, it is accepted too.
--
-- With `skip_locked` the call does not wait for jobs that another transaction has locked, such
-- as an open cancel. It leaves such a job as it is and returns it as 55P03; report on it again
-- a little later. Set a `lock_timeout` too, for a lock that is taken while the function runs.
--
-- Lock order: rows of `live` by id, then the rows of other tables that belong to these jobs.
--
-- The body is long on purpose: each step that is a function of its own would cost a single
-- report 5 to 10 µs of 170. Steps that only some reports need are functions.
-- holdfast: role worker
create or replace function holdfast.finish(
  ids uuid[],
  leases uuid[],
  outcomes text[] default null,
  results jsonb[] default null,
  errors text[] default null,
  tracebacks text[] default null,
  retries boolean[] default null,
  delays interval[] default null,
  durations double precision[] default null,
  skip_locked boolean default false
)
returns setof holdfast.refusal
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
  now_at timestamptz;
  mixed boolean := coalesce(outcomes && '{failed,snoozed,released,interrupted}', false);
  locked boolean := mixed;
  shown uuid[];
  found record;
  lanes record;
  row_ids tid[];
  started boolean;
  maybe uuid[] := '{}'; -- jobs that may have events
  ended uuid[] := '{}'; -- jobs that the first round has ended
  lowest uuid;
  highest uuid;
  begun_at timestamptz;
  amount bigint;
  accepted bigint := 0;
begin
  if cardinality(leases) = 1 then
    leases := array_fill(leases[1], array[cardinality(ids)]);
  end if;
  perform holdfast.check_reports(ids, leases, outcomes);
  if results is not null then
    perform holdfast.check_json('result', r) from unnest(results) r
      where not holdfast.is_readable(r, r::text);
  end if;
  shown := leases;

  -- If all outcomes are completed or cancelled and the ids are sorted, no row is locked beforehand:
  -- the delete locks them in that order. If a row changes meanwhile, or there are other outcomes,
  -- all rows are locked first, in the order of ids, and read under the locks.
  --
  -- With skip_locked, the rows are also locked first if a transaction has touched one of them
  -- since its claim, because that transaction may still be open. (Always locking them would cost
  -- 0.7 µs a job of 6.3.) If a row is locked after it was read and before it is written, this call
  -- waits for it up to its lock_timeout, and then fails.
  loop
    if locked and skip_locked then
      -- Lock and read at once, so that the result lacks the jobs that others have locked.
      select
        array_agg(k.id) as ids, array_agg(k.row_id) as row_ids, array_agg(k.lane_id) as lanes,
        array_agg(k.id) filter (where k.came_back) as came_back, false as touched
      into found
      from (
        select j.id, j.ctid as row_id, j.lane_id, j.attempt > 1 or j.headers ? 'resumes' as came_back
        from holdfast.live j
        where j.id = any(ids)
          and j.lease = any(array(select distinct l from unnest(leases) l))
        order by j.id
        for update skip locked
      ) k;
    else
      if locked then
        -- Skip jobs that another claim holds by now: this call would wait for their reports.
        perform
        from (select r.id, r.lease from unnest(ids, leases) r (id, lease) order by r.id offset 0) r
        cross join lateral (
          select from holdfast.live j where j.id = r.id and (j.lease = r.lease or j.lease is null) for update
        ) j;
      end if;
      select
        array_agg(k.id) as ids, array_agg(k.row_id) as row_ids, array_agg(k.lane_id) as lanes,
        array_agg(k.id) filter (where k.came_back) as came_back, bool_or(k.touched) as touched
      into found
      from (
        select
          j.id, j.ctid as row_id, j.lane_id, j.attempt > 1 or j.headers ? 'resumes' as came_back,
          j.xmax <> j.xmin and j.xmax <> '0' as touched
        from holdfast.live j
        where j.id = any(ids)
        order by j.id
      ) k;
      if skip_locked and found.touched then
        locked := true;
        continue;
      end if;
    end if;
    maybe := maybe || coalesce(found.came_back, '{}');
    lowest := least(lowest, found.ids[1]);
    highest := greatest(highest, found.ids[cardinality(found.ids)]);
    if found.ids = ids then -- so the ids are sorted and distinct
      row_ids := found.row_ids;
    elsif locked then
      perform holdfast.refuse_doubles(ids);
      row_ids := array(
        select found.row_ids[array_position(found.ids, i.id)] from unnest(ids) with ordinality i (id, n)
          order by i.n
      );
      if skip_locked then -- without its lease, a skipped job matches no statement below
        leases := array(
          select case when r.row_id is not null or r.id = any(ended) then r.lease end
          from unnest(ids, leases, row_ids) with ordinality r (id, lease, row_id, n)
          order by r.n
        );
      end if;
    else
      locked := true;
      continue;
    end if;
    -- Look up each lane once, not once for each job. While any session holds an old snapshot, a
    -- look-up reads one dead row version for each move of the head.
    select array_agg(l.id) as ids, array_agg(l.queue) as queues,
      array_agg(l.priority) as priorities into lanes
    from holdfast.lane l
    where l.id = any(found.lanes);
    now_at := holdfast.clock(); -- read it here, because the wait for a lock may have been long
    begun_at := coalesce(begun_at, now_at);
    started := exists (select from holdfast.running x where x.job_id = any(ids));

    with gone as (
      delete from holdfast.live j
      using unnest(ids, leases, row_ids, outcomes, results, errors, durations) r (
        id, lease, row_id, outcome, result, error, duration)
      where j.ctid = r.row_id
        and j.id = r.id
        and j.lease = r.lease
        and (r.outcome is null or r.outcome in ('completed', 'cancelled'))
      returning
        j.id, j.task, j.payload, j.headers, j.attempt, j.max_attempts, j.worker_id, j.lease, j.run_at,
        j.created_at, j.claimed_at,
        coalesce(r.outcome, 'completed') as outcome, r.result, coalesce(r.error, j.last_error) as last_error,
        array_position(lanes.ids, j.lane_id) as lane,
        -- Keep the start between the claim and now, because the worker measured by its own clock.
        greatest(
          coalesce(
            case when started
              then (
              select x.started_at from holdfast.running x where x.job_id = j.id and x.lease = j.lease) end,
            now_at - case when r.duration is not null
              then least(greatest(r.duration, 0), 1e9) end * interval '1 second',
            j.claimed_at),
          j.claimed_at) as started_at,
        date_part('epoch', j.claimed_at - greatest(j.run_at, j.created_at)) as waited
    ),
    kept as (
      insert into holdfast.finished (
        id, queue, priority, task, payload, headers, state, attempt, max_attempts, worker_id, lease, result,
        last_error, run_at, created_at, claimed_at, started_at, finished_at, duration
      )
      select
        g.id, lanes.queues[g.lane], lanes.priorities[g.lane], g.task, g.payload, g.headers, g.outcome,
        g.attempt, g.max_attempts,
        g.worker_id, g.lease, g.result, g.last_error, g.run_at, g.created_at, g.claimed_at,
        g.started_at, now_at, now_at - g.started_at
      from gone g
    ),
    -- Count them here: one row for all that completed, and one for all that were cancelled.
    counted as (
      insert into holdfast.stat_delta (at, outcome, lanes, buckets, jobs, wait_seconds, run_seconds)
      select
        now_at, c.outcome, array_agg(lanes.ids[c.lane]), array_agg(c.bucket), array_agg(c.jobs),
        array_agg(c.waited), array_agg(c.ran)
      from (
        select
          g.lane, g.outcome,
          holdfast.stat_bucket(g.waited, date_part('epoch', now_at - g.started_at)) as bucket,
          count(*) as jobs,
          sum(greatest(g.waited, 0)) as waited, sum(date_part('epoch', now_at - g.started_at)) as ran
        from gone g
        group by 1, 2, 3
      ) c
      group by c.outcome
    )
    select count(*), array_agg(g.id) into amount, ended from gone g;

    accepted := accepted + amount;
    -- An event may have been published after the first check and before the delete.
    started := started or exists (select from holdfast.running x where x.job_id = any(ids));
    exit when locked or accepted = cardinality(ids);
    locked := true;
  end loop;

  -- Only in READ COMMITTED. A handler may finish its own job in a transaction with an older
  -- snapshot. If progress was reported meanwhile, this delete would make that transaction fail.
  -- upkeep() deletes the rows that stay.
  if started and current_setting('transaction_isolation') = 'read committed' then
    maybe := maybe || array(select x.job_id from holdfast.running x where x.job_id = any(ids));
    delete from holdfast.running x
    where x.job_id = any(ids)
      and not exists (select from holdfast.live j where j.id = x.job_id offset 0);
  end if;
  if maybe <> '{}' or 'cancelled' = any(outcomes) then
    perform holdfast.log_ends(ids, leases, outcomes, maybe, begun_at);
  end if;
  -- Search only this range of ids. While any session holds an old snapshot, a search of the whole
  -- index would read all waiters that were deleted since.
  if accepted > 0 and exists (select from holdfast.waiter w where w.job_id between lowest and highest) then
    perform holdfast.tell_waiters(ids);
  end if;

  if mixed then
    accepted := accepted + holdfast.give_back(
      ids, leases, outcomes, errors, tracebacks, retries, delays, durations, now_at);
  end if;

  if accepted < cardinality(ids) then
    return query
      select
        v.id, coalesce(v.sqlstate, '55P03'),
        coalesce(v.message, format('another transaction has locked job %s', v.id)), v.state, v.lease
      from unnest(ids, shown, outcomes) r (id, lease, outcome)
      cross join lateral holdfast.verdict(r.id, r.lease, coalesce(r.outcome, 'completed')) v
      where v.sqlstate is not null
        -- The job is still held under this lease, so it was skipped. A repeated report is accepted even
        -- if another claim holds the job.
        or (skip_locked
          and exists (select from holdfast.live j where j.id = r.id and j.lease = r.lease offset 0));
  end if;
end
$$;
comment on function holdfast.finish(
  uuid[], uuid[], text[], jsonb[], text[], text[], boolean[], interval[], double precision[], boolean) is
  'Report the outcomes of many jobs, each under the lease of its claim. Returns the refused reports with '
  'the reasons; with skip_locked also those of jobs that another transaction has locked, as 55P03.';

-- Write the events of jobs that finish() has just completed or cancelled. A completed job gets
-- one only if it has other events, which the jobs in `maybe` may have.
create or replace function holdfast.log_ends(
  ids uuid[], leases uuid[], outcomes text[], maybe uuid[], begun_at timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.log_events(
    array_agg(f.id), array_agg(f.queue), array_agg(f.task), array_agg(f.attempt),
    array_agg('job.' || f.state),
    array_agg(
      case when f.state = 'cancelled'
      then jsonb_strip_nulls(jsonb_build_object('reason', left(f.last_error, 1000))) end),
    max(f.finished_at))
  from unnest(ids, leases, outcomes) r (id, lease, outcome)
  cross join lateral (
    select f.* from holdfast.finished f where f.id = r.id and f.lease = r.lease
      and f.finished_at >= begun_at offset 0
  ) f
  where r.outcome = 'cancelled'
    or (
      r.id = any(maybe)
      -- Only in READ COMMITTED: under an older snapshot, an event that another session wrote meanwhile
      -- would make the transaction fail.
      and current_setting('transaction_isolation') = 'read committed'
      and exists (select from holdfast.event_count c where c.job_id = r.id offset 0)
    )
$$;
comment on function holdfast.log_ends(uuid[], uuid[], text[], uuid[], timestamptz) is
  'Write the events of jobs that were just completed or cancelled.';
