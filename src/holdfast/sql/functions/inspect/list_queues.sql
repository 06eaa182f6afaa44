-- List the queues that hold live jobs, are paused, or have settings of their own.
-- holdfast: role worker viewer
create or replace function holdfast.list_queues()
returns table (
  name text, paused_at timestamptz, scheduled bigint, pending bigint, held bigint, oldest_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    n.name,
    (select q.paused_at from holdfast.queue q where q.name = n.name),
    coalesce(sum(c.jobs) filter (where c.state = 'scheduled'), 0)::bigint,
    coalesce(sum(c.jobs) filter (where c.state = 'pending'), 0)::bigint,
    coalesce(sum(c.jobs) filter (where c.state in ('claimed', 'running')), 0)::bigint,
    min(c.oldest_at) filter (where c.state = 'pending')
  from (
    select q.name from holdfast.queue q where q.name <> '*'
    union
    select l.queue from holdfast.lane l
  ) n (name)
  left join holdfast.count_live() c on c.queue = n.name
  where ((select holdfast.unrestricted()) or holdfast.in_reach(n.name))
  group by n.name
  order by n.name
$$;
comment on function holdfast.list_queues() is
  'List every queue that was used or has settings: since when it is paused, how many jobs are scheduled, '
  'pending and held, and when the oldest pending one was made. Large numbers are estimates.';
