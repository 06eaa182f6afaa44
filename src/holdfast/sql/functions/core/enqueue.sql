-- holdfast: after replace
-- Put one job on a queue, in the caller's own transaction.
--
-- If the caller supplies an id, the same call twice within 7 days is one job. The same id with
-- another task or payload is refused.
--
-- `max_attempts` belongs to this call and wins over everything. `declared_attempts` comes from
-- the code of the task: a policy that an operator has set wins over it.
--
-- The body is long on purpose: a single enqueue takes 70 µs, and each function that it calls
-- adds 5 to 10.
-- holdfast: role producer
create or replace function holdfast.enqueue(
  task text,
  payload jsonb default '{}',
  queue text default 'default',
  priority integer default 100,
  run_at timestamptz default null,
  delay interval default null,
  max_attempts integer default null,
  id uuid default null,
  headers jsonb default null,
  declared_attempts integer default null
)
returns uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  due_at timestamptz;
  job_id uuid := coalesce(enqueue.id, holdfast.new_id());
  said constant text := enqueue.payload::text;
  attempts integer := enqueue.max_attempts;
  asleep boolean;
  guarded boolean;
begin
  if enqueue.run_at is not null or enqueue.delay is not null then
    due_at := holdfast.due_time(enqueue.run_at, enqueue.delay, now_at);
  end if;
  if enqueue.max_attempts is not null then
    perform holdfast.check_max_attempts(enqueue.max_attempts);
  elsif enqueue.declared_attempts is not null and not holdfast.has_operator_policy(enqueue.task) then
    perform holdfast.check_max_attempts(enqueue.declared_attempts);
    attempts := enqueue.declared_attempts;
  end if;
  if enqueue.payload is null then
    perform holdfast.refuse_value('payload', null, 'must be JSON; leave it out for {}');
  end if;
  if enqueue.id is not null then
    perform holdfast.check_name('task', enqueue.task);
    if not holdfast.use_id(enqueue.id, enqueue.task, enqueue.payload, now_at, enqueue.queue) then
      return enqueue.id;
    end if;
  end if;
  if enqueue.headers is not null and not holdfast.are_headers(enqueue.headers) then
    perform holdfast.refuse_headers(enqueue.headers);
  end if;
  -- A shorter payload is never too large or unreadable.
  if octet_length(said) >= 300 then
    if octet_length(said) > 1024 and octet_length(said) > holdfast.payload_limit(enqueue.queue) then
      perform holdfast.refuse_payload(job_id, enqueue.payload, holdfast.payload_limit(enqueue.queue));
    end if;
    if not holdfast.is_readable(enqueue.payload, said) then
      perform holdfast.check_json('payload', enqueue.payload);
    end if;
  end if;
  -- All look-ups and the insert are one statement, since each further statement costs tens of
  -- microseconds. There is a second reason: the statement has its lock on `live` before it reads
  -- which workers sleep. So a worker that falls asleep meanwhile sees either the lock or the
  -- notification.
  for look in 1..3 loop
    insert into holdfast.live (id, lane_id, task, payload, headers, max_attempts, run_at, created_at)
    select
      job_id, l.id, enqueue.task, enqueue.payload, enqueue.headers, coalesce(attempts, l.max_attempts),
      due_at, now_at
    from holdfast.lane l
    where l.queue = enqueue.queue
      and l.task = enqueue.task
      and l.priority = enqueue.priority
      and l.kind = 0
      and not exists (select from holdfast.retired_lane r where r.lane_id = l.id)
      and (attempts is not null or l.policies_seen = (select w.changes from holdfast.policy_watch w))
    limit 1
    -- If any worker sleeps, look below whether it sleeps for this queue and task. Looking
    -- here would cost every enqueue 10 µs.
    returning
      exists (
        select from holdfast.worker w where w.asleep and (w.above is null or w.above < enqueue.priority)
      ),
      exists (select from holdfast.access)
    into asleep, guarded;
    exit when found;
    -- This is the first job of its lane, or the lane does not know the latest policies. The lane found here
    -- may
    -- be retired before the next look. Then a new lane is made, which no session can retire.
    perform holdfast.lane(enqueue.queue, enqueue.priority, enqueue.task);
    attempts := coalesce(attempts, holdfast.max_attempts(enqueue.task, enqueue.queue));
  end loop;
  if asleep is null then
    raise exception using
      errcode = 'triggered_action_exception',
      message = 'the job was not stored: a trigger on holdfast.job or holdfast.live has left it out',
      hint = 'Remove that trigger.';
  end if;
  if guarded then
    perform holdfast.check_queue(enqueue.queue);
  end if;
  if asleep or not holdfast.sees_sleepers() then
    perform holdfast.wake(
      enqueue.queue, enqueue.task, enqueue.priority, case when due_at > now_at then 0 else 1 end);
  end if;
  return job_id;
end
$$;
comment on function holdfast.enqueue(
  text, jsonb, text, integer, timestamptz, interval, integer, uuid, jsonb, integer) is
  'Put one job on a queue; it exists if and only if the calling transaction commits. Returns its id.';
