-- Describe a cron expression in words:
--
--   */15 9-17 * * mon-fri   every 15 minutes from 09:00 to 17:45, Monday to Friday
--   0 2 1,15 * *            at 02:00, on the 1st and 15th
--   0 9 * * mon#2           at 09:00, on the second Monday of the month
--
-- The words describe the meaning, not the spelling: `1-5` and `mon-fri` read alike.
-- holdfast: role viewer
create or replace function holdfast.cron_in_words(cron text)
returns text
language sql immutable strict security definer
set search_path = pg_catalog, pg_temp
as $$
  select concat_ws(
    ', ', w.times, case when w.times ~ '^at \d' and w.months is null then coalesce(w.days, 'every day')
    else w.days end, w.months)
  from holdfast.parse_cron(cron_in_words.cron) p
  cross join lateral (
    select holdfast.times_in_words(p) as times, holdfast.days_in_words(p) as days,
      holdfast.months_in_words(p.months) as months
  ) w
$$;
comment on function holdfast.cron_in_words(text) is 'Describe a cron expression in words.';

create or replace function holdfast.interval_in_words(every interval)
returns text
language sql immutable strict
set search_path = pg_catalog, pg_temp
as $$
  select 'every ' || case
    when count(*) = 1 and min(part.amount) = 1 then min(part.unit)
    else string_agg(
      part.amount || ' ' || part.unit || case when part.amount > 1 then 's' else '' end, ' ' order by part.n)
  end
  from (select extract(epoch from interval_in_words.every)::bigint as seconds) e
  cross join lateral (
    values (1, e.seconds / 86400, 'day'), (2, e.seconds / 3600 % 24, 'hour'),
      (3, e.seconds / 60 % 60, 'minute'), (4, e.seconds % 60, 'second')
  ) part (n, amount, unit)
  where part.amount > 0
$$;
comment on function holdfast.interval_in_words(interval) is
  'Describe the interval of a schedule in words: every 30 seconds.';

create or replace function holdfast.times_in_words(cron holdfast.cron)
returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  few constant integer := 8;
  whole_minutes boolean := cron.seconds = '{0}';
  whole_hours boolean := whole_minutes and cron.minutes = '{0}';
  every_minute boolean := cardinality(cron.minutes) = 60;
  every_hour boolean := cardinality(cron.hours) = 24;
  one_stretch boolean := holdfast.is_stretch(cron.hours) and not every_hour;
  seconds text;
  minutes text;
  hours text;
begin
  if cardinality(cron.hours) * cardinality(cron.minutes) * cardinality(cron.seconds) <= few then
    return 'at ' || holdfast.listed(array(
      select to_char(make_time(h, m, s), case when whole_minutes then 'HH24:MI' else 'HH24:MI:SS' end)
      from unnest(cron.hours) h, unnest(cron.minutes) m, unnest(cron.seconds) s
      order by h, m, s));
  end if;
  if not whole_minutes then
    seconds := holdfast.numbers_in_words(cron.seconds, 0, 59, 'second');
  end if;
  if not whole_hours and (seconds is null or seconds !~ '^every' or not every_minute) then
    minutes := holdfast.numbers_in_words(cron.minutes, 0, 59, 'minute', alone => seconds is null);
  end if;
  if one_stretch then
    hours := case when whole_hours then 'every hour' end;
  elsif not every_hour or coalesce(minutes, '') !~ '^every' and seconds is null then
    hours := holdfast.numbers_in_words(cron.hours, 0, 23, 'hour', alone => whole_hours);
  end if;
  return regexp_replace(concat_ws(' of ', seconds, minutes, hours), '^(?!every)', 'at ') || case
    when one_stretch then format(
      ' from %s to %s',
      to_char(make_time(cron.hours[1], cron.minutes[1], 0), 'HH24:MI'),
      to_char(
        make_time(cron.hours[cardinality(cron.hours)], cron.minutes[cardinality(cron.minutes)], 0),
        'HH24:MI'))
    else ''
  end;
end
$$;
comment on function holdfast.times_in_words(holdfast.cron) is
  'Describe the times of day of a cron expression in words.';

create or replace function holdfast.days_in_words(cron holdfast.cron)
returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  weekdays constant text[] := '{Sunday,Monday,Tuesday,Wednesday,Thursday,Friday,Saturday}';
  nth constant text[] := '{first,second,third,fourth,fifth}';
  any_day boolean := cardinality(cron.days) = 31;
  any_weekday boolean := cardinality(cron.weekdays) = 7;
  by_month text;
  by_week text;
