-- Check the work, for doctor(): workers, jobs that no worker serves, and habits that hurt later.

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
    'Find out why they died: no memory, a handler that ends its process, a machine that was switched off.',
    jsonb_build_object('workers', count(*), 'jobs', sum(w.recovered))
  from holdfast.worker w
  where w.lost_at > now_at - interval '1 hour'
    and not holdfast.is_consumer_without_jobs(w)
  having count(*) > 0
  union all
  select
    'warning',
    format('Worker %s has sent no heartbeat for %s; its lease is %s.', holdfast.worker_in_words(w),
      holdfast.span_in_words(now_at - w.heartbeat_at), holdfast.span_in_words(w.lease_time)),
    'Check whether it still runs and reaches the database.',
    jsonb_build_object('worker', w.id, 'heartbeat_at', w.heartbeat_at)
  from holdfast.worker w
  where w.lost_at is null
    and w.left_at is null
    and greatest(w.heartbeat_at, w.graced_at) < now_at - w.lease_time / 2
    and not holdfast.is_consumer_without_jobs(w)
$$;
comment on function holdfast.doctor_workers(timestamptz) is 'Find workers that were lost or are silent.';

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

-- A claim from psql is not a worker that died, if the jobs that it took were done.
create or replace function holdfast.is_consumer_without_jobs(worker holdfast.worker)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select worker.name = 'consumer-' || left(worker.id::text, 8)
    and worker.recovered = 0
    and not exists (select from holdfast.live j where j.worker_id = worker.id and j.state = 'claimed')
$$;
comment on function holdfast.is_consumer_without_jobs(holdfast.worker) is
  'Return whether a worker has claimed without registering and left nothing behind.';

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
      'of queues whose past nobody reads.'),
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
