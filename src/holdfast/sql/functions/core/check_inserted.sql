-- Check the jobs that other programs insert into `job`, such as a bulk COPY. enqueue() checks its
-- own jobs and inserts into `live`; guard.sql says why.

-- Lock the table and its partition in the order of every enqueue_many(). The triggers below would lock `live`
-- first, and an upgrade under load would end in a deadlock.
lock table holdfast.job in share row exclusive mode;

-- A new job is pending, or scheduled if it is due later. An insert in any other state is refused.
create or replace function holdfast.set_first_state()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  now_at timestamptz := holdfast.clock();
begin
  if new.state <> 'pending' then
    perform holdfast.refuse_first_state(new.id, new.state);
  elsif holdfast.due_time(new.run_at, null, now_at) > now_at then
    new.state := 'scheduled';
  end if;
  return new;
end
$$;
comment on function holdfast.set_first_state() is
  'Make a new job scheduled if it is due later, and refuse other states.';

create or replace trigger job_first_state
before insert on holdfast.live
for each row when (new.run_at is not null or new.state <> 'pending')
execute function holdfast.set_first_state();

-- Check the jobs that a statement inserts into `job`, such as a COPY, once per statement.
-- enqueue() does these checks itself and inserts into `live`.
create or replace function holdfast.check_inserted()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  batch record;
  accepted boolean;
begin
  select
    min(i.lane_id) as lane_id, max(i.lane_id) as last_lane_id, min(i.task) as task, max(i.task) as last_task,
    max(octet_length(i.payload::text)) as size, bool_and(holdfast.is_new_job(i)) as is_new,
    count(*) filter (where i.state = 'pending') as jobs, bool_or(i.state <> 'pending') as is_later
  into batch
  from inserted i;
  if batch.size >= 300 then -- a shorter payload can always be read
    batch.is_new := batch.is_new and (
      select bool_and(holdfast.is_readable(i.payload, t.said))
      from inserted i
      cross join lateral (select i.payload::text as said offset 0) t); -- converted once, not for each check
  end if;
  if batch.lane_id = batch.last_lane_id then
    accepted := batch.is_new
      and holdfast.accept_jobs(
        batch.lane_id, batch.task, batch.last_task, batch.size, batch.jobs, batch.is_later);
  else
    select
      batch.is_new
      and bool_and(holdfast.accept_jobs(i.lane_id, i.task, i.last_task, i.size, i.jobs, i.is_later))
    into accepted
    from (
      select i.lane_id, min(i.task) as task, max(i.task) as last_task,
        max(octet_length(i.payload::text)) as size,
        count(*) filter (where i.state = 'pending') as jobs, bool_or(i.state <> 'pending') as is_later
      from inserted i
      group by i.lane_id
    ) i;
  end if;
  if not accepted then
    perform holdfast.refuse_new_job(i) from inserted i;
  end if;
  if not holdfast.unrestricted() then
    -- A live job of the same id would have violated the primary key.
    perform holdfast.refuse_id(i.id)
    from inserted i
    where exists (select from holdfast.finished f where f.id = i.id and not holdfast.in_reach(f.queue))
      or exists (select from holdfast.dead_letter d where d.id = i.id and not holdfast.in_reach(d.queue));
  end if;
  return null;
end
$$;
comment on function holdfast.check_inserted() is
  'Check the lanes and payloads of new jobs, and wake the workers that sleep for them.';

create or replace function holdfast.is_new_job(new holdfast.job)
returns boolean
language sql immutable
as $$
  select new.attempt = 0
    and new.lease is null
    and new.worker_id is null
    and new.last_lease is null
    and new.claimed_at is null
    and new.cancel_requested_at is null
    and new.max_attempts between 1 and 32767
    and new.state in ('pending', 'scheduled')
    and (new.headers is null or holdfast.are_headers(new.headers))
$$;
comment on function holdfast.is_new_job(holdfast.job) is
  'Return whether a row says only what a new job may say: its task, its time and how often to try it.';

-- Return whether a lane accepts jobs of these tasks (the first and the last by name) up to
-- this size. If it does, wake the workers that sleep for them.
create or replace function holdfast.accept_jobs(
  lane_id integer, task text, last_task text, size integer, jobs bigint, is_later boolean)
