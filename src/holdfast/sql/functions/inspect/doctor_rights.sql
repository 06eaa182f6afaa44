-- Check rights, for doctor(): find roles with more rights than their work needs.

create or replace function holdfast.doctor_rights(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'critical',
    format('Everybody has the right %s on schema holdfast.', string_agg(a.privilege_type, ', ')),
    'revoke all on schema holdfast from public;',
    jsonb_build_object('rights', jsonb_agg(a.privilege_type))
  from pg_namespace n, aclexplode(n.nspacl) a
  where n.nspname = 'holdfast'
    and a.grantee = 0
  having count(*) > 0
  union all
  select
    'critical',
    format(
      'Everybody has rights on %s of holdfast: %s.',
      holdfast.amount_in_words(count(distinct c.relname), 'table'),
      string_agg(distinct c.relname, ', ')),
    'revoke all on all tables in schema holdfast from public;',
    jsonb_build_object('tables', jsonb_agg(distinct c.relname))
  from pg_class c, aclexplode(c.relacl) a
  where c.relnamespace = 'holdfast'::regnamespace
    and a.grantee = 0
  having count(*) > 0
  union all
  select
    'critical',
    format(
      'Everybody may call %s of holdfast: %s.',
      holdfast.amount_in_words(count(distinct p.proname), 'function'),
      string_agg(distinct p.proname, ', ')),
    'revoke all on all routines in schema holdfast from public;',
    jsonb_build_object('functions', jsonb_agg(distinct p.proname))
  from pg_proc p
  cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
  where p.pronamespace = 'holdfast'::regnamespace
    and a.grantee = 0
    -- The clock of a test database is open; the check test_clock reports it.
    and not (p.proname = 'clock' and to_regclass('holdfast.test_clock') is not null)
  having count(*) > 0
  union all
  select
    case when bool_or(c.relname = 'live') then 'critical' else 'warning' end, -- there nothing is checked
    format('Role %s may %s on holdfast.%s directly, past the functions.', pg_get_userbyid(a.grantee),
      lower(string_agg(distinct a.privilege_type, ', ')), string_agg(distinct c.relname, ', holdfast.')),
    format(
      'revoke all on all tables in schema holdfast from %I; then grant it one of our roles: holdfast migrate '
      '--roles',
      pg_get_userbyid(a.grantee)),
    jsonb_build_object('role', pg_get_userbyid(a.grantee), 'tables', jsonb_agg(distinct c.relname))
  from pg_class c, aclexplode(c.relacl) a
  where c.relnamespace = 'holdfast'::regnamespace
    and c.relkind in ('r', 'p')
    and a.grantee not in (0, c.relowner)
    and a.privilege_type in ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER', 'REFERENCES')
  group by a.grantee
  union all
  select
    'info',
    format(
      'Holdfast is connected as superuser %s, in %s.', a.usename,
      holdfast.amount_in_words(count(*), 'session')),
    'A worker needs no more than the functions: holdfast migrate --roles',
    jsonb_build_object('role', a.usename, 'sessions', count(*))
  from pg_stat_activity a
  join pg_roles r on r.rolname = a.usename
  where a.datname = current_database()
    and a.application_name like 'holdfast%'
    and r.rolsuper
    -- a private server has no other users
    and current_setting('holdfast.embedded', true) is distinct from 'on'
  group by a.usename
$$;
comment on function holdfast.doctor_rights(timestamptz) is 'Find rights that are too wide.';

create or replace function holdfast.doctor_test_clock(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'warning',
    'This is a test database: its clock can be moved by hand.',
    'Nothing, unless somebody relies on it. A database for production is made by holdfast migrate alone.',
    jsonb_build_object('time', now_at)
  where to_regclass('holdfast.test_clock') is not null
$$;
comment on function holdfast.doctor_test_clock(timestamptz) is 'Find a clock that can be moved, as in tests.';
