-- Drop, archive or keep the days past the longest retention, by the setting `disposal`:
--
--   drop      it is dropped
--   archive   it is detached and moved to the schema holdfast_archive, where you own it
--   export    it stays until somebody has exported it (`holdfast export`), and is dropped then
--
-- Each needs a lock on the whole table for a moment. It gives up after 50 ms if the table is in
-- use, since every finish would wait behind it.
create or replace function holdfast.drop_partitions(now_at timestamptz, parent text)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
as $$
#variable_conflict use_column
declare
  disposal constant text := coalesce((select q.disposal from holdfast.queue q where q.name = '*'), 'drop');
  keep constant interval := holdfast.longest_retention();
  old record;
  gone integer := 0;
begin
  for old in
    select p.partition, p.low
    from holdfast.partitions() p
    where p.parent = drop_partitions.parent
      and p.low > '-infinity'
      and p.high < now_at - keep
      and (disposal <> 'export' or exists (select from holdfast.exported e where e.partition = p.partition))
    order by p.low
  loop
    begin
      if disposal = 'archive' then
        perform holdfast.archive_partition(parent, old.partition, now_at);
      else
        execute format('drop table holdfast.%I', old.partition);
      end if;
      gone := gone + 1;
    exception when lock_not_available then
      exit; -- the table is in use; the next round tries again
    end;
  end loop;
  return gone;
end
$$;
comment on function holdfast.drop_partitions(timestamptz, text) is
  'Drop or archive the partitions of finished jobs, or of events, that are past the longest retention.';

create or replace function holdfast.archive_partition(parent text, partition text, now_at timestamptz)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.make_archive(null);
  execute format('alter table holdfast.%I detach partition holdfast.%I', parent, partition);
  -- here it stays
  execute format('alter table holdfast.%I reset (autovacuum_vacuum_insert_threshold)', partition);
  execute format('alter table holdfast.%I set schema holdfast_archive', partition);
  execute format('comment on table holdfast_archive.%I is %L', partition, format(
    '%s of %s, archived by Holdfast on %s.',
    case parent when 'finished' then 'Finished jobs' else 'Events of jobs' end,
    to_date(right(partition, 8), 'YYYYMMDD'), (now_at at time zone 'UTC')::date));
end
$$;
comment on function holdfast.archive_partition(text, text, timestamptz) is
  'Move a partition to the schema holdfast_archive, under its name.';

-- Create the schema, and a table for rows of a default partition. That table is made once and
-- stays. So it gets the columns that it lacks: those that a later release has added, and those
-- that were dropped there by hand.
create or replace function holdfast.make_archive(parent text)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  name constant text := parent || '_default';
  lacking record;
begin
  if to_regnamespace('holdfast_archive') is null then
    create schema holdfast_archive;
    comment
      on schema holdfast_archive is 'Days past the retention of Holdfast; it does not look at them again.';
  end if;
  if parent is null then
    return;
  end if;
  if to_regclass(format('holdfast_archive.%I', name)) is null then
    execute format('create table holdfast_archive.%I (like holdfast.%I)', name, parent);
    execute format(
      'comment on table holdfast_archive.%I is %L', name,
      'Rows of days that had no partition of their own, archived by Holdfast.');
  end if;
  for lacking in
    select a.attname, format_type(a.atttypid, a.atttypmod) as type, a.attcollation::regcollation as collation,
      a.attcollation > 0 as collates
    from pg_attribute a
    where a.attrelid = format('holdfast.%I', parent)::regclass
      and a.attnum > 0
      and not a.attisdropped
      and not exists (
        select from pg_attribute o
        where o.attrelid = format('holdfast_archive.%I', name)::regclass and o.attname = a.attname
          and not o.attisdropped)
    order by a.attnum
  loop
    execute format('alter table holdfast_archive.%I add column %I %s %s', name, lacking.attname, lacking.type,
      case when lacking.collates then 'collate ' || lacking.collation end);
  end loop;
end
$$;
comment on function holdfast.make_archive(text) is
  'Create the schema holdfast_archive if it is missing, and a table in it with every column of a '
  'partitioned table.';
