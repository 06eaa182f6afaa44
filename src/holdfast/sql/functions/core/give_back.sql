-- Write the failed, snoozed, released and interrupted reports of finish().
--
--   1. Decide the `verb` of each report: what happens to its job.
--   2. Store the errors, count the failures and log the events.
--   3. Change the jobs:
--
--        failed, snoozed         the job becomes scheduled
--        released, interrupted   the job becomes pending
--        dead                    the job may not be tried again: it moves to the dead letters
--        cancelled               the job was asked to cancel: it moves to the finished jobs
--
--   4. Delete the rows of these jobs in `running`.
--
-- finish() has locked the jobs. So a statement can find a job first and update it by its ctid: no
-- other transaction moves the row in between.
create or replace function holdfast.give_back(
  ids uuid[],
  leases uuid[],
  outcomes text[],
  errors text[],
  tracebacks text[],
  retries boolean[],
  delays interval[],
  durations double precision[],
  now_at timestamptz
)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  attempts holdfast.returned_attempt[];
begin
  attempts := holdfast.returned_attempts(
    ids, leases, outcomes, errors, tracebacks, retries, delays, durations, now_at);
  if attempts = '{}' then
    return 0;
  end if;

  insert into holdfast.attempt_error (job_id, attempt, failed_at, worker_id, error, traceback)
  select r.id, r.attempt, now_at, r.worker_id, left(r.error, 10000), left(r.traceback, 20000)
  from unnest(attempts) r
  where r.error is not null;
  perform holdfast.note_ends('failed', array_agg(r.lane_id), array_agg(r.waited), array_agg(r.ran), now_at)
  from unnest(attempts) r
  where r.is_failure
  having count(*) > 0;
  perform holdfast.log_returned(attempts, now_at);

  perform holdfast.end_jobs(r.verb, array_agg(r.id), array_agg(r.error), now_at)
  from unnest(attempts) r
  where r.verb in ('dead', 'cancelled')
  group by r.verb;
  -- Call return_jobs() once for each of the two verbs. Interrupted jobs go to the returned lane
  -- (kind 1). Released jobs get their attempt back, and pass no kind, so suspects stay suspects.
  -- Interrupted jobs had started, so they come first and get the earlier places.
  perform holdfast.return_jobs(
    array_agg(r.id), array_agg(r.error), case r.verb when 'released' then array_agg(r.id) else '{}' end,
    case r.verb when 'interrupted' then 1 end, now_at)
  from unnest(attempts) r
  where r.verb in ('interrupted', 'released')
  group by r.verb
  order by r.verb;

  update holdfast.live j
  set
    state = 'scheduled',
    run_at = now_at + r.wait,
    -- Raise max_attempts, so that a snooze uses up no attempt. At 32767 it stops rising, so that a
    -- job cannot snooze forever.
    max_attempts = case when r.verb = 'snoozed' then least(j.max_attempts + 1, 32767) else j.max_attempts end,
    last_error = coalesce(left(r.error, 10000), j.last_error),
    last_lease = j.lease,
    last_outcome = r.verb,
    lease = null,
    worker_id = null,
    changed_at = now_at
  from (
    select i.verb, i.error, i.wait, p.row_id
    from unnest(attempts) i
    cross join lateral (select j.ctid as row_id from holdfast.live j where j.id = i.id offset 0) p
    where i.verb in ('failed', 'snoozed')
  ) r
  where j.ctid = r.row_id;

  delete from holdfast.running x where x.job_id = any(array(select r.id from unnest(attempts) r));
  return cardinality(attempts);
end
$$;
comment on function holdfast.give_back(
  uuid[], uuid[], text[], text[], text[], boolean[], interval[], double precision[], timestamptz) is
  'Write failed, snoozed, released and interrupted reports, and change the state of their jobs. Returns how '
  'many reports were accepted.';

-- Return the accepted reports, each with the `verb` for its job: the outcome, or dead, or cancelled.
-- A report is accepted only under the lease of the current claim.
--
-- The language is PL/pgSQL because it keeps the plan. SQL would plan the query in each transaction.
create or replace function holdfast.returned_attempts(
  ids uuid[],
  leases uuid[],
  outcomes text[],
  errors text[],
  tracebacks text[],
  retries boolean[],
  delays interval[],
  durations double precision[],
  now_at timestamptz
)
returns holdfast.returned_attempt[]
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  return array(
    select row( -- the columns of the type, in its order
      j.id, j.lane_id, j.attempt, j.worker_id,
      -- verb. A job that was started as `once` must not run a second time.
      case
        when j.cancel_requested_at is not null then 'cancelled'
        when r.outcome in ('failed', 'interrupted')
          and (r.retry is false or x.once or j.attempt >= j.max_attempts) then 'dead'
        else r.outcome
      end,
      -- error
      case r.outcome
        when 'interrupted' then coalesce(r.error, 'interrupted: its worker was stopped')
        when 'failed' then coalesce(r.error, 'failed')
      end,
      r.traceback,
      -- wait: between 0 and 100 years. A null delay becomes 0, because greatest() ignores nulls.
      least(
        greatest(
          case
            when r.outcome = 'failed' then coalesce(r.delay, holdfast.retry_delay(j.task, j.attempt, l.queue))
            else r.delay
          end,
          interval '0'),
        interval '100 years'),
      -- is_failure. A failed attempt does not count as a failure if its job was asked to cancel.
      r.outcome = 'failed' and j.cancel_requested_at is null,
      -- waited: how many seconds the job was due before its claim
      date_part('epoch', j.claimed_at - greatest(j.run_at, j.created_at)),
      -- ran: the seconds that the worker has measured, or those since the start
      case
        when r.duration is null then date_part('epoch', now_at - coalesce(x.started_at, j.claimed_at))
        else least(greatest(r.duration, 0), 1e9)
      end
    )::holdfast.returned_attempt
    from unnest(ids, leases, outcomes, errors, tracebacks, retries, delays, durations)
      r (id, lease, outcome, error, traceback, retry, delay, duration)
    cross join lateral (select * from holdfast.live j where j.id = r.id and j.lease = r.lease offset 0) j
    join holdfast.lane l on l.id = j.lane_id
    left join lateral (
      select x.* from holdfast.running x where x.job_id = j.id and x.lease = j.lease offset 0
    ) x on true
    where r.outcome in ('failed', 'snoozed', 'released', 'interrupted')
  );
