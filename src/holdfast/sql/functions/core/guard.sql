-- holdfast: after notify, retire
-- The database itself refuses what must never happen to a job, whoever asks:
-- an illegal change of state, a place in a lane that a head may have passed, a
-- row that vanishes other than through our functions.
--
-- Hands write `job`, our functions write `live`, which is its one partition: they
-- are the same rows. A trigger for a whole statement belongs to the table that the
-- statement names, so what is checked of all others costs our functions nothing.
-- (To keep the new rows of a statement at hand for such a trigger costs 27 µs, a
-- quarter of an enqueue, and to ask for each row whether it is to be checked a
-- fifteenth of a claim.) Nobody else has rights on `live`.
drop trigger if exists job_leaves_by_the_door on holdfast.live;
drop trigger if exists job_arrival on holdfast.live;
drop trigger if exists job_guard on holdfast.live;

-- There are no check constraints on `live`, and hardly a WHEN clause: each
-- is parsed anew by every statement, and with all the rules in them that made up
-- a third of the time that it takes to claim a single job. (0.1 had them.)
alter table holdfast.live
  drop constraint if exists "a live job is scheduled, pending or claimed",
  drop constraint if exists "a claimed job and no other has a lease and a worker",
  drop constraint if exists "a scheduled job has a time",
  drop constraint if exists "attempts are counted from 0",
  drop constraint if exists "max_attempts is between 1 and 32767";

create or replace function holdfast.guard()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_nestloop = off -- the plan is made for the first update of a session, which may be of one row
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
comment on function holdfast.guard() is 'Refuse what must never happen to a job.';

create or replace function holdfast.refuse_place(id uuid, old_seq bigint, new_seq bigint)
returns void
language plpgsql immutable
as $$
begin
  raise exception using
    errcode = 'HF010',
    message = format('job %s would stand at place %s, not behind its old place %s', refuse_place.id, new_seq, old_seq),
    detail = jsonb_build_object('id', refuse_place.id),
    hint = 'One that becomes pending or changes lane needs a new nextval(''holdfast.job_seq'').';
end
$$;
comment on function holdfast.refuse_place(uuid, bigint, bigint) is 'Raise the error for a job that would not stand behind its old place.';

-- For our own functions, before they give out new places: somebody may have reset the sequence.
create or replace function holdfast.check_places(ids uuid[])
returns void
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.refuse_place(j.id, j.seq, s.next)
  from (select j.id, j.seq from holdfast.live j where j.id = any(ids) order by j.seq desc limit 1) j
  join (select s.last_value + s.is_called::integer as next from holdfast.job_seq s) s on s.next <= j.seq
$$;
comment on function holdfast.check_places(uuid[]) is 'Refuse new places for these jobs that would not be behind their old ones.';

-- Raise what every live job must be, if this one is not: as a check constraint would.
create or replace function holdfast.refuse_broken(new holdfast.job)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  rule text := case
    when new.state not in ('scheduled', 'pending', 'claimed') then 'a live job is scheduled, pending or claimed'
    when (new.state = 'claimed') <> (new.lease is not null) or (new.state = 'claimed') <> (new.worker_id is not null)
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
comment on function holdfast.refuse_broken(holdfast.job) is 'Raise the error for a job that breaks a rule of every live job.';

drop function if exists holdfast.refuse_change() cascade; -- what the guard was called in 0.1
create or replace function holdfast.refuse_leaving()
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
comment on function holdfast.refuse_leaving() is 'Raise the error for a row that vanishes other than through our functions.';

-- Functions of earlier releases, which may be at work during an upgrade, delete from `job` by this door.
create or replace function holdfast.door(is_open boolean)
returns void
language sql volatile
as $$
  select set_config('holdfast.door', case when is_open then 'open' else '' end, true)
$$;
comment on function holdfast.door(boolean) is 'Let the next statements delete from holdfast.job, or no longer.';

create or replace trigger job_leaves_by_the_door
before delete on holdfast.job
for each statement when (current_setting('holdfast.door', true) is distinct from 'open')
execute function holdfast.refuse_leaving();

create or replace trigger job_is_not_truncated
before truncate on holdfast.job
for each statement execute function holdfast.refuse_leaving();

create or replace trigger job_is_not_truncated
before truncate on holdfast.live
for each statement execute function holdfast.refuse_leaving();

-- A new job is pending, or scheduled if it is due later; nothing else may be
-- said at its birth, whatever the path it comes by.
create or replace function holdfast.birth()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  now_at timestamptz := holdfast.clock();
begin
  if new.state <> 'pending' then
    perform holdfast.refuse_birth(new.id, new.state);
  elsif holdfast.due_time(new.run_at, null, now_at) > now_at then
    new.state := 'scheduled';
  end if;
  return new;
end
$$;
comment on function holdfast.birth() is 'Make a new job that is due later scheduled.';

create or replace trigger job_birth
before insert on holdfast.live
for each row when (new.run_at is not null or new.state <> 'pending')
execute function holdfast.birth();

-- What every insert is held to, also a bulk COPY that calls no function of
-- ours; enqueue() does all of this itself. Once per statement, not for each row.
create or replace function holdfast.arrival()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  come record;
  welcome boolean;
