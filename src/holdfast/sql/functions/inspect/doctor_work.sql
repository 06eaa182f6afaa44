-- holdfast: after words, why
-- The checks of doctor() on the work: duties, heads, workers, jobs that no worker serves, and
-- habits that hurt later.

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
      'Mend what it names; it is tried again by itself. An error that is a day old is not shown any more.',
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
      'Nobody has done the duties %s: due jobs do not become pending, and the jobs of lost workers do not '
      'come back.',
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

-- Sample some waiting jobs, a few from the head of each lane.
create or replace function holdfast.doctor_sample(amount integer)
returns setof holdfast.live
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select s.*
  from (
    select f.*
    from holdfast.lane l
    cross join lateral (
      select j.*
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.head
      order by j.seq
      limit 20
    ) f
    limit amount
  ) s
$$;
comment on function holdfast.doctor_sample(integer) is 'Return some waiting jobs, a few of each lane.';

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
      'Jobs stand behind the head of %s, where claims do not come to them: the first of them in queue %s, '
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
    'See duties, prepared and long_transactions for who keeps them; with nobody there: holdfast tick',
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
      'Queue %s has %s lanes of the %s that it may have. Then jobs of a new task or priority are refused.',
      q.queue, q.lanes, q.lane_limit),
    format(
      'Put what differs from job to job into the payload, not into the name of the task or the priority; or '
      'raise the limit: '
      'holdfast queue configure %s lane_limit=%s', q.queue, 2 * q.lane_limit),
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

