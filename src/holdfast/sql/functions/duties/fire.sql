-- Fire the schedules that are due: put one job on its queue for each tick, a time of a schedule.
--
-- The duty locks the schedules that are due, enqueues their jobs and sets `next_at` to the
-- next tick, all in one transaction. So a crash leaves either both or neither. A schedule
-- that is locked is looked at a little later, so no session waits. The primary key of
-- `schedule_tick` decides whether a tick has had its job.
--
-- Ticks that were due while nothing ran:
--
--   skip   none of them, except one of the last minute
--   once   the last one
--   all    each of the last 7 days, a thousand at a time

-- Run for about a second. The result is zero or less if more schedules are due, and null if
-- there is no schedule. A schedule that another session has locked is looked at again a little
-- later.
-- holdfast: role worker
create or replace function holdfast.fire()
returns interval
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  deadline timestamptz := clock_timestamp() + interval '1 second';
  due holdfast.schedule;
  most constant integer := 1000;
  looked_at integer := 0;
  more boolean := false;
  behind boolean := false; -- a schedule that had more ticks than are fired at a time
  next_at timestamptz;
begin
  perform holdfast.check_isolation('fire');
  -- The clock was ahead and was set back. No tick comes twice.
  update holdfast.schedule s
  set
    next_at = holdfast.tick_again(s, now_at), planned_at = now_at,
    last_at = case when s.last_at <= now_at + interval '1 minute' then s.last_at end
  where s.paused_at is null
    and holdfast.planned_ahead(s, now_at);
  for due in
    select s.*
    from holdfast.schedule s
    where s.paused_at is null
      and s.next_at <= now_at
    order by s.next_at
    limit most
    for update skip locked
  loop
    looked_at := looked_at + 1;
    more := clock_timestamp() > deadline;
    exit when more;
    begin
      perform holdfast.fire_one(due, now_at, deadline);
      behind := behind or (select s.next_at <= now_at from holdfast.schedule s where s.name = due.name);
    exception when others then
      -- Locks, deadlocks and full disks pass, and the tick is still due then.
      if left(sqlstate, 2) in ('40', '53', '55', '57', '58') then
        raise;
      end if;
      -- A schedule that is refused must not stop others. It is tried again at its next tick.
      update holdfast.schedule s
      set error = left(sqlerrm, 1000), next_at = holdfast.tick_again(due, now_at), planned_at = now_at,
        skipped = s.skipped + 1
      where s.name = due.name;
    end;
  end loop;
  if looked_at > 0 then
    perform holdfast.note_fired(now_at);
  end if;
  next_at := (select min(s.next_at) from holdfast.schedule s where s.paused_at is null);
  more := more or behind or looked_at = most or clock_timestamp() > deadline;
  return case when next_at <= now_at and not more then interval '100 milliseconds' else next_at - now_at end;
end
$$;
comment on function holdfast.fire() is
  'Put the jobs of all due schedules on their queues. Returns how long it is until the next schedule is '
  'due.';

-- Fire the due ticks of one schedule by its policy, until the deadline. The caller has locked the schedule.
create or replace function holdfast.fire_one(due holdfast.schedule, now_at timestamptz, deadline timestamptz)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  most constant integer := 1000;
  moment timestamptz := due.next_at;
  done integer := 0;
begin
  if due.missed = 'all' then
    if moment < now_at - interval '7 days' then
      moment := holdfast.tick_after(due, now_at - interval '7 days');
    end if;
  else
    moment := holdfast.tick_before(due, now_at);
  end if;
  while moment <= now_at and done < most loop
    if due.missed = 'skip' and moment < now_at - interval '1 minute'
      or not due.overlap and exists (select from holdfast.live j where j.id = due.last_job offset 0) then
      due.skipped := due.skipped + 1;
    else
      insert into holdfast.schedule_tick (schedule, tick) values (due.name, moment) on conflict do nothing;
      if found then
        due.last_job := holdfast.enqueue_tick(due, moment, now_at);
        update holdfast.schedule_tick t set job_id = due.last_job where t.schedule = due.name
          and t.tick = moment;
      end if;
    end if;
    due.last_at := moment;
    moment := holdfast.tick_after(due, moment);
    done := done + 1;
    exit when clock_timestamp() > deadline;
  end loop;
  update holdfast.schedule s
  set next_at = moment, planned_at = now_at, last_at = due.last_at, last_job = due.last_job,
    skipped = due.skipped, error = null
  where s.name = due.name;
