-- Write the log of a job: what happened to it, and what its handler published.
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
    cross join lateral (
      select j.id, j.task, j.attempt, j.lane_id from holdfast.live j where j.id = i.id offset 0
    ) j
    join holdfast.lane l on l.id = j.lane_id;
  end if;
end
$$;
comment on function holdfast.log_live(uuid[], text, jsonb[], timestamptz) is
  'Write an event for each of these live jobs.';
