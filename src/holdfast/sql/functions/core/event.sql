-- holdfast: after step, cluster
-- The log of a job: what happened to it, and what its handler published.
--
-- Holdfast's own events begin with `job.`: failed, dead, cancelled, cancel_requested, snoozed,
-- interrupted, recovered, replayed, step. A job gets `job.completed` only if it has other
-- events, because most jobs only complete, and `finished` records that.

-- Write events of jobs in the order given, each with its queue, task and attempt. The counters
-- come first, in the order of ids. Their rows are locked until the commit, so the events of one
-- job become visible in the order of their ids: a reader that sees one has seen all before it.
-- Of events beyond `most`, only the number is kept.
create or replace function holdfast.log_events(
  ids uuid[],
  queues text[],
  tasks text[],
  attempts integer[],
  names text[],
  datas jsonb[],
  now_at timestamptz,
  most integer default null
)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  full_ids uuid[];
  totals integer[];
  number xid8;
begin
  if coalesce(cardinality(ids), 0) = 0 then
    return;
  end if;
  number := holdfast.shifted(pg_current_xact_id(), holdfast.note_cluster());
  with counts as (
    insert into holdfast.event_count as c (job_id, events, last_at)
    select i.id, count(*), now_at
    from unnest(ids) i (id)
    group by i.id
    order by i.id
    on conflict (job_id) do update set events = c.events + excluded.events, last_at = excluded.last_at
    returning c.job_id, c.events
  )
  select array_agg(c.job_id), array_agg(c.events) into full_ids, totals
  from counts c
  where c.events > log_events.most;
  insert into holdfast.event (job_id, queue, task, attempt, name, data, at, xid)
  select e.id, e.queue, e.task, e.attempt, e.name, e.data, now_at, number
  from (
    select e.*, row_number() over (partition by e.id order by e.n desc) as from_last
    from unnest(ids, queues, tasks, attempts, names, datas) with ordinality e (
      id, queue, task, attempt, name, data, n)
  ) e
  where full_ids is null
    or e.id <> all(full_ids)
    or totals[array_position(full_ids, e.id)] - e.from_last < log_events.most
  order by e.n;
end
$$;
comment on function holdfast.log_events(
  uuid[], text[], text[], integer[], text[], jsonb[], timestamptz, integer) is
  'Write events of jobs in the order given.';

-- Write one event for each of these jobs that still exist.
create or replace function holdfast.log_live(ids uuid[], name text, datas jsonb[], now_at timestamptz)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
begin
  if cardinality(ids) > 0 then
    perform holdfast.log_events(
      array_agg(j.id), array_agg(l.queue), array_agg(j.task), array_agg(j.attempt), array_agg(log_live.name),
        array_agg(i.data), now_at)
    from unnest(ids, datas) i (id, data)
    cross
      join lateral (
      select j.id, j.task, j.attempt, j.lane_id from holdfast.live j where j.id = i.id offset 0) j
    join holdfast.lane l on l.id = j.lane_id;
  end if;
end
$$;
comment on function holdfast.log_live(uuid[], text, jsonb[], timestamptz) is
  'Write an event for each of these live jobs.';

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
      array_agg(e.data),
    holdfast.clock(), 10000)
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

-- Read events. A cursor says what a reader has seen. For one job it is the id of the last
-- event. For a queue, or all queues, it is a snapshot, because transactions may commit late.
--
-- New events are those that are visible now and were not visible then: their transaction was
-- open then, or began later. A cursor `old/new/id` lies in the middle of such a batch: between
-- these two snapshots, up to this event. So a reader that continues after any event sees every
-- event once and waits for no transaction. The numbers in a snapshot and in the column xid grow
-- from one cluster to the next: see cluster.sql.
-- holdfast: role viewer
create or replace function holdfast.read_events(
  job_id uuid default null,
  queue text default null,
  after text default null,
  amount integer default 1000
)
returns setof holdfast.job_event
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  parts text[] := string_to_array(read_events.after, '/');
  now_seen pg_snapshot := holdfast.seen_now();
  old_seen pg_snapshot;
  new_seen pg_snapshot;
  from_id bigint := 0;
  found_rows bigint := 0;
  in_full constant boolean := holdfast.sees_payloads();
  everything constant boolean := holdfast.unrestricted();
