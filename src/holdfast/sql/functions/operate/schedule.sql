-- Add, declare, change and remove schedules. fire.sql fires them.

-- Add a schedule, which runs a task at regular times.
-- holdfast: role operator
create or replace function holdfast.add_schedule(
  name text,
  task text,
  cron text default null,
  every interval default null,
  zone text default 'UTC',
  payload jsonb default '{}',
  queue text default 'default',
  priority integer default 100,
  max_attempts integer default null,
  missed text default 'once',
  overlap boolean default true,
  jitter interval default '0',
  declared boolean default false
)
returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  given holdfast.schedule;
  known holdfast.schedule;
begin
  given.name := add_schedule.name;
  given.cron := add_schedule.cron;
  given.every := add_schedule.every;
  given.zone := add_schedule.zone;
  given.task := add_schedule.task;
  given.payload := add_schedule.payload;
  given.queue := add_schedule.queue;
  perform holdfast.check_priority(add_schedule.priority);
  given.priority := add_schedule.priority;
  perform holdfast.check_max_attempts(add_schedule.max_attempts);
  given.max_attempts := add_schedule.max_attempts;
  given.missed := add_schedule.missed;
  given.overlap := add_schedule.overlap;
  given.jitter := add_schedule.jitter;
  given.declared := add_schedule.declared;
  given.created_at := now_at;
  given.skipped := 0;
  perform holdfast.check_schedule(given);
  given.next_at := holdfast.tick_after(given, now_at);
  given.planned_at := now_at;

  loop
    insert into holdfast.schedule as s select (given).* on conflict (name) do nothing;
    if found then
      perform holdfast.note('add schedule', given.name);
      perform holdfast.wake_schedulers(given.queue);
      return given.next_at;
    end if;
    if not given.declared then
      perform holdfast.refuse_value(
        'name', given.name, 'there is a schedule of this name; change it, or remove it first');
    end if;
    select s.* into known from holdfast.schedule s where s.name = given.name for update;
    exit when found; -- otherwise another session has just removed it
  end loop;
  perform holdfast.check_queue(known.queue);
  -- A schedule that an operator has made or changed belongs to the operator.
  return case when known.declared then holdfast.replace_schedule(known, given) else known.next_at end;
end
$$;
comment on function holdfast.add_schedule(
  text, text, text, interval, text, jsonb, text, integer, integer, text, boolean, interval, boolean) is
  'Run a task at regular times from now on, by a cron expression or an interval. Returns its first time. '
  'With declared, for schedules in code, a schedule of this name is replaced unless an operator has made or '
  'changed it.';

-- A worker may call this one only: it declares what its code says.
-- holdfast: role worker operator
create or replace function holdfast.declare_schedule(
  name text,
  task text,
  cron text default null,
  every interval default null,
  zone text default 'UTC',
  payload jsonb default '{}',
  queue text default 'default',
  priority integer default 100,
  max_attempts integer default null,
  missed text default 'once',
  overlap boolean default true,
  jitter interval default '0'
)
returns timestamptz
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.add_schedule(
    declare_schedule.name, declare_schedule.task, declare_schedule.cron, declare_schedule.every,
    declare_schedule.zone, declare_schedule.payload, declare_schedule.queue, declare_schedule.priority,
    declare_schedule.max_attempts,
    declare_schedule.missed, declare_schedule.overlap, declare_schedule.jitter, true)
$$;
comment on function holdfast.declare_schedule(
  text, text, text, interval, text, jsonb, text, integer, integer, text, boolean, interval) is
  'Run a task at regular times, as its code says. Keeps what an operator has made or changed. Returns its '
  'next time.';

-- Values that are left out stay as they are. A paused schedule stays paused. A schedule that
-- code has declared belongs to the operator from now on.
-- holdfast: role operator
create or replace function holdfast.change_schedule(
  name text,
  task text default null,
  cron text default null,
  every interval default null,
  zone text default null,
  payload jsonb default null,
  queue text default null,
  priority integer default null,
  max_attempts integer default null,
  missed text default null,
  overlap boolean default null,
  jitter interval default null
)
returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known holdfast.schedule := holdfast.known_schedule(change_schedule.name);
  given holdfast.schedule := known;
  changes jsonb := jsonb_strip_nulls(jsonb_build_object(
    'task', change_schedule.task, 'cron', change_schedule.cron, 'every', change_schedule.every, 'zone',
    change_schedule.zone,
    'payload', change_schedule.payload is not null or null, 'queue', change_schedule.queue, 'priority',
    change_schedule.priority,
    'max_attempts', change_schedule.max_attempts, 'missed', change_schedule.missed, 'overlap',
    change_schedule.overlap, 'jitter', change_schedule.jitter));
  next_at timestamptz;
