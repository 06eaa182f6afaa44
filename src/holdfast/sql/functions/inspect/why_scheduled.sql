-- Explain what a scheduled job waits for.

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
      explanation := format('Its handler snoozed it %s ago. It is due again at %s, in %s.',
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
      explanation := explanation || ', because it came after jobs that are due later. The next upkeep finds '
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
