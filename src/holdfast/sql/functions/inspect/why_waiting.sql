-- Explain why a job that is ready and served still waits: name the jobs before it, and the state
-- of its workers.
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
      'when the last has ended, or has run clearly longer than at any death. So if the worker dies again, '
      'only the job that caused it is charged.',
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
    explanation := format('Nothing holds it back: it has been ready for %s, and %s it.',
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
    remedy := 'A worker that misses a notification finds the job at its next poll (after 1 s by default). '
      'If it does not, read its log and run: holdfast doctor';
    return next;
  end if;
end
$$;
comment on function holdfast.why_waiting(holdfast.live, holdfast.lane, timestamptz) is
  'Return the jobs before a ready job, and the state of the workers that serve it.';
