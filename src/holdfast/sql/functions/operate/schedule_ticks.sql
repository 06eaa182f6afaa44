-- Find the ticks of a schedule: the next one after a time, and the last one before it. Intervals count
-- from the creation of the schedule.
create or replace function holdfast.tick_after(given holdfast.schedule, after timestamptz)
returns timestamptz
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select case
    when given.every is null then holdfast.next_occurrence(given.cron, after, given.zone)
    else given.created_at + make_interval(
      secs => e.seconds * (floor(extract(epoch from after - given.created_at) / e.seconds) + 1))
  end
  from (select extract(epoch from given.every)::double precision as seconds) e
$$;
comment on function holdfast.tick_after(holdfast.schedule, timestamptz) is
  'Return the next time of a schedule after a given time.';

-- A binary search down to one second, from a time before the last tick.
create or replace function holdfast.tick_before(given holdfast.schedule, at timestamptz)
returns timestamptz
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  low timestamptz := given.next_at - interval '1 second'; -- after this one there is a tick
  high timestamptz := at; -- after this one there is none
  middle timestamptz;
begin
  while high - low > interval '1 second' loop
    middle := low + (high - low) / 2;
    if holdfast.tick_after(given, middle) <= at then
      low := middle;
    else
      high := middle;
    end if;
  end loop;
  return holdfast.tick_after(given, low);
end
$$;
comment on function holdfast.tick_before(holdfast.schedule, timestamptz) is
  'Return the last time of a schedule up to a given time, from its next one on.';
