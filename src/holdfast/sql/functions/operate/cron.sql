-- Find the next time that a cron expression matches.
--
--   ┌ second, 0-59, only if there are six fields
--   │ ┌ minute, 0-59
--   │ │ ┌ hour, 0-23
--   │ │ │ ┌ day of the month, 1-31, L for the last
--   │ │ │ │ ┌ month, 1-12 or jan-dec
--   │ │ │ │ │ ┌ day of the week, 0-7 or sun-sat, 0 and 7 are Sunday;
--   │ │ │ │ │ │ 1#2 is the second Monday, 5L the last Friday
--   0 0 9 * * mon-fri
--
-- Each field is a list of numbers, ranges (a-b), everything (*), and steps through one of these
-- (a-b/2, */2; a/2 goes from a to the end). If one of the two fields for days begins with a
-- star, as in `0 9 */2 * mon`, both must match; otherwise one of them is enough.
--
-- When clocks change, we follow Debian's cron. An expression that names a minute and an hour
-- means a time of day: if that hour is skipped, it matches right after it; if the hour comes
-- twice, it matches the first time. All others, and all with seconds, follow elapsed time: they
-- skip what is skipped and match twice what comes twice.
-- holdfast: role viewer
create or replace function holdfast.next_occurrence(cron text, after timestamptz, zone text default 'UTC')
returns timestamptz
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  parsed holdfast.cron := holdfast.parse_cron(next_occurrence.cron);
  found_at timestamptz;
begin
  perform holdfast.check_zone(next_occurrence.zone);
  if after is null or after not between '1900-01-01Z' and '9900-01-01Z' then
    perform holdfast.refuse_value('after', after::text, 'must be a time between the years 1900 and 9900');
  end if;
  found_at := case
    when parsed.by_wall_clock then holdfast.next_by_wall_clock(parsed, after, next_occurrence.zone)
    else holdfast.next_by_elapsed_time(parsed, after, next_occurrence.zone)
  end;
  if found_at is null then
    perform holdfast.refuse_value(
      'cron', next_occurrence.cron, 'never comes: there is no such day in the next 50 years');
  end if;
  return found_at;
end
$$;
comment on function holdfast.next_occurrence(text, timestamptz, text) is
  'Return when a cron expression next matches after a time, in a time zone.';

-- Match every time of the day once, whatever the clocks do.
create or replace function holdfast.next_by_wall_clock(cron holdfast.cron, after timestamptz, zone text)
returns timestamptz
language plpgsql stable
as $$
declare
  wall timestamp := after at time zone zone;
  found_at timestamptz;
begin
  loop
    wall := holdfast.next_match(cron, wall);
    found_at := holdfast.first_moment(wall, zone);
    -- In an hour that comes for the second time, it has matched already.
    if wall is null or found_at > after then
      return found_at;
    end if;
  end loop;
end
$$;
comment on function holdfast.next_by_wall_clock(holdfast.cron, timestamptz, text) is
  'Return the next match of an expression that names times of the day.';

-- Match every moment at which the clocks show a matching time. Between two changes, the clocks
-- run evenly, so each such stretch is searched by itself.
create or replace function holdfast.next_by_elapsed_time(cron holdfast.cron, after timestamptz, zone text)
returns timestamptz
language plpgsql stable
as $$
declare
  -- No change of a clock was ever larger, so no earlier time is shown again.
  stretch constant interval := '26 hours';
  begun timestamptz := date_trunc('second', after) + interval '1 second';
  wall timestamp;
  match timestamp;
  found_at timestamptz;
  changed_at timestamptz;
begin
  loop
    wall := begun at time zone zone;
    match := holdfast.next_match(cron, wall - interval '1 second');
    if match is null then
      return null;
    end if;
    found_at := begun + (match - wall);
    changed_at := holdfast.clock_change(begun, begun + stretch, zone);
    if found_at < coalesce(changed_at, begun + stretch) then
      return found_at;
    end if;
    -- No stretch has a match until shortly before this one.
    begun := coalesce(changed_at, holdfast.first_moment(match - stretch / 2, zone));
  end loop;
end
$$;
comment on function holdfast.next_by_elapsed_time(holdfast.cron, timestamptz, text) is
  'Return the next match of an expression that counts elapsed time.';

-- The first moment at which the clocks show this time, or go past it.
create or replace function holdfast.first_moment(wall timestamp, zone text)
returns timestamptz
language plpgsql stable
as $$
declare
  about timestamptz := wall at time zone zone;
  changed_at timestamptz := holdfast.clock_change(
    about - interval '25 hours', about + interval '25 hours', zone);
  before timestamptz := (
    wall - holdfast.clock_offset(changed_at - interval '1 second', zone)) at time zone 'UTC';
  since timestamptz := (wall - holdfast.clock_offset(changed_at, zone)) at time zone 'UTC';
