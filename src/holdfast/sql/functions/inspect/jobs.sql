-- holdfast: after mask, reach
-- Finished and dead jobs with one set of columns.
create or replace view holdfast.ended_job as
select
  f.id,
  f.queue,
  f.task,
  f.payload,
  f.priority::integer as priority,
  f.state,
  f.attempt,
  f.max_attempts,
  coalesce(f.run_at, f.created_at) as run_at,
  f.created_at,
  f.claimed_at,
  f.started_at,
  f.finished_at,
  f.finished_at as changed_at,
  f.duration,
  f.worker_id as worker,
  w.name as worker_name,
  null::uuid as lease,
  case when f.state = 'completed' then 100 end as progress,
  null::text as stage,
  null::text as message,
  f.result,
  f.last_error,
  null::timestamptz as cancel_requested_at,
  f.headers,
  null::text as step,
  null::interval as time_left,
  coalesce(c.events, 0) as events
from holdfast.finished f
left join holdfast.worker w on w.id = f.worker_id
left join holdfast.event_count c on c.job_id = f.id
union all
select
  d.id, d.queue, d.task, d.payload, d.priority::integer, 'dead', d.attempt, d.max_attempts,
  coalesce(d.run_at, d.created_at), d.created_at, d.claimed_at, d.started_at, d.died_at, d.died_at,
  d.duration, d.worker_id, w.name, null, null, null, null, null, d.last_error, null, d.headers,
  null, null, coalesce(c.events, 0)
from holdfast.dead_letter d
left join holdfast.worker w on w.id = d.worker_id
left join holdfast.event_count c on c.job_id = d.id;

comment on view holdfast.ended_job is 'Every ended job with all its columns, for the owner.';

-- All jobs, live, finished and dead, with one set of columns, for our functions: it shows
-- everything. People query holdfast.jobs, below.
--
-- Each state has its own branch with the state as a constant, so that the planner leaves out
-- what a query does not need: `where state = 'running'` reads the index of held jobs and not the
-- backlog.
create or replace view holdfast.every_job as
select
  j.id,
  l.queue,
  j.task,
  j.payload,
  l.priority::integer as priority,
  'pending' as state,
  j.attempt,
  j.max_attempts,
  coalesce(j.run_at, j.created_at) as run_at,
  j.created_at,
  j.claimed_at,
  null::timestamptz as started_at,
  null::timestamptz as finished_at,
  greatest(j.changed_at, j.created_at) as changed_at,
  null::interval as duration,
  null::uuid as worker,
  null::text as worker_name,
  null::uuid as lease,
  null::integer as progress,
  null::text as stage,
  null::text as message,
  null::jsonb as result,
  j.last_error,
  j.cancel_requested_at,
  j.headers,
  null::text as step,
  null::interval as time_left,
  coalesce(c.events, 0) as events
from holdfast.live j
join holdfast.lane l on l.id = j.lane_id
left join holdfast.event_count c on c.job_id = j.id
where j.state = 'pending'
union all
select
  j.id, l.queue, j.task, j.payload, l.priority::integer, 'scheduled', j.attempt, j.max_attempts, j.run_at,
  j.created_at,
  j.claimed_at, null, null, greatest(j.changed_at, j.created_at), null, null, null, null, null, null, null,
  null, j.last_error, j.cancel_requested_at, j.headers, null, null, coalesce(c.events, 0)
from holdfast.live j
join holdfast.lane l on l.id = j.lane_id
left join holdfast.event_count c on c.job_id = j.id
where j.state = 'scheduled'
union all
select
  j.id, l.queue, j.task, j.payload, l.priority::integer, case when r.job_id is null then 'claimed'
    else 'running' end,
  j.attempt, j.max_attempts, coalesce(j.run_at, j.created_at), j.created_at, j.claimed_at, r.started_at, null,
  greatest(j.changed_at, r.changed_at, j.created_at), null, j.worker_id, w.name, j.lease, r.progress::integer,
  r.stage, r.message, null, j.last_error, j.cancel_requested_at, j.headers, r.step,
  -- The estimate if the job continues at its speed so far. It is not a function: a reader of a view
  -- needs the rights on its functions.
  case when r.progress between 1 and 100 then
    greatest((r.changed_at - r.started_at) * (100 - r.progress) / r.progress, interval '0')
  end,
  coalesce(c.events, 0)
from holdfast.live j
join holdfast.lane l on l.id = j.lane_id
left join holdfast.running r on r.job_id = j.id and r.lease = j.lease
left join holdfast.worker w on w.id = j.worker_id
left join holdfast.event_count c on c.job_id = j.id
where j.state = 'claimed'
union all
select e.* from holdfast.ended_job e;

comment on view holdfast.every_job is 'Every job with all its columns, for the owner.';