end
$$;
comment on function holdfast.fire_one(holdfast.schedule, timestamptz, timestamptz) is
  'Put the jobs of one schedule on its queue for the ticks that are due.';

-- The headers of the job name its schedule and its tick.
create or replace function holdfast.enqueue_tick(due holdfast.schedule, tick timestamptz, now_at timestamptz)
returns uuid
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  job_id uuid := holdfast.enqueue(
    due.task,
    due.payload,
    due.queue,
    due.priority,
    run_at => case when due.jitter > interval '0' and tick is not null
      then nullif(greatest(tick + random() * due.jitter, now_at), now_at) end,
    max_attempts => due.max_attempts);
begin
  -- These names are reserved; enqueue() refuses them.
  update holdfast.live j
  set headers = jsonb_strip_nulls(jsonb_build_object('schedule', due.name, 'tick', enqueue_tick.tick))
  where j.id = job_id;
  return job_id;
end
$$;
comment on function holdfast.enqueue_tick(holdfast.schedule, timestamptz, timestamptz) is
  'Put the job of a schedule on its queue.';

-- A schedule of 0.1 has no planned_at: it was planned no earlier than its last tick.
create or replace function holdfast.planned_ahead(given holdfast.schedule, now_at timestamptz)
returns boolean
language sql stable
as $$
  select coalesce(given.planned_at, greatest(given.last_at, given.created_at)) > now_at + interval '1 minute'
$$;
comment on function holdfast.planned_ahead(holdfast.schedule, timestamptz) is
  'Return whether the next time of a schedule was computed by a clock that has been set back since.';

-- A minute from now if there is no next tick, for example because the zone is no longer known.
create or replace function holdfast.tick_again(given holdfast.schedule, now_at timestamptz)
returns timestamptz
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  return holdfast.tick_after(given, now_at);
exception when others then
  return now_at + interval '1 minute';
end
$$;
comment on function holdfast.tick_again(holdfast.schedule, timestamptz) is
  'Return the next time of a schedule, or a minute from now if it cannot be computed.';

-- Record that the duty ended well, at most once a minute. Several sessions may fire at the same
-- time, and none of them waits for another one's note.
create or replace function holdfast.note_fired(now_at timestamptz)
returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  if not holdfast.is_old((select d.done_at from holdfast.duty d where d.name = 'fire'), now_at) then
    return;
  end if;
  if not exists (select from holdfast.duty d where d.name = 'fire') then
    insert into holdfast.duty (name, done_at) values ('fire', now_at) on conflict (name) do nothing;
  end if;
  update holdfast.duty d
  set done_at = now_at
  where d.name = (select o.name from holdfast.duty o where o.name = 'fire' for update skip locked);
end
$$;
comment on function holdfast.note_fired(timestamptz) is
  'Record that schedules were fired, unless another session is recording it.';

-- A schedule that was planned by a clock that was ahead is due at once.
create or replace function holdfast.next_tick(now_at timestamptz)
returns timestamptz
language sql stable
as $$
  select min(case when holdfast.planned_ahead(s, next_tick.now_at) then next_tick.now_at else s.next_at end)
  from holdfast.schedule s
  where s.paused_at is null
$$;
comment on function holdfast.next_tick(timestamptz) is
  'Return when the next schedule is due; null if there is none.';