select holdfast.replace_function(
  -- without declared_attempts
  'holdfast.enqueue(text, jsonb, text, integer, timestamptz, interval, integer, uuid, jsonb)',
  'holdfast.enqueue(text, jsonb, text, integer, timestamptz, interval, integer, uuid, jsonb, integer)');

-- Put many jobs on their queues in one call, all or none. Every array is as long as `tasks`, or
-- null for the default. An element may be null too.
--
-- The body is long on purpose: it is one statement behind the checks of its arguments.
-- holdfast: role producer
create or replace function holdfast.enqueue_many(
  tasks text[],
  payloads jsonb[] default null,
  queues text[] default null,
  priorities integer[] default null,
  run_ats timestamptz[] default null,
  delays interval[] default null,
  max_attempts integer[] default null,
  ids uuid[] default null,
  headers jsonb[] default null,
  declared_attempts integer[] default null
)
returns setof uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  amount integer := cardinality(tasks);
  new_ids uuid[];
begin
  if amount is null then
    perform holdfast.refuse_value('tasks', null, 'must be an array of task names');
  end if;
  if amount = 0 then
    return;
  end if;
  if not (
    coalesce(cardinality(payloads), amount) = amount
    and coalesce(cardinality(queues), amount) = amount
    and coalesce(cardinality(priorities), amount) = amount
    and coalesce(cardinality(run_ats), amount) = amount
    and coalesce(cardinality(delays), amount) = amount
    and coalesce(cardinality(enqueue_many.max_attempts), amount) = amount
    and coalesce(cardinality(ids), amount) = amount
    and coalesce(cardinality(enqueue_many.headers), amount) = amount
    and coalesce(cardinality(enqueue_many.declared_attempts), amount) = amount
  ) then
    perform holdfast.refuse_value('tasks', amount::text, 'every array must be as long as tasks, or null');
  end if;

  perform holdfast.check_max_attempts(m)
  from unnest(enqueue_many.max_attempts || enqueue_many.declared_attempts) m
  where m not between 1 and 32767;

  with given as materialized (
    select
      u.n,
      u.task,
      coalesce(u.payload, '{}') as payload,
      coalesce(u.queue, 'default') as queue,
      coalesce(u.priority, 100) as priority,
      u.headers,
      u.max_attempts,
      u.declared_attempts,
      u.id as given_id,
      coalesce(u.id, holdfast.new_id()) as id,
      case when u.run_at is not null or u.delay is not null
        then holdfast.due_time(u.run_at, u.delay, now_at) end as due_at
    from unnest(
      tasks, payloads, queues, priorities, run_ats, delays, enqueue_many.max_attempts, ids,
      enqueue_many.headers, enqueue_many.declared_attempts
    ) with ordinality u (
      task, payload, queue, priority, run_at, delay, max_attempts, id, headers, declared_attempts, n)
  ),
  -- Once per distinct queue, priority and task, not once per job.
  placed as materialized (
    select
      g.queue, g.priority, g.task,
      holdfast.lane(g.queue, g.priority, g.task) as lane_id,
      holdfast.max_attempts(g.task, g.queue) as max_attempts,
      g.declares and holdfast.has_operator_policy(g.task) as operated
    from (
      select queue, priority, task, bool_or(declared_attempts is not null) as declares
      from given
      group by queue, priority, task
    ) g
  ),
  -- In the order of ids, so that two callers with the same ids do not deadlock. Materialized, so
  -- that the planner does not call use_id() below the sort. After all of `placed`, which checks
  -- the names.
  sorted as materialized (
    select g.n, g.given_id, g.task, g.payload, g.queue
    from given g
    where g.given_id is not null
      and (select count(*) > 0 from placed)
    order by g.given_id, g.n
  ),
  fresh as materialized (
    select s.n
    from sorted s
    where holdfast.use_id(s.given_id, s.task, s.payload, now_at, s.queue)
  ),
  inserted as (
    insert into holdfast.job (id, lane_id, task, payload, headers, max_attempts, run_at, created_at)
    select
      g.id, p.lane_id, g.task, g.payload, g.headers,
      coalesce(g.max_attempts, case when not p.operated then g.declared_attempts end, p.max_attempts),
      g.due_at, now_at
    from given g
    join placed p on p.queue = g.queue and p.priority = g.priority and p.task = g.task
    where g.given_id is null or g.n in (select f.n from fresh f)
    order by g.n
  )
  select array_agg(g.id order by g.n) into new_ids from given g;

  return query select unnest(new_ids);
end
$$;
comment on function holdfast.enqueue_many(
  text[], jsonb[], text[], integer[], timestamptz[], interval[], integer[], uuid[], jsonb[], integer[]) is
  'Put many jobs on their queues in one call, all or none. Returns their ids in the order given.';
select holdfast.replace_function(
  -- without declared_attempts
  'holdfast.enqueue_many(text[], jsonb[], text[], integer[], timestamptz[], interval[], integer[], uuid[], '
  'jsonb[])',
  'holdfast.enqueue_many(text[], jsonb[], text[], integer[], timestamptz[], interval[], integer[], uuid[], '
  'jsonb[], integer[])');