begin
  if read_events.amount is null or read_events.amount not between 1 and 10000 then
    perform holdfast.refuse_value('amount', read_events.amount::text, 'must be between 1 and 10000');
  end if;
  if read_events.job_id is not null then
    if read_events.after is not null and read_events.after !~ '^[0-9]{1,18}$' then
      perform holdfast.refuse_value('after', read_events.after, 'is not a cursor of one job''s events');
    end if;
    return query
      select e.id, e.job_id, e.queue, e.task, e.name, e.attempt, holdfast.event_as_seen(e, in_full), e.at,
        e.id::text
      from holdfast.event e
      where e.job_id = read_events.job_id
        and (everything or e.queue = any((select holdfast.queues_in_reach())::text[]))
        and e.id > coalesce(read_events.after, '0')::bigint
      order by e.id
      limit read_events.amount;
    return;
  end if;

  begin
    if cardinality(parts) = 1 then
      old_seen := parts[1]::pg_snapshot;
      new_seen := now_seen;
    elsif cardinality(parts) = 3 then
      old_seen := nullif(parts[1], '')::pg_snapshot;
      new_seen := parts[2]::pg_snapshot;
      from_id := parts[3]::bigint;
    elsif read_events.after is null then
      new_seen := now_seen;
    else
      raise invalid_text_representation;
    end if;
  exception when invalid_text_representation or numeric_value_out_of_range then
    perform holdfast.refuse_value(
      'after', read_events.after,
        'is not a cursor of the events of a queue, or of all; those of a job have their own');
  end;
  if greatest(pg_snapshot_xmax(old_seen), pg_snapshot_xmax(new_seen)) > pg_snapshot_xmax(now_seen) then
    perform holdfast.refuse_value(
      'after', read_events.after,
      'is a cursor of another server: begin with after => null for all events that are kept, or with '
      'holdfast.event_cursor() for those to come');
  end if;

  loop
    return query
      select e.id, e.job_id, e.queue, e.task, e.name, e.attempt, holdfast.event_as_seen(e, in_full), e.at,
        concat_ws('/', coalesce(old_seen::text, ''), new_seen, e.id)
      from holdfast.events_between(
        read_events.queue, old_seen, new_seen, from_id, read_events.amount - found_rows) e
      order by e.id;
    get diagnostics found_rows = row_count;
    exit when new_seen::text = now_seen::text or found_rows >= read_events.amount;
    old_seen := new_seen;
    new_seen := now_seen;
    from_id := 0;
  end loop;
end
$$;
comment on function holdfast.read_events(uuid, text, text, integer) is
  'Return the events of a job, a queue or all queues after a cursor, in order, each with the cursor behind '
  'it.';

-- Handlers publish what they like, even confidential values.
create or replace function holdfast.event_as_seen(given holdfast.event, in_full boolean)
returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select case when given.data is not null then
    holdfast.as_seen(
      given.data, given.queue, (select f.payload from holdfast.found_job(given.job_id) f), in_full)
  end
$$;
comment on function holdfast.event_as_seen(holdfast.event, boolean) is
  'Return the data of an event as the caller may see it.';

-- Return what is visible now, without what this transaction itself has written. A standby
-- leaves out all numbers after the oldest open transaction too, since it does not know which
-- later ones are open.
create or replace function holdfast.seen_now()
returns pg_snapshot
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.shifted(case
    when pg_is_in_recovery() then format('%1$s:%1$s:', pg_snapshot_xmin(s.seen))::pg_snapshot
    when o.own is null or o.own >= pg_snapshot_xmax(s.seen) then s.seen
    else format(
      '%s:%s:%s', least(pg_snapshot_xmin(s.seen), o.own), pg_snapshot_xmax(s.seen),
      (select string_agg(x.xid::text, ',' order by x.xid)
        from (select pg_snapshot_xip(s.seen) as xid union select o.own) x)
    )::pg_snapshot
  end, (select holdfast.xid_shift()))
  from (select pg_current_snapshot() as seen) s, (select pg_current_xact_id_if_assigned() as own) o
$$;
comment on function holdfast.seen_now() is
  'Return the current snapshot, without what this transaction has written.';

-- The events that the first snapshot did not show and the second does, by id.
create or replace function holdfast.events_between(
  queue text, old_seen pg_snapshot, new_seen pg_snapshot, from_id bigint, amount bigint)
returns setof holdfast.event
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  everything constant boolean := holdfast.unrestricted();
begin
  if old_seen is null then
    return query
      select e.*
      from holdfast.event e
      where (events_between.queue is null or e.queue = events_between.queue)
        and (everything or e.queue = any((select holdfast.queues_in_reach())::text[]))
        and e.id > from_id
        and pg_visible_in_snapshot(e.xid, new_seen)
      order by e.id
      limit events_between.amount;
  else
    return query
      select e.*
      from (
        -- Kept apart, or the planner may read along the ids from the first one.
        select e.*
        from holdfast.event e
        where (e.xid >= pg_snapshot_xmax(old_seen) or e.xid = any(array(select pg_snapshot_xip(old_seen))))
        offset 0
      ) e
      where (events_between.queue is null or e.queue = events_between.queue)
        and (everything or e.queue = any((select holdfast.queues_in_reach())::text[]))
        and e.id > from_id
        and pg_visible_in_snapshot(e.xid, new_seen)
      order by e.id
      limit events_between.amount;
  end if;
end
$$;
comment on function holdfast.events_between(text, pg_snapshot, pg_snapshot, bigint, bigint) is
  'Return the events that are visible in the second snapshot and not in the first.';

-- Return the current cursor, for a reader that wants only later events.
-- holdfast: role viewer
create or replace function holdfast.event_cursor(job_id uuid default null)
returns text
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select case
    when event_cursor.job_id is null then holdfast.seen_now()::text
    else coalesce((select max(e.id) from holdfast.event e where e.job_id = event_cursor.job_id), 0)::text
  end
$$;
comment on function holdfast.event_cursor(uuid) is
  'Return the current cursor in the events of a job, a queue or all queues.';
