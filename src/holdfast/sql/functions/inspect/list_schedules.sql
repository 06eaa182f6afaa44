-- List schedules with their next times, as the caller may see them.

-- holdfast: role worker viewer
create or replace function holdfast.list_schedules(upcoming integer default 5)
returns table (
  name text, words text, cron text, every interval, zone text, task text, payload jsonb, queue text,
  priority integer, max_attempts integer, missed text, overlap boolean, jitter interval, declared boolean,
  paused_at timestamptz,
  next_at timestamptz, upcoming timestamptz[], last_at timestamptz, last_job uuid, skipped bigint, error text)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    s.name, coalesce(holdfast.cron_in_words(s.cron), holdfast.interval_in_words(s.every)), s.cron, s.every,
    s.zone, s.task,
    holdfast.as_seen(s.payload, s.queue, s.payload, holdfast.sees_payloads()), s.queue, s.priority::integer,
    s.max_attempts::integer, s.missed, s.overlap, s.jitter, s.declared, s.paused_at,
    case when s.paused_at is null then s.next_at end,
      array(select holdfast.ticks_ahead(s, list_schedules.upcoming)), s.last_at, s.last_job, s.skipped,
      s.error
  from holdfast.schedule s
  where ((select holdfast.unrestricted()) or holdfast.in_reach(s.queue))
  order by s.name
$$;
comment on function holdfast.list_schedules(integer) is
  'List all schedules, each with a number of its next times (none if it is paused) and a description in '
  'words.';

-- holdfast: role viewer
create or replace function holdfast.upcoming(name text, amount integer default 5)
returns setof timestamptz
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.ticks_ahead(holdfast.seen_schedule(upcoming.name), upcoming.amount)
$$;
comment on function holdfast.upcoming(text, integer) is
  'Return the next times of a schedule; none if it is paused.';

create or replace function holdfast.ticks_ahead(given holdfast.schedule, amount integer)
returns setof timestamptz
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  tick timestamptz := given.next_at;
begin
  if amount is null or amount not between 0 and 1000 then
    perform holdfast.refuse_value('amount', amount::text, 'must be between 0 and 1000');
  end if;
  begin
    for n in 1..case when given.paused_at is null then amount else 0 end loop
      return next tick;
      tick := holdfast.tick_after(given, tick);
    end loop;
  exception when sqlstate 'HF008' then
    null; -- this server no longer knows the zone; the row of the schedule says so in `error`
  end;
end
$$;
comment on function holdfast.ticks_ahead(holdfast.schedule, integer) is
  'Return the next times of a given schedule.';

-- Functions that only read a schedule call this one.
create or replace function holdfast.seen_schedule(name text)
returns holdfast.schedule
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known holdfast.schedule;
begin
  select s.* into known from holdfast.schedule s where s.name = seen_schedule.name;
  if not found or not (holdfast.unrestricted() or holdfast.in_reach(known.queue)) then
    perform holdfast.refuse_value(
      'name', seen_schedule.name,
      'there is no schedule of this name; holdfast.list_schedules() has them all');
  end if;
  return known;
end
$$;
comment on function holdfast.seen_schedule(text) is
  'Return a schedule by its name. Refuses a name that does not exist.';
