-- Return the partitions of finished jobs and of events with their bounds.
create or replace function holdfast.partitions()
returns table (parent text, partition text, place regclass, low timestamptz, high timestamptz)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select p.relname, c.relname, c.oid::regclass, coalesce(d.low, '-infinity'),
    coalesce(d.low + interval '24 hours', 'infinity')
  from pg_class p
  join pg_inherits i on i.inhparent = p.oid
  join pg_class c on c.oid = i.inhrelid
  cross join lateral (
    select case when c.relname ~ '_[0-9]{8}$'
      then to_date(right(c.relname, 8), 'YYYYMMDD')::timestamp at time zone 'UTC' end as low
  ) d
  where p.relnamespace = 'holdfast'::regnamespace
    and p.relname in ('finished', 'event')
$$;
comment on function holdfast.partitions() is
  'Return the partitions of finished jobs and of events with their bounds.';

create or replace function holdfast.about_rows(place regclass)
returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select greatest(
    pg_stat_get_live_tuples(place), (select c.reltuples::bigint from pg_class c where c.oid = place), 0)
$$;
comment on function holdfast.about_rows(regclass) is 'Return the approximate number of rows of a table.';

-- holdfast: role viewer
create or replace function holdfast.list_partitions()
returns table (
  parent text, partition text, day date, rows bigint, bytes bigint, goes_at timestamptz, fate text,
  exported_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    p.parent, p.partition, d.day, holdfast.about_rows(p.place), pg_total_relation_size(p.place),
    case when k.keep < interval '1000 years' and d.day is not null then p.high + k.keep end,
    case when d.day is null then 'row by row' when k.keep >= interval '1000 years' then 'keep'
      else k.disposal end,
    e.exported_at
  from holdfast.partitions() p
  cross join lateral (
    select (p.low at time zone 'UTC')::date as day where p.low > '-infinity'
    union all
    select null where p.low = '-infinity'
  ) d
  cross join (
    select holdfast.longest_retention() as keep,
      coalesce((select q.disposal from holdfast.queue q where q.name = '*'), 'drop') as disposal
  ) k
  left join holdfast.exported e on e.partition = p.partition
  order by p.parent desc, d.day nulls first
$$;
comment on function holdfast.list_partitions() is
  'List the partitions of finished jobs and of events: their approximate rows, their bytes with indexes, '
  'and when and how they go.';