-- Return live jobs by their ids, with the columns of every_job. The view would leave the choice
-- to the planner. It reads all pending jobs if it takes the table for empty, because the table
-- was empty when it was last vacuumed; and likewise for the tables beside it.
create or replace function holdfast.live_jobs(ids uuid[])
returns setof holdfast.every_job
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
begin
  return query
    select
      j.id, l.queue, j.task, j.payload, l.priority::integer, case when r.job_id is null then j.state
        else 'running' end,
      j.attempt, j.max_attempts, coalesce(j.run_at, j.created_at), j.created_at, j.claimed_at, r.started_at,
      null::timestamptz,
      greatest(j.changed_at, r.changed_at, j.created_at), null::interval, j.worker_id, w.name, j.lease,
      r.progress::integer,
      r.stage, r.message, null::jsonb, j.last_error, j.cancel_requested_at, j.headers, r.step,
      case when r.progress between 1 and 100 then
        greatest((r.changed_at - r.started_at) * (100 - r.progress) / r.progress, interval '0')
      end,
      coalesce(c.events, 0)
    from unnest(ids) i
    cross join lateral (select j.* from holdfast.live j where j.id = i offset 0) j
    join holdfast.lane l on l.id = j.lane_id
    -- Only a held job has a lease and a worker.
    left join lateral (
      select r.* from holdfast.running r where r.job_id = j.id and r.lease = j.lease offset 0) r on true
    left join holdfast.worker w on w.id = j.worker_id
    left join lateral (select c.events from holdfast.event_count c where c.job_id = j.id offset 0) c on true;
end
$$;
comment on function holdfast.live_jobs(uuid[]) is
  'Return those of these jobs that are live, with all their columns.';

-- Every job as the caller may see it: the jobs of the caller's queues, with payloads as they may
-- be shown. security_barrier, so that a condition of the caller's does not see rows before they
-- are filtered. The collation is that of the columns before they were masked, since a view
-- cannot change it.
-- holdfast: role viewer
create or replace view holdfast.jobs with (security_barrier) as
select
  j.id,
  j.queue,
  j.task,
  holdfast.as_seen(j.payload, j.queue, j.payload, (select holdfast.sees_payloads())) as payload,
  j.priority,
  j.state,
  j.attempt,
  j.max_attempts,
  j.run_at,
  j.created_at,
  j.claimed_at,
  j.started_at,
  j.finished_at,
  j.changed_at,
  j.duration,
  j.worker,
  j.worker_name,
  j.lease,
  j.progress,
  holdfast.text_as_seen(
    j.stage, j.queue, j.payload, (select holdfast.sees_payloads())) collate "default" as stage,
  holdfast.text_as_seen(
    j.message, j.queue, j.payload, (select holdfast.sees_payloads())) collate "default" as message,
  holdfast.as_seen(j.result, j.queue, j.payload, (select holdfast.sees_payloads())) as result,
  holdfast.text_as_seen(
    j.last_error, j.queue, j.payload, (select holdfast.sees_payloads())) collate "default" as last_error,
  j.cancel_requested_at,
  nullif(
    holdfast.as_seen(j.headers, j.queue, j.payload, (select holdfast.sees_payloads())), '"*****"') as headers,
  holdfast.text_as_seen(
    j.step, j.queue, j.payload, (select holdfast.sees_payloads())) collate "default" as step,
  j.time_left,
  j.events
from holdfast.every_job j
where (select holdfast.unrestricted()) or j.queue = any((select holdfast.queues_in_reach())::text[]);
comment on view holdfast.jobs is
  'Every live, finished and dead job that the caller may see, with one set of columns and a readable state. '
  'Secrets and redacted keys are masked.';

-- Convert a row of the one view to a row of the other, for functions that read the first and
-- mask only what they return.
create or replace function holdfast.job_as_seen(given holdfast.every_job)
returns holdfast.jobs
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  in_full constant boolean := holdfast.sees_payloads();
  seen holdfast.jobs := given;
begin
  seen.payload := holdfast.as_seen(given.payload, given.queue, given.payload, in_full);
  seen.headers := nullif(holdfast.as_seen(given.headers, given.queue, given.payload, in_full), '"*****"');
  seen.result := holdfast.as_seen(given.result, given.queue, given.payload, in_full);
  seen.last_error := holdfast.text_as_seen(given.last_error, given.queue, given.payload, in_full);
  seen.stage := holdfast.text_as_seen(given.stage, given.queue, given.payload, in_full);
  seen.message := holdfast.text_as_seen(given.message, given.queue, given.payload, in_full);
  seen.step := holdfast.text_as_seen(given.step, given.queue, given.payload, in_full);
  return seen;
end
$$;
comment on function holdfast.job_as_seen(holdfast.every_job) is 'Return a job as the caller may see it.';
