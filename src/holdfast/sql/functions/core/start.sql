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
