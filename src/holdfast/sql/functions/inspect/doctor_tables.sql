-- Check our tables, for doctor(): everything that the migrations made exists, it is maintained,
-- and no other program writes to it.

create or replace function holdfast.doctor_indexes(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with wanted (name, of) as (values
    ('job_pkey', 'live'), ('job_pending', 'live'), ('job_due', 'live'), ('job_held', 'live'),
    ('lane_pkey', 'lane'), ('lane_by_queue_and_task', 'lane'), ('lane_by_task', 'lane'),
      ('running_pkey', 'running'), ('queue_pkey', 'queue'),
    ('worker_pkey', 'worker'), ('worker_asleep', 'worker'), ('worker_registered', 'worker'),
    ('finished_id', 'finished'),
    ('dead_letter_pkey', 'dead_letter'), ('dead_letter_time', 'dead_letter'),
      ('dead_letter_queue', 'dead_letter'),
    ('attempt_error_job', 'attempt_error'), ('attempt_error_time', 'attempt_error'),
    ('used_id_pkey', 'used_id'), ('used_id_time', 'used_id'), ('cancellation_pkey', 'cancellation'),
    ('schedule_pkey', 'schedule'), ('schedule_tick_pkey', 'schedule_tick'),
      ('schedule_tick_time', 'schedule_tick'),
    ('step_pkey', 'step'), ('step_time', 'step'), ('checkpoint_pkey', 'checkpoint'),
      ('checkpoint_time', 'checkpoint'),
    ('event_id', 'event'), ('event_xid', 'event'), ('event_job', 'event'), ('event_queue', 'event'),
    ('event_count_pkey', 'event_count'), ('event_count_time', 'event_count'), ('waiter_pkey', 'waiter'),
    ('death_pkey', 'death')
  ),
  ours as (
    select i.relname as name, t.relname as of, i.relkind = 'I' as partitioned, i.relispartition as part,
      x.indisvalid and x.indisready as valid
    from pg_index x
    join pg_class i on i.oid = x.indexrelid
    join pg_class t on t.oid = x.indrelid
    where t.relnamespace = 'holdfast'::regnamespace
  )
  select
    'critical',
    format('Index %s of holdfast.%s is missing%s.', w.name, w.of,
      case when w.of = 'live' then ': every claim reads the whole table' else '' end),
    'Create it again as the migrations do: holdfast migrate --print, without --dsn, shows how.',
    jsonb_build_object('index', w.name, 'table', w.of)
  from wanted w
  where w.name not in (select o.name from ours o)
  union all
  select
    'critical',
    format('Index %s of holdfast.%s is not valid, so it costs time and is not used.', o.name, o.of),
    format('reindex index concurrently holdfast.%I;', o.name),
    jsonb_build_object('index', o.name, 'table', o.of)
  from ours o
  where not o.valid
  union all
  select
    'warning',
    format(
      'Index %s on holdfast.%s does not belong to Holdfast, and slows down every claim and finish.',
      o.name, o.of),
    format(
      'drop index %sholdfast.%I; and index a table of your own, or ask holdfast.jobs.', case
      when not o.partitioned then 'concurrently ' else '' end, o.name),
    jsonb_build_object('index', o.name, 'table', o.of)
  from ours o
  where o.of in ('job', 'live')
    and not o.part
    and o.name not in (select w.name from wanted w)
$$;
comment on function holdfast.doctor_indexes(timestamptz) is
  'Find missing and invalid indexes, and foreign indexes on jobs.';

create or replace function holdfast.doctor_triggers(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with wanted (name, of) as (values
    ('job_refuse_delete', 'job'), ('job_is_not_truncated', 'job'), ('job_is_not_truncated', 'live'),
    ('job_first_state', 'live'), ('job_check_inserted', 'job'), ('job_guard', 'job')
  ),
  found as (
    select t.tgname as name, c.relname as of, t.tgenabled as enabled
    from pg_trigger t
    join pg_class c on c.oid = t.tgrelid
    where c.oid in ('holdfast.job'::regclass, 'holdfast.live'::regclass)
      and not t.tgisinternal
      and t.tgparentid = 0
  )
  select
    'critical',
    format(
      'Trigger %s of holdfast.%s %s: what must never happen to a job is not refused any more.', w.name, w.of,
      case when f.name is null then 'is missing' else 'is disabled' end),
    case
      when f.name is null then 'delete from holdfast.migration where name = ''guard''; then: holdfast migrate'
      else format('alter table holdfast.%I enable trigger %I;', w.of, w.name)
    end,
    jsonb_build_object('trigger', w.name)
  from wanted w
  left join found f on f.name = w.name and f.of = w.of
  where f.name is null
    or f.enabled in ('D', 'R')
  union all
  select
    'warning',
    format(
      'Trigger %s on holdfast.%s does not belong to Holdfast: it runs in enqueues, claims or finishes. '
      'Its errors stop them.', f.name, f.of),
    format(
      'Follow the events instead (holdfast.read_events), and: drop trigger %I on holdfast.%I;', f.name, f.of),
    jsonb_build_object('trigger', f.name)
  from found f
  where (f.name, f.of) not in (select w.name, w.of from wanted w)
$$;
comment on function holdfast.doctor_triggers(timestamptz) is
  'Find missing and disabled triggers, and foreign triggers on jobs.';

create or replace function holdfast.doctor_vacuum(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    case when s.n_dead_tup > 10000000 then 'critical' else 'warning' end,
    format('holdfast.%s has %s dead rows beside %s live ones; %s.', s.relname,
      ltrim(to_char(s.n_dead_tup, '999G999G999G990')), ltrim(to_char(s.n_live_tup, '999G999G999G990')),
      coalesce(
        'the last vacuum was ' || holdfast.span_in_words(
        now_at - greatest(s.last_autovacuum, s.last_vacuum)) || ' ago',
        'it was never vacuumed')),
    format(
      'See snapshots for who keeps them from being removed; if nobody does: vacuum (verbose) holdfast.%I;',
      s.relname),
    jsonb_build_object('table', s.relname, 'dead', s.n_dead_tup, 'live', s.n_live_tup,
      'vacuumed_at', greatest(s.last_autovacuum, s.last_vacuum))
  from pg_stat_all_tables s
  where s.schemaname = 'holdfast'
    and s.n_dead_tup > 100000
    and s.n_dead_tup > 2 * s.n_live_tup
    and coalesce(greatest(s.last_autovacuum, s.last_vacuum), '-infinity') < now_at - interval '10 minutes'
$$;
comment on function holdfast.doctor_vacuum(timestamptz) is 'Find dead rows that autovacuum does not remove.';

create or replace function holdfast.doctor_size(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'info',
    format('holdfast.%s takes %s for about %s live rows.', s.relname, pg_size_pretty(s.size),
      ltrim(to_char(s.n_live_tup, '999G999G999G990'))),
    format(
      'The room is used again, so this costs disk alone. To give it back, at a quiet time: vacuum (full) '
      'holdfast.%I; '
      'or pg_repack, which locks for a moment only.', s.relname),
    jsonb_build_object('table', s.relname, 'bytes', s.size, 'live', s.n_live_tup)
  from (
    select s.relname, s.n_live_tup, pg_total_relation_size(s.relid) as size
    from pg_stat_all_tables s
    where s.schemaname = 'holdfast'
      and s.relname in ('live', 'lane', 'running', 'worker', 'event_count', 'cancellation', 'waiter')
  ) s
  where s.size > 1024 * 1024 * 1024
    and s.size > 20000 * greatest(s.n_live_tup, 1)
$$;
comment on function holdfast.doctor_size(timestamptz) is
  'Find tables of live jobs that take far more room than their rows.';

create or replace function holdfast.doctor_sequences(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    case when s.last_value > 0.95 * s.max_value then 'critical' else 'warning' end,
    format(
      'Sequence holdfast.%s has used up %s %% of its numbers.', s.sequencename,
      round(100.0 * s.last_value / s.max_value)),
    case when s.data_type = 'integer'::regtype
      then 'Queues, priorities and tasks make lanes: do not put ids or times into their names.'
      else 'Jobs alone never reach such a number: somebody set it. Ask before you set it back, because heads '
           'rely on it.'
    end,
    jsonb_build_object('sequence', s.sequencename, 'last_value', s.last_value, 'max_value', s.max_value)
  from pg_sequences s
  where s.schemaname = 'holdfast'
    and s.last_value > 0.8 * s.max_value
  union all
  select
    'critical',
    'Sequence holdfast.job_seq hands out numbers in blocks, so a small one may come late: jobs can be '
    'missed.',
    'alter sequence holdfast.job_seq cache 1;',
    jsonb_build_object('sequence', s.sequencename, 'cache', s.cache_size)
  from pg_sequences s
  where s.schemaname = 'holdfast'
    and s.sequencename = 'job_seq'
    and s.cache_size <> 1
$$;
comment on function holdfast.doctor_sequences(timestamptz) is
  'Find sequences that reach their end or must not cache.';

create or replace function holdfast.doctor_partitions(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  today date := (now_at at time zone 'UTC')::date;
  parent text;
  days date[];
  missing date[];
  stray integer;
begin
  foreach parent in array '{finished,event}'::text[] loop
    days := array(
      select (p.low at time zone 'UTC')::date
      from holdfast.partitions() p (of_table, name, place, low, high)
      where p.of_table = parent
        and p.low > '-infinity');
    missing := array(
      select d::date from generate_series(today + 1, today + 2, interval '1 day') d where d::date <> all(days)
      order by d);
    -- There is no partition for the day of the installation, and only for that day.
    if cardinality(days) > 0 and today > (select min(d) from unnest(days) d) and today <> all(days) then
      missing := array_prepend(today, missing);
    end if;
    -- otherwise no duty has run yet
    if cardinality(missing) > 0 and exists (select from holdfast.duty d where d.name = 'upkeep') then
      severity := case when today = any(missing) then 'critical' else 'warning' end;
      finding := format(
        'holdfast.%s has no partition for %s: rows of %s day go to the default partition, and are deleted '
        'one by one later.',
        parent, array_to_string(missing, ', '), case when today = any(missing) then 'this' else 'that' end);
      remedy := 'Start a worker or call holdfast tick: upkeep makes them. If it fails, duties says why.';
      detail := jsonb_build_object('table', parent, 'missing', missing);
      return next;
    end if;
    -- Only if the look costs nothing.
    if pg_relation_size(('holdfast.' || parent || '_default')::regclass) < 64 * 1024 * 1024 then
      execute format('select count(distinct (%I at time zone ''UTC'')::date) from holdfast.%I',
        case parent when 'finished' then 'finished_at' else 'at' end, parent || '_default') into stray;
      if stray > 1 then
        severity := 'info';
        finding := format('holdfast.%s_default holds rows of %s days that had no partition.', parent, stray);
        remedy := 'Nothing: upkeep deletes them past the retention. It happens when nobody did the duties '
                  'for days.';
        detail := jsonb_build_object('table', parent || '_default', 'days', stray);
        return next;
      end if;
    end if;
  end loop;
end
$$;
comment on function holdfast.doctor_partitions(timestamptz) is
  'Find days without a partition, and rows in a default partition.';

-- Other programs that write to our tables, as far as pg_stat_statements knows.
create or replace function holdfast.doctor_statements(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  view text := (
    select quote_ident(n.nspname) || '.pg_stat_statements'
    from pg_extension e
    join pg_namespace n on n.oid = e.extnamespace
    where e.extname = 'pg_stat_statements');
begin
  if view is null or current_setting('shared_preload_libraries') !~ 'pg_stat_statements' then
    return;
  end if;
  -- It leaves out constants, but the statement is not quoted, to be safe.
  return query execute format($query$
    select
      'warning',
      format('%%s has sent %%s on holdfast.job by itself %%s times.', s.sender, s.verb, sum(s.calls)),
      'Claim, finish and cancel through the functions. A select with a later update loses races, and no '
      'worker is notified.',
      jsonb_build_object('user', s.sender, 'verb', s.verb, 'calls', sum(s.calls))
    from (
      select
        pg_get_userbyid(s.userid) as sender, s.calls,
        case
          when s.query ~* '^\s*update\s+(only\s+)?"?holdfast"?\."?(job|live)"?\M' then 'update'
          when s.query ~* '^\s*delete\s+from\s+(only\s+)?"?holdfast"?\."?(job|live)"?\M' then 'delete'
          when s.query ~* ('^\s*select\M.*\mfrom\s+"?holdfast"?\."?(job|live)"?\M.*'
          '\mfor\s+(no\s+key\s+)?update\M') then 'select for update'
        end as verb
      from %s s
      where s.dbid = (select d.oid from pg_database d where d.datname = current_database())
        and s.toplevel
    ) s
    where s.verb is not null
    group by s.sender, s.verb
    $query$, view);
exception
  when undefined_column then null; -- an older pg_stat_statements
end
$$;
comment on function holdfast.doctor_statements(timestamptz) is
  'Find statements of other programs that write to jobs directly.';