end
$$;
comment on function holdfast.returned_attempts(
  uuid[], uuid[], text[], text[], text[], boolean[], interval[], double precision[], timestamptz) is
  'Return the accepted reports, each with the verb for its job: the outcome, or dead, or cancelled.';

-- Write the events of failed, snoozed and interrupted attempts. The events keep the progress, which
-- give_back() then deletes with the row in `running`.
--
-- end_jobs() logs the dead and the cancelled jobs. A release is not logged.
create or replace function holdfast.log_returned(returned holdfast.returned_attempt[], now_at timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.log_events(
    array_agg(r.id), array_agg(l.queue), array_agg(j.task), array_agg(r.attempt), array_agg('job.' || r.verb),
    array_agg(jsonb_strip_nulls(jsonb_build_object(
      'error', left(r.error, 1000),
      'run_at', case when r.verb <> 'interrupted' then now_at + r.wait end,
      'progress', x.progress, 'stage', x.stage, 'step', x.step))),
    now_at)
  from unnest(returned) r
  cross join lateral (select j.task from holdfast.live j where j.id = r.id offset 0) j
  join holdfast.lane l on l.id = r.lane_id
  left join lateral (select x.* from holdfast.running x where x.job_id = r.id offset 0) x on true
  where r.verb in ('failed', 'snoozed', 'interrupted')
$$;
comment on function holdfast.log_returned(holdfast.returned_attempt[], timestamptz) is
  'Write the events of failed, snoozed and interrupted attempts.';

-- Make held jobs pending again in their old order. Claims take them before fresh jobs.
--
-- Each job moves to the lane of this `kind` that has its queue, priority and task:
--
--   1      returned
--   2      suspect
--   null   a suspect stays a suspect, because it had not started and nothing has cleared it; any
--          other job is returned
--
-- Jobs in `refunded` get the attempt of this claim back.
--
-- Each job gets a new place after its old one. If the sequence was reset, its next place may be
-- before an old one: then check_places() raises an error.
create or replace function holdfast.return_jobs(
  ids uuid[], errors text[], refunded uuid[], kind integer, now_at timestamptz)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  lanes record;
begin
  if cardinality(ids) = 0 then
    return;
  end if;
  perform holdfast.check_places(ids);
  -- Find the new lane of each old lane once, and keep both in arrays. If the planner assumes that
  -- `live` is empty, a join would look up the lane again for each job.
  select
    array_agg(d.lane_id) as old,
    array_agg(holdfast.lane_of_kind(
      d.lane_id,
      coalesce(
        return_jobs.kind, (select greatest(l.kind, 1) from holdfast.lane l where l.id = d.lane_id)))) as new
  into lanes
  from (select distinct j.lane_id from holdfast.live j where j.id = any(ids)) d;
  update holdfast.live j
  set
    state = 'pending',
    lane_id = o.new_lane,
    seq = o.new_seq,
    attempt = case when j.id = any(refunded) then greatest(j.attempt - 1, 0) else j.attempt end,
    last_lease = j.lease,
    last_outcome = case when j.id = any(refunded) then 'released' else 'interrupted' end,
    last_error = coalesce(left(o.error, 10000), j.last_error),
    lease = null,
    worker_id = null,
    changed_at = now_at
  from (
    -- Call nextval() on the sorted rows. A join at this level could change their order.
    select b.row_id, b.error, b.new_lane, nextval('holdfast.job_seq') as new_seq
    from (
      select j.row_id, i.error, lanes.new[array_position(lanes.old, j.lane_id)] as new_lane
      from unnest(ids, errors) i (id, error)
      cross join lateral (
        select j.ctid as row_id, j.lane_id, j.seq from holdfast.live j where j.id = i.id offset 0
      ) j
      order by j.seq
    ) b
  ) o
  where j.ctid = o.row_id;
  perform holdfast.wake_lanes(lanes.new, cardinality(ids));
end
$$;
comment on function holdfast.return_jobs(uuid[], text[], uuid[], integer, timestamptz) is
  'Make held jobs pending again in their old order. Claims take them before fresh jobs.';
