-- Explain a job that is not live: how it ended, or why nothing is known of it.
create or replace function holdfast.why_ended(id uuid, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  job record;
  used record;
  keep interval := (select max(q.retention) from holdfast.queue q);
  open integer;
  made_at timestamptz;
begin
  select e.* into job
  from (
    select f.state, f.finished_at, f.attempt, f.max_attempts, f.duration, f.worker_id from holdfast.finished f
      where f.id = why_ended.id
    union all
    select 'dead', d.died_at, d.attempt, d.max_attempts, d.duration, d.worker_id from holdfast.dead_letter d
      where d.id = why_ended.id
  ) e
  order by e.finished_at desc
  limit 1;
  if found then
    answer := job.state;
    detail := jsonb_build_object(
      'finished_at', job.finished_at, 'attempt', job.attempt, 'max_attempts', job.max_attempts, 'worker',
      job.worker_id);
    case job.state
      when 'completed' then
        explanation := format('It was completed at %s, %s ago, in attempt %s of %s%s.',
          holdfast.time_in_words(job.finished_at), holdfast.span_in_words(now_at - job.finished_at),
          job.attempt, job.max_attempts, coalesce(' after ' || holdfast.span_in_words(job.duration), ''));
        remedy := format('Nothing. holdfast job %s shows its result.', why_ended.id);
      when 'cancelled' then
        explanation := format('It was cancelled at %s, %s ago.',
          holdfast.time_in_words(job.finished_at), holdfast.span_in_words(now_at - job.finished_at));
        remedy := 'Nothing, or enqueue it again. The audit log says who did it.';
      else
        explanation := format('It is dead since %s, %s ago, after %s of %s attempts.',
          holdfast.time_in_words(job.finished_at), holdfast.span_in_words(now_at - job.finished_at),
          job.attempt, job.max_attempts);
        remedy := format(
          'holdfast job %s shows the errors, holdfast replay %s puts it back on its queue.', why_ended.id,
          why_ended.id);
    end case;
    return next;
    return;
  end if;

  answer := 'unknown';
  select u.used_at, u.task into used from holdfast.used_id u where u.id = why_ended.id;
  open := cardinality(holdfast.writers());
  -- Ids that we make are UUIDs of version 7, and begin with the milliseconds since 1970.
  if substr(why_ended.id::text, 15, 1) = '7' then
    made_at := to_timestamp(
      ('x' || lpad(replace(left(why_ended.id::text, 13), '-', ''), 16, '0'))::bit(64)::bigint / 1000.0);
  end if;
  explanation := concat_ws(' ',
    'There is no job with this id.',
    case when used.used_at is not null then
      format('One was enqueued under it %s ago, for task %s, and has been purged or forgotten since.',
        holdfast.span_in_words(now_at - used.used_at), used.task)
    end,
    case when used.used_at is null and made_at between now_at - interval '100 years'
      and now_at + interval '1 day' then
      format(
        'The id was made at %s, %s ago.', holdfast.time_in_words(made_at),
        holdfast.span_in_words(now_at - made_at))
    end,
    format('Finished jobs are kept for %s at most.', holdfast.span_in_words(keep)),
    'What was enqueued in a transaction is not there before it commits, and never if it rolls back.',
    case when open > 0 then
      format('%s at this moment.',
        case open when 1 then '1 transaction that may enqueue is open'
          else open || ' transactions that may enqueue are open' end)
    end);
  remedy := 'Check the id and the database, and whether the transaction was committed.';
  detail := jsonb_build_object('used_at', used.used_at, 'made_at', made_at, 'open_writers', open,
    'retention_seconds', extract(epoch from keep));
  return next;
end
$$;
comment on function holdfast.why_ended(uuid, timestamptz) is
  'Return how a job ended, or why nothing is known of it.';
