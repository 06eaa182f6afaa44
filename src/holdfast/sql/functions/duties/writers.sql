-- Return the open transactions that may have taken a place. The names of prepared ones begin
-- with 'prepared'.
create or replace function holdfast.writers()
returns text[]
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(
    array_agg(distinct coalesce(k.virtualtransaction || ' ' || k.pid, 'prepared ' || k.virtualtransaction)),
    '{}')
  from pg_locks k
  where k.locktype = 'relation'
    and k.relation in ('holdfast.job'::regclass, 'holdfast.live'::regclass)
    and k.database = (select d.oid from pg_database d where d.datname = current_database())
    and k.mode = 'RowExclusiveLock'
    and k.pid is distinct from pg_backend_pid()
$$;
comment on function holdfast.writers() is
  'Return the open transactions that may have taken a place in a lane; the names of prepared ones begin '
  'with "prepared".';
