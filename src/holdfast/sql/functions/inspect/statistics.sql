-- Return for each queue, or each task of each queue, what is there now, and what was done in the
-- last hour and the last day.
--
-- The last hour is sixty minutes and the last day twenty-four hours, each with the one that has
-- just begun.
--
-- The body is long on purpose: it is one query.
-- holdfast: role viewer
create or replace function holdfast.statistics(by text default 'queue', queue text default null)
returns setof holdfast.statistic
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_mergejoin = off
set work_mem = '32MB'
set jit = off
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  first_minute timestamptz := date_trunc('minute', now_at, 'UTC') - interval '59 minutes';
  first_hour timestamptz := date_trunc('hour', now_at, 'UTC') - interval '23 hours';
  by_task boolean := statistics.by = 'task';
  unrestricted constant boolean := holdfast.unrestricted();
  -- Evaluated once for each queue, not for each of its minutes.
  mine constant text[] := case when not unrestricted then array(
    select q.queue from (select distinct s.queue from holdfast.stat s offset 0) q
      where holdfast.in_reach(q.queue)
  ) end;
begin
  if statistics.by is null or statistics.by not in ('queue', 'task') then
    perform holdfast.refuse_value('by', statistics.by, 'must be queue or task');
  end if;
  return query
    with live as materialized (
      select
        c.queue, case when by_task then c.task else '' end as task,
        coalesce(sum(c.jobs) filter (where c.state = 'pending'), 0)::bigint as waiting,
        coalesce(sum(c.jobs) filter (where c.state = 'scheduled'), 0)::bigint as scheduled,
        coalesce(sum(c.jobs) filter (where c.state in ('claimed', 'running')), 0)::bigint as running,
        bool_or(c.estimated) as estimated,
        min(c.since) filter (where c.state = 'pending') as since
      from holdfast.count_live(statistics.queue) c
      group by 1, 2
    ),
    dead as materialized (
      select c.queue, case when by_task then c.task else '' end as task, sum(c.jobs)::bigint as jobs,
        bool_or(c.estimated) as estimated
      from holdfast.count_ended('dead', statistics.queue) c
      group by 1, 2
    ),
    -- Bucket by bucket in one pass: unnesting the histograms would make 52 rows of each. With a
    -- thousand tasks busy in every minute that took 4.5 s; this takes 0.8 s.
    sums as materialized (
      select
        s.span, s.queue, case when by_task then s.task else '' end as task,
        sum(s.completed)::bigint as completed, sum(s.failed)::bigint as failed, sum(s.dead)::bigint as dead,
        sum(s.cancelled)::bigint as cancelled, sum(s.wait_seconds) as wait_seconds,
        sum(s.run_seconds) as run_seconds, sum(s.completed + s.failed) as attempts,
        array[
          sum(s.waits[1]), sum(s.waits[2]), sum(s.waits[3]), sum(s.waits[4]), sum(s.waits[5]),
          sum(s.waits[6]),
          sum(s.waits[7]), sum(s.waits[8]), sum(s.waits[9]), sum(s.waits[10]), sum(s.waits[11]),
          sum(s.waits[12]),
          sum(s.waits[13]), sum(s.waits[14]), sum(s.waits[15]), sum(s.waits[16]), sum(s.waits[17]),
          sum(s.waits[18]),
          sum(s.waits[19]), sum(s.waits[20]), sum(s.waits[21]), sum(s.waits[22]), sum(s.waits[23]),
          sum(s.waits[24]),
          sum(s.waits[25]), sum(s.waits[26]), sum(s.waits[27]), sum(s.waits[28]), sum(s.waits[29]),
          sum(s.waits[30]),
          sum(s.waits[31]), sum(s.waits[32]), sum(s.waits[33]), sum(s.waits[34]), sum(s.waits[35]),
          sum(s.waits[36]),
          sum(s.waits[37]), sum(s.waits[38]), sum(s.waits[39]), sum(s.waits[40]), sum(s.waits[41]),
          sum(s.waits[42]),
          sum(s.waits[43]), sum(s.waits[44]), sum(s.waits[45]), sum(s.waits[46]), sum(s.waits[47]),
          sum(s.waits[48]), sum(s.waits[49]), sum(s.waits[50]), sum(s.waits[51]), sum(s.waits[52])
        ] as waits,
        array[
          sum(s.runs[1]), sum(s.runs[2]), sum(s.runs[3]), sum(s.runs[4]), sum(s.runs[5]), sum(s.runs[6]),
          sum(s.runs[7]),
          sum(s.runs[8]), sum(s.runs[9]), sum(s.runs[10]), sum(s.runs[11]), sum(s.runs[12]), sum(s.runs[13]),
          sum(s.runs[14]), sum(s.runs[15]), sum(s.runs[16]), sum(s.runs[17]), sum(s.runs[18]),
          sum(s.runs[19]),
          sum(s.runs[20]), sum(s.runs[21]), sum(s.runs[22]), sum(s.runs[23]), sum(s.runs[24]),
          sum(s.runs[25]),
          sum(s.runs[26]), sum(s.runs[27]), sum(s.runs[28]), sum(s.runs[29]), sum(s.runs[30]),
          sum(s.runs[31]),
          sum(s.runs[32]), sum(s.runs[33]), sum(s.runs[34]), sum(s.runs[35]), sum(s.runs[36]),
          sum(s.runs[37]),
          sum(s.runs[38]), sum(s.runs[39]), sum(s.runs[40]), sum(s.runs[41]), sum(s.runs[42]),
          sum(s.runs[43]),
          sum(s.runs[44]), sum(s.runs[45]), sum(s.runs[46]), sum(s.runs[47]), sum(s.runs[48]),
          sum(s.runs[49]), sum(s.runs[50]), sum(s.runs[51]), sum(s.runs[52])
        ] as runs
      from holdfast.stat s
      where (
        s.span = 'minute' and s.at between first_minute and now_at or s.span = 'hour'
        and s.at between first_hour and now_at)
        and (statistics.queue is null or s.queue = statistics.queue)
        and (unrestricted or s.queue = any(mine))
      group by 1, 2, 3
    ),
    done as materialized (
      select
        s.span, s.queue, s.task, s.completed, s.failed, s.dead, s.cancelled,
        s.completed / extract(
          epoch from now_at - case s.span when 'hour' then first_hour
          else first_minute end)::double precision as per_second,
        case when s.attempts > 0 then s.failed / s.attempts::double precision end as failures,
        make_interval(
          secs => s.wait_seconds / nullif(
          (select sum(n) from unnest(s.waits) n), 0)::double precision) as wait_avg,
        make_interval(
          secs => s.run_seconds / nullif(
          (select sum(n) from unnest(s.runs) n), 0)::double precision) as run_avg,
        holdfast.percentiles(s.waits, '{0.5,0.95,0.99}') as waits,
        holdfast.percentiles(s.runs, '{0.5,0.95,0.99}') as runs
      from sums s
    ),
    minutes as materialized (
      select n.queue, n.task, array_agg(coalesce(r.completed, 0)::bigint order by m.at) as completed
      from sums n
      cross join generate_series(first_minute, first_minute + interval '59 minutes', interval '1 minute')
        m (at)
      left join (
        select s.at, s.queue, case when by_task then s.task else '' end as task, sum(s.completed) as completed
        from holdfast.stat s
        where s.span = 'minute'
          and s.at between first_minute and now_at
          and (statistics.queue is null or s.queue = statistics.queue)
        group by 1, 2, 3
      ) r on r.at = m.at and r.queue = n.queue and r.task = n.task
      where n.span = 'minute'
      group by 1, 2
    ),
    names as (
      select l.queue, l.task from live l
      union
      select d.queue, d.task from dead d
      union
      select s.queue, s.task from sums s
      union
      select q.name, '' from holdfast.queue q where not by_task and q.name <> '*'
        and (statistics.queue is null or q.name = statistics.queue)
        and (unrestricted or holdfast.in_reach(q.name))
      union
      select l.queue, '' from holdfast.lane l where not by_task
        and (statistics.queue is null or l.queue = statistics.queue)
        and (unrestricted or holdfast.in_reach(l.queue))
    )
    select
      n.queue, nullif(n.task, ''), (select q.paused_at from holdfast.queue q where q.name = n.queue),
      coalesce(l.waiting, 0), coalesce(l.scheduled, 0), coalesce(l.running, 0), coalesce(d.jobs, 0),
      coalesce(l.estimated, false) or coalesce(d.estimated, false), l.since,
      coalesce(h.completed, 0), coalesce(h.failed, 0), coalesce(h.dead, 0), coalesce(h.cancelled, 0),
      coalesce(h.per_second, 0), h.failures,
      h.wait_avg, make_interval(secs => h.waits[1]), make_interval(secs => h.waits[2]),
      make_interval(secs => h.waits[3]),
      h.run_avg, make_interval(secs => h.runs[1]), make_interval(secs => h.runs[2]),
      make_interval(secs => h.runs[3]),
      coalesce(y.completed, 0), coalesce(y.failed, 0), coalesce(y.dead, 0), coalesce(y.cancelled, 0),
      coalesce(y.per_second, 0), y.failures,
      y.wait_avg, make_interval(secs => y.waits[1]), make_interval(secs => y.waits[2]),
      make_interval(secs => y.waits[3]),
      y.run_avg, make_interval(secs => y.runs[1]), make_interval(secs => y.runs[2]),
      make_interval(secs => y.runs[3]), coalesce(m.completed, array_fill(0::bigint, array[60]))
    from names n
    left join live l on l.queue = n.queue and l.task = n.task
    left join dead d on d.queue = n.queue and d.task = n.task
    left join done h on h.span = 'minute' and h.queue = n.queue and h.task = n.task
    left join done y on y.span = 'hour' and y.queue = n.queue and y.task = n.task
    left join minutes m on m.queue = n.queue and m.task = n.task
    order by n.queue, n.task;
