-- Export days past the longest retention before they are dropped.

-- Whole days wait to be exported, and of a default partition the rows since the last export. A
-- table is left out while an open transaction has written to it: its rows would be dropped
-- unseen. No new transaction writes there, since the day is over.
-- holdfast: role owner
create or replace function holdfast.due_exports()
returns table (
  partition text, parent text, from_at timestamptz, until_at timestamptz, rows bigint, bytes bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
as $$
#variable_conflict use_column
declare
  past constant timestamptz := holdfast.clock() - holdfast.longest_retention();
begin
  if (select q.disposal from holdfast.queue q where q.name = '*') is distinct from 'export' then
    return;
  end if;
  return query
    select p.partition, p.parent, p.low, p.high, holdfast.about_rows(p.place), pg_total_relation_size(p.place)
    from holdfast.partitions() p
    where p.low > '-infinity'
      and p.high < past
      and not exists (select from holdfast.exported e where e.partition = p.partition)
      and not holdfast.is_written(p.place)
    union all
    select d.partition, d.parent, r.first, date_trunc('day', past), r.rows, pg_total_relation_size(d.place)
    from holdfast.partitions() d
    left join holdfast.exported e on e.partition = d.partition
    cross join lateral (
      select min(t.at) as first, count(*) as rows
      from (
        select f.finished_at from holdfast.finished_default f where d.parent = 'finished'
        union all
        select v.at from holdfast.event_default v where d.parent = 'event'
      ) t (at)
      where t.at >= coalesce(e.until, '-infinity') and t.at < date_trunc('day', past)
    ) r
    where d.low = '-infinity'
      and r.rows > 0
      and not holdfast.is_written(d.place)
    order by 3, 1;
end
$$;
comment on function holdfast.due_exports() is
  'Return the partitions past the longest retention that wait to be exported if disposal is export; with '
  'the times of their rows and about how many there are.';

create or replace function holdfast.is_written(place regclass)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select
    from pg_locks k
    where k.locktype = 'relation'
      and k.database = (select d.oid from pg_database d where d.datname = current_database())
      and k.relation = place
      and k.mode = 'RowExclusiveLock'
      and k.pid is distinct from pg_backend_pid()
  )
$$;
comment on function holdfast.is_written(regclass) is
  'Return whether an open transaction has written to a table.';

-- holdfast: role owner
create or replace function holdfast.mark_exported(
  partition text,
  until timestamptz default null,
  rows bigint default 0,
  bytes bigint default null,
  sha256 text default null,
  location text default null
)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  due record;
begin
  perform holdfast.await_duty('export');
  select d.* into due from holdfast.due_exports() d where d.partition = mark_exported.partition;
  if not found then
    if exists (select from holdfast.exported e where e.partition = mark_exported.partition) then
      return false; -- another session was faster
    end if;
    perform holdfast.refuse_value(
      'partition', mark_exported.partition,
      'does not wait to be exported; holdfast.due_exports() has those that do');
  end if;
  if mark_exported.until > due.until_at then
    perform holdfast.refuse_value(
      'until', mark_exported.until::text,
      format('must be at most %s: what is younger is not past its retention', due.until_at));
  end if;
  insert into holdfast.exported as e (partition, until, rows, bytes, sha256, location, exported_at, who)
  values (
    mark_exported.partition, coalesce(mark_exported.until, due.until_at), mark_exported.rows,
    mark_exported.bytes, mark_exported.sha256, mark_exported.location, now_at, session_user)
  on conflict (partition) do update
    set
      until = excluded.until, rows = excluded.rows, bytes = excluded.bytes, sha256 = excluded.sha256,
      location = excluded.location, exported_at = excluded.exported_at, who = excluded.who;
  delete from holdfast.swept s where s.partition = mark_exported.partition; -- it may be dropped now
  perform holdfast.note('export', mark_exported.partition, jsonb_strip_nulls(jsonb_build_object(
    'rows', mark_exported.rows, 'sha256', mark_exported.sha256, 'location', mark_exported.location)));
  return true;
end
$$;
comment on function holdfast.mark_exported(text, timestamptz, bigint, bigint, text, text) is
  'Record that a partition was exported, so that it can be dropped. Of a default partition, rows older than '
  '`until` count as exported. Returns false if another session has recorded it.';

-- For COPY: in a select list these functions return row by row and keep nothing in memory.
-- holdfast: role owner
create or replace function holdfast.export_finished(
  from_at timestamptz, until_at timestamptz, of_default boolean)
returns setof holdfast.finished
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select f.* from holdfast.finished f where not of_default and f.finished_at >= from_at
    and f.finished_at < until_at
  union all
  select f.* from holdfast.finished_default f where of_default and f.finished_at >= from_at
    and f.finished_at < until_at
$$;
comment on function holdfast.export_finished(timestamptz, timestamptz, boolean) is
  'Return the finished jobs of a period, or those that lie in the default partition.';

-- holdfast: role owner
create or replace function holdfast.export_event(
  from_at timestamptz, until_at timestamptz, of_default boolean)
returns setof holdfast.event
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select e.* from holdfast.event e where not of_default and e.at >= from_at and e.at < until_at
  union all
  select e.* from holdfast.event_default e where of_default and e.at >= from_at and e.at < until_at
$$;
comment on function holdfast.export_event(timestamptz, timestamptz, boolean) is
  'Return the events of a period, or those that lie in the default partition.';

-- holdfast: role owner
create or replace function holdfast.export_columns(parent text)
returns table (name text, type text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select a.attname, format_type(a.atttypid, a.atttypmod)
  from pg_attribute a
  where a.attrelid = ('holdfast.' || quote_ident(parent))::regclass
    and parent in ('finished', 'event')
    and a.attnum > 0
    and not a.attisdropped
  order by a.attnum
$$;
comment on function holdfast.export_columns(text) is
  'Return the columns of finished jobs (finished) or events (event), in order, with their types.';
