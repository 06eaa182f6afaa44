-- The queues that hold live jobs or are paused or have settings of their own.
create or replace function holdfast.list_queues()
returns table (name text, paused_at timestamptz, scheduled bigint, pending bigint, held bigint, oldest_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    n.name,
    max(q.paused_at),
    count(j.id) filter (where j.state = 'scheduled'),
    count(j.id) filter (where j.state = 'pending'),
    count(j.id) filter (where j.state = 'claimed'),
    min(j.created_at) filter (where j.state = 'pending')
  from (
    select q.name from holdfast.queue q where q.name <> '*'
    union
    select l.queue from holdfast.lane l
  ) n (name)
  left join holdfast.queue q on q.name = n.name
  left join holdfast.lane l on l.queue = n.name
  left join holdfast.job j on j.lane_id = l.id
  group by n.name
  order by n.name
$$;
comment on function holdfast.list_queues() is
  'Every queue that was used or has settings: since when it is paused, how many jobs are due later, wait and are held, and when the oldest that waits was made.';
