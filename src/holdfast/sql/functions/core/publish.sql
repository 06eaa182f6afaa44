-- Publish an event of a running job under its lease.
-- holdfast: role worker
create or replace function holdfast.publish(id uuid, lease uuid, name text, data jsonb default null)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_event(publish.name, publish.data);
  perform holdfast.check_held(publish.id, publish.lease, 'event');
  if (select c.events from holdfast.event_count c where c.job_id = publish.id) >= 10000 then
    perform holdfast.refuse_value('name', publish.name, 'the job has 10000 events, and may have no more');
  end if;
  perform holdfast.log_live(array[publish.id], publish.name, array[publish.data], holdfast.clock());
end
$$;
comment on function holdfast.publish(uuid, uuid, text, jsonb) is
  'Publish an event of a running job under its lease.';

-- Publish many events, as a worker flushes them. A worker numbers the events of a lease, so a
-- batch that is sent again after a lost reply is written once. Return the jobs that are no
-- longer held. With `skip_locked`, also return the jobs that another transaction has locked;
-- nothing was written for them.
-- holdfast: role worker
create or replace function holdfast.publish_many(
  ids uuid[], leases uuid[], numbers integer[], names text[], datas jsonb[],
  skip_locked boolean default false)
returns table (publish_many uuid, locked boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  jobs uuid[];
  job_leases uuid[];
  others uuid[];
  are_locked boolean[];
  held uuid[];
  published integer[];
begin
  perform holdfast.check_event(e.name, e.data) from unnest(names, datas) e (name, data);
  select array_agg(d.id), array_agg(d.lease) into jobs, job_leases
  from (select distinct r.id, r.lease from unnest(ids, leases) r (id, lease)) d;
  select coalesce(array_agg(s.start), '{}'), array_agg(s.locked) into others, are_locked
  from holdfast.start(jobs, job_leases, skip_locked => publish_many.skip_locked) s;
  -- Another session that publishes for the same job waits here.
  select array_agg(x.job_id), array_agg(x.published) into held, published
  from (
    select x.job_id, x.published
    from (
      select r.id, r.lease from unnest(jobs, job_leases) r (id, lease) where r.id <> all(others)
      order by r.id offset 0) r
    cross join lateral (
      select x.job_id, x.published from holdfast.running x where x.job_id = r.id
        and x.lease = r.lease for update
    ) x
  ) x;
  perform holdfast.log_events(
    array_agg(e.id), array_agg(l.queue), array_agg(j.task), array_agg(j.attempt), array_agg(e.name),
    array_agg(e.data), holdfast.clock(), 10000)
  from (
    select e.id, e.name, e.data
    from unnest(ids, numbers, names, datas) with ordinality e (id, number, name, data, n)
    join unnest(held, published) h (id, published) on h.id = e.id
    where e.number > h.published
    order by e.n
    offset 0
  ) e
  cross join lateral (select j.task, j.attempt, j.lane_id from holdfast.live j where j.id = e.id offset 0) j
  join holdfast.lane l on l.id = j.lane_id;
  update holdfast.running x
  set published = greatest(x.published, p.number)
  from (select e.id, max(e.number) as number from unnest(ids, numbers) e (id, number) group by e.id) p
  where x.job_id = p.id
    and x.job_id = any(held);
  return query select * from unnest(others, are_locked);
end
$$;
comment on function holdfast.publish_many(uuid[], uuid[], integer[], text[], jsonb[], boolean) is
  'Publish numbered events of running jobs. Returns the jobs that are no longer held, and with skip_locked '
  'also those that another transaction has locked.';

create or replace function holdfast.check_event(name text, data jsonb)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.check_name('name', name);
  if name like 'job.%' then
    perform holdfast.refuse_value('name', name, 'events of this name are the queue''s own; take another');
  end if;
  if octet_length(data::text) > 32768 then
    perform holdfast.refuse_value(
      'data', octet_length(data::text) || ' bytes',
      'the data of an event may have 32768 bytes: store it elsewhere and say where it is');
  end if;
  perform holdfast.check_json('data', data);
end
$$;
comment on function holdfast.check_event(text, jsonb) is
  'Refuse an event with a name that is not allowed, or with too much data.';
