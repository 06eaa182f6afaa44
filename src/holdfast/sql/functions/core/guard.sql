-- holdfast: after notify, retire
-- Refuse changes to jobs that must never happen: an illegal change of state, a place in
-- a lane that a head may have passed, a deleted row.
--
-- Other programs write to `job`, and our functions write to `live`, its only partition.
-- A statement-level trigger fires only for the table that the statement names. So these
-- checks cost our functions nothing, and no other role has rights on `live`. A transition
-- table on `live` would cost each enqueue 27 µs, a quarter of its time. A row-level check
-- would cost a fifteenth of a claim.
--
-- `live` has no check constraints and only one WHEN clause. Each statement parses them
-- again: the check constraints of 0.1 took a third of the time of a single claim.

create or replace function holdfast.guard()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_nestloop = off -- the plan is made for the first update of a session, which may change one row
as $$
declare
  wrong record;
begin
  select o.id, o.state, n.state as new_state into wrong
  from before o
  join after n on n.id = o.id
  where o.state <> n.state
    and (select n.state <> all(s.successors) from holdfast.state s where s.name = o.state)
  limit 1;
  if found then
    raise exception using
      errcode = 'HF010',
      message = format('job %s cannot go from %s to %s', wrong.id, wrong.state, wrong.new_state),
      detail = jsonb_build_object('id', wrong.id, 'from_state', wrong.state, 'to_state', wrong.new_state),
      hint = 'The legal changes are in holdfast.state.';
  end if;
  select o.id, n.id as new_id into wrong
  from (select id from before except select id from after) o
  cross join (select id from after except select id from before) n
  limit 1;
  if found then
    raise exception using
      errcode = 'HF010',
      message = format('job %s cannot become job %s', wrong.id, wrong.new_id),
      detail = jsonb_build_object('id', wrong.id),
      hint = 'A job keeps its id.';
  end if;
  perform holdfast.refuse_place(o.id, o.seq, n.seq)
  from before o
  join after n on n.id = o.id
  where n.seq < o.seq
    or (n.seq = o.seq and n.state = 'pending' and (o.state <> 'pending' or o.lane_id <> n.lane_id));
  perform holdfast.refuse_broken(n) from after n;
  perform holdfast.refuse_lane(n.id)
  from before o
  join after n on n.id = o.id
  where n.lane_id <> o.lane_id
    and not exists (select from holdfast.lane l where l.id = n.lane_id and holdfast.takes_jobs(l.id));
  return null;
end
$$;
comment on function holdfast.guard() is
  'Refuse updates of jobs that change a state illegally, reuse an id or a place, or break a rule.';

create or replace function holdfast.refuse_place(id uuid, old_seq bigint, new_seq bigint)
returns void
language plpgsql immutable
as $$
begin
  raise exception using
    errcode = 'HF010',
    message = format(
      'job %s would stand at place %s, not behind its old place %s', refuse_place.id, new_seq, old_seq),
    detail = jsonb_build_object('id', refuse_place.id),
    hint = 'One that becomes pending or changes lane needs a new nextval(''holdfast.job_seq'').';
end
$$;
comment on function holdfast.refuse_place(uuid, bigint, bigint) is
  'Raise the error for a job whose new place is not behind its old one.';

-- Our functions call this before they give out new places, since the sequence may have been reset.
create or replace function holdfast.check_places(ids uuid[])
returns void
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.refuse_place(j.id, j.seq, s.next)
  from (select j.id, j.seq from holdfast.live j where j.id = any(ids) order by j.seq desc limit 1) j
  join (select s.last_value + s.is_called::integer as next from holdfast.job_seq s) s on s.next <= j.seq
$$;
comment on function holdfast.check_places(uuid[]) is
  'Refuse to move these jobs if their next places are not behind their old ones.';

-- Raise the error that a check constraint would raise, if a job breaks a rule of live jobs.
create or replace function holdfast.refuse_broken(new holdfast.job)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  rule text := case
    when new.state not in ('scheduled', 'pending', 'claimed')
      then 'a live job is scheduled, pending or claimed'
    when (new.state = 'claimed') <> (new.lease is not null)
      or (new.state = 'claimed') <> (new.worker_id is not null)
      then 'a claimed job and no other has a lease and a worker'
    when new.state = 'scheduled' and new.run_at is null then 'a scheduled job has a time'
    when new.attempt < 0 then 'attempts are counted from 0'
    when new.max_attempts not between 1 and 32767 then 'max_attempts is between 1 and 32767'
  end;
