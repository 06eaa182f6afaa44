-- holdfast: after jobs
-- Return one job, and the errors of its attempts, as the caller may see them.

-- holdfast: role producer viewer
create or replace function holdfast.job(id uuid)
returns setof holdfast.jobs
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
  select holdfast.job_as_seen(j::holdfast.every_job)
  from (
    select l.* from holdfast.live_jobs(array[job.id]) l
    union all
    select e.* from holdfast.ended_job e where e.id = job.id
  ) j
  where (select holdfast.unrestricted()) or holdfast.in_reach(j.queue)
  order by j.created_at desc
  limit 1
$$;
comment on function holdfast.job(uuid) is 'Return one job by its id.';

-- One job with the errors of its attempts, for people.
-- holdfast: role viewer
create or replace function holdfast.job_errors(id uuid)
returns table (attempt integer, failed_at timestamptz, worker uuid, error text, traceback text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    e.attempt, e.failed_at, e.worker_id,
    holdfast.text_as_seen(e.error, j.queue, j.payload, s.in_full),
    -- An error quotes values that the handler had.
    case when s.in_full or (holdfast.redaction(j.queue)).visible then
      holdfast.text_as_seen(e.traceback, j.queue, j.payload, s.in_full)
    end
  from holdfast.attempt_error e
  left join holdfast.found_job(job_errors.id) j on true
  cross join (select holdfast.sees_payloads() as in_full offset 0) s
  where e.job_id = job_errors.id
    and job_errors.id = any(holdfast.jobs_in_reach(array[job_errors.id]))
  order by e.failed_at
$$;
comment on function holdfast.job_errors(uuid) is 'Return the error of each attempt of a job, oldest first.';
