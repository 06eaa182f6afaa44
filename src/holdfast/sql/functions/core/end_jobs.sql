-- Move live jobs to the dead letters, or to the finished ones as cancelled.
--
-- A caller may use an id again after 7 days, so a dead letter may replace an older one of the same id.
create or replace function holdfast.end_jobs(outcome text, ids uuid[], errors text[], now_at timestamptz)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  amount bigint;
begin
  if cardinality(ids) = 0 then
    return 0;
  end if;
  perform holdfast.log_live(
    ids, 'job.' || end_jobs.outcome,
    case when end_jobs.outcome = 'dead' then holdfast.death_details(ids, errors) end, now_at);
  with gone as (
    delete from holdfast.live j where j.id = any(ids) returning j.*
  ),
  ended as materialized (
    select
      g.*, l.queue, l.priority, x.started_at, now_at - x.started_at as duration,
      coalesce(g.lease, g.last_lease) as its_lease, coalesce(left(e.error, 10000), g.last_error) as error
    from gone g
    join holdfast.lane l on l.id = g.lane_id
    left join unnest(ids, case when end_jobs.outcome = 'dead' then errors end) e (id, error) on e.id = g.id
    left join lateral (select x.* from holdfast.running x where x.job_id = g.id offset 0) x on true
  ),
  counted as (
    insert into holdfast.stat_delta (at, outcome, lanes, buckets, jobs, wait_seconds, run_seconds)
    select
      now_at, end_jobs.outcome, array_agg(c.lane_id), array_agg(4095), array_agg(c.jobs), array_agg(0),
      array_agg(0)
    from (select e.lane_id, count(*) as jobs from ended e group by 1) c
    having count(*) > 0
  ),
  buried as (
    insert into holdfast.dead_letter (
      id, queue, priority, task, payload, headers, attempt, max_attempts, worker_id, lease, last_error,
      run_at, created_at, claimed_at, started_at, died_at, duration
    )
    select
      e.id, e.queue, e.priority, e.task, e.payload, e.headers, e.attempt, e.max_attempts, e.worker_id,
      e.its_lease, e.error, e.run_at, e.created_at, e.claimed_at, e.started_at, now_at, e.duration
    from ended e
    where end_jobs.outcome = 'dead'
    on conflict (id) do update set
      (queue, priority, task, payload, headers, attempt, max_attempts, worker_id, lease, last_error,
        run_at, created_at, claimed_at, started_at, died_at, duration)
      = (excluded.queue, excluded.priority, excluded.task, excluded.payload, excluded.headers,
        excluded.attempt,
        excluded.max_attempts, excluded.worker_id, excluded.lease, excluded.last_error, excluded.run_at,
        excluded.created_at, excluded.claimed_at, excluded.started_at, excluded.died_at, excluded.duration)
  ),
  cancelled as (
    insert into holdfast.finished (
      id, queue, priority, task, payload, headers, state, attempt, max_attempts, worker_id, lease, last_error,
      run_at, created_at, claimed_at, started_at, finished_at, duration
    )
    select
      e.id, e.queue, e.priority, e.task, e.payload, e.headers, 'cancelled', e.attempt, e.max_attempts,
      e.worker_id,
      e.its_lease, e.error, e.run_at, e.created_at, e.claimed_at, e.started_at, now_at, e.duration
    from ended e
    where end_jobs.outcome = 'cancelled'
  )
  select count(*) into amount from ended;
  delete from holdfast.running x where x.job_id = any(ids);
  if exists (select from holdfast.waiter) then
    perform holdfast.tell_waiters(ids);
  end if;
  return amount;
end
$$;
comment on function holdfast.end_jobs(text, uuid[], text[], timestamptz) is
  'Move live jobs to the dead letters (dead) or to the finished ones (cancelled). Returns how many were '
  'moved.';

create or replace function holdfast.death_details(ids uuid[], errors text[])
returns jsonb[]
language plpgsql stable
as $$
#variable_conflict use_column
begin
  return array(
    select jsonb_strip_nulls(jsonb_build_object(
      'error', left(coalesce(e.error, j.last_error), 1000), 'progress', x.progress, 'stage', x.stage, 'step',
      x.step))
    from unnest(ids, errors) with ordinality e (id, error, n)
    left join lateral (select j.last_error from holdfast.live j where j.id = e.id offset 0) j on true
    left join lateral (select x.* from holdfast.running x where x.job_id = e.id offset 0) x on true
    order by e.n
  );
end
$$;
comment on function holdfast.death_details(uuid[], text[]) is
  'Return the data of the event `job.dead` for each of these jobs: its error and its last progress.';