create or replace function holdfast.doctor_workers(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'warning',
    format('%s lost in the last hour, with %s: %s.',
      case count(*) when 1 then '1 worker was' else count(*) || ' workers were' end,
      holdfast.amount_in_words(sum(w.recovered)::bigint, 'job'),
        string_agg(distinct holdfast.worker_in_words(w), ', ')),
    'Look why they died: memory, a handler that ends its process, a machine that went away without a signal.',
    jsonb_build_object('workers', count(*), 'jobs', sum(w.recovered))
  from holdfast.worker w
  where w.lost_at > now_at - interval '1 hour'
    and not holdfast.came_by(w)
  having count(*) > 0
  union all
  select
    'warning',
    format('Worker %s has not been heard of for %s; its lease is %s.', holdfast.worker_in_words(w),
      holdfast.span_in_words(now_at - w.heartbeat_at), holdfast.span_in_words(w.lease_time)),
    'Look whether it still runs and reaches the database.',
    jsonb_build_object('worker', w.id, 'heartbeat_at', w.heartbeat_at)
  from holdfast.worker w
  where w.lost_at is null
    and w.left_at is null
    and greatest(w.heartbeat_at, w.graced_at) < now_at - w.lease_time / 2
    and not holdfast.came_by(w)
$$;
comment on function holdfast.doctor_workers(timestamptz) is 'Find workers that were lost or are silent.';

-- A claim from psql is not a worker that died, if the jobs that it took were done.
create or replace function holdfast.came_by(worker holdfast.worker)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select worker.name = 'consumer-' || left(worker.id::text, 8)
    and worker.recovered = 0
    and not exists (select from holdfast.live j where j.worker_id = worker.id and j.state = 'claimed')
$$;
comment on function holdfast.came_by(holdfast.worker) is
  'Return whether a worker has claimed without registering and left nothing behind.';

create or replace function holdfast.doctor_unserved(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with waiting as (
    select l.queue, l.task, min(greatest(f.created_at, f.run_at, f.changed_at)) as since
    from holdfast.lane l
    cross join lateral (
      select j.created_at, j.run_at, j.changed_at
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.head
      order by j.seq
      limit 1
    ) f
    where not exists (select from holdfast.queue q where q.name = l.queue and q.paused_at is not null)
      and not exists (select from holdfast.live_workers(now_at) w where holdfast.serves(w, l.queue, l.task))
    group by l.queue, l.task
  )
  select
    case when exists (select from holdfast.live_workers(now_at)) then 'warning' else 'critical' end,
    format('%s: task %s in queue %s%s has waited for %s.',
      case when exists (select from holdfast.live_workers(now_at))
        then 'No worker serves some jobs that wait' else 'No worker is alive, and jobs wait' end,
      (array_agg(w.task order by w.since))[1], (array_agg(w.queue order by w.since))[1],
      case when count(*) > 1 then format(' (and %s more)', count(*) - 1) else '' end,
      holdfast.span_in_words(now_at - min(w.since))),
    'Start a worker that knows them and serves their queue; or cancel them: holdfast cancel --task ...',
    jsonb_build_object(
      'jobs',
      jsonb_agg(jsonb_build_object('queue', w.queue, 'task', w.task, 'since', w.since) order by w.since))
  from (select w.* from waiting w where w.since < now_at - interval '5 minutes' order by w.since limit 100) w
  having count(*) > 0
$$;
comment on function holdfast.doctor_unserved(timestamptz) is 'Find waiting jobs that no worker serves.';

create or replace function holdfast.doctor_dead_letters(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'warning',
    format('%s died in the last hour.', holdfast.amount_in_words(d.lately, 'job', 10000)),
    'holdfast dead shows why. When that is mended: holdfast replay --task ...',
    jsonb_build_object('last_hour', d.lately)
  from (
    select count(*) as lately
    from (select from holdfast.dead_letter l where l.died_at > now_at - interval '1 hour' limit 10000) l
  ) d
  where d.lately >= 100
  union all
  select
    'info',
    format('There are about %s dead letters.', ltrim(to_char(c.reltuples, '999G999G999G990'))),
    'Replay or purge them: holdfast dead, holdfast purge --task ...',
    jsonb_build_object('dead', c.reltuples::bigint)
  from pg_class c
  where c.oid = 'holdfast.dead_letter'::regclass
    and c.reltuples > 100000
$$;
comment on function holdfast.doctor_dead_letters(timestamptz) is 'Find dead letters that accumulate.';

create or replace function holdfast.doctor_payloads(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'warning',
    format(
      'Payloads are large: %s on average in a sample of %s, %s for task %s.',
      pg_size_pretty(round(avg(s.size))),
      holdfast.amount_in_words(count(*), 'job'), pg_size_pretty(max(s.size)),
        (array_agg(s.task order by s.size desc))[1]),
    'Put the data into a table or a bucket, and a reference to it into the payload: each claim and each '
    'finish carries all of it.',
    jsonb_build_object('average', round(avg(s.size)), 'largest', max(s.size))
  from (select j.task, octet_length(j.payload::text)::bigint as size from holdfast.doctor_sample(200) j) s
  having avg(s.size) > 10240
$$;
comment on function holdfast.doctor_payloads(timestamptz) is 'Find large payloads.';

create or replace function holdfast.doctor_attempts(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'warning',
    format(
      '%s is tried up to %s times: that is no limit. A job that cannot succeed costs as much as one that '
      'can, each time.', m.whose, m.most),
    m.remedy,
    jsonb_build_object('of', m.whose, 'max_attempts', m.most)
  from (
    select 'Every job of queue ' || q.name, q.max_attempts,
      format('holdfast queue configure %L max_attempts=10', q.name)
    from holdfast.queue q
    union all
    select 'Task ' || p.task, p.max_attempts, format('holdfast policy set %s --max-attempts 10', p.task)
    from holdfast.retry_policy p
    union all
    -- Each snooze adds one attempt to the maximum and uses one.
    select 'A waiting job of task ' || j.task, max(j.max_attempts - j.attempt),
      'Enqueue with a smaller max_attempts.'
    from holdfast.doctor_sample(200) j
    group by j.task
  ) m (whose, most, remedy)
  where m.most > 100
$$;
comment on function holdfast.doctor_attempts(timestamptz) is 'Find jobs without a real limit of attempts.';

-- How many jobs a second end for an hour or longer: in the busiest hour of the last day, and on
-- average since the statistics of the server began. A burst of a minute says nothing about the
-- volume.
create or replace function holdfast.doctor_rate(now_at timestamptz)
returns double precision
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  since timestamptz;
  average double precision;
  busiest double precision;
begin
  select coalesce(d.stats_reset, (select min(m.applied_at) from holdfast.migration m)) into since
  from pg_stat_database d
  where d.datname = current_database();
  select s.n_tup_del / greatest(extract(epoch from now_at - since), 3600) into average
  from pg_stat_all_tables s
  where s.relid = 'holdfast.live'::regclass;
  select max(h.jobs) / 3600.0 into busiest
  from (
    select sum(s.completed + s.dead + s.cancelled) as jobs
    from holdfast.stat s
    where s.span = 'minute'
      and s.at > now_at - interval '1 day'
    group by date_trunc('hour', s.at)
  ) h;
  return greatest(average, busiest);
end
$$;
comment on function holdfast.doctor_rate(timestamptz) is
  'Return how many jobs end in a second, sustained for an hour.';

create or replace function holdfast.doctor_volume(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with seen as materialized (
    select holdfast.doctor_rate(now_at)::numeric as rate
  ),
  advice (above, needed, advice) as (values
    (100, current_setting('shared_buffers') = '128MB',
      'shared_buffers is 128MB as installed: give it a quarter of the memory.'),
    (1000, pg_size_bytes(current_setting('max_wal_size')) <= 1024 * 1024 * 1024,
      'max_wal_size is 1GB or less: with 4 GB or more there are fewer checkpoints, and less is written.'),
    (1000, exists (select from holdfast.queue q where q.name = '*' and q.retention > interval '7 days'),
      'Finished jobs are kept for more than 7 days: at this rate that is a large table. Lower the retention '
      'of queues that nobody looks back at.'),
    (10000, true,
      'Above 10,000 jobs a second every option counts: enqueue in bulk, several worker processes, retention '
      '0 where results are not asked for, a disk of its own for the WAL.')
  )
  select
    'info',
    format(
      'About %s jobs a second end here in the busiest hour. %s', ltrim(to_char(s.rate, '999G999G990')),
      a.advice),
    'The guide "Sizing" says which option pays at which volume.',
    jsonb_build_object('jobs_per_second', round(s.rate))
  from seen s
  join advice a on s.rate > a.above and a.needed
$$;
comment on function holdfast.doctor_volume(timestamptz) is 'Find options that pay at the measured volume.';