begin
  if any_day and any_weekday or not cron.both_days and (any_day or any_weekday) then
    return null;
  end if;
  by_month := case
    when holdfast.step_of(cron.days, 1, 31) > 1
      then format('every %s day of the month', holdfast.ordinal(holdfast.step_of(cron.days, 1, 31)))
    else 'the ' || holdfast.listed(
      holdfast.stretches(cron.days, array(select holdfast.ordinal(d) from generate_series(0, 31) d))
        || case when cron.last_day then array['last day of the month'] else '{}' end)
  end;
  by_week := holdfast.listed(
    -- A week begins on Monday here, so that a weekend is one stretch.
    holdfast.stretches(
      array(select (d + 6) % 7 from unnest(cron.weekdays) d order by 1),
      weekdays[2:7] || weekdays[1:1])
    || array(
      select format('the %s %s of the month', nth[n % 10], weekdays[n / 10 + 1])
      from unnest(cron.nth_weekdays) n)
    || array(select format('the last %s of the month', weekdays[d + 1]) from unnest(cron.last_weekdays) d));
  return case
    when any_day then case when by_week ~ ' to ' then by_week else 'on ' || by_week end
    when any_weekday then 'on ' || by_month
    when cron.both_days then format('on %s if it is %s', by_month, by_week)
    else format('on %s, and on %s', by_month, by_week)
  end;
end
$$;
comment on function holdfast.days_in_words(holdfast.cron) is
  'Describe the days of a cron expression in words; null for every day.';

create or replace function holdfast.months_in_words(months integer[])
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select case when cardinality(months) < 12 then 'in ' || holdfast.listed(holdfast.stretches(
    months, '{-,January,February,March,April,May,June,July,August,September,October,November,December}')) end
$$;
comment on function holdfast.months_in_words(integer[]) is
  'Describe the months of a cron expression in words; null for every month.';

create or replace function holdfast.numbers_in_words(
  numbers integer[], low integer, high integer, unit text, alone boolean default true)
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select case
    when n.step = 1 then 'every ' || unit
    when n.step > 1 and alone and (high + 1 - low) % n.step = 0 then format('every %s %ss', n.step, unit)
    when n.step > 1 then format('every %s %s', holdfast.ordinal(n.step), unit)
    when cardinality(numbers) = 1 then format('%s %s', unit, n.first)
    else format(
      '%ss %s', unit,
      holdfast.listed(holdfast.stretches(numbers, array(select d::text from generate_series(0, high) d))))
  end
  from (select holdfast.step_of(numbers, low, high) as step, numbers[1] as first) n
$$;
comment on function holdfast.numbers_in_words(integer[], integer, integer, text, boolean) is
  'Describe seconds, minutes or hours in words: every 15 minutes, hours 1 and 5.';

-- Return null unless they go in equal steps from the lowest value to the end.
create or replace function holdfast.step_of(numbers integer[], low integer, high integer)
returns integer
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select n.step
  from (select numbers[2] - numbers[1] as step) n
  where numbers[1] = low
    and cardinality(numbers) > 2
    and numbers = array(select generate_series(low, high, n.step))
$$;
comment on function holdfast.step_of(integer[], integer, integer) is
  'Return the step by which sorted numbers fill a range, if they do.';

create or replace function holdfast.is_stretch(numbers integer[])
returns boolean
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select numbers[cardinality(numbers)] - numbers[1] = cardinality(numbers) - 1
$$;
comment on function holdfast.is_stretch(integer[]) is
  'Return whether sorted numbers follow each other without a gap.';

-- Three or more in a row become one: 1 to 5. Names count from 0.
create or replace function holdfast.stretches(numbers integer[], names text[])
returns text[]
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(array_agg(s.said order by s.first), '{}')
  from (
    select
      min(g.n) as first,
      unnest(case
        when count(*) > 2 then array[names[min(g.n) + 1] || ' to ' || names[max(g.n) + 1]]
        else array_agg(names[g.n + 1] order by g.n)
      end) as said
    from (select n, n - row_number() over (order by n) as gap from unnest(numbers) n) g
    group by g.gap
  ) s
$$;
comment on function holdfast.stretches(integer[], text[]) is
  'Return sorted numbers by their names, each stretch of three or more as one.';

create or replace function holdfast.listed(words text[])
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select concat_ws(
    ' and ', nullif(array_to_string(words[:cardinality(words) - 1], ', '), ''), words[cardinality(words)])
$$;
comment on function holdfast.listed(text[]) is 'Return words as a list: a, b and c.';

create or replace function holdfast.ordinal(number integer)
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select number || case
    when number % 100 between 11 and 13 then 'th'
    when number % 10 between 1 and 3 then ('{st,nd,rd}'::text[])[number % 10]
    else 'th'
  end
$$;
comment on function holdfast.ordinal(integer) is 'Return a number as an ordinal: 1st, 22nd.';
