-- List the transactions in this database that an installer waits for: first those that
-- hold locks on our tables, then the oldest. Run by schema/apply.py.
select string_agg(description, '; ')
from (
  select
    concat_ws(' ',
      coalesce('pid ' || pid, 'a prepared transaction'),
      nullif(session.application_name, ''),
      session.state,
      'since ' || date_trunc('second', session.xact_start),
      'holding ' || held.what) as description
  from pg_stat_activity session
  full join (
    select
      lock.pid,
      string_agg(distinct coalesce('holdfast.' || class.relname || ' ' || lock.mode, 'the migration lock'), ', ') as what
    from pg_locks lock
    left join pg_class class on class.oid = lock.relation
    where lock.granted
      and lock.database = (select oid from pg_database where datname = current_database())
      and (class.relnamespace = to_regnamespace('holdfast') and class.relkind in ('r', 'p')
        or lock.locktype = 'advisory' and lock.objsubid = 1
          and (lock.classid::bigint << 32) + lock.objid::bigint = %s)
    group by lock.pid, lock.virtualtransaction
  ) held using (pid)
  where pid is distinct from pg_backend_pid()
    and (held.what is not null or session.xact_start is not null and session.datname = current_database())
  order by held.what is null, session.xact_start
  limit 3
) others
