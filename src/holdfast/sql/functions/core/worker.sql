-- Register workers, record that they live or sleep, and deregister them.
--
-- A registration is a random id for one life of a process; the name is a label. A registration
-- that was declared lost cannot be revived: the process registers again.

-- holdfast: role worker
create or replace function holdfast.register(
  name text default null,
  queues text[] default null,
  tasks text[] default null,
  lease_time interval default '30 seconds',
  host text default null,
  pid integer default null,
  version text default null
)
returns uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  new_worker uuid := gen_random_uuid();
begin
  if register.lease_time is null or register.lease_time not between interval '1 second' and interval '1 day'
    then
    perform holdfast.refuse_value(
      'lease_time', register.lease_time::text, 'must be between 1 second and 1 day');
  end if;
  insert into holdfast.worker (
    id, name, host, pid, version, queues, tasks, lease_time, started_at, heartbeat_at)
  values (
    new_worker, coalesce(left(register.name, 200), 'worker-' || left(new_worker::text, 8)), register.host,
      register.pid,
    register.version, register.queues, register.tasks, register.lease_time, now_at, now_at
  );
  return new_worker;
end
$$;
comment on function holdfast.register(text, text[], text[], interval, text, integer, text) is
  'Register a worker for one life of its process. Returns its id.';

-- claim() calls this. It registers an unknown worker with the default lease time, takes a known
-- one as alive, and refuses a lost one.
create or replace function holdfast.attend(worker uuid, now_at timestamptz, queues text[], tasks text[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known holdfast.worker;
begin
  select w.* into known from holdfast.worker w where w.id = attend.worker;
  if not found then
    insert into holdfast.worker (id, name, queues, tasks, started_at, heartbeat_at)
    values (
      attend.worker, 'consumer-' || left(attend.worker::text, 8), attend.queues, attend.tasks, now_at, now_at)
    on conflict (id) do nothing;
  elsif known.lost_at is not null or known.left_at is not null then
    perform holdfast.refuse_worker(attend.worker);
  elsif known.heartbeat_at < now_at - known.lease_time / 3 then
    update holdfast.worker w
    set heartbeat_at = now_at
    where w.id = attend.worker
      and w.lost_at is null
      and w.left_at is null;
    if not found then -- declared lost meanwhile
      perform holdfast.refuse_worker(attend.worker);
    end if;
  end if;
end
$$;
comment on function holdfast.attend(uuid, timestamptz, text[], text[]) is
  'Record that a worker claims: register it if it is unknown, refuse it if it is lost.';

create or replace function holdfast.check_worker(worker uuid)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform from holdfast.worker w where w.id = check_worker.worker and w.lost_at is null and w.left_at is null;
  if not found then
    perform holdfast.refuse_worker(check_worker.worker);
  end if;
end
$$;
comment on function holdfast.check_worker(uuid) is 'Refuse a worker that is lost, has left or is unknown.';

create or replace function holdfast.refuse_worker(worker uuid)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  known holdfast.worker;
begin
  select w.* into known from holdfast.worker w where w.id = refuse_worker.worker;
  raise exception using
    errcode = 'HF006',
    message = case
      when known.lost_at is not null then
        format(
          'worker %s was declared lost at %s, after no heartbeat since %s', refuse_worker.worker,
          known.lost_at, known.heartbeat_at)
      when known.left_at is not null then format('worker %s left at %s', refuse_worker.worker, known.left_at)
      else format('worker %s is not registered', refuse_worker.worker)
    end,
    detail = jsonb_build_object('worker', refuse_worker.worker),
    hint = 'Register anew with holdfast.register(); what the old registration held is being run by others.';
end
$$;
comment on function holdfast.refuse_worker(uuid) is
  'Raise the error for a worker that is lost, has left or is unknown.';

-- There is one heartbeat per worker, not per job. So the lease of a job lives as long as its
-- worker does, however long it runs. Only the worker's row is written.
-- holdfast: role worker
create or replace function holdfast.heartbeat(worker uuid)
returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  now_at timestamptz := holdfast.clock();
begin
  update holdfast.worker w
  set heartbeat_at = now_at
  where w.id = heartbeat.worker
    and w.lost_at is null
    and w.left_at is null;
  if not found then
    perform holdfast.refuse_worker(heartbeat.worker);
  end if;
  return now_at;
end
$$;
comment on function holdfast.heartbeat(uuid) is
  'Record that a worker is alive. Refuses a worker that was declared lost. Returns the time of the '
  'database.';

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

-- The jobs that the worker still holds go back, unstarted ones without a charge. Leaving twice is
-- no error, since the reply to the first call may have been lost. If another transaction has
-- locked a job, recover() takes it back later.
-- holdfast: role worker
create or replace function holdfast.leave(worker uuid)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  held_ids uuid[];
  held_leases uuid[];
  outcomes text[];
  refused bigint;
begin
  update holdfast.worker w
  set left_at = holdfast.clock(), asleep = false
  where w.id = leave.worker
    and w.left_at is null
    and w.lost_at is null;
  if not found then
    perform from holdfast.worker w where w.id = leave.worker and w.lost_at is null;
    if not found then
      perform holdfast.refuse_worker(leave.worker);
    end if;
  end if;
  -- No plain join: if the planner takes `live` for empty, as after a vacuum beside an old snapshot,
  -- it would read all ids in the order of the join.
  select array_agg(j.id), array_agg(j.lease),
    array_agg(case when r.started then 'interrupted' else 'released' end)
  into held_ids, held_leases, outcomes
  from (
    select j.id, j.lease from holdfast.live j where j.worker_id = leave.worker
      and j.state = 'claimed' offset 0
  ) j
  left join lateral (
    select true as started from holdfast.running r where r.job_id = j.id and r.lease = j.lease offset 0
  ) r on true;
  if held_ids is null then
    return 0;
  end if;
  select count(*) into refused from holdfast.finish(held_ids, held_leases, outcomes, skip_locked => true);
  return cardinality(held_ids) - refused;
end
$$;
comment on function holdfast.leave(uuid) is
  'Deregister a worker and give back the jobs that it holds. Returns how many.';

-- Give back the jobs that a worker holds in the database but does not know, because the replies
-- to their claims were lost.
--
-- `before` is a time that an earlier heartbeat returned. A claim sent before it is either among
-- the leases in flight or long known, so no reply that is still on its way is taken for lost.
-- Jobs that another transaction has locked are left for the next call.
-- holdfast: role worker
create or replace function holdfast.disown(worker uuid, held uuid[], in_flight uuid[], before timestamptz)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  unknown_ids uuid[];
  unknown_leases uuid[];
  refused bigint;
begin
  perform holdfast.check_worker(disown.worker);
  select array_agg(j.id), array_agg(j.lease) into unknown_ids, unknown_leases
  from holdfast.live j
  where j.worker_id = disown.worker
    and j.state = 'claimed'
    and j.claimed_at < disown.before
    and j.id <> all(disown.held)
    and j.lease <> all(disown.in_flight);
  if unknown_ids is null then
    return 0;
  end if;
  select count(*) into refused
  from holdfast.finish(
    unknown_ids, unknown_leases, array_fill('released'::text, array[cardinality(unknown_ids)]),
      skip_locked => true);
  return cardinality(unknown_ids) - refused;
end
$$;
comment on function holdfast.disown(uuid, uuid[], uuid[], timestamptz) is
  'Give back, without a charge, the jobs that a worker holds but does not know. Returns how many.';
