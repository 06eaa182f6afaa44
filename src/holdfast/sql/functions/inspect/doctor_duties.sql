-- Check the duties, for doctor(), and the lanes and heads that they look after.

create or replace function holdfast.doctor_duties(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  done_at timestamptz;
begin
  return query
    select
      case when coalesce(d.done_at, d.looks[1]) > d.error_at then 'info' else 'warning' end,
      format('Duty %s failed %s ago%s: %s', d.name, holdfast.span_in_words(now_at - d.error_at),
        case when coalesce(d.done_at, d.looks[1]) > d.error_at then ', and ended well since' else '' end,
          left(d.error, 500)),
      'Fix the cause that it names; the duty is tried again by itself. An error is shown for a day.',
      jsonb_build_object('duty', d.name, 'error_at', d.error_at, 'done_at', d.done_at)
    from holdfast.duty d
    where d.error is not null
      and d.error_at > now_at - interval '1 day';
  return query
    select
      case when h.since < now_at - interval '15 minutes' then 'critical' else 'warning' end,
      h.sentence || '.', h.remedy,
      jsonb_build_object(
        'duty', h.duty, 'pid', h.pid, 'application', h.application, 'role', h.role, 'state', h.state,
        'since', h.since)
    from holdfast.duty_holders(now_at) h;
  -- If there is nothing to do, no duty is needed.
  if not exists (select from holdfast.live_workers(now_at))
    and not exists (select from holdfast.doctor_sample(1)) and not exists (
    select from holdfast.live j where j.state = 'scheduled' and j.run_at <= now_at limit 1
  ) and not exists (select from holdfast.live j where j.state = 'claimed' limit 1) then
    return;
  end if;
  select max(greatest(d.done_at, d.looks[1])) into done_at
  from holdfast.duty d
  where d.name in ('promote', 'recover', 'advance');
  if done_at is null or done_at < now_at - interval '3 minutes' then
    severity := case when done_at > now_at - interval '15 minutes' then 'warning' else 'critical' end;
    finding := format(
      'Nobody has done the duties %s: due jobs do not become pending, and the jobs of lost workers are not '
      'taken back.',
      coalesce('for ' || holdfast.span_in_words(now_at - done_at), 'so far'));
    remedy := 'Start a worker, or let cron or pg_cron call holdfast.tick() every minute: holdfast tick '
              '--pg-cron';
    detail := jsonb_build_object('last_look_at', done_at);
    return next;
    return;
  end if;
  return query
    select
      'warning',
      format('Duty %s has not ended well %s, though others are done.', o.name,
        coalesce('for ' || holdfast.span_in_words(now_at - o.done_at), 'so far')),
      format(
        'Look at the log of a worker, or call it by hand and see what it says: select holdfast.%s();',
        o.name),
      jsonb_build_object('duty', o.name, 'done_at', o.done_at)
    from (
      select e.name, e.every, greatest(d.done_at, d.looks[1]) as done_at
      from (values
        ('promote', interval '3 minutes'), ('recover', interval '3 minutes'),
          ('advance', interval '3 minutes'),
        ('upkeep', interval '2 hours')
      ) e (name, every)
      left join holdfast.duty d on d.name = e.name
    ) o
    -- A new database, or workers that have just started, have not had the time.
    where coalesce(o.done_at, (select min(m.applied_at) from holdfast.migration m)) < now_at - o.every
      and coalesce(
        (select min(w.started_at) from holdfast.live_workers(now_at) w) < now_at - interval '3 minutes',
        true);
end
$$;
comment on function holdfast.doctor_duties(timestamptz) is
  'Find duties that fail, that a session holds for long, that do not end well, or that nobody does.';

create or replace function holdfast.doctor_heads(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with lanes as materialized (
    select l.queue, l.task, l.priority, l.head, l.safe_head, f.seq as first, b.seq as behind
    from holdfast.lane l
    left join lateral (
      select j.seq
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.head
      order by j.seq
      limit 1
    ) f on true
    -- Look back a limited way only: with an old snapshot, the entries of all done jobs lie there.
    left join lateral (
      select j.seq
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.safe_head - 100000
        and j.seq < l.safe_head
      order by j.seq
      limit 1
    ) b on true
    where l.head > 0
  )
  select
    'critical',
    format(
      'Jobs stand behind the head of %s, where claims do not find them: the first of them in queue %s, '
      'task %s.',
      holdfast.amount_in_words(count(*), 'lane'), min(l.queue), min(l.task)),
    'Upkeep finds them within minutes; at once: select holdfast.check_heads();. Has somebody written to '
    'holdfast.lane or job_seq?',
    jsonb_build_object('lanes', count(*))
  from lanes l
  where l.behind is not null
  having count(*) > 0
  union all
  select
    'warning',
    format('The heads of %s do not move: claims walk over up to %s places before they find a job.',
      holdfast.amount_in_words(count(*), 'lane'),
      ltrim(to_char(max(coalesce(l.first, s.last_value) - l.head), '999G999G999G990'))),
    'The checks duties, prepared and long_transactions name the session that holds them back. If there is '
    'none: holdfast tick',
    jsonb_build_object('lanes', count(*), 'places', max(coalesce(l.first, s.last_value) - l.head),
      'watched_since', (select min(t) from holdfast.writer_watch w, unnest(w.seen_at) t))
  from lanes l, holdfast.job_seq s
  where coalesce(l.first, s.last_value) - l.head > 200000
  having count(*) > 0
$$;
comment on function holdfast.doctor_heads(timestamptz) is 'Find heads that do not move, and jobs behind one.';

create or replace function holdfast.doctor_lanes(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'warning',
    format(
      'Queue %s has %s of the %s lanes that it may have. At that number jobs of a new task or priority are '
      'refused.',
      q.queue, q.lanes, q.lane_limit),
    format(
      'Put what differs from job to job into the payload, not into the name of the task or the priority; or '
      'raise the limit: holdfast queue configure %s lane_limit=%s', q.queue, 2 * q.lane_limit),
    jsonb_build_object('queue', q.queue, 'lanes', q.lanes, 'limit', q.lane_limit)
  from (
    select l.queue, count(*) as lanes, holdfast.lane_limit(l.queue)::bigint as lane_limit
    from holdfast.lane l
    where l.kind = 0 and not exists (select from holdfast.retired_lane r where r.lane_id = l.id)
    group by l.queue
  ) q
  where q.lanes >= 0.8 * q.lane_limit
  union all
  select
    'warning',
    format(
      'There are %s lanes. Claims look only into those that they ask for, but the duties go through all of '
      'them.',
      ltrim(to_char(count(*), '999G999G999G990'))),
    'Use fewer tasks, priorities or queues. Empty lanes are removed when the transactions that were open '
    'have ended: see long_transactions and prepared.',
    jsonb_build_object('lanes', count(*))
  from holdfast.lane l
  having count(*) > 20000
  union all
  -- Step from one lane to the next in the index, instead of reading all jobs.
  select
    'critical',
    format(
      'Jobs wait in a lane that does not exist, so no claim finds them: the first is %s, of task %s.',
      min(j.id::text), min(j.task)),
    'Has somebody deleted from holdfast.lane? Read the jobs from holdfast.live, enqueue them again, and ask '
    'the owner to delete those rows.',
    jsonb_build_object('lanes', count(*))
  from (
    with recursive lanes (id) as (
      (select j.lane_id from holdfast.live j where j.state = 'pending' order by j.lane_id limit 1)
      union all
      select (
        select j.lane_id from holdfast.live j where j.state = 'pending' and j.lane_id > n.id
        order by j.lane_id limit 1)
      from lanes n
      where n.id is not null
    )
    select n.id from lanes n where n.id is not null
  ) n
  cross join lateral (
    select j.id, j.task from holdfast.live j where j.lane_id = n.id and j.state = 'pending' order by j.seq
      limit 1
  ) j
  where not exists (select from holdfast.lane l where l.id = n.id)
  having count(*) > 0
$$;
comment on function holdfast.doctor_lanes(timestamptz) is
  'Find queues near their limit of lanes, very many lanes, and jobs without a lane.';
