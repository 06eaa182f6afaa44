-- Make a partition of `finished`, or of `event`, for each of the next 7 days. Each is made as a
-- separate table and then attached, with a short lock_timeout: a report that reads the table
-- would otherwise make the attach wait, and every finish behind it. Never for today: a finish on
-- its way to the default partition would wait for the attach, and then be refused (23514),
-- because its day has a partition now.
create or replace function holdfast.make_partitions(now_at timestamptz, parent text)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
set timezone = 'UTC'
as $$
declare
  time_column constant text := case parent when 'finished' then 'finished_at' else 'at' end;
  today date := (now_at at time zone 'UTC')::date;
  day date;
  name text;
  taken boolean;
  made integer := 0;
begin
  for day in select generate_series(today + 1, today + 7, interval '1 day')::date loop
    name := parent || to_char(day, '_YYYYMMDD');
    continue when to_regclass('holdfast.' || name) is not null;
    -- Rows of that day are already in the default partition. Leave them there.
    execute format(
      'select exists (select from holdfast.%I d where d.%I >= %L and d.%I < %L)',
      parent || '_default', time_column, day::timestamptz, time_column, (day + 1)::timestamptz) into taken;
    continue when taken;
    begin
      -- Autovacuum need not read them because rows come in: see migration 0014.
      execute format(
        'create table holdfast.%I (like holdfast.%I including defaults including constraints)
          with (vacuum_truncate = off, autovacuum_vacuum_insert_threshold = -1)',
        name, parent);
      -- rows can be deleted even if all tables are published
      execute format('alter table holdfast.%I replica identity full', name);
      execute format(
        'alter table holdfast.%I attach partition holdfast.%I for values from (%L) to (%L)',
        parent, name, day::timestamptz, (day + 1)::timestamptz);
      made := made + 1;
    exception when lock_not_available then
      exit; -- the table is in use; the next round tries again
    end;
  end loop;
  return made;
end
$$;
comment on function holdfast.make_partitions(timestamptz, text) is
  'Create the daily partitions of finished jobs, or of events, for the next week.';
