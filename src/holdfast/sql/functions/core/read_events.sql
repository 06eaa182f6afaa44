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
