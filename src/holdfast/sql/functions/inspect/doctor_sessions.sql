-- Check sessions and transactions, for doctor(): find those that hold others up.

-- An old snapshot keeps dead rows from being removed everywhere in the database.
create or replace function holdfast.doctor_snapshots(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    case when now_at - a.xact_start > interval '6 hours' then 'critical' else 'warning' end,
    format(
      'Process %s (%s) has held a snapshot since %s, for %s: rows deleted since then cannot be removed.',
      a.pid, concat_ws(', ', nullif(a.application_name, ''), a.usename, a.state),
      holdfast.time_in_words(a.xact_start), holdfast.span_in_words(now_at - a.xact_start)),
    format(
      'End its transaction: select pg_terminate_backend(%s); and set idle_in_transaction_session_timeout.',
      a.pid),
    jsonb_build_object('pid', a.pid, 'application', a.application_name, 'user', a.usename, 'state', a.state,
      'since', a.xact_start, 'age', age(coalesce(a.backend_xmin, a.backend_xid)))
  from pg_stat_activity a
  where a.datname = current_database()
    and a.backend_type = 'client backend'
    and a.pid <> pg_backend_pid()
    and (a.backend_xmin is not null or a.backend_xid is not null)
    and a.xact_start < now_at - interval '10 minutes'
    and a.pid <> all(array(select w.pid from holdfast.doctor_writers() w where w.pid is not null))
  union all
  select
    'warning',
    format('Replication slot %s (%s) holds a snapshot that is %s transactions old.',
      s.slot_name, case when s.active then 'active' else 'nobody uses it' end,
      age(coalesce(s.xmin, s.catalog_xmin))),
    case
      when s.active then 'Let its consumer catch up.'
      else format('If nobody needs it: select pg_drop_replication_slot(%L);', s.slot_name)
    end,
    jsonb_build_object('slot', s.slot_name, 'active', s.active, 'age', age(coalesce(s.xmin, s.catalog_xmin)))
  from pg_replication_slots s
  where s.xmin is not null
    and (not s.active or age(s.xmin) > 1000000)
  union all
  select
    'warning',
    format('Standby %s holds a snapshot that is %s transactions old, by its feedback.',
      coalesce(nullif(r.application_name, ''), host(r.client_addr), r.pid::text), age(r.backend_xmin)),
    'End the long query on the standby, or turn hot_standby_feedback off there.',
    jsonb_build_object('standby', r.application_name, 'pid', r.pid, 'age', age(r.backend_xmin))
  from pg_stat_replication r
  where age(r.backend_xmin) > 1000000
$$;
comment on function holdfast.doctor_snapshots(timestamptz) is
  'Find old snapshots: of sessions, replication slots and standbys.';

-- Sessions and prepared transactions that hold a lock on one of our tables with which they may write.
create or replace function holdfast.doctor_writers()
returns table (pid integer, tables text)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select k.pid, string_agg(distinct c.relname || ' ' || k.mode, ', ')
  from pg_locks k
  join pg_class c on c.oid = k.relation
  where k.locktype = 'relation'
    and k.granted
    and k.mode <> 'AccessShareLock'
    and k.database = (select d.oid from pg_database d where d.datname = current_database())
    and c.relnamespace = 'holdfast'::regnamespace
    and c.relkind in ('r', 'p')
    and k.pid is distinct from pg_backend_pid()
  group by k.pid, k.virtualtransaction
$$;
comment on function holdfast.doctor_writers() is
  'Find locks on our tables with which other programs may write.';

create or replace function holdfast.doctor_prepared(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    case when now_at - p.prepared > interval '1 hour' then 'critical' else 'warning' end,
    format(
      'Transaction %L of %s has been prepared since %s, for %s. It holds its locks and its snapshot until '
      'somebody ends it%s.',
      p.gid, p.owner, holdfast.time_in_words(p.prepared), holdfast.span_in_words(now_at - p.prepared),
      case when exists (select from holdfast.doctor_writers() w where w.pid is null)
        then ', and no head can be proven to move' else '' end),
    format('commit prepared %L; or rollback prepared %L;', p.gid, p.gid),
    jsonb_build_object('gid', p.gid, 'since', p.prepared)
  from pg_prepared_xacts p
  where p.database = current_database()
    and p.prepared < now_at - interval '1 minute'
$$;
comment on function holdfast.doctor_prepared(timestamptz) is
  'Find prepared transactions that nobody has ended.';

create or replace function holdfast.doctor_long_transactions(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    case when now_at - a.xact_start > interval '1 hour' then 'critical' else 'warning' end,
    format(
      'Process %s (%s) has had a transaction open since %s, for %s, that has written or locked holdfast.%s. '
      'Jobs that it enqueued are not visible yet, no other session can take the jobs that it claimed, and '
      'heads wait for it.',
      a.pid, concat_ws(', ', nullif(a.application_name, ''), a.usename, a.state),
      holdfast.time_in_words(a.xact_start), holdfast.span_in_words(now_at - a.xact_start), w.tables),
    format('Commit sooner. If it hangs: select pg_terminate_backend(%s);', a.pid),
    jsonb_build_object('pid', a.pid, 'application', a.application_name, 'user', a.usename, 'state', a.state,
      'since', a.xact_start, 'locks', w.tables)
  from holdfast.doctor_writers() w
  join pg_stat_activity a on a.pid = w.pid
  where a.xact_start < now_at - interval '1 minute'
    and a.backend_type = 'client backend'
$$;
comment on function holdfast.doctor_long_transactions(timestamptz) is
  'Find transactions that wrote to our tables and stay open.';

create or replace function holdfast.doctor_blocked(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'warning',
    format('Process %s (%s) has waited for a lock on holdfast.%s for %s, behind %s.',
      k.pid, concat_ws(', ', nullif(a.application_name, ''), a.usename), c.relname,
      holdfast.span_in_words(now_at - k.waitstart),
      'process ' || array_to_string(pg_blocking_pids(k.pid), ', ')),
    'End the session that holds the lock: a migration, a LOCK TABLE by hand, or a query on a partition that '
    'is to be dropped.',
    jsonb_build_object(
      'pid', k.pid, 'blocked_by', pg_blocking_pids(k.pid), 'table', c.relname, 'mode', k.mode)
  from pg_locks k
  join pg_class c on c.oid = k.relation
  left join pg_stat_activity a on a.pid = k.pid
  where not k.granted
    and k.database = (select d.oid from pg_database d where d.datname = current_database())
    and c.relnamespace = 'holdfast'::regnamespace
    and k.waitstart < now_at - interval '5 seconds'
$$;
comment on function holdfast.doctor_blocked(timestamptz) is
  'Find sessions that wait for a lock on one of our tables.';