returns boolean
language plpgsql volatile
as $$
declare
  place record;
begin
  -- One query, since each further one costs a single enqueue at least 10 µs. No limit is
  -- below a kilobyte, so smaller payloads do not look up theirs.
  select
    l.queue, l.task, l.priority,
    case when accept_jobs.size > 1024 then holdfast.payload_limit(l.queue) else 1024 end as payload_limit,
    exists (
      select from holdfast.worker w where w.asleep and (w.above is null or w.above < l.priority)
    ) as asleep,
    exists (select from holdfast.access) as guarded
  into place
  from holdfast.lane l
  where l.id = accept_jobs.lane_id
    and l.kind = 0
    and holdfast.takes_jobs(l.id);
  if not found
    or place.task <> accept_jobs.task
    or place.task <> accept_jobs.last_task
    or accept_jobs.size > place.payload_limit
  then
    return false;
  end if;
  if place.guarded and not (holdfast.unrestricted() or holdfast.in_reach(place.queue)) then
    return false;
  end if;
  if place.asleep or not holdfast.sees_sleepers() then
    if accept_jobs.jobs > 0 then
      perform holdfast.wake(place.queue, place.task, place.priority, accept_jobs.jobs);
    end if;
    if accept_jobs.is_later then
      perform holdfast.wake(place.queue, place.task, place.priority, 0);
    end if;
  end if;
  return true;
end
$$;
comment on function holdfast.accept_jobs(integer, text, text, integer, bigint, boolean) is
  'Return whether a lane accepts new jobs of these tasks; if so, wake the workers that sleep for them.';

-- Find what is wrong with a new job and raise it.
create or replace function holdfast.refuse_new_job(new holdfast.job)
returns void
language plpgsql stable
as $$
declare
  place record;
begin
  if not holdfast.is_new_job(new) then
    if new.headers is not null then
      perform holdfast.refuse_headers(new.headers);
    end if;
    perform holdfast.refuse_broken(new);
    perform holdfast.refuse_first_state(new.id, new.state);
  end if;
  select l.task, l.queue, holdfast.payload_limit(l.queue) as payload_limit into place
  from holdfast.lane l
  where l.id = new.lane_id
    and l.kind = 0
    and holdfast.takes_jobs(l.id);
  if not found or place.task <> new.task then
    perform holdfast.refuse_lane(new.id);
  end if;
  perform holdfast.check_queue(place.queue);
  if octet_length(new.payload::text) > place.payload_limit then
    perform holdfast.refuse_payload(new.id, new.payload, place.payload_limit);
  end if;
  perform holdfast.check_json('payload', new.payload);
end
$$;
comment on function holdfast.refuse_new_job(holdfast.job) is 'Raise an error if a new job breaks a rule.';

create or replace function holdfast.refuse_first_state(id uuid, state text)
returns void
language plpgsql immutable
as $$
begin
  raise exception using
    errcode = 'HF010',
    message = format(
      'job %s cannot begin as %s', refuse_first_state.id,
      case refuse_first_state.state when 'pending' then 'one that was claimed before'
        else refuse_first_state.state end),
    detail = jsonb_build_object(
      'id', refuse_first_state.id, 'from_state', null, 'to_state', refuse_first_state.state),
    hint = 'Leave out state, attempt, worker and lease: a new job is pending, or scheduled by its run_at.';
end
$$;
comment on function holdfast.refuse_first_state(uuid, text) is
  'Raise the error for a new job in a state in which no job begins.';

create or replace function holdfast.refuse_lane(id uuid)
returns void
language plpgsql immutable
as $$
begin
  raise exception using
    errcode = 'HF008',
    message = format('job %s names a lane that is not a lane of its task', refuse_lane.id),
    detail = jsonb_build_object('field', 'lane_id', 'value', null),
    hint = 'Take lane_id from holdfast.lane(queue, priority, task) in the same transaction: '
      'a lane that has been empty for about a quarter of an hour is removed.';
end
$$;
comment on function holdfast.refuse_lane(uuid) is
  'Raise the error for a job in a lane that was removed or belongs to another task.';

create or replace trigger job_check_inserted
after insert on holdfast.job
referencing new table as inserted
for each statement execute function holdfast.check_inserted();
