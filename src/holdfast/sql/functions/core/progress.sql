-- What a running job reports about itself. It is written to `running`, never to the job's row,
-- and only under the lease of the current claim.

-- Record that jobs are running. `seconds` is for how long already, as the worker measured. After
-- its timeout a job is taken away, even if its worker hangs. A job marked `once` is never tried
-- again after this. Return the ids that are no longer held: do not begin those.
--
-- With `skip_locked` the call waits for no other transaction. A job that another one has locked
-- is returned with `locked` true, and nothing is written for it. Every writer of a job's other
-- rows locks the job first, so this one lock shows whether any of them is open.
-- holdfast: role worker
create or replace function holdfast.start(
  ids uuid[],
  leases uuid[],
  seconds double precision[] default null,
  timeouts interval[] default null,
  once boolean[] default null,
  skip_locked boolean default false
)
returns table (start uuid, locked boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  held uuid[];
begin
  perform holdfast.check_reports(ids, leases, null);
  perform holdfast.refuse_doubles(ids);
  if true = any(start.once) and current_setting('synchronous_commit') = 'off' then
    -- If a crash of the server lost such a start, the job would run twice.
    perform set_config('synchronous_commit', 'on', true);
  end if;
  if start.skip_locked then
    select array_agg(r.id) into held
    from (select r.id, r.lease from unnest(ids, leases) r (id, lease) order by r.id offset 0) r
    cross join lateral (
      select from holdfast.live j where j.id = r.id and j.lease = r.lease for update skip locked
    ) j;
  else
    -- A share lock, so that no finish or recovery happens in between.
    select array_agg(r.id) into held
    from (select r.id, r.lease from unnest(ids, leases) r (id, lease) order by r.id offset 0) r
    cross join lateral (select from holdfast.live j where j.id = r.id and j.lease = r.lease for key share) j;
  end if;
  -- Keep an existing row, unless it belongs to an earlier claim or lacks the deadline. The start of
  -- a suspect was recorded by its claim, and a waiting job may have been taken for running; both
  -- have no deadline.
  insert into holdfast.running as x (job_id, lease, started_at, deadline_at, once, changed_at)
  select
    r.id, r.lease, now_at - least(greatest(coalesce(r.seconds, 0), 0), 1e9) * interval '1 second',
    now_at + r.timeout, coalesce(r.once, false), now_at
  from unnest(ids, leases, start.seconds, timeouts, start.once) r (id, lease, seconds, timeout, once)
  where r.id = any(held)
  order by r.id
  on conflict (job_id) do update
    set
      lease = excluded.lease, started_at = excluded.started_at,
      deadline_at = coalesce(excluded.deadline_at, case when x.lease = excluded.lease then x.deadline_at end),
      once = excluded.once or (x.once and x.lease = excluded.lease),
      progress = null, stage = null, message = null, step = null, changed_at = excluded.changed_at,
      published = case when x.lease = excluded.lease then x.published else 0 end
    where x.lease <> excluded.lease
      or excluded.deadline_at is not null
      or excluded.once;
  return query
    select r.id, exists (select from holdfast.live j where j.id = r.id and j.lease = r.lease offset 0)
    from unnest(ids, leases) r (id, lease)
    where r.id <> all(coalesce(held, '{}'));
end
$$;
comment on function holdfast.start(uuid[], uuid[], double precision[], interval[], boolean[], boolean) is
  'Record that claimed jobs are running. Returns the jobs that are no longer held under the lease given, '
  'and with skip_locked also those that another transaction has locked.';

-- A worker asks here which of its jobs were taken away.
-- holdfast: role worker
create or replace function holdfast.not_held(ids uuid[], leases uuid[])
returns setof uuid
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
  select r.id
  from unnest(not_held.ids, not_held.leases) r (id, lease)
  where not exists (select from holdfast.live j where j.id = r.id and j.lease = r.lease offset 0)
$$;
comment on function holdfast.not_held(uuid[], uuid[]) is
  'Return which of these jobs are no longer held under the leases given.';

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