begin
  return case
    when changed_at is null then about
    when before < changed_at then before
    else greatest(since, changed_at)
  end;
end
$$;
comment on function holdfast.first_moment(timestamp, text) is
  'Return the first moment at which the clocks of a zone show this time, or skip it.';

-- Return the first moment of the new clocks: after `low` and up to `high`, with at most one change in
-- between.
create or replace function holdfast.clock_change(low timestamptz, high timestamptz, zone text)
returns timestamptz
language plpgsql stable
as $$
declare
  old interval := holdfast.clock_offset(low, zone);
  middle timestamptz;
begin
  if old = holdfast.clock_offset(high, zone) then
    return null;
  end if;
  low := date_trunc('second', low);
  high := date_trunc('second', high);
  while high - low > interval '1 second' loop
    middle := date_trunc('second', low + (high - low) / 2);
    if holdfast.clock_offset(middle, zone) = old then
      low := middle;
    else
      high := middle;
    end if;
  end loop;
  return high;
end
$$;
comment on function holdfast.clock_change(timestamptz, timestamptz, text) is
  'Return when the clocks of a zone change between two times, if they do.';

create or replace function holdfast.clock_offset(at timestamptz, zone text)
returns interval
language sql stable
as $$
  select (at at time zone zone) - (at at time zone 'UTC')
$$;
comment on function holdfast.clock_offset(timestamptz, text) is
  'Return how far the clocks of a zone are ahead of UTC at a time.';

-- Return null if there is no match in 50 years.
create or replace function holdfast.next_match(cron holdfast.cron, after timestamp)
returns timestamp
language plpgsql immutable
as $$
declare
  first timestamp := date_trunc('second', after) + interval '1 second';
  day date := holdfast.next_day(cron, first::date);
  moment time;
begin
  if day = first::date then
    moment := holdfast.next_time(cron, first::time);
    if moment is not null then
      return day + moment;
    end if;
    day := holdfast.next_day(cron, day + 1);
  end if;
  return day + make_time(cron.hours[1], cron.minutes[1], cron.seconds[1]);
end
$$;
comment on function holdfast.next_match(holdfast.cron, timestamp) is
  'Return the next matching time on a clock without changes.';

create or replace function holdfast.next_time(cron holdfast.cron, since time)
returns time
language plpgsql immutable
as $$
declare
  hour integer := extract(hour from since);
  minute integer := extract(minute from since);
  later integer;
begin
  if hour = any(cron.hours) then
    if minute = any(cron.minutes) then
      later := (select min(s) from unnest(cron.seconds) s where s >= extract(second from since));
      if later is not null then
        return make_time(hour, minute, later);
      end if;
    end if;
    later := (select min(m) from unnest(cron.minutes) m where m > minute);
    if later is not null then
      return make_time(hour, later, cron.seconds[1]);
    end if;
  end if;
  later := (select min(h) from unnest(cron.hours) h where h > hour);
  return make_time(later, cron.minutes[1], cron.seconds[1]);
end
$$;
comment on function holdfast.next_time(holdfast.cron, time) is
  'Return the first matching time of a day, from a time on.';

-- Go month by month. A 29th of February on a given day of the week comes every 40 years at the
-- latest.
create or replace function holdfast.next_day(cron holdfast.cron, since date)
returns date
language plpgsql immutable
as $$
declare
  month date := date_trunc('month', since::timestamp);
  first_day integer := extract(day from since);
  last_day integer;
  first_weekday integer;
  found_day integer;
begin
  for months in 0..600 loop
    if extract(month from month)::integer = any(cron.months) then
      last_day := extract(day from month + interval '1 month' - interval '1 day');
      first_weekday := extract(dow from month);
      select min(d.day) into found_day
      from (
        select
          m.day,
          m.day = any(cron.days) or (cron.last_day and m.day = last_day) as by_month,
          m.weekday = any(cron.weekdays)
            or m.weekday * 10 + (m.day + 6) / 7 = any(cron.nth_weekdays)
            or (m.day + 7 > last_day and m.weekday = any(cron.last_weekdays)) as by_week
        from (
          select n as day, (first_weekday + n - 1) % 7 as weekday
          from generate_series(first_day, last_day) n) m
      ) d
      where case when cron.both_days then d.by_month and d.by_week else d.by_month or d.by_week end;
      if found_day is not null then
        return month + found_day - 1;
      end if;
    end if;
    month := month + interval '1 month';
    first_day := 1;
  end loop;
  return null;
end
$$;
comment on function holdfast.next_day(holdfast.cron, date) is 'Return the first matching day, from a day on.';
