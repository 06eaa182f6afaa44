-- Explain why no claim can take a pending job: its queue is paused, it is locked, its head has
-- passed it, or a session blocks a duty.

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
    format('An open transaction is changing it: %s%s. No worker can take it until that ends.',
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
