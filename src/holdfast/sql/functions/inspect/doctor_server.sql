-- Check the server, for doctor(): its version, its settings and its connections.

create or replace function holdfast.doctor_version(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with server as (
    select
      current_setting('server_version_num')::integer / 10000 as major,
      current_setting('server_version_num')::integer % 10000 as minor
  )
  select
    case when s.major < 15 then 'critical' when s.major > 18 then 'warning' else 'info' end,
    case
      when s.major < 15 then format('PostgreSQL %s is too old: Holdfast is made for 15 to 18.', s.major)
      when s.major > 18
        then format(
        'PostgreSQL %s is newer than what this release was tested with, which is 15 to 18.', s.major)
      else format('PostgreSQL %s.%s lacks the corrections up to %s.%s.', s.major, s.minor, s.major, k.minor)
    end,
    case
      when s.major < 15 then 'Upgrade PostgreSQL.'
      when s.major > 18 then 'Look for a newer release of Holdfast.'
      else 'Install the newest minor release: it changes no data, a restart is enough.'
    end,
    jsonb_build_object('version', current_setting('server_version'))
  from server s
  left join (values (15, 13), (16, 9), (17, 5), (18, 0)) k (major, minor) on k.major = s.major
  where k.major is null
    or s.minor < k.minor
$$;
comment on function holdfast.doctor_version(timestamptz) is
  'Find a PostgreSQL that is too old, too new or lacks fixes.';

create or replace function holdfast.doctor_settings(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  -- The settings of a new session of this role, and of other sessions in this database.
  with said as (
    select s.name, s.reset_val as value, null::text as whose from pg_settings s
    union
    select
      split_part(c, '=', 1), substr(c, strpos(c, '=') + 1),
      concat_ws(' in ',
        case when s.setrole <> 0 then 'role ' || pg_get_userbyid(s.setrole) end,
        case when s.setdatabase <> 0 then 'this database' end)
    from pg_db_role_setting s, unnest(s.setconfig) c
    where s.setdatabase in (0, (select d.oid from pg_database d where d.datname = current_database()))
  ),
  bad (name, value, severity, harm) as (values
    ('fsync', 'off', 'critical', 'a crash of the machine may destroy the database'),
    ('full_page_writes', 'off', 'critical', 'a crash of the machine may destroy the database'),
    ('zero_damaged_pages', 'on', 'critical', 'damaged pages are silently emptied'),
    ('synchronous_commit', 'off', 'warning',
      'jobs that were enqueued in the moment before a crash are gone, and reports are forgotten'),
    ('autovacuum', 'off', 'critical',
      'the tables of a queue grow without end, and the transaction numbers run out'),
    ('track_counts', 'off', 'critical', 'autovacuum does not know what to do without it'),
    ('default_transaction_read_only', 'on', 'critical', 'nothing can be enqueued or claimed'),
    ('session_replication_role', 'replica', 'critical',
      'our triggers do not fire, so jobs are neither checked nor announced'),
    ('default_transaction_isolation', 'repeatable read', 'warning',
      'claims and duties of consumers in SQL are refused (HF009)'),
    ('default_transaction_isolation', 'serializable', 'warning',
      'claims and duties of consumers in SQL are refused (HF009)')
  )
  select
    b.severity,
    format('%s = %s%s: %s.', b.name, b.value, coalesce(' for ' || string_agg(s.whose, ', '), ''), b.harm),
    case
      when bool_and(s.whose is not null) then 'alter role ... (or alter database ...) reset ' || b.name || ';'
      when b.name like 'default\_%' or b.name in ('synchronous_commit', 'session_replication_role')
        then format(
          'Set it back where it is set: select name, setting, source, sourcefile from pg_settings where name '
          '= %L;', b.name)
      else format('alter system reset %s; select pg_reload_conf();', b.name)
    end,
    jsonb_build_object('setting', b.name, 'value', b.value)
  from bad b
  join said s on s.name = b.name and s.value = b.value
  group by b.name, b.value, b.severity, b.harm
  union all
  select
    'critical',
    format('Autovacuum is turned off for holdfast.%s.', c.relname),
    format('alter table holdfast.%I reset (autovacuum_enabled);', c.relname),
    jsonb_build_object('table', c.relname)
  from pg_class c
  where c.relnamespace = 'holdfast'::regnamespace
    and c.relkind = 'r'
    and c.reloptions && '{
        autovacuum_enabled=false,autovacuum_enabled=off,autovacuum_enabled=0,autovacuum_enabled=no
      }'::text[]
$$;
comment on function holdfast.doctor_settings(timestamptz) is 'Find settings that endanger jobs.';

create or replace function holdfast.doctor_timeouts(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with said as (
    select s.name, s.reset_val as value, 'every session of this role' as whose from pg_settings s
    union
    select
      split_part(c, '=', 1), substr(c, strpos(c, '=') + 1),
      concat_ws(' in ',
        case when s.setrole <> 0 then 'role ' || pg_get_userbyid(s.setrole) end,
        case when s.setdatabase <> 0 then 'this database' end)
    from pg_db_role_setting s, unnest(s.setconfig) c
    where s.setdatabase in (0, (select d.oid from pg_database d where d.datname = current_database()))
  ),
  least_of (name, least, harm) as (values
    -- The duties of workers and of `holdfast tick` set their own timeout.
    ('statement_timeout', interval '10 seconds', 'large batches are cut off'),
    -- The reports of workers set their own timeout too.
    ('lock_timeout', interval '1 second', 'calls that wait for a locked row fail'),
    ('transaction_timeout', interval '1 minute', 'handlers that work in a transaction are cut off'),
    ('idle_session_timeout', interval '15 seconds', 'workers that wait for a notification are cut off')
  ),
  spans as materialized (
    select s.name, s.whose, s.value,
      -- A bare number is in milliseconds.
      (case when s.value ~ '^\d+$' then s.value || ' milliseconds' else s.value end)::interval as span
    from said s
    where s.name in (select l.name from least_of l)
      and s.value ~ '^\d+\s*(us|ms|s|min|h|d)?$'
  )
  select
    'warning',
    format('%s is %s for %s: %s.', s.name, holdfast.span_in_words(s.span), s.whose, l.harm),
    format('Raise it to %s or more for roles that work with Holdfast.', holdfast.span_in_words(l.least)),
    jsonb_build_object('setting', s.name, 'value', s.value, 'of', s.whose)
  from spans s
  join least_of l on l.name = s.name
  where s.span > interval '0'
    and s.span < l.least
$$;
comment on function holdfast.doctor_timeouts(timestamptz) is
  'Find timeouts that cut off the calls of workers and of other programs.';

create or replace function holdfast.doctor_connections(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    case when u.used >= 0.95 * u.most then 'critical' else 'warning' end,
    format('%s of %s connections are in use, %s of them by Holdfast.', u.used, u.most, u.ours),
    'Use fewer processes per worker or a smaller pool_size, put PgBouncer in between, or raise '
    'max_connections.',
    jsonb_build_object('used', u.used, 'most', u.most, 'holdfast', u.ours)
  from (
    select
      count(*) as used,
      count(*) filter (where a.application_name like 'holdfast%') as ours,
      current_setting('max_connections')::integer - current_setting(
        'superuser_reserved_connections')::integer as most
    from pg_stat_activity a
    where a.backend_type = 'client backend'
  ) u
  where u.used >= 0.8 * u.most
$$;
comment on function holdfast.doctor_connections(timestamptz) is
  'Find that nearly all connections are in use.';

create or replace function holdfast.doctor_notifications(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    case when u.usage >= 0.5 then 'critical' else 'warning' end,
    format('The queue of notifications is %s %% full%s.', round(100 * u.usage),
      case when u.usage >= 0.5 then ': Holdfast sends none any more, and workers poll' else '' end),
    'Some session has sent LISTEN and stays in a transaction. Find it: select pid, state, xact_start from '
    'pg_stat_activity where '
      'state like ''idle in%'' order by xact_start;',
    jsonb_build_object('usage', u.usage)
  from (select pg_notification_queue_usage()::numeric as usage) u
  where u.usage >= 0.1
$$;
comment on function holdfast.doctor_notifications(timestamptz) is
  'Find a queue of notifications that fills up.';

create or replace function holdfast.doctor_wraparound(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    case when a.age > 1500000000 then 'critical' else 'warning' end,
    format(
      'The oldest %s of this database is %s million old; at 2,000 million it stops taking writes.', a.what,
      a.age / 1000000),
    'End what holds old snapshots (see snapshots), then: vacuumdb --freeze, the oldest tables first.',
    jsonb_build_object('of', a.what, 'age', a.age)
  from pg_database d
  cross join lateral (values
    ('transaction number', age(d.datfrozenxid)::bigint, current_setting('autovacuum_freeze_max_age')::bigint),
    ('multixact', mxid_age(d.datminmxid)::bigint,
      current_setting('autovacuum_multixact_freeze_max_age')::bigint)
  ) a (what, age, usual)
  where d.datname = current_database()
    and a.age > least(2.5 * a.usual, 1500000000)
$$;
comment on function holdfast.doctor_wraparound(timestamptz) is 'Find transaction numbers that run out.';