begin
  if changes = '{}' then
    perform holdfast.refuse_value(
      'name', change_schedule.name, 'say what to change: cron, every, zone, task, payload ...');
  end if;
  if change_schedule.cron is not null or change_schedule.every is not null then
    given.cron := change_schedule.cron;
    given.every := change_schedule.every;
  end if;
  perform holdfast.check_priority(coalesce(change_schedule.priority, known.priority));
  perform holdfast.check_max_attempts(change_schedule.max_attempts);
  given.task := coalesce(change_schedule.task, known.task);
  given.zone := coalesce(change_schedule.zone, known.zone);
  given.payload := coalesce(change_schedule.payload, known.payload);
  given.queue := coalesce(change_schedule.queue, known.queue);
  given.priority := coalesce(change_schedule.priority, known.priority);
  given.max_attempts := coalesce(change_schedule.max_attempts, known.max_attempts);
  given.missed := coalesce(change_schedule.missed, known.missed);
  given.overlap := coalesce(change_schedule.overlap, known.overlap);
  given.jitter := coalesce(change_schedule.jitter, known.jitter);
  given.declared := false;
  perform holdfast.check_schedule(given);
  next_at := holdfast.replace_schedule(known, given);
  perform holdfast.note('change schedule', known.name, changes); -- without the payload, which may be secret
  return next_at;
end
$$;
comment on function holdfast.change_schedule(
  text, text, text, interval, text, jsonb, text, integer, integer, text, boolean, interval) is
  'Change the given values of a schedule, from its next time on. Returns that time.';

-- A new expression, interval or zone starts from now. Any other change keeps the next tick.
create or replace function holdfast.replace_schedule(known holdfast.schedule, given holdfast.schedule)
returns timestamptz
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  same_times boolean := (known.cron, known.every) is not distinct from (given.cron, given.every)
    and (known.zone = given.zone or given.cron is null); -- an interval is the same in all zones
begin
  given.created_at := case when same_times then known.created_at else now_at end;
  given.next_at := case when same_times then known.next_at else holdfast.tick_after(given, now_at) end;
  given.planned_at := case when same_times then known.planned_at else now_at end;
  update holdfast.schedule s
  set
    cron = given.cron, every = given.every, zone = given.zone, task = given.task, payload = given.payload,
    queue = given.queue, priority = given.priority, max_attempts = given.max_attempts, missed = given.missed,
    overlap = given.overlap, jitter = given.jitter, declared = given.declared, created_at = given.created_at,
    next_at = given.next_at, planned_at = given.planned_at
  where s.name = known.name;
  perform holdfast.wake_schedulers(given.queue);
  return given.next_at;
end
$$;
comment on function holdfast.replace_schedule(holdfast.schedule, holdfast.schedule) is
  'Write the new state of a schedule. Returns its next time.';

create or replace function holdfast.check_schedule(given holdfast.schedule)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.check_name('name', given.name);
  perform holdfast.check_name('task', given.task);
  perform holdfast.check_name('queue', given.queue);
  perform holdfast.check_queue(given.queue);
  if (given.cron is null) = (given.every is null) then
    perform holdfast.refuse_value('cron', given.cron, 'give either cron or every');
  end if;
  if given.every not between interval '1 second' and interval '366 days'
    or extract(microseconds from given.every)::bigint % 1000000 <> 0
    or extract(year from given.every) <> 0 or extract(month from given.every) <> 0 then
    perform holdfast.refuse_value(
      'every', given.every::text,
      'must be whole seconds, from 1 second to 366 days; months differ, so use cron for them');
  end if;
  if given.payload is null then
    perform holdfast.refuse_value('payload', null, 'must be JSON; leave it out for {}');
  end if;
  perform holdfast.check_json('payload', given.payload);
  if given.missed is null or given.missed not in ('skip', 'once', 'all') then
    perform holdfast.refuse_value('missed', given.missed, 'must be skip, once or all');
  end if;
  if given.overlap is null then
    perform holdfast.refuse_value('overlap', null, 'must be true or false');
  end if;
  if given.jitter is null or given.jitter not between interval '0' and interval '1 day' then
    perform holdfast.refuse_value('jitter', given.jitter::text, 'must be between 0 and 1 day');
  end if;
  perform holdfast.check_zone(given.zone);
end
$$;
comment on function holdfast.check_schedule(holdfast.schedule) is 'Refuse a schedule that breaks the rules.';

-- holdfast: role operator
create or replace function holdfast.remove_schedule(name text)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  delete from holdfast.schedule s where s.name = remove_schedule.name
    and ((select holdfast.unrestricted()) or holdfast.in_reach(s.queue));
  if not found then
    return false;
  end if;
  perform holdfast.note('remove schedule', remove_schedule.name);
  return true;
end
$$;
comment on function holdfast.remove_schedule(text) is
  'Remove a schedule and keep its jobs. Returns whether it existed.';

-- Functions that change a schedule lock it here.
create or replace function holdfast.known_schedule(name text)
returns holdfast.schedule
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform from holdfast.schedule s where s.name = known_schedule.name for update;
  return holdfast.seen_schedule(known_schedule.name);
end
$$;
comment on function holdfast.known_schedule(text) is
  'Lock and return a schedule by its name. Refuses a name that does not exist.';

-- Workers look at the schedules when they are notified. The payload is empty, because no job has come.
-- If the notification is lost, do_duties() sees the change within seconds.
create or replace function holdfast.wake_schedulers(queue text)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select pg_notify(c, '')
  from unnest(array[holdfast.channel(wake_schedulers.queue), holdfast.channel('*'), holdfast.channel('+')]) c
  where current_setting('holdfast.notify', true) is distinct from 'off'
    and pg_notification_queue_usage() < 0.5
$$;
comment on function holdfast.wake_schedulers(text) is
  'Wake the workers of a queue so that they look at the schedules again.';
