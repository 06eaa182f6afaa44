-- Pause and resume a schedule.

-- holdfast: role operator
create or replace function holdfast.pause_schedule(name text)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known holdfast.schedule := holdfast.known_schedule(pause_schedule.name);
begin
  if known.paused_at is not null then
    return false;
  end if;
  update holdfast.schedule s set paused_at = holdfast.clock() where s.name = known.name;
  perform holdfast.note('pause schedule', known.name);
  return true;
end
$$;
comment on function holdfast.pause_schedule(text) is
  'Pause a schedule: its times pass without a job. Returns whether it was running.';

-- Ticks that passed during the pause, or were due before it, are not made up for.
-- holdfast: role operator
create or replace function holdfast.resume_schedule(name text)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  known holdfast.schedule := holdfast.known_schedule(resume_schedule.name);
begin
  if known.paused_at is null then
    return false;
  end if;
  update holdfast.schedule s
  set paused_at = null, next_at = holdfast.tick_after(known, now_at), planned_at = now_at
  where s.name = known.name;
  perform holdfast.note('resume schedule', known.name);
  perform holdfast.wake_schedulers(known.queue);
  return true;
end
$$;
comment on function holdfast.resume_schedule(text) is
  'Resume a paused schedule from its next time on. Returns whether it was paused.';
