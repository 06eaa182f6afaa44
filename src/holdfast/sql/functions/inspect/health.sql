-- Judge the health of each queue: OK, WARNING or CRITICAL, with a message that says how many jobs
-- wait, for how long, and what is wrong. The thresholds are columns of holdfast.queue. A null
-- means the value of '*', and a null there switches the check off.
--
--   waiting    more jobs wait than waiting_warning, waiting_critical
--   age        the oldest waits longer than age_warning, age_critical. A due job that is still
--              scheduled waits too: nobody does the duties.
--   failures   a larger share of the last hour's attempts failed than failures_warning,
--              failures_critical; checked from ten attempts on, since one of one says nothing
--   workers    jobs wait for a task that no live worker serves: a warning, and critical once they
--              wait for longer than age_warning (otherwise a minute), so that no deploy raises an
--              alarm. Checked if worker_expected is true.
--   paused     jobs in a paused queue are meant to wait: a warning at most, and no worker is
--              missed
--
-- The body is long on purpose: it is one query, a part for each threshold.
-- holdfast: role viewer
create or replace function holdfast.health(queue text default null)
returns setof holdfast.queue_report
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
begin
  if health.queue is not null then
    perform holdfast.check_queue(health.queue);
    perform holdfast.check_known_queue(health.queue);
  end if;
  return query
    with names as materialized (
      select q.name from holdfast.queue q where q.name <> '*'
      union
      select l.queue from holdfast.lane l
      union
      select health.queue where health.queue is not null
    ),
    live as materialized (
      select c.queue, c.task, c.state, c.jobs, c.estimated, c.since
      from holdfast.count_live(health.queue) c
      where c.state = 'pending' or c.state = 'scheduled' and c.since < now_at - interval '5 seconds'
    ),
    waiting as materialized (
      select
        l.queue,
        coalesce(sum(l.jobs) filter (where l.state = 'pending'), 0)::bigint as jobs,
        coalesce(bool_or(l.estimated) filter (where l.state = 'pending'), false) as estimated,
        min(l.since) as since,
        min(l.since) filter (where l.state = 'scheduled') as due_since
      from live l
      group by l.queue
    ),
    workers as materialized (
      select w.queues, w.tasks from holdfast.live_workers(now_at) w
    ),
    alone as materialized (
      select l.queue, array_agg(l.task order by l.task) as tasks, min(l.since) as since
      from live l
      where l.state = 'pending'
        and not exists (
          select from workers w
          where (w.queues is null or l.queue = any(w.queues)) and (w.tasks is null or l.task = any(w.tasks)))
      group by l.queue
    ),
    done as materialized (
      select s.queue, sum(s.completed + s.failed)::bigint as attempts, sum(s.failed)::bigint as failed
      from holdfast.stat s
      where s.span = 'minute'
        and s.at between date_trunc('minute', now_at, 'UTC') - interval '59 minutes' and now_at
        and (health.queue is null or s.queue = health.queue)
      group by s.queue
    ),
    facts as materialized (
      select
        n.name, q.paused_at, coalesce(w.jobs, 0) as jobs, coalesce(w.estimated, false) as estimated,
        w.since, case when w.since is not null then greatest(now_at - w.since, interval '0') end as age,
        w.due_since = w.since as overdue, a.tasks as alone, now_at - a.since as alone_for,
        coalesce(d.attempts, 0) as attempts, coalesce(d.failed, 0) as failed,
        d.failed / nullif(d.attempts, 0)::double precision as failures,
        (select count(*) from workers w where w.queues is null or n.name = any(w.queues))::integer as workers,
        coalesce(q.waiting_warning, s.waiting_warning) as waiting_warning,
        coalesce(q.waiting_critical, s.waiting_critical) as waiting_critical,
        coalesce(q.age_warning, s.age_warning) as age_warning,
        coalesce(q.age_critical, s.age_critical) as age_critical,
        coalesce(q.failures_warning, s.failures_warning) as failures_warning,
        coalesce(q.failures_critical, s.failures_critical) as failures_critical,
        coalesce(q.worker_expected, s.worker_expected, false) as worker_expected
      from names n
      left join holdfast.queue q on q.name = n.name
      left join holdfast.queue s on s.name = '*'
      left join waiting w on w.queue = n.name
      left join alone a on a.queue = n.name
      left join done d on d.queue = n.name
      where (health.queue is null or n.name = health.queue)
        and ((select holdfast.unrestricted()) or holdfast.in_reach(n.name))
    )
    select
      f.name, (array['OK', 'WARNING', 'CRITICAL'])[coalesce(c.level, 0) + 1],
      case
        when f.jobs = 0 then 'no job waits'
        when f.jobs = 1 then 'one job waits, for ' || holdfast.seconds_in_words(now_at - f.since)
        else format(
          '%s%s jobs wait, the oldest for %s', case when f.estimated then 'about ' end, f.jobs,
          holdfast.seconds_in_words(f.age))
      end
      || coalesce(
        ': ' || nullif(
          concat_ws('; ', c.words, 'paused for ' || holdfast.seconds_in_words(now_at - f.paused_at)), ''),
        ''),
      f.jobs, f.estimated, f.since, f.age, f.attempts, f.failed, f.failures, f.workers, f.paused_at
    from facts f
    cross join lateral (
      select max(c.level) as level, string_agg(c.words, '; ' order by c.level desc, c.n) as words
      from (
        select 1 as n, case when f.jobs > f.waiting_critical then 2 else 1 end as level,
          case when f.jobs > f.waiting_critical then format('more than %s are critical', f.waiting_critical)
            else format('more than %s are a warning', f.waiting_warning) end as words
        where f.jobs > least(f.waiting_warning, f.waiting_critical)
        union all
        select 2, case when f.age > f.age_critical and f.paused_at is null then 2 else 1 end,
          case when f.overdue
            then format(
            'a scheduled job has been due for %s and is not pending yet, ', holdfast.seconds_in_words(f.age))
            else '' end
          || case when f.age > f.age_critical and f.paused_at is null
            then format('longer than %s is critical', holdfast.seconds_in_words(f.age_critical))
            else format(
              'longer than %s is a warning',
              holdfast.seconds_in_words(least(f.age_warning, f.age_critical))) end
        where f.age > least(f.age_warning, f.age_critical)
        union all
        select 3, case when f.failures > f.failures_critical then 2 else 1 end,
          format('%s of %s attempts of the last hour failed, more than %s %% is %s', f.failed, f.attempts,
            round(
              100 * (
              case when f.failures > f.failures_critical then f.failures_critical
              else f.failures_warning end)::numeric, 1)::real,
            case when f.failures > f.failures_critical then 'critical' else 'a warning' end)
        where f.attempts >= 10 and f.failures > least(f.failures_warning, f.failures_critical)
        union all
        select 4, case when f.alone_for > coalesce(f.age_warning, interval '1 minute') then 2 else 1 end,
          case when f.workers = 0 then 'no worker serves this queue'
            else 'no worker knows ' || array_to_string(f.alone[:3], ', ') || case
              when cardinality(f.alone) > 3 then ', ...' else '' end end
          || case when f.alone_for > coalesce(f.age_warning, interval '1 minute')
            then format(
              ', longer than %s without one is critical',
              holdfast.seconds_in_words(coalesce(f.age_warning, interval '1 minute'))) else '' end
        where f.worker_expected and f.alone is not null and f.paused_at is null
      ) c
    ) c
    order by f.name;
