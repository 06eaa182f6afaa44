-- All jobs, live, finished and dead, with one set of columns: what people query.
--
-- Each state stands apart and is written as a constant, so that the planner leaves
-- out what a query does not ask for: `where state = 'running'` reads the index of
-- held jobs and not the backlog.
create or replace view holdfast.jobs as
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
from holdfast.job j
join holdfast.lane l on l.id = j.lane_id
left join holdfast.event_count c on c.job_id = j.id
where j.state = 'pending'
union all
select
  j.id, l.queue, j.task, j.payload, l.priority::integer, 'scheduled', j.attempt, j.max_attempts, j.run_at, j.created_at,
  j.claimed_at, null, null, greatest(j.changed_at, j.created_at), null, null, null, null, null, null, null, null,
  j.last_error, j.cancel_requested_at, j.headers, null, null, coalesce(c.events, 0)
from holdfast.job j
join holdfast.lane l on l.id = j.lane_id
left join holdfast.event_count c on c.job_id = j.id
where j.state = 'scheduled'
union all
select
  j.id, l.queue, j.task, j.payload, l.priority::integer, case when r.job_id is null then 'claimed' else 'running' end,
  j.attempt, j.max_attempts, coalesce(j.run_at, j.created_at), j.created_at, j.claimed_at, r.started_at, null,
  greatest(j.changed_at, r.changed_at, j.created_at), null, j.worker_id, w.name, j.lease, r.progress::integer, r.stage,
  r.message, null, j.last_error, j.cancel_requested_at, j.headers, r.step,
  -- If it goes on as it did until it last said how far it is. No function of ours: who reads a view needs its rights.
  case when r.progress between 1 and 100 then
    greatest((r.changed_at - r.started_at) * (100 - r.progress) / r.progress, interval '0')
  end,
  coalesce(c.events, 0)
from holdfast.job j
join holdfast.lane l on l.id = j.lane_id
left join holdfast.running r on r.job_id = j.id and r.lease = j.lease
left join holdfast.worker w on w.id = j.worker_id
left join holdfast.event_count c on c.job_id = j.id
where j.state = 'claimed'
union all
select
  f.id, f.queue, f.task, f.payload, f.priority::integer, f.state, f.attempt, f.max_attempts,
  coalesce(f.run_at, f.created_at), f.created_at, f.claimed_at, f.started_at, f.finished_at, f.finished_at, f.duration,
  f.worker_id, w.name, null, case when f.state = 'completed' then 100 end, null, null, f.result, f.last_error, null, f.headers,
  null, null, coalesce(c.events, 0)
from holdfast.finished f
left join holdfast.worker w on w.id = f.worker_id
left join holdfast.event_count c on c.job_id = f.id
union all
select
  d.id, d.queue, d.task, d.payload, d.priority::integer, 'dead', d.attempt, d.max_attempts,
  coalesce(d.run_at, d.created_at), d.created_at, d.claimed_at, d.started_at, d.died_at, d.died_at, d.duration,
  d.worker_id, w.name, null, null, null, null, null, d.last_error, null, d.headers,
  null, null, coalesce(c.events, 0)
from holdfast.dead_letter d
left join holdfast.worker w on w.id = d.worker_id
left join holdfast.event_count c on c.job_id = d.id;

comment on view holdfast.jobs is 'Every job, live, finished and dead, with one set of columns and a readable state.';

-- One job with the errors of its attempts, for a person who looks at it.
create or replace function holdfast.job_errors(id uuid)
returns table (attempt integer, failed_at timestamptz, worker uuid, error text, traceback text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select e.attempt, e.failed_at, e.worker_id, e.error, e.traceback
  from holdfast.attempt_error e
  where e.job_id = job_errors.id
  order by e.failed_at
$$;
comment on function holdfast.job_errors(uuid) is 'What went wrong in each attempt of a job, oldest first.';

create or replace function holdfast.job(id uuid)
returns setof holdfast.jobs
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select j.* from holdfast.jobs j where j.id = job.id order by j.created_at desc limit 1
$$;
comment on function holdfast.job(uuid) is 'One job by its id.';

-- The jobs that match, newest first; a null matches everything.
create or replace function holdfast.list_jobs(queue text default null, task text default null, state text default null, amount integer default 50)
returns setof holdfast.jobs
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select j.*
  from holdfast.jobs j
  where (list_jobs.queue is null or j.queue = list_jobs.queue)
    and (list_jobs.task is null or j.task = list_jobs.task)
    and (list_jobs.state is null or j.state = list_jobs.state)
  order by j.changed_at desc
  limit list_jobs.amount
$$;
comment on function holdfast.list_jobs(text, text, text, integer) is 'Jobs by queue, task and state, those that changed last first.';

-- How many jobs there are per queue and state, and since when the oldest waits.
create or replace function holdfast.stats()
returns table (queue text, state text, jobs bigint, oldest_at timestamptz, paused boolean)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    j.queue, j.state, count(*), min(j.created_at),
    exists (select from holdfast.queue q where q.name = j.queue and q.paused_at is not null)
  from holdfast.jobs j
  group by j.queue, j.state
  order by j.queue, j.state
$$;
comment on function holdfast.stats() is 'Per queue and state: how many jobs, when the oldest was made, and whether the queue is paused.';

create or replace function holdfast.list_workers()
returns table (id uuid, name text, host text, pid integer, queues text[], tasks text[], status text, holds bigint,
  started_at timestamptz, heartbeat_at timestamptz, recovered integer)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    w.id, w.name, w.host, w.pid, w.queues, w.tasks,
    case
      when w.lost_at is not null then 'lost'
      when w.left_at is not null then 'left'
      when exists (select from holdfast.job j where j.worker_id = w.id and j.state = 'claimed') then 'busy'
      else 'idle'
    end,
    (select count(*) from holdfast.job j where j.worker_id = w.id and j.state = 'claimed'),
    w.started_at, w.heartbeat_at, w.recovered
  from holdfast.worker w
  order by w.started_at desc
$$;
comment on function holdfast.list_workers() is 'The workers of the last day, what they serve and hold, and when they were last heard of.';
