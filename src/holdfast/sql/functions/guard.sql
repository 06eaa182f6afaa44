-- holdfast: after notify
-- The database itself refuses what must never happen to a job, whoever asks:
-- an illegal change of state, a place in a lane that a head may have passed, a
-- row that vanishes other than through our functions.

-- Our functions open the door around the statements that write jobs: there the
-- guards below stand aside. (A SET clause on the functions would do, but only a
-- superuser may write one for a setting of our own.)
drop function if exists holdfast.door(boolean); -- it used to return nothing
create function holdfast.door(is_open boolean)
returns text
language sql volatile
as $$
  select set_config('holdfast.door', case when is_open then 'open' else '' end, true)
$$;
comment on function holdfast.door(boolean) is 'Let the next statements write holdfast.job unguarded, or no longer.';

-- There are no check constraints on `job`, and the WHEN clauses are short: each
-- is parsed anew by every statement, and with all the rules in them that made up
-- a third of the time that it takes to claim a single job. (0.1 had them.)
alter table holdfast.job
  drop constraint if exists "a live job is scheduled, pending or claimed",
  drop constraint if exists "a claimed job and no other has a lease and a worker",
  drop constraint if exists "a scheduled job has a time",
  drop constraint if exists "attempts are counted from 0",
  drop constraint if exists "max_attempts is between 1 and 32767";

create or replace function holdfast.guard()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if old.state <> new.state and (select new.state <> all(s.successors) from holdfast.state s where s.name = old.state) then
    raise exception using
      errcode = 'HF010',
      message = format('job %s cannot go from %s to %s', old.id, old.state, new.state),
      detail = jsonb_build_object('id', old.id, 'from_state', old.state, 'to_state', new.state),
      hint = 'The legal changes are in holdfast.state.';
  end if;
  if old.id <> new.id
    or new.seq < old.seq
    or (new.seq = old.seq and new.state = 'pending' and (old.state <> 'pending' or old.lane_id <> new.lane_id))
  then
    raise exception using
      errcode = 'HF010',
      message = case when old.id <> new.id
        then format('job %s cannot become job %s', old.id, new.id)
        else format('job %s would stand at place %s, not behind its old place %s', old.id, new.seq, old.seq)
      end,
      detail = jsonb_build_object('id', old.id, 'from_state', old.state, 'to_state', new.state),
      hint = 'A job keeps its id; one that becomes pending or changes lane needs a new nextval(''holdfast.job_seq'').';
  end if;
  perform holdfast.refuse_broken(new);
  return null;
end
$$;
comment on function holdfast.guard() is 'Refuse what must never happen to a job.';


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

create or replace trigger job_leaves_by_the_door
before delete on holdfast.job
for each statement when (current_setting('holdfast.door', true) is distinct from 'open')
execute function holdfast.refuse_leaving();

create or replace trigger job_is_not_truncated
before truncate on holdfast.job
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
    perform holdfast.refuse_birth(new);
  elsif holdfast.due_time(new.run_at, null, now_at) > now_at then
    new.state := 'scheduled';
  end if;
  return new;
end
$$;
comment on function holdfast.birth() is 'Make a new job that is due later scheduled.';

create or replace trigger job_birth
before insert on holdfast.job
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
    and l.kind = 0;
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

create or replace function holdfast.refuse_birth(new holdfast.job)
returns void
language plpgsql immutable
as $$
begin
  raise exception using
    errcode = 'HF010',
    message = format('job %s cannot begin as %s', new.id, case new.state when 'pending' then 'one that was claimed before' else new.state end),
    detail = jsonb_build_object('id', new.id, 'from_state', null, 'to_state', new.state),
    hint = 'Leave out state, attempt, worker and lease: a new job is pending, or scheduled by its run_at.';
end
$$;
comment on function holdfast.refuse_birth(holdfast.job) is 'Raise the error for a job that does not begin at the beginning.';

-- Raise what is wrong with a new job, if anything is.
create or replace function holdfast.refuse_arrival(new holdfast.job)
returns void
language plpgsql stable
as $$
declare
  place record;
begin
  if not holdfast.is_newborn(new) then
    perform holdfast.refuse_broken(new);
    perform holdfast.refuse_birth(new);
  end if;
  select l.task, l.queue, holdfast.payload_limit(l.queue) as payload_limit into place
  from holdfast.lane l
  where l.id = new.lane_id
    and l.kind = 0;
  if not found or place.task <> new.task then
    raise exception using
      errcode = 'HF008',
      message = format('job %s names a lane that is not a lane of its task', new.id),
      detail = jsonb_build_object('field', 'lane_id', 'value', null),
      hint = 'Take lane_id from holdfast.lane(queue, priority, task).';
  end if;
  perform holdfast.check_queue(place.queue);
  if octet_length(new.payload::text) > place.payload_limit then
    perform holdfast.refuse_payload(new.id, new.payload, place.payload_limit);
  end if;
end
$$;
comment on function holdfast.refuse_arrival(holdfast.job) is 'Raise the error for a new job that is not welcome.';

-- Anybody may say that the door is open; it is open to the owner alone, as whom
-- our functions run. (Not so for jobs that leave: that takes the owner's rights as
-- it is, and had the owner another name one day, no job could be finished.)
do $$
declare
  aside text := format(
    'current_setting(''holdfast.door'', true) is distinct from ''open'' or current_user <> %L',
    (select pg_get_userbyid(c.relowner) from pg_class c where c.oid = 'holdfast.job'::regclass));
begin
  execute format($trigger$
    create or replace trigger job_arrival
    after insert on holdfast.job
    referencing new table as inserted
    for each statement when (%s)
    execute function holdfast.arrival()
  $trigger$, aside);
  drop trigger if exists job_guard on holdfast.job; -- it used to be a trigger before the update
  execute format($trigger$
    create trigger job_guard
    after update on holdfast.job
    for each row when (%s)
    execute function holdfast.guard()
  $trigger$, aside);
end
$$;
