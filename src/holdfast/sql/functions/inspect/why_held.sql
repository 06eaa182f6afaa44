-- Explain why a job is held, by which worker, and whether that worker is alive.
--
-- The body is long on purpose: it is a list of causes, in the order in which they are checked.
create or replace function holdfast.why_held(job holdfast.live, lane holdfast.lane, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  worker holdfast.worker;
  run holdfast.running;
  known text;
  silent interval;
  ends_at timestamptz;
  look_at timestamptz := (select d.looks[1] from holdfast.duty d where d.name = 'recover');
begin
  select w.* into worker from holdfast.worker w where w.id = job.worker_id;
  select r.* into run from holdfast.running r where r.job_id = job.id and r.lease = job.lease;
  known := coalesce(nullif(holdfast.worker_in_words(worker), ''), job.worker_id::text);
  silent := now_at - worker.heartbeat_at;
  ends_at := greatest(worker.heartbeat_at, worker.graced_at) + worker.lease_time;
  detail := jsonb_strip_nulls(jsonb_build_object(
    'worker', job.worker_id, 'worker_name', worker.name, 'claimed_at', job.claimed_at, 'started_at',
    run.started_at,
    'heartbeat_at', worker.heartbeat_at, 'lease_ends_at', ends_at, 'deadline_at', run.deadline_at,
    'attempt', job.attempt, 'progress', run.progress, 'at_most_once', case when run.once then true end));

  if worker.id is null or worker.lost_at is not null or worker.left_at is not null then
    answer := 'worker_lost';
    explanation := format('Its worker %s %s. The jobs that it held are being taken back%s.', known,
      case
        when worker.id is null then 'no longer exists'
        when worker.lost_at is not null
          then format('was declared lost %s ago', holdfast.span_in_words(now_at - worker.lost_at))
        else format('left %s ago', holdfast.span_in_words(now_at - worker.left_at))
      end,
      case when run.once then '; this one must not run a second time, so it goes to the dead letters'
        else '' end);
    remedy := 'Wait a moment. If no worker runs: holdfast tick';
    return next;
  elsif ends_at < now_at or silent > worker.lease_time / 2 then
    answer := 'worker_silent';
    explanation := format(
      'It is held by worker %s, which has sent no heartbeat for %s. %s', known,
      holdfast.span_in_words(silent),
      case
        when ends_at > now_at
          then format(
            'If none comes, the first recovery after %s gives the job to others.',
            holdfast.span_in_words(ends_at - now_at))
        else format('Its lease ended %s ago, and %s.', holdfast.span_in_words(now_at - ends_at),
          case
            when look_at is null or look_at < now_at - interval '1 minute'
              then 'nobody does the duties that would take the job back'
            else 'the job is about to be taken back'
          end)
      end);
    remedy := 'Check whether it still runs and reaches the database. holdfast tick takes back lost jobs.';
    return next;
  end if;
  if job.cancel_requested_at is not null then
    answer := 'cancel_requested';
    explanation := format(
      'Its cancellation was requested %s ago. Its worker %s knows, and its handler has not ended yet.',
      holdfast.span_in_words(now_at - job.cancel_requested_at), known);
    remedy := 'A plain function must ask ctx.cancelled itself; isolation="process" makes it one that can be '
              'stopped.';
    return next;
  end if;
  if run.deadline_at < now_at then
    answer := 'timed_out';
    explanation := format(
      'Its timeout passed %s ago, at %s, and worker %s has not ended it. Five seconds after it the job is '
      'taken back.',
      holdfast.span_in_words(now_at - run.deadline_at), holdfast.time_in_words(run.deadline_at), known);
    remedy := 'Wait a moment. If no worker runs: holdfast tick';
    return next;
  end if;
  if run.job_id is not null then
    answer := 'running';
    explanation := format(
      'It runs on worker %s since %s, for %s%s%s%s. The last heartbeat was %s ago.', known,
      holdfast.time_in_words(run.started_at), holdfast.span_in_words(now_at - run.started_at),
      coalesce(', ' || run.progress || ' % done', ''),
      case when run.deadline_at > now_at
        then format(', with a timeout in %s', holdfast.span_in_words(run.deadline_at - now_at)) else '' end,
      case when run.once then ', and must not run a second time' else '' end,
      holdfast.span_in_words(silent));
    remedy := format('holdfast watch %s follows it, holdfast cancel %s calls it off.', job.id, job.id);
  else
    answer := 'held';
    explanation := format(
      'It is held by worker %s since %s, for %s, with %s in all; its handler has not been seen at work for '
      'half a second. '
      'The last heartbeat was %s ago.', known,
      holdfast.time_in_words(job.claimed_at), holdfast.span_in_words(now_at - job.claimed_at),
      holdfast.amount_in_words((
        select count(*) from (
          select from holdfast.live j where j.worker_id = job.worker_id and j.state = 'claimed'
            limit 10000) h), 'job', 10000),
      holdfast.span_in_words(silent));
    remedy := 'Wait: what a worker cannot start within a second it gives back. A consumer of your own must '
              'report or release it.';
  end if;
  return next;
  if lane.kind = 2 then
    answer := 'suspect';
    explanation := 'A worker died while it held this job before, so its worker takes no other such job until '
                   'this one is cleared.';
    remedy := format('If that happens again, its errors say so: holdfast job %s', job.id);
    return next;
  end if;
end
$$;
comment on function holdfast.why_held(holdfast.live, holdfast.lane, timestamptz) is
  'Return who holds a job, since when, and whether that worker seems to be alive.';