end
$$;
comment on function holdfast.health(text) is
  'Return the health of each queue, or of one: OK, WARNING or CRITICAL by its thresholds, with a message '
  'that says how many jobs wait, for how long, and what is wrong.';

-- holdfast: role viewer
create or replace view holdfast.queue_health as
select h.* from holdfast.health() h;
comment on view holdfast.queue_health is 'The health of each queue: OK, WARNING or CRITICAL, and why.';

-- A monitor that misspells a queue must not see OK forever.
create or replace function holdfast.check_known_queue(queue text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.check_name('queue', check_known_queue.queue);
  if exists (select from holdfast.lane l where l.queue = check_known_queue.queue)
    or exists (select from holdfast.queue q where q.name = check_known_queue.queue)
    or exists (select from holdfast.worker w where check_known_queue.queue = any(w.queues))
    or exists (select from holdfast.schedule s where s.queue = check_known_queue.queue) then
    return;
  end if;
  perform holdfast.refuse_value(
    'queue', check_known_queue.queue,
    'no job was ever enqueued there and no worker serves it; known are ' || coalesce(
      (select string_agg(n.queue, ', ')
       from (
         select l.queue from holdfast.lane l where holdfast.unrestricted() or holdfast.in_reach(l.queue)
         group by l.queue order by l.queue limit 10) n),
      'none yet'));
end
$$;
comment on function holdfast.check_known_queue(text) is
  'Refuse a queue that nobody has used, configured or serves.';
