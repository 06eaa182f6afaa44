-- List workers, and whether they are alive.

-- holdfast: role worker viewer
create or replace function holdfast.list_workers()
returns table (
  id uuid, name text, host text, pid integer, queues text[], tasks text[], status text, holds bigint,
  started_at timestamptz, heartbeat_at timestamptz, recovered integer)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    w.id, w.name, w.host, w.pid, w.queues, w.tasks,
    case
      when w.lost_at is not null then 'lost'
      when w.left_at is not null then 'left'
      -- As health() and why() see it. A worker is `lost` once its jobs were taken back.
      when w.heartbeat_at + w.lease_time <= (select holdfast.clock()) then 'silent'
      when exists (select from holdfast.live j where j.worker_id = w.id and j.state = 'claimed') then 'busy'
      else 'idle'
    end,
    (select count(*) from holdfast.live j where j.worker_id = w.id and j.state = 'claimed'),
    w.started_at, w.heartbeat_at, w.recovered
  from holdfast.worker w
  where (select holdfast.unrestricted())
    or w.queues is null
    or exists (select from unnest(w.queues) q where holdfast.in_reach(q))
  order by w.started_at desc
$$;
comment on function holdfast.list_workers() is
  'List the workers of the last day, what they serve and hold, and when they were last heard from.';
