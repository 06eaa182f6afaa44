-- holdfast: after why
-- The parts of why() for a job that waits.

create or replace function holdfast.why_paused(lane holdfast.lane, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'paused',
    format('Queue %s has been paused since %s, for %s.',
      q.name, holdfast.time_in_words(q.paused_at), holdfast.span_in_words(now_at - q.paused_at)),
    format('holdfast queue resume %s', q.name),
    jsonb_build_object('queue', q.name, 'paused_at', q.paused_at)
  from holdfast.queue q
  where q.name = lane.queue
    and q.paused_at is not null
$$;
comment on function holdfast.why_paused(holdfast.lane, timestamptz) is
  'Return that the queue of a job is paused, if it is.';

-- A job that claims skip or do not reach.
create or replace function holdfast.why_passed_over(job holdfast.live, lane holdfast.lane, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'out_of_attempts',
    format(
      'All %s attempts are used up, because the maximum was lowered while it waited. Claims step over it; '
      'the next upkeep moves it to the dead letters.', job.max_attempts),
    format('Wait for the upkeep, then: holdfast replay %s', job.id),
    jsonb_build_object('attempt', job.attempt, 'max_attempts', job.max_attempts)
  where job.attempt >= job.max_attempts
  union all
  select
    'late',
    format(
      'It stands at place %s, behind the head of its lane at %s: the transaction that made it committed '
      'late. '
      'The next round of duties gives it a new place, within a second while a worker runs.', job.seq,
        lane.head),
    case when l.look_at > now_at - interval '1 minute'
      then 'Wait a moment.'
      else 'holdfast tick: nobody has done the duties'
        || coalesce(' for ' || holdfast.span_in_words(now_at - l.look_at), '') || '.'
    end,
    jsonb_build_object('seq', job.seq, 'head', lane.head)
  from (select (select d.looks[1] from holdfast.duty d where d.name = 'recover') as look_at) l
  where job.seq < lane.head
$$;
comment on function holdfast.why_passed_over(holdfast.live, holdfast.lane, timestamptz) is
  'Return that claims do not reach a job: it has no attempts left, or lies behind a head.';

-- xmax is the number of a transaction that writes or has locked the row, or once did. Only an
-- open transaction still holds the lock on its own number.
create or replace function holdfast.why_locked(locked_by xid, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'locked',
    format('An open transaction is changing it: %s%s. Nobody else comes to it until that ends.',
      coalesce('process ' || k.pid, 'a prepared one'),
      coalesce(' (' || nullif(concat_ws(', ', nullif(a.application_name, ''), a.usename, a.state,
        'open for ' || holdfast.span_in_words(now_at - a.xact_start)), '') || ')', '')),
    case
      when k.pid is null then 'Commit it or roll it back: select * from pg_prepared_xacts;'
      else format('Let it commit. If it hangs: select pg_terminate_backend(%s);', k.pid)
    end,
    jsonb_build_object(
      'pid', k.pid, 'application', a.application_name, 'state', a.state, 'since', a.xact_start)
  from pg_locks k
  left join pg_stat_activity a on a.pid = k.pid
  where k.locktype = 'transactionid'
    and k.transactionid = locked_by
    and k.granted
    and k.pid is distinct from pg_backend_pid()
$$;
comment on function holdfast.why_locked(xid, timestamptz) is
  'Return that an open transaction has locked the row of a job, if one has.';

-- A job waits for a duty.
create or replace function holdfast.why_duty(duty text, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'duty_held', h.sentence || '.', h.remedy,
    jsonb_build_object(
      'duty', h.duty, 'pid', h.pid, 'application', h.application, 'role', h.role, 'state', h.state,
      'since', h.since)
  from holdfast.duty_holders(now_at) h
  where h.duty = why_duty.duty
$$;
comment on function holdfast.why_duty(text, timestamptz) is
  'Return that a session has held a duty for long, if one has.';

create or replace function holdfast.why_unserved(lane holdfast.lane, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known record;
  last holdfast.worker;
begin
  select
    count(*) as alive,
    count(*) filter (where holdfast.serves(w, lane.queue, lane.task)) as serving,
    count(*) filter (
      where holdfast.serves(w, lane.queue, lane.task)
      and w.heartbeat_at > now_at - w.lease_time / 2) as heard,
    count(*) filter (where w.queues is null or lane.queue = any(w.queues)) as of_queue,
    max(w.heartbeat_at) as heartbeat_at,
    string_agg(distinct holdfast.worker_in_words(w), ', ') filter (
      where holdfast.serves(w, lane.queue, lane.task)) as names
  into known
  from holdfast.live_workers(now_at) w;

  if known.heard > 0 then
    return;
  elsif known.serving > 0 then
    answer := 'worker_silent';
    explanation := format('Whoever serves it has been silent for %s: %s.',
      holdfast.span_in_words(now_at - known.heartbeat_at), known.names);
    remedy := 'Look whether it still runs and reaches the database.';
    detail := jsonb_build_object('workers', known.serving, 'heartbeat_at', known.heartbeat_at);
  elsif known.alive = 0 then
    select w.* into last from holdfast.worker w order by greatest(w.left_at, w.lost_at, w.heartbeat_at) desc
      limit 1;
    answer := 'no_worker';
    explanation := case
      when last.id is null then 'No worker is alive, and there was none in the last day.'
      else format('No worker is alive. The last one, %s, %s %s ago.', holdfast.worker_in_words(last),
        case when last.left_at is not null then 'left' else 'was last heard of' end,
        holdfast.span_in_words(now_at - coalesce(last.left_at, last.heartbeat_at)))
    end;
    remedy := 'Start one: holdfast worker app:hf';
    detail := jsonb_build_object('workers', 0, 'last', last.name);
  elsif known.of_queue = 0 then
    answer := 'no_worker_for_queue';
    explanation := format('No worker serves queue %s. %s: %s.', lane.queue,
      case when known.alive = 1 then 'The only one alive serves'
        else format('The %s that are alive serve', known.alive) end,
      (select string_agg(distinct q, ', ') from holdfast.live_workers(now_at) w, unnest(w.queues) q));
    remedy := format('Start one: holdfast worker app:hf --queues %s', lane.queue);
    detail := jsonb_build_object('queue', lane.queue, 'workers', known.alive);
  else
    answer := 'no_worker_for_task';
    explanation := format('No worker of queue %s knows task %s%s.', lane.queue, lane.task, coalesce(
      -- A function that was moved to another module.
      (select format('; one knows %s, which may be what it is called now', min(t))
      from holdfast.live_workers(now_at) w, unnest(w.tasks) t
      where regexp_replace(t, '^.*[.:]', '') = regexp_replace(lane.task, '^.*[.:]', '')
      having count(*) > 0),
      -- A name that was misspelled.
      (select '; the nearest name that one knows is ' || holdfast.nearest(lane.task, array_agg(distinct t))
      from holdfast.live_workers(now_at) w, unnest(w.tasks) t
      where w.queues is null or lane.queue = any(w.queues))));
    remedy := 'Deploy the worker whose code has this task, or cancel the job if it is no more.';
    detail := jsonb_build_object('task', lane.task, 'queue', lane.queue, 'workers', known.of_queue);
  end if;
  return next;
end
$$;
comment on function holdfast.why_unserved(holdfast.lane, timestamptz) is
  'Return that no worker takes jobs of this lane, and which workers there are.';

-- The job is ready and is served: name the jobs before it, and the state of its workers.
--
-- The body is long on purpose: it is a list of causes, in the order in which they are checked.
create or replace function holdfast.why_waiting(job holdfast.live, lane holdfast.lane, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  most constant integer := 10000;
  waits interval := now_at - greatest(job.changed_at, job.run_at, job.created_at);
  servers record;
  ahead record;
  held record;
  deaths integer;
begin
  select
    coalesce(array_agg(w), '{}') as workers,
    count(*) filter (where w.asleep and w.above is null
      and not exists (
        select from holdfast.live j where j.worker_id = w.id and j.state = 'claimed' offset 0)) as idle
  into servers
  from holdfast.live_workers(now_at) w
  where holdfast.serves(w, lane.queue, lane.task);
  if cardinality(servers.workers) = 0 then
    return;
  end if;

  select count(*) as jobs, count(*) filter (where a.higher) as higher into ahead
  from (
    select l.priority > lane.priority as higher
    from holdfast.lane l
    cross join lateral (
      select
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.head
        -- One bound for the index: jobs behind it in its own lane are not read.
        and j.seq < case
          when l.priority > lane.priority or l.kind > lane.kind then 9223372036854775807
          else job.seq
        end
      limit most
    ) j
    where (l.priority > lane.priority or l.priority = lane.priority and l.kind >= lane.kind)
      and exists (select from unnest(servers.workers) w where holdfast.serves(w, l.queue, l.task))
      and not exists (select from holdfast.queue q where q.name = l.queue and q.paused_at is not null)
    limit most
  ) a;
  if ahead.jobs > 0 then
    answer := 'behind';
    explanation := format(
      'It is behind %s at the same or a higher priority than its %s%s. It has waited for %s.',
      holdfast.amount_in_words(ahead.jobs, 'job', most), lane.priority,
      case when ahead.higher > 0 then format(' (%s at a higher one)', ahead.higher) else '' end,
      holdfast.span_in_words(waits));
    remedy := 'Add workers, or enqueue urgent jobs with a higher priority.';
    detail := jsonb_build_object('ahead', ahead.jobs, 'at_least', ahead.jobs >= most, 'higher', ahead.higher);
    return next;
  end if;

  if lane.kind = 2 then
    deaths := coalesce((select d.deaths from holdfast.death d where d.job_id = job.id), 0);
    answer := 'suspect';
    explanation := format(
      'A worker died while it held this job%s. A worker runs one such job at a time and takes the next '
      'when the last has ended, or has run clearly longer than at any death. So only the culprit pays if the '
      'worker dies again.',
      case when deaths > 0 then format(', which was running then; that has happened %s',
        case deaths when 1 then 'once' else deaths || ' times' end) else '' end);
    remedy := 'Wait. If workers keep dying, its errors say so: holdfast job ' || job.id;
    detail := jsonb_build_object('attempt', job.attempt, 'max_attempts', job.max_attempts, 'deaths', deaths);
    return next;
  end if;

  select count(*) as jobs, count(distinct j.worker_id) as workers, min(j.claimed_at) as since into held
  from unnest(servers.workers) w
  cross join lateral (
    select j.worker_id, j.claimed_at from holdfast.live j where j.worker_id = w.id and j.state = 'claimed'
      limit most
  ) j;
  detail := jsonb_build_object(
    'workers', cardinality(servers.workers), 'idle', servers.idle, 'held', held.jobs, 'oldest_since',
      held.since);
  if held.workers = cardinality(servers.workers) then
    answer := 'workers_full';
    explanation := format('%s it, and all are at work: they hold %s, the oldest since %s, for %s.',
      case held.workers when 1 then '1 worker serves' else held.workers || ' workers serve' end,
      holdfast.amount_in_words(held.jobs, 'job'), holdfast.time_in_words(held.since),
        holdfast.span_in_words(now_at - held.since));
    remedy := 'Add workers, or raise --concurrency. holdfast jobs --running shows what takes so long.';
    return next;
  elsif ahead.jobs = 0 and lane.kind <> 2 and waits < interval '5 seconds' then
    answer := 'ready';
    explanation := format('Nothing stands in its way: it has been ready for %s, and %s it.',
      holdfast.span_in_words(waits),
      case cardinality(servers.workers) when 1 then '1 worker serves'
        else cardinality(servers.workers) || ' workers serve' end);
    remedy := 'Ask again in a moment.';
    return next;
  elsif ahead.jobs = 0 and lane.kind <> 2 then
    answer := 'not_taken';
    explanation := format('%s it%s, and none has taken it for %s.',
      case cardinality(servers.workers) when 1 then '1 worker serves'
        else cardinality(servers.workers) || ' workers serve' end,
      case when servers.idle > 0 then format(', %s asleep with nothing to do', servers.idle) else '' end,
      holdfast.span_in_words(waits));
    remedy := 'A worker that misses a notification looks by itself after its poll interval (1 s by default). '
      'If it does not, look at its log, and at holdfast doctor.';
    return next;
  end if;
end
$$;
comment on function holdfast.why_waiting(holdfast.live, holdfast.lane, timestamptz) is
  'Return the jobs before a ready job, and the state of the workers that serve it.';

create or replace function holdfast.why_scheduled(job holdfast.live, lane holdfast.lane, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  most constant integer := 10000;
  look_at timestamptz := (select d.looks[1] from holdfast.duty d where d.name = 'recover');
  due_from timestamptz := (select w.due_from from holdfast.writer_watch w);
  before bigint;
begin
  detail := jsonb_build_object(
    'run_at', job.run_at, 'database_time', now_at, 'attempt', job.attempt, 'max_attempts', job.max_attempts);
  if job.run_at > now_at then
    remedy := format('holdfast run-now %s, if it should not wait.', job.id);
    if job.last_outcome = 'failed' then
      answer := 'retry';
      explanation := format('Attempt %s of %s failed %s ago. It waits for the next one until %s, for %s.',
        job.attempt, job.max_attempts, holdfast.span_in_words(now_at - job.changed_at),
        holdfast.time_in_words(job.run_at), holdfast.span_in_words(job.run_at - now_at));
      remedy := format('holdfast job %s shows the errors. %s', job.id, remedy);
    elsif job.last_outcome = 'snoozed' then
      answer := 'snoozed';
      explanation := format('Its handler put it off %s ago. It is due again at %s, in %s.',
        holdfast.span_in_words(now_at - job.changed_at), holdfast.time_in_words(job.run_at),
        holdfast.span_in_words(job.run_at - now_at));
    else
      answer := 'scheduled';
      explanation := format('It is due at %s, in %s; by the clock of the database it is %s now.',
        holdfast.time_in_words(job.run_at), holdfast.span_in_words(job.run_at - now_at),
          holdfast.time_in_words(now_at));
    end if;
    return next;
  else
    answer := 'overdue';
    explanation := format('It has been due since %s, for %s, and was not yet made pending',
      holdfast.time_in_words(job.run_at), holdfast.span_in_words(now_at - job.run_at));
    if look_at is null or look_at < now_at - interval '1 minute' then
      explanation := explanation || format(': nobody does the duties%s.',
        coalesce(', the last time was ' || holdfast.span_in_words(now_at - look_at) || ' ago', ''));
      remedy := 'Start a worker, or let cron call: holdfast tick';
    elsif job.run_at < due_from then
      explanation := explanation || ', since it came after others that are due later. The next upkeep finds '
                                    'it, within a minute.';
      remedy := 'Wait a minute, or: holdfast run-now ' || job.id;
    else
      select count(*) into before
      from (
        select
        from holdfast.live j
        where j.state = 'scheduled'
          and j.run_at >= coalesce(due_from, '-infinity')
          and j.run_at < job.run_at
        limit most
      ) b;
      explanation := explanation || case
        when before > 0 then format(': %s fell due before it.', holdfast.amount_in_words(before, 'job', most))
        else '. That is about to happen.'
      end;
      remedy := 'Wait a moment, or: holdfast run-now ' || job.id;
    end if;
    return next;
  end if;
  if job.attempt >= job.max_attempts then
    answer := 'out_of_attempts';
    explanation := format(
      'All %s attempts are used up, because the maximum was lowered. When it falls due, it goes to the dead '
      'letters.',
      job.max_attempts);
    remedy := 'Nothing, or replay it then.';
    return next;
  end if;
end
$$;
comment on function holdfast.why_scheduled(holdfast.live, holdfast.lane, timestamptz) is
  'Return what a scheduled job waits for: its time, its retry, or the duty that makes it pending.';
