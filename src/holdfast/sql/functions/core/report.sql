-- Report on one job: wrappers around finish() for people and other languages. Each raises an
-- error if its report is refused.

-- Return why a report is refused, with a null sqlstate if it only repeats an accepted one.
--
-- HF002: there is no such job. HF001: the lease was lost, because another claim holds the job
-- or has finished it, or because it was taken away and waits again. HF003: the job is not held,
-- because it was never claimed, or because this lease has already reported another outcome.
create or replace function holdfast.verdict(id uuid, lease uuid, outcome text)
returns setof holdfast.refusal
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known record;
  repeated boolean;
begin
  select j.state, j.claimed_at, j.lease as current_lease, j.last_lease as past_lease,
    j.last_outcome into known
  from holdfast.live j where j.id = verdict.id;
  if not found then
    select f.state, f.claimed_at, null::uuid as current_lease, f.lease as past_lease,
      null as last_outcome into known
    from holdfast.finished f where f.id = verdict.id
    order by f.finished_at desc limit 1;
  end if;
  if not found then
    select 'dead' as state, d.claimed_at, null::uuid as current_lease, d.lease as past_lease,
      null as last_outcome into known
    from holdfast.dead_letter d where d.id = verdict.id;
  end if;

  if not found then
    return query select verdict.id, 'HF002', format('there is no job %s', verdict.id), null::text, null::uuid;
    return;
  end if;
  repeated := known.past_lease = verdict.lease and case known.state
    when 'completed' then verdict.outcome = 'completed'
    when 'dead' then verdict.outcome in ('failed', 'interrupted')
    when 'cancelled' then verdict.outcome in ('cancelled', 'failed', 'snoozed', 'released', 'interrupted')
    else verdict.outcome = known.last_outcome
  end;
  if repeated or known.current_lease = verdict.lease then
    return query select verdict.id, null::text, null::text, known.state, verdict.lease;
  elsif known.claimed_at is null or (known.current_lease is null and known.past_lease = verdict.lease) then
    return query select verdict.id, 'HF003',
      format(
        case when known.state in ('completed', 'cancelled', 'dead') then 'job %s is finished: it is %s'
        else 'job %s is %s: nobody holds it' end,
        verdict.id, known.state),
      known.state, null::uuid;
  else
    return query select verdict.id, 'HF001',
      format('the lease %s on job %s is lost: the job is %s%s', verdict.lease, verdict.id, known.state,
        ' under lease ' || known.current_lease),
      known.state, known.current_lease;
  end if;
end
$$;
comment on function holdfast.verdict(uuid, uuid, text) is
  'Return why a report under this lease is refused; without an sqlstate if it is accepted.';

create or replace function holdfast.refuse_report(refused holdfast.refusal, shown uuid)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using
    errcode = refused.sqlstate,
    message = refused.message,
    detail = jsonb_build_object(
      'id', refused.id, 'shown', shown, 'current', refused.lease, 'state', refused.state),
    hint = case refused.sqlstate
      when 'HF001'
        then 'Stop working on it: nothing was changed by this report, and another worker has the job or will '
             'have it.'
      when 'HF002' then 'Check the id, and that its transaction has committed. Old jobs are removed.'
      else case when refused.state in ('completed', 'cancelled', 'dead')
        then 'Report nothing more: a job that has ended stays as it is.'
        else 'Claim the job before reporting on it.'
      end
    end;
end
$$;
comment on function holdfast.refuse_report(holdfast.refusal, uuid) is 'Raise the error for a refused report.';

-- A repeated report counts as accepted, since the reply to the first may have been lost. In a
-- transaction that has written something before, it is refused: the caller repeats all of that
-- transaction, which would then be written twice.
create or replace function holdfast.refuse_repetition(id uuid, lease uuid, outcome text)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  refused holdfast.refusal;
begin
  if pg_current_xact_id_if_assigned() is null then
    return;
  end if;
  -- With a lock, since the first report may be about to commit.
  perform from holdfast.live j where j.id = refuse_repetition.id
    and j.lease = refuse_repetition.lease for update;
  if found then
    return;
  end if;
  select v.* into refused
    from holdfast.verdict(refuse_repetition.id, refuse_repetition.lease, refuse_repetition.outcome) v;
  if refused.sqlstate is null then
    refused.sqlstate := 'HF003';
    refused.message := format(
      'job %s is %s: this lease has reported on it already', refused.id, refused.state);
    refused.lease := null;
  end if;
  perform holdfast.refuse_report(refused, refuse_repetition.lease);
end
$$;
comment on function holdfast.refuse_repetition(uuid, uuid, text) is
  'Refuse a repeated report in a transaction that has written something before it.';

-- holdfast: role worker
create or replace function holdfast.complete(id uuid, lease uuid, result jsonb default null)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  refused holdfast.refusal;
begin
  perform holdfast.refuse_repetition(complete.id, complete.lease, 'completed');
  select f.* into refused
  from holdfast.finish(array[complete.id], array[complete.lease], results => array[complete.result]) f;
  if found then
    perform holdfast.refuse_report(refused, complete.lease);
  end if;
end
$$;
comment on function holdfast.complete(uuid, uuid, jsonb) is
  'Report a job as completed, with its result, under the lease of its claim.';

-- holdfast: role worker
create or replace function holdfast.fail(
  id uuid, lease uuid, error text, retry boolean default true, retry_in interval default null,
  traceback text default null)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  refused holdfast.refusal;
begin
  if fail.retry_in < interval '0' or fail.retry_in > interval '100 years' then
    perform holdfast.refuse_value('retry_in', fail.retry_in::text, 'must be between 0 and 100 years');
  end if;
  perform holdfast.refuse_repetition(fail.id, fail.lease, 'failed');
  select f.* into refused
  from holdfast.finish(
    array[fail.id], array[fail.lease], '{failed}',
    errors => array[coalesce(fail.error, 'failed')], tracebacks => array[fail.traceback],
    retries => array[fail.retry], delays => array[fail.retry_in]) f;
  if found then
    perform holdfast.refuse_report(refused, fail.lease);
  end if;
end
$$;
comment on function holdfast.fail(uuid, uuid, text, boolean, interval, text) is
  'Report a job as failed. It is retried by its policy, or after retry_in, or never if retry is false.';

-- holdfast: role worker
create or replace function holdfast.snooze(id uuid, lease uuid, delay interval)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  refused holdfast.refusal;
begin
  if snooze.delay is null or snooze.delay < interval '0' or snooze.delay > interval '100 years' then
    perform holdfast.refuse_value('delay', snooze.delay::text, 'must be between 0 and 100 years');
  end if;
  perform holdfast.refuse_repetition(snooze.id, snooze.lease, 'snoozed');
  select f.* into refused
  from holdfast.finish(array[snooze.id], array[snooze.lease], '{snoozed}', delays => array[snooze.delay]) f;
  if found then
    perform holdfast.refuse_report(refused, snooze.lease);
  end if;
end
$$;
comment on function holdfast.snooze(uuid, uuid, interval) is
  'Put off a job for some time without using up an attempt.';

-- holdfast: role worker
create or replace function holdfast.release(id uuid, lease uuid)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  refused holdfast.refusal;
begin
  perform holdfast.refuse_repetition(release.id, release.lease, 'released');
  select f.* into refused from holdfast.finish(array[release.id], array[release.lease], '{released}') f;
  if found then
    perform holdfast.refuse_report(refused, release.lease);
  end if;
end
$$;
comment on function holdfast.release(uuid, uuid) is
  'Give back a claimed job that was not started, and refund its attempt.';