begin
  select
    min(i.lane_id) as lane_id, max(i.lane_id) as last_lane_id, min(i.task) as task, max(i.task) as last_task,
    max(octet_length(i.payload::text)) as size, bool_and(holdfast.is_newborn(i)) as newborn
  into come
  from inserted i;
  if come.size >= 300 then -- a shorter payload can be read by everybody
    come.newborn := come.newborn and (
      select bool_and(holdfast.is_readable(i.payload, t.said))
      from inserted i
      cross join lateral (select i.payload::text as said offset 0) t); -- written once, not for each look at it
  end if;
  if come.lane_id = come.last_lane_id then
    welcome := come.newborn and holdfast.welcome(come.lane_id, come.task, come.last_task, come.size);
  else
    select come.newborn and bool_and(holdfast.welcome(i.lane_id, i.task, i.last_task, i.size)) into welcome
    from (
      select i.lane_id, min(i.task) as task, max(i.task) as last_task, max(octet_length(i.payload::text)) as size
      from inserted i
      group by i.lane_id
    ) i;
  end if;
  if not welcome then
    perform holdfast.refuse_arrival(i) from inserted i;
  end if;
  if not holdfast.unrestricted() then
    -- A live job of this id would have been in the way.
    perform holdfast.refuse_id(i.id)
    from inserted i
    where exists (select from holdfast.finished f where f.id = i.id and not holdfast.in_reach(f.queue))
      or exists (select from holdfast.dead_letter d where d.id = i.id and not holdfast.in_reach(d.queue));
  end if;
  return null;
end
$$;
comment on function holdfast.arrival() is 'Check the lanes and payloads of new jobs, and wake who sleeps for them.';

create or replace function holdfast.is_newborn(new holdfast.job)
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
comment on function holdfast.is_newborn(holdfast.job) is 'Whether a job is as jobs begin: nothing is said of it but what is to be done, and when.';

-- Whether jobs of these tasks (the first and the last by name), of this size at
-- most, belong in a lane; if so, whoever sleeps for them is woken.
create or replace function holdfast.welcome(lane_id integer, task text, last_task text, size integer)
returns boolean
language plpgsql volatile
as $$
declare
  place record;
begin
  -- All in one query: each costs a single enqueue ten microseconds or more. No
  -- limit is below a kilobyte, so most payloads need not ask for theirs.
  select
    l.queue, l.task,
    case when welcome.size > 1024 then holdfast.payload_limit(l.queue) else 1024 end as payload_limit,
    s.of_queue, s.of_all, exists (select from holdfast.access) as guarded
  into place
  from holdfast.lane l
  cross join lateral holdfast.sleepers(l.queue, l.task, l.priority) s
  where l.id = welcome.lane_id
    and l.kind = 0
    and holdfast.takes_jobs(l.id);
  if not found or place.task <> welcome.task or place.task <> welcome.last_task or welcome.size > place.payload_limit then
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
comment on function holdfast.welcome(integer, text, text, integer) is 'Whether new jobs may stand in this lane; wakes who sleeps for them.';

create or replace function holdfast.refuse_birth(id uuid, state text)
returns void
language plpgsql immutable
as $$
begin
  raise exception using
    errcode = 'HF010',
    message = format('job %s cannot begin as %s', refuse_birth.id, case refuse_birth.state when 'pending' then 'one that was claimed before' else refuse_birth.state end),
    detail = jsonb_build_object('id', refuse_birth.id, 'from_state', null, 'to_state', refuse_birth.state),
    hint = 'Leave out state, attempt, worker and lease: a new job is pending, or scheduled by its run_at.';
end
$$;
comment on function holdfast.refuse_birth(uuid, text) is 'Raise the error for a job that does not begin at the beginning.';

create or replace function holdfast.refuse_lane(id uuid)
returns void
language plpgsql immutable
as $$
begin
  raise exception using
    errcode = 'HF008',
    message = format('job %s names a lane that is not a lane of its task', refuse_lane.id),
    detail = jsonb_build_object('field', 'lane_id', 'value', null),
    hint = 'Take lane_id from holdfast.lane(queue, priority, task) in the same transaction: an empty lane is removed after some minutes.';
end
$$;
comment on function holdfast.refuse_lane(uuid) is 'Raise the error for a job in a lane that is gone, or is not for it.';

-- Raise what is wrong with a new job, if anything is.
create or replace function holdfast.refuse_arrival(new holdfast.job)
returns void
language plpgsql stable
as $$
declare
  place record;
begin
  if not holdfast.is_newborn(new) then
    if new.headers is not null then
      perform holdfast.refuse_headers(new.headers);
    end if;
    perform holdfast.refuse_broken(new);
    perform holdfast.refuse_birth(new.id, new.state);
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
comment on function holdfast.refuse_arrival(holdfast.job) is 'Raise the error for a new job that is not welcome.';

create or replace trigger job_arrival
after insert on holdfast.job
referencing new table as inserted
for each statement execute function holdfast.arrival();

create or replace trigger job_guard
after update on holdfast.job
referencing old table as before new table as after
for each statement execute function holdfast.guard();
