-- Find the lane of a queue, priority, task and kind, or make it.
--
-- There is no unique key and no lock. If two open transactions are both the first to use a
-- lane, each makes a row, and claims read both. A lane is removed when it has been empty for a
-- while and no transaction can still use it: see retire.sql.
--
-- The number of lanes of a queue is limited, since a claim looks into each lane that has work.
-- Existing jobs always get a lane: see lane_of_kind().
-- holdfast: role producer
create or replace function holdfast.lane(queue text, priority integer, task text, kind integer default 0)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  found_id integer;
begin
  select l.id into found_id
  from holdfast.lane l
  where l.queue = lane.queue
    and l.task = lane.task
    and l.priority = lane.priority
    and l.kind = lane.kind
    and not exists (select from holdfast.retired_lane r where r.lane_id = l.id)
  order by l.id
  limit 1;
  if found then
    return found_id;
  end if;
  perform holdfast.check_name('queue', lane.queue);
  perform holdfast.check_queue(lane.queue);
  perform holdfast.check_name('task', lane.task);
  perform holdfast.check_priority(lane.priority);
  perform holdfast.check_lanes(lane.queue, lane.priority, lane.task);
  return holdfast.make_lane(lane.queue, lane.priority, lane.task, lane.kind);
end
$$;
comment on function holdfast.lane(text, integer, text, integer) is
  'Return the lane of a queue, priority and task; create it if it is new. A bulk COPY into holdfast.job '
  'needs it as lane_id.';

create or replace function holdfast.make_lane(queue text, priority integer, task text, kind integer)
returns integer
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  with made as (
    -- One snapshot for both, so that a policy change in between is seen by both or by neither.
    insert into holdfast.lane (queue, priority, task, kind, max_attempts, policies_seen)
    values (
      make_lane.queue, make_lane.priority, make_lane.task, make_lane.kind,
      holdfast.max_attempts(make_lane.task, make_lane.queue), (select w.changes from holdfast.policy_watch w)
    )
    returning id
  ),
  noted as (
    insert into holdfast.lane_activity (lane_id, at) select m.id, holdfast.clock() from made m
  )
  select m.id from made m
$$;
comment on function holdfast.make_lane(text, integer, text, integer) is
  'Create a lane without checks and return its id.';

-- Two calls at the same time may both succeed, so the limit is not exact.
create or replace function holdfast.check_lanes(queue text, priority integer, task text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  lane_limit constant integer := holdfast.lane_limit(check_lanes.queue);
  lanes bigint;
begin
  select count(*) into lanes
  from holdfast.lane l
  where l.queue = check_lanes.queue
    and l.kind = 0
    and not exists (select from holdfast.retired_lane r where r.lane_id = l.id);
  if lanes >= lane_limit then
    raise exception using
      errcode = 'HF019',
      message = format(
        'queue %s has %s lanes, and its lane_limit is %s: there is none for task %s at priority %s',
        check_lanes.queue, lanes, lane_limit, check_lanes.task, check_lanes.priority),
      detail = jsonb_build_object('queue', check_lanes.queue, 'lanes', lanes, 'limit', lane_limit),
      hint = format(
        'Each task and each priority takes a lane: put what differs from job to job into the payload. '
        'Lanes are removed when they have been empty for about a quarter of an hour. Or raise the limit: '
        'holdfast queue configure %s lane_limit=%s',
        check_lanes.queue, 2 * lane_limit::bigint);
  end if;
end
$$;
comment on function holdfast.check_lanes(text, integer, text) is
  'Refuse a new lane in a queue that has reached its limit.';

-- Return the lane of this kind for jobs that are in a lane of the same queue, priority and task.
--
-- Such jobs exist already, so the limit of lanes does not apply: one full queue would
-- otherwise stop promote() for all queues.
create or replace function holdfast.lane_of_kind(lane_id integer, kind integer)
returns integer
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(
    (
      select o.id
      from holdfast.lane o
      where o.queue = l.queue
        and o.task = l.task
        and o.priority = l.priority
        and o.kind = lane_of_kind.kind
        and not exists (select from holdfast.retired_lane r where r.lane_id = o.id)
      order by o.id
      limit 1),
    holdfast.make_lane(l.queue, l.priority, l.task, lane_of_kind.kind))
  from holdfast.lane l
  where l.id = lane_of_kind.lane_id
$$;
comment on function holdfast.lane_of_kind(integer, integer) is
  'Return the fresh, returned or suspect lane beside a lane.';

-- Return what a bulk COPY into holdfast.job must know, once for each queue, priority and task,
-- in the order given. `declared` is the max_attempts in the code of each task: a policy that an
-- operator has set wins over it.
--
-- This function runs with its owner's rights. The COPY runs with those of the session at that
-- time: of `role` if it was set, otherwise of the session's user. A COPY reads the defaults of
-- the columns that it does not name, so it also needs the sequence and the clock.
-- holdfast: role producer
create or replace function holdfast.places(
  tasks text[], queues text[], priorities integer[], declared integer[] default null)
returns table (lane_id integer, max_attempts integer, may_copy boolean, now_at timestamptz)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  with caller as materialized (
    select
      bool_and(has_column_privilege(c.name, 'holdfast.job', needed, 'insert'))
      and bool_and(has_sequence_privilege(c.name, 'holdfast.job_seq', 'usage'))
      and bool_and(has_function_privilege(c.name, 'holdfast.clock()', 'execute')) as may_copy,
      holdfast.clock() as now_at
    from (select coalesce(nullif(current_setting('role'), 'none'), session_user)::name as name) c,
      unnest(array['id', 'lane_id', 'task', 'payload', 'headers', 'max_attempts', 'run_at']) needed
    group by c.name
  )
  select
    holdfast.lane(p.queue, p.priority, p.task),
    case
      when p.declared is null or holdfast.has_operator_policy(p.task)
        then holdfast.max_attempts(p.task, p.queue)
      else p.declared
    end,
    c.may_copy,
    c.now_at
  from unnest(places.tasks, places.queues, places.priorities, places.declared)
      with ordinality p (task, queue, priority, declared, n),
    caller c
  order by p.n
$$;
comment on function holdfast.places(text[], text[], integer[], integer[]) is
  'Return what a bulk COPY into holdfast.job needs for each task, queue and priority: the lane and '
  'max_attempts. Each row also says whether the session may COPY, and what time it is.';
