-- Resumable jobs: steps that run once, and a checkpoint for loops. Both are written under the
-- lease and outlive the attempt. A replay finds them too.

-- Lock a job that is held under this lease and record that it runs, or raise the error that a
-- report would raise.
create or replace function holdfast.check_held(id uuid, lease uuid, what text)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  refused holdfast.refusal;
begin
  if exists (select from holdfast.start(array[check_held.id], array[check_held.lease])) then
    select v.* into refused from holdfast.verdict(check_held.id, check_held.lease, check_held.what) v;
    perform holdfast.refuse_report(refused, check_held.lease);
  end if;
end
$$;
comment on function holdfast.check_held(uuid, uuid, text) is
  'Refuse a call under a lease that no longer holds the job.';

-- If the step has a result already, that result stays and is returned: the first report wins.
-- holdfast: role worker
create or replace function holdfast.keep_step(
  id uuid, lease uuid, name text, result jsonb default null, duration double precision default null)
returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  kept jsonb;
  others integer;
begin
  if keep_step.name is null or length(keep_step.name) not between 1 and 100 then
    perform holdfast.refuse_value('name', keep_step.name, 'a step must have a name of 1 to 100 characters');
  end if;
  if octet_length(keep_step.result::text) > 524288 then
    perform holdfast.refuse_value(
      'result', octet_length(keep_step.result::text) || ' bytes',
      'the result of a step may have 524288 bytes: store it elsewhere and keep where it is');
  end if;
  perform holdfast.check_json('result', keep_step.result);
  perform holdfast.check_held(keep_step.id, keep_step.lease, 'step');
  -- It belongs to an older job whose id was used again.
  delete from holdfast.step s
  where s.job_id = keep_step.id
    and s.job_created_at <> (select j.created_at from holdfast.live j where j.id = keep_step.id);
  select count(*) into others from holdfast.step s where s.job_id = keep_step.id;
  if others >= 1000
    and not exists (select from holdfast.step s where s.job_id = keep_step.id and s.name = keep_step.name)
    then
    perform holdfast.refuse_value(
      'name', keep_step.name, 'a job may have 1000 steps; use a checkpoint for loops');
  end if;
  insert into holdfast.step (
    job_id, job_created_at, name, position, result, attempt, worker_id, finished_at, duration)
  select
    j.id, j.created_at, keep_step.name, others + 1, keep_step.result, j.attempt, j.worker_id, now_at,
    least(greatest(keep_step.duration, 0), 1e9) * interval '1 second'
  from holdfast.live j
  where j.id = keep_step.id
  on conflict (job_id, name) do nothing;
  if found then
    perform holdfast.log_live(
      array[keep_step.id], 'job.step', array[jsonb_build_object('step', keep_step.name)], now_at);
  end if;
  update holdfast.running x set step = null, changed_at = now_at where x.job_id = keep_step.id
    and x.step = keep_step.name;
  select s.result into kept from holdfast.step s where s.job_id = keep_step.id and s.name = keep_step.name;
  return kept;
end
$$;
comment on function holdfast.keep_step(uuid, uuid, text, jsonb, double precision) is
  'Store the result of a finished step under the lease of its job. Returns the stored result, which is the '
  'first one that was reported.';

-- holdfast: role worker
create or replace function holdfast.keep_checkpoint(id uuid, lease uuid, state jsonb)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_checkpoint(keep_checkpoint.state);
  perform holdfast.check_held(keep_checkpoint.id, keep_checkpoint.lease, 'checkpoint');
  perform holdfast.put_checkpoints(array[keep_checkpoint.id], array[keep_checkpoint.state], holdfast.clock());
end
$$;
comment on function holdfast.keep_checkpoint(uuid, uuid, jsonb) is
  'Store the progress of a running job under its lease. Its next attempt continues from there.';

create or replace function holdfast.put_checkpoints(ids uuid[], states jsonb[], now_at timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.checkpoint (job_id, job_created_at, state, changed_at)
  select r.id, j.created_at, r.state, now_at
  from unnest(ids, states) r (id, state)
  cross join lateral (select j.created_at from holdfast.live j where j.id = r.id offset 0) j
  where r.state is not null
  order by r.id
  on conflict (job_id) do update
    set job_created_at = excluded.job_created_at, state = excluded.state, changed_at = excluded.changed_at
$$;
comment on function holdfast.put_checkpoints(uuid[], jsonb[], timestamptz) is
  'Write the checkpoints of held jobs.';

create or replace function holdfast.check_checkpoint(state jsonb)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if jsonb_typeof(state) is distinct from 'object' or octet_length(state::text) > 32768 then
    perform holdfast.refuse_value(
      'state', coalesce(octet_length(state::text) || ' bytes', 'null'),
      'a checkpoint must be an object of at most 32768 bytes');
  end if;
  perform holdfast.check_json('state', state);
end
$$;
comment on function holdfast.check_checkpoint(jsonb) is
  'Refuse a checkpoint that is not an object or is too large.';

-- holdfast: role viewer
create or replace function holdfast.job_steps(id uuid)
returns table (
  name text, result jsonb, attempt integer, worker uuid, finished_at timestamptz, duration interval)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    holdfast.text_as_seen(s.name, j.queue, j.payload, me.in_full),
    holdfast.as_seen(s.result, j.queue, j.payload, me.in_full),
    s.attempt, s.worker_id, s.finished_at, s.duration
  from holdfast.step s
  left join holdfast.found_job(job_steps.id) j on true
  cross join (select holdfast.sees_payloads() as in_full offset 0) me
  where s.job_id = job_steps.id
    and job_steps.id = any(holdfast.jobs_in_reach(array[job_steps.id]))
  order by s.position
$$;
comment on function holdfast.job_steps(uuid) is 'Return the steps that a job has finished, in order.';

-- holdfast: role viewer
create or replace function holdfast.job_checkpoint(id uuid)
returns jsonb
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select nullif(holdfast.as_seen(c.state, j.queue, j.payload, holdfast.sees_payloads()), '"*****"')
  from holdfast.checkpoint c
  left join holdfast.found_job(job_checkpoint.id) j on true
  where c.job_id = job_checkpoint.id
    and job_checkpoint.id = any(holdfast.jobs_in_reach(array[job_checkpoint.id]))
$$;
comment on function holdfast.job_checkpoint(uuid) is
  'Return the last checkpoint of a job; null if it has none.';

-- Return everything in one call, and nothing of an older job with the same id.
-- holdfast: role worker
create or replace function holdfast.memory(id uuid)
returns table (state jsonb, names text[], results text[])
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    (select c.state from holdfast.checkpoint c where c.job_id = j.id and c.job_created_at = j.created_at),
    coalesce(
      (select array_agg(s.name order by s.position) from holdfast.step s where s.job_id = j.id
      and s.job_created_at = j.created_at), '{}'),
    coalesce(
      (select array_agg(s.result::text order by s.position) from holdfast.step s where s.job_id = j.id
      and s.job_created_at = j.created_at), '{}')
  from holdfast.live j
  where j.id = memory.id
$$;
comment on function holdfast.memory(uuid) is
  'Return the checkpoint and the finished steps with which the next attempt of a job begins.';

-- Jobs that start over lose their steps and checkpoints.
create or replace function holdfast.forget_memory(ids uuid[])
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  with steps as (delete from holdfast.step s where s.job_id = any(ids))
  delete from holdfast.checkpoint c where c.job_id = any(ids)
$$;
comment on function holdfast.forget_memory(uuid[]) is 'Delete the steps and checkpoints of jobs.';
