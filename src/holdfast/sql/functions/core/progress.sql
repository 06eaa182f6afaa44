-- Record what a running job reports about itself. It is written to `running`, never to the job's row,
-- and only under the lease of the current claim.

-- holdfast: role worker
create or replace function holdfast.progress(
  id uuid,
  lease uuid,
  percent integer default null,
  stage text default null,
  message text default null,
  step text default null
)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
begin
  if progress.percent not between 0 and 100 then
    perform holdfast.refuse_value('percent', progress.percent::text, 'must be between 0 and 100');
  end if;
  if length(progress.stage) > 100 then
    perform holdfast.refuse_value('stage', progress.stage, 'must have at most 100 characters');
  end if;
  if length(progress.step) > 100 then
    perform holdfast.refuse_value('step', progress.step, 'must have at most 100 characters');
  end if;
  perform holdfast.check_held(progress.id, progress.lease, 'progress');
  update holdfast.running x
  set
    progress = coalesce(progress.percent, x.progress),
    stage = coalesce(progress.stage, x.stage),
    message = coalesce(left(progress.message, 1000), x.message),
    step = coalesce(progress.step, x.step),
    changed_at = now_at
  where x.job_id = progress.id
    and x.lease = progress.lease;
end
$$;
comment on function holdfast.progress(uuid, uuid, integer, text, text, text) is
  'Report the progress of a running job: percent, stage, message and step. A null leaves a value as it is.';

-- Report the progress of many jobs, as a worker flushes it, with the checkpoints of those that
-- have one. Return the ids that are no longer held. With `skip_locked`, also return the jobs that
-- another transaction has locked; nothing was written for them. An empty step means that the
-- step has ended.
-- holdfast: role worker
create or replace function holdfast.progress_many(
  ids uuid[],
  leases uuid[],
  percents integer[],
  stages text[],
  messages text[],
  steps text[] default null,
  states jsonb[] default null,
  skip_locked boolean default false
)
returns table (progress_many uuid, locked boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  others uuid[];
  are_locked boolean[];
begin
  select coalesce(array_agg(s.start), '{}'), array_agg(s.locked) into others, are_locked
  from holdfast.start(ids, leases, skip_locked => progress_many.skip_locked) s;
  update holdfast.running x
  set
    progress = coalesce(r.percent, x.progress),
    stage = coalesce(left(r.stage, 100), x.stage),
    message = coalesce(left(r.message, 1000), x.message),
    step = case when r.step is null then x.step else nullif(left(r.step, 100), '') end,
    changed_at = now_at
  from unnest(ids, leases, percents, stages, messages, steps) r (id, lease, percent, stage, message, step)
  where x.job_id = r.id
    and x.lease = r.lease
    and r.id <> all(others);
  if states is not null then
    perform holdfast.check_checkpoint(s) from unnest(states) s where s is not null;
    perform holdfast.put_checkpoints(array_agg(r.id), array_agg(r.state), now_at)
    from unnest(ids, states) r (id, state)
    where r.id <> all(others);
  end if;
  return query select * from unnest(others, are_locked);
end
$$;
comment on function holdfast.progress_many(
  uuid[], uuid[], integer[], text[], text[], text[], jsonb[], boolean) is
  'Report the progress of many running jobs, and store their checkpoints. Returns the jobs that are no '
  'longer held, and with skip_locked also those that another transaction has locked.';
