-- Register workers, and refuse those that were lost or have left.
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
  version text default null,
  channel text default null
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
  if octet_length(register.channel) not between 1 and 63 then -- NOTIFY would refuse it at each enqueue
    perform holdfast.refuse_value('channel', register.channel, 'must have 1 to 63 bytes');
  end if;
  insert into holdfast.worker (
    id, name, host, pid, version, queues, tasks, lease_time, started_at, heartbeat_at, channel)
  values (
    new_worker, coalesce(left(register.name, 200), 'worker-' || left(new_worker::text, 8)), register.host,
    register.pid, register.version, register.queues, register.tasks, register.lease_time, now_at, now_at,
    register.channel
  );
  return new_worker;
end
$$;
comment on function holdfast.register(text, text[], text[], interval, text, integer, text, text) is
  'Register a worker for one life of its process. Returns its id. With a channel, on which no other worker '
  'listens, it can be woken alone.';
select holdfast.replace_function(
  'holdfast.register(text, text[], text[], interval, text, integer, text)',
  'holdfast.register(text, text[], text[], interval, text, integer, text, text)');

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
    hint = 'Register again with holdfast.register(); other workers run the jobs that the lost one held.';
end
$$;
comment on function holdfast.refuse_worker(uuid) is
  'Raise the error for a worker that is lost, has left or is unknown.';
