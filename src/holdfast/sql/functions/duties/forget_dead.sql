-- Delete dead letters that are past the dead_retention of their queue, and their events. A caller
-- may have used the id of a letter again: then the events stay with the later job.

create or replace function holdfast.forget_dead(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  ids constant uuid[] := array(select holdfast.dead_past(now_at, 5000));
  gone uuid[];
begin
  delete from holdfast.dead_letter d where d.id = any(ids);
  gone := holdfast.ids_without_job(ids);
  delete from holdfast.event e where e.job_id = any(gone);
  perform holdfast.delete_rest(gone);
  return cardinality(ids);
end
$$;
comment on function holdfast.forget_dead(timestamptz) is
  'Delete up to 5,000 dead letters past the retention of their queue, with their errors and steps. Returns '
  'how many.';

-- Queue by queue along the index, so that letters that are kept longer are not read.
create or replace function holdfast.dead_past(now_at timestamptz, amount integer)
returns setof uuid
language sql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
  with recursive queues (name) as (
    (select d.queue from holdfast.dead_letter d order by d.queue limit 1)
    union all
    select (select d.queue from holdfast.dead_letter d where d.queue > q.name order by d.queue limit 1)
    from queues q
    where q.name is not null
  ),
  kept as materialized (
    select q.name, coalesce(own.dead_retention, every.dead_retention, interval '365 days') as span
    from queues q
    left join holdfast.queue own on own.name = q.name
    left join holdfast.queue every on every.name = '*'
    where q.name is not null
  )
  select d.id
  from kept k
  cross join lateral (
    select d.id
    from holdfast.dead_letter d
    where d.queue = k.name
      and d.died_at < now_at - k.span
    order by d.died_at
    limit dead_past.amount
    for update skip locked
  ) d
  limit dead_past.amount
$$;
comment on function holdfast.dead_past(timestamptz, integer) is
  'Lock and return dead letters past the retention of their queue.';
