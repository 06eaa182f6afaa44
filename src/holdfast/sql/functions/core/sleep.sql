-- Record that a worker sleeps, or is awake.
--
-- A worker that found nothing calls this, looks once more, and then waits for a notification.
-- The result says whether a transaction that may hold new jobs is open now. Its commit may bring
-- no notification, so the worker should poll soon. The result is also true for a worker that has
-- just fallen asleep, since others see that only after its commit: call again, then look.
--
-- A busy worker can ask for notifications of jobs above a priority only.
-- holdfast: role worker
create or replace function holdfast.sleep(
  worker uuid, asleep boolean default true, above integer default null)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_worker(sleep.worker);
  if sleep.above not between -32768 and 32767 then
    perform holdfast.refuse_value('above', sleep.above::text, 'must be an integer from -32768 to 32767');
  end if;
  update holdfast.worker w
  set asleep = sleep.asleep, above = sleep.above
  where w.id = sleep.worker
    and (w.asleep <> sleep.asleep or w.above is distinct from sleep.above);
  return sleep.asleep and sleep.above is null and (found or exists (
    select
    from pg_locks k
    where k.relation in ('holdfast.job'::regclass, 'holdfast.live'::regclass)
      and k.database = (select d.oid from pg_database d where d.datname = current_database())
      and k.mode = 'RowExclusiveLock'
      and k.pid is distinct from pg_backend_pid()
  ));
end
$$;
comment on function holdfast.sleep(uuid, boolean, integer) is
  'Record that a worker sleeps and wants notifications, or no longer does. With above, it wants only those '
  'of jobs above a priority.';
