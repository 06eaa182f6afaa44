-- What a running job tells about itself. It goes to `running`, never to the
-- job's row, and only under the lease of the current claim.

-- Write down that jobs are being worked on: `seconds` is how long already, by
-- the worker's own measure. Returns the ids that are no longer held.
create or replace function holdfast.start(ids uuid[], leases uuid[], seconds double precision[] default null)
returns setof uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  held uuid[];
begin
  perform holdfast.check_reports(ids, leases, null);
  -- A share lock, so that no finish or recovery slips in between.
  select array_agg(h.id) into held
  from (
    select j.id
    from unnest(ids, leases) r (id, lease)
    join holdfast.job j on j.id = r.id
    where j.lease = r.lease
    order by j.id
    for key share of j
  ) h;
  insert into holdfast.running (job_id, lease, started_at, changed_at)
  select r.id, r.lease, now_at - least(greatest(coalesce(r.seconds, 0), 0), 1e9) * interval '1 second', now_at
  from unnest(ids, leases, start.seconds) r (id, lease, seconds)
  where r.id = any(held)
  order by r.id
  on conflict (job_id) do update
    set lease = excluded.lease, started_at = excluded.started_at, changed_at = excluded.changed_at,
      deadline_at = null, progress = null, stage = null, message = null
    where running.lease <> excluded.lease;
  return query select r.id from unnest(ids) r (id) where r.id <> all(coalesce(held, '{}'));
end
$$;
comment on function holdfast.start(uuid[], uuid[], double precision[]) is
  'Write down that claimed jobs are being worked on; returns those that are no longer held under the lease shown.';

create or replace function holdfast.progress(id uuid, lease uuid, percent integer default null, stage text default null, message text default null)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  refused holdfast.refusal;
begin
  if progress.percent not between 0 and 100 then
    perform holdfast.refuse_value('percent', progress.percent::text, 'must be between 0 and 100');
  end if;
  if length(progress.stage) > 100 then
    perform holdfast.refuse_value('stage', progress.stage, 'must have at most 100 characters');
  end if;
  if exists (select from holdfast.start(array[progress.id], array[progress.lease])) then
    select v.* into refused from holdfast.verdict(progress.id, progress.lease, 'progress') v;
    perform holdfast.refuse_report(refused, progress.lease);
  end if;
  update holdfast.running x
  set
    progress = coalesce(progress.percent, x.progress),
    stage = coalesce(progress.stage, x.stage),
    message = coalesce(left(progress.message, 1000), x.message),
    changed_at = now_at
  where x.job_id = progress.id
    and x.lease = progress.lease;
end
$$;
comment on function holdfast.progress(uuid, uuid, integer, text, text) is
  'Say how far a running job is: percent, stage and message; what is null stays as it was.';

-- The same for many jobs, as a worker flushes it. Returns the ids no longer held.
create or replace function holdfast.progress_many(ids uuid[], leases uuid[], percents integer[], stages text[], messages text[])
returns setof uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  gone uuid[];
begin
  gone := array(select holdfast.start(ids, leases));
  update holdfast.running x
  set
    progress = coalesce(r.percent, x.progress),
    stage = coalesce(left(r.stage, 100), x.stage),
    message = coalesce(left(r.message, 1000), x.message),
    changed_at = now_at
  from unnest(ids, leases, percents, stages, messages) r (id, lease, percent, stage, message)
  where x.job_id = r.id
    and x.lease = r.lease;
  return query select unnest(gone);
end
$$;
comment on function holdfast.progress_many(uuid[], uuid[], integer[], text[], text[]) is
  'Say how far many running jobs are; returns those that are no longer held.';