begin
  if rule is not null then
    raise exception using
      errcode = 'check_violation',
      message = format('job %s: %s', new.id, rule),
      schema = 'holdfast',
      table = 'job',
      constraint = rule;
  end if;
end
$$;
comment on function holdfast.refuse_broken(holdfast.job) is
  'Raise an error if a job breaks a rule of live jobs.';

create or replace function holdfast.refuse_delete()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using
    errcode = 'HF010',
    message = 'jobs do not leave holdfast.job by hand',
    detail = '{"id": null}',
    hint = 'Use holdfast.cancel(id) or a worker''s report.';
end
$$;
comment on function holdfast.refuse_delete() is
  'Raise the error for a job that is deleted other than by our functions.';

-- Functions of 0.1 delete from `job` and call this first. They may still run while a database of 0.1 is
-- upgraded.
create or replace function holdfast.door(is_open boolean)
returns void
language sql volatile
as $$
  select set_config('holdfast.door', case when is_open then 'open' else '' end, true)
$$;
comment on function holdfast.door(boolean) is
  'Let the next statements of this transaction delete from holdfast.job, or not.';

create or replace trigger job_refuse_delete
before delete on holdfast.job
for each statement when (current_setting('holdfast.door', true) is distinct from 'open')
execute function holdfast.refuse_delete();

create or replace trigger job_is_not_truncated
before truncate on holdfast.job
for each statement execute function holdfast.refuse_delete();

create or replace trigger job_is_not_truncated
before truncate on holdfast.live
for each statement execute function holdfast.refuse_delete();

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
    max(octet_length(i.payload::text)) as size, bool_and(holdfast.is_new_job(i)) as is_new
  into batch
  from inserted i;
  if batch.size >= 300 then -- a shorter payload can always be read
    batch.is_new := batch.is_new and (
      select bool_and(holdfast.is_readable(i.payload, t.said))
      from inserted i
      cross join lateral (select i.payload::text as said offset 0) t); -- converted once, not for each check
  end if;
  if batch.lane_id = batch.last_lane_id then
    accepted := batch.is_new and holdfast.accept_jobs(batch.lane_id, batch.task, batch.last_task, batch.size);
  else
    select batch.is_new
      and bool_and(holdfast.accept_jobs(i.lane_id, i.task, i.last_task, i.size)) into accepted
    from (
      select i.lane_id, min(i.task) as task, max(i.task) as last_task,
        max(octet_length(i.payload::text)) as size
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
create or replace function holdfast.accept_jobs(lane_id integer, task text, last_task text, size integer)
returns boolean
language plpgsql volatile
as $$
declare
  place record;
begin
  -- One query, since each further one costs a single enqueue at least 10 µs. No limit is
  -- below a kilobyte, so smaller payloads do not look up theirs.
  select
    l.queue, l.task,
    case when accept_jobs.size > 1024 then holdfast.payload_limit(l.queue) else 1024 end as payload_limit,
    s.of_queue, s.of_all, exists (select from holdfast.access) as guarded
  into place
  from holdfast.lane l
  cross join lateral holdfast.sleepers(l.queue, l.task, l.priority) s
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
  if place.of_queue or place.of_all or not holdfast.sees_sleepers() then
    perform holdfast.wake(place.queue, place.of_queue, place.of_all);
  end if;
  return true;
end
$$;
comment on function holdfast.accept_jobs(integer, text, text, integer) is
  'Return whether a lane accepts new jobs of these tasks; if so, wake the workers that sleep for them.';

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
      'an empty lane is removed after some minutes.';
end
$$;
comment on function holdfast.refuse_lane(uuid) is
  'Raise the error for a job in a lane that was removed or belongs to another task.';

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

create or replace trigger job_check_inserted
after insert on holdfast.job
referencing new table as inserted
for each statement execute function holdfast.check_inserted();

create or replace trigger job_guard
after update on holdfast.job
referencing old table as before new table as after
for each statement execute function holdfast.guard();