end
$$;
comment on function holdfast.statistics(text, text) is
  'Return for each queue, or each task of it, how many jobs wait, run and are dead, and what was done in '
  'the last hour and day: throughput, share of failures, waiting and running times.';

-- holdfast: role viewer
create or replace view holdfast.queue_stats as
select
  s.queue, s.paused_at, s.waiting, s.scheduled, s.running, s.dead, s.estimated, s.waiting_since,
  s.hour_completed, s.hour_failed, s.hour_dead, s.hour_cancelled, s.hour_per_second, s.hour_failures,
  s.hour_wait_avg, s.hour_wait_p50, s.hour_wait_p95, s.hour_wait_p99,
  s.hour_run_avg, s.hour_run_p50, s.hour_run_p95, s.hour_run_p99,
  s.day_completed, s.day_failed, s.day_dead, s.day_cancelled, s.day_per_second, s.day_failures,
  s.day_wait_avg, s.day_wait_p50, s.day_wait_p95, s.day_wait_p99,
  s.day_run_avg, s.day_run_p50, s.day_run_p95, s.day_run_p99, s.minutes
from holdfast.statistics('queue') s;
comment on view holdfast.queue_stats is
  'For each queue: how many jobs wait, run and are dead, and what was done in the last hour and day.';

-- holdfast: role viewer
create or replace view holdfast.task_stats as
select s.* from holdfast.statistics('task') s;
comment on view holdfast.task_stats is
  'For each task of each queue: how many jobs wait, run and are dead, and what was done in the last hour '
  'and day.';
