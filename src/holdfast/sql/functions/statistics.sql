-- holdfast: after stat
-- Each queue, or each task of each queue: what is there now, and what was done in the last hour and the last day.
--
-- The last hour is sixty minutes, the last day twenty-four hours, each with the one that has just begun.
create or replace function holdfast.statistics(by text default 'queue', queue text default null)
returns setof holdfast.statistic
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  first_minute timestamptz := date_trunc('minute', now_at, 'UTC') - interval '59 minutes';
  first_hour timestamptz := date_trunc('hour', now_at, 'UTC') - interval '23 hours';
  by_task boolean := statistics.by = 'task';
  unrestricted constant boolean := holdfast.unrestricted();
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
      select c.queue, case when by_task then c.task else '' end as task, sum(c.jobs)::bigint as jobs, bool_or(c.estimated) as estimated
      from holdfast.count_ended('dead', statistics.queue) c
      group by 1, 2
    ),
    past as materialized (
      select s.span, s.at, s.queue, case when by_task then s.task else '' end as task, s.completed, s.failed, s.dead, s.cancelled,
        s.wait_seconds, s.run_seconds, s.waits, s.runs
      from holdfast.stat s
      where (s.span = 'minute' and s.at between first_minute and now_at or s.span = 'hour' and s.at between first_hour and now_at)
        and (statistics.queue is null or s.queue = statistics.queue)
        and (unrestricted or holdfast.in_reach(s.queue))
    ),
    sums as materialized (
      select
        r.span, r.queue, r.task, sum(r.completed)::bigint as completed, sum(r.failed)::bigint as failed, sum(r.dead)::bigint as dead,
        sum(r.cancelled)::bigint as cancelled, sum(r.wait_seconds) as wait_seconds, sum(r.run_seconds) as run_seconds,
        sum(r.completed + r.failed) as attempts
      from past r
      group by 1, 2, 3
    ),
    counts as materialized (
      select b.span, b.queue, b.task, array_agg(b.waits order by b.n) as waits, array_agg(b.runs order by b.n) as runs
      from (
        select r.span, r.queue, r.task, u.n, sum(u.waits)::bigint as waits, sum(u.runs)::bigint as runs
        from past r
        cross join lateral unnest(r.waits, r.runs) with ordinality u (waits, runs, n)
        group by 1, 2, 3, 4
      ) b
      group by 1, 2, 3
    ),
    done as materialized (
      select
        s.span, s.queue, s.task, s.completed, s.failed, s.dead, s.cancelled,
        s.completed / extract(epoch from now_at - case s.span when 'hour' then first_hour else first_minute end)::double precision as per_second,
        case when s.attempts > 0 then s.failed / s.attempts::double precision end as failures,
        make_interval(secs => s.wait_seconds / nullif((select sum(n) from unnest(c.waits) n), 0)::double precision) as wait_avg,
        make_interval(secs => s.run_seconds / nullif((select sum(n) from unnest(c.runs) n), 0)::double precision) as run_avg,
        holdfast.percentiles(c.waits, '{0.5,0.95,0.99}') as waits,
        holdfast.percentiles(c.runs, '{0.5,0.95,0.99}') as runs
      from sums s
      join counts c on c.span = s.span and c.queue = s.queue and c.task = s.task
    ),
    minutes as materialized (
      select n.queue, n.task, array_agg(coalesce(r.completed, 0)::bigint order by m.at) as completed
      from (select distinct r.queue, r.task from past r) n
      cross join generate_series(first_minute, first_minute + interval '59 minutes', interval '1 minute') m (at)
      left join (
        select r.at, r.queue, r.task, sum(r.completed) as completed from past r where r.span = 'minute' group by 1, 2, 3
      ) r on r.at = m.at and r.queue = n.queue and r.task = n.task
      group by 1, 2
    ),
    names as (
      select l.queue, l.task from live l
      union
      select d.queue, d.task from dead d
      union
      select r.queue, r.task from past r
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
      coalesce(h.completed, 0), coalesce(h.failed, 0), coalesce(h.dead, 0), coalesce(h.cancelled, 0), coalesce(h.per_second, 0),
      h.failures,
      h.wait_avg, make_interval(secs => h.waits[1]), make_interval(secs => h.waits[2]), make_interval(secs => h.waits[3]),
      h.run_avg, make_interval(secs => h.runs[1]), make_interval(secs => h.runs[2]), make_interval(secs => h.runs[3]),
      coalesce(y.completed, 0), coalesce(y.failed, 0), coalesce(y.dead, 0), coalesce(y.cancelled, 0), coalesce(y.per_second, 0),
      y.failures,
      y.wait_avg, make_interval(secs => y.waits[1]), make_interval(secs => y.waits[2]), make_interval(secs => y.waits[3]),
      y.run_avg, make_interval(secs => y.runs[1]), make_interval(secs => y.runs[2]), make_interval(secs => y.runs[3]),
      coalesce(m.completed, array_fill(0::bigint, array[60]))
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
  'Each queue, or each task of it, with what waits, runs and is dead, and what was done in the last hour and day: throughput, share of failures, waiting and running times.';

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
comment on view holdfast.queue_stats is 'Each queue: what waits, runs and is dead, and what was done in the last hour and day.';

create or replace view holdfast.task_stats as
select s.* from holdfast.statistics('task') s;
comment on view holdfast.task_stats is 'Each task of each queue: what waits, runs and is dead, and what was done in the last hour and day.';
