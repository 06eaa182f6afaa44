-- Let one session at a time do a duty, and record when it ended and whether it failed.
--
-- Each duty has an empty table of its own. The session that does the duty holds a lock on that
-- table until its transaction ends. Only the owner has rights on these tables, so no other role
-- can take the lock; any login can take an advisory lock. Locking a row instead would write to
-- the log several times a second. A table lock writes nothing, and pg_locks names its holder.
--
-- SHARE UPDATE EXCLUSIVE conflicts with itself, but not with a dump or with the fast path of
-- other locks.
--
-- Each lock is written out, and no search_path is set: this takes 385 µs after a pause instead
-- of 440; an advisory lock takes 335.
create or replace function holdfast.try_duty(duty text)
returns boolean
language plpgsql volatile
as $$
begin
  case try_duty.duty
    when 'promote' then lock table holdfast.duty_promote in share update exclusive mode nowait;
    when 'advance' then lock table holdfast.duty_advance in share update exclusive mode nowait;
    when 'recover' then lock table holdfast.duty_recover in share update exclusive mode nowait;
    when 'fold_stats' then lock table holdfast.duty_fold_stats in share update exclusive mode nowait;
    when 'upkeep' then lock table holdfast.duty_upkeep in share update exclusive mode nowait;
    when 'sweep' then lock table holdfast.duty_sweep in share update exclusive mode nowait;
  end case;
  return true;
exception when lock_not_available then
  return false;
end
$$;
comment on function holdfast.try_duty(text) is
  'Take the lock of a duty until the end of the transaction. Returns false if another session has it.';

create or replace function holdfast.await_duty(duty text)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  execute format('lock table holdfast.%I in share update exclusive mode', 'duty_' || await_duty.duty);
end
$$;
comment on function holdfast.await_duty(text) is
  'Wait for the lock of a duty, up to lock_timeout, and hold it until the end of the transaction.';

-- The log gets the same error only once a minute.
create or replace function holdfast.note_duty(duty text, error text)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  now_at constant timestamptz := holdfast.clock();
  known holdfast.duty;
begin
  if note_duty.error is null then
    return;
  end if;
  select d.* into known from holdfast.duty d where d.name = note_duty.duty;
  if known.error is distinct from note_duty.error or now_at not between known.error_at
    and known.error_at + interval '1 minute' then
    raise warning 'duty % failed: %', note_duty.duty, note_duty.error;
  end if;
  insert into holdfast.duty (name, error, error_at)
  values (note_duty.duty, note_duty.error, now_at)
  on conflict (name) do update set error = excluded.error, error_at = excluded.error_at;
end
$$;
comment on function holdfast.note_duty(text, text) is
  'Store the error of a duty that failed, and warn of it.';

-- A duty that was interrupted by a timeout or a lock cannot record its own error, because its transaction
-- is rolled back.
-- holdfast: role worker
create or replace function holdfast.report_duty(duty text, error text)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if report_duty.duty is null
    or report_duty.duty <> 'do_duties'
      and report_duty.duty not in (select d.name from holdfast.list_duties() d)
  then
    perform holdfast.refuse_value('duty', report_duty.duty, 'must be the name of a duty');
  end if;
  if report_duty.error is null then
    perform holdfast.refuse_value('error', null, 'must say what went wrong');
  end if;
  insert into holdfast.duty (name, error, error_at)
  values (report_duty.duty, left(report_duty.error, 1000), holdfast.clock())
  on conflict (name) do update set error = excluded.error, error_at = excluded.error_at;
end
$$;
comment on function holdfast.report_duty(text, text) is
  'Report the failure of a duty that could not record its own error; for a worker.';

-- promote() and advance() run several times a second, so they first check whether the last note
-- is old.
create or replace function holdfast.note_done(duty text, now_at timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.duty as d (name, done_at)
  select note_done.duty, note_done.now_at
  where holdfast.is_old(
    (select o.done_at from holdfast.duty o where o.name = note_done.duty), note_done.now_at)
  on conflict (name) do update set done_at = excluded.done_at
$$;
comment on function holdfast.note_done(text, timestamptz) is 'Record that a duty ended well.';

-- A note is written once a minute, so that an idle database stays idle.
create or replace function holdfast.is_old(done_at timestamptz, now_at timestamptz)
returns boolean
language sql stable
as $$
  select is_old.done_at is null or is_old.now_at not between is_old.done_at
    and is_old.done_at + interval '1 minute'
$$;
comment on function holdfast.is_old(timestamptz, timestamptz) is
  'Return whether it is more than a minute since a duty was recorded to have ended well.';

-- A duty takes seconds at most. A session that has held one for a minute hangs, is idle in its
-- transaction, or blocks the duty on purpose. The owner of the schema sees when the transaction
-- of another role began only with pg_read_all_stats. Otherwise the age is counted from the last
-- time that the duty ended well.
create or replace function holdfast.duty_holders(now_at timestamptz)
returns table (
  duty text, pid integer, application text, role text, state text, since timestamptz, sentence text,
  remedy text)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    h.duty, h.pid, h.application, h.role, h.state, h.since,
    format('%s has held duty %s for %s, and nobody else can do it',
      case when h.pid is null then 'A prepared transaction' else
        format('Process %s (%s)', h.pid, concat_ws(', ', nullif(h.application, ''), h.role, h.state)) end,
      h.duty, holdfast.span_in_words(now_at - h.since)),
    case
      when h.pid is null then 'Commit it or roll it back: select * from pg_prepared_xacts;'
      else format('Let it commit. If it hangs: select pg_terminate_backend(%s);', h.pid)
    end
  from (
    select
      substr(c.relname, 6) as duty, k.pid, a.application_name as application, a.usename::text as role,
      a.state,
      coalesce(
        a.xact_start,
        case when k.pid is null then (
          select min(p.prepared) from pg_prepared_xacts p where p.database = current_database()
        ) end,
        (select coalesce(d.done_at, d.looks[1]) from holdfast.duty d
          where d.name = substr(c.relname, 6))) as since
    from pg_locks k
    join pg_class c on c.oid = k.relation
    left join pg_stat_activity a on a.pid = k.pid
    where k.locktype = 'relation'
      and k.granted
      and k.mode = 'ShareUpdateExclusiveLock'
      and k.database = (select d.oid from pg_database d where d.datname = current_database())
      and c.relnamespace = 'holdfast'::regnamespace
      and c.relname like 'duty\_%'
  ) h
  where h.since < now_at - interval '1 minute'
$$;
comment on function holdfast.duty_holders(timestamptz) is
  'Return the sessions that have held a duty for more than a minute, each with a sentence and a remedy.';

-- Return whether a duty rests: for the rest that it is given, and for a multiple of the time that
-- it took, up to a maximum. Without a rest, as by hand, it does not rest.
create or replace function holdfast.rests(
  duty text, rest interval, times integer, most interval, now_at timestamptz)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select
    from holdfast.duty d
    where d.name = rests.duty
      and now_at between d.looks[1]
        and d.looks[1] + greatest(rests.rest, least(times * (d.looks[1] - d.looks[2]), most))
      and rests.rest is not null)
$$;
comment on function holdfast.rests(text, interval, integer, interval, timestamptz) is
  'Return whether a duty ended so recently that it should rest: for a given time, and for a multiple of the '
  'time that it took.';

create or replace function holdfast.note_look(duty text, begun_at timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.duty (name, looks)
  values (note_look.duty, array[holdfast.clock(), begun_at])
  on conflict (name) do update set looks = excluded.looks
$$;
comment on function holdfast.note_look(text, timestamptz) is
  'Record when a duty began, and that it has ended.';
