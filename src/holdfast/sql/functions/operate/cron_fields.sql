-- Parse the fields of a cron expression; see cron.sql.

create or replace function holdfast.parse_cron(cron text)
returns holdfast.cron
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  months constant text[] := '{JAN,FEB,MAR,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC}';
  given text := upper(btrim(parse_cron.cron, E' \t\n\r\f') collate "C");
  fields text[];
  parsed holdfast.cron;
begin
  if given is null or length(given) > 200 then
    perform holdfast.refuse_value('cron', parse_cron.cron, 'must be an expression of at most 200 characters');
  end if;
  fields := regexp_split_to_array(
    case given
      when '@YEARLY' then '0 0 1 1 *'
      when '@ANNUALLY' then '0 0 1 1 *'
      when '@MONTHLY' then '0 0 1 * *'
      when '@WEEKLY' then '0 0 * * 0'
      when '@DAILY' then '0 0 * * *'
      when '@MIDNIGHT' then '0 0 * * *'
      when '@HOURLY' then '0 * * * *'
      else given
    end,
    E'[ \t\n\r\f]+');
  if fields[1] ~ '^@' then
    perform holdfast.refuse_value(
      'cron', parse_cron.cron,
      'must be one of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly, or have fields; for '
      'an interval use every');
  end if;
  if cardinality(fields) not in (5, 6) then
    perform holdfast.refuse_value(
      'cron', parse_cron.cron,
      format(
        'must have five fields (minute, hour, day of the month, month, day of the week), or six with the '
        'second first; it has %s',
        case when given = '' then 0 else cardinality(fields) end));
  end if;
  parsed.by_wall_clock := cardinality(fields) = 5 and fields[1] !~ '^\*' and fields[2] !~ '^\*';
  if cardinality(fields) = 5 then
    fields := array_prepend('0', fields);
  end if;
  parsed.both_days := fields[4] ~ '^\*' or fields[6] ~ '^\*';
  parsed.seconds := holdfast.cron_numbers('second', string_to_array(fields[1], ','), 0, 59);
  parsed.minutes := holdfast.cron_numbers('minute', string_to_array(fields[2], ','), 0, 59);
  parsed.hours := holdfast.cron_numbers('hour', string_to_array(fields[3], ','), 0, 23);
  parsed.last_day := 'L' = any(string_to_array(fields[4], ','));
  parsed.days := holdfast.cron_numbers(
    'day of the month', array_remove(string_to_array(fields[4], ','), 'L'), 1, 31);
  parsed.months := holdfast.cron_numbers('month', string_to_array(fields[5], ','), 1, 12, months);
  return holdfast.parse_weekdays(parsed, string_to_array(fields[6], ','));
end
$$;
comment on function holdfast.parse_cron(text) is
  'Parse a cron expression. An error names the field and what is wrong with it.';

create or replace function holdfast.parse_weekdays(parsed holdfast.cron, terms text[])
returns holdfast.cron
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  field constant text := 'day of the week';
  names constant text[] := '{SUN,MON,TUE,WED,THU,FRI,SAT}';
  plain text[] := '{}';
  term text;
  parts text[];
begin
  parsed.nth_weekdays := '{}';
  parsed.last_weekdays := '{}';
  foreach term in array terms loop
    parts := regexp_match(term, '^([A-Z0-9]+)(L|#[1-5])$');
    if parts is null then
      plain := plain || term;
    elsif parts[2] = 'L' then
      parsed.last_weekdays := parsed.last_weekdays || holdfast.cron_number(field, parts[1], 0, 7, names) % 7;
    else
      parsed.nth_weekdays := parsed.nth_weekdays
        || holdfast.cron_number(field, parts[1], 0, 7, names) % 7 * 10 + right(parts[2], 1)::integer;
    end if;
  end loop;
  parsed.weekdays := array(
    select distinct n % 7 from unnest(holdfast.cron_numbers(field, plain, 0, 7, names)) n order by 1);
  return parsed;
end
$$;
comment on function holdfast.parse_weekdays(holdfast.cron, text[]) is
  'Add a list of weekdays to an expression that is being parsed.';

-- Convert lists of numbers, ranges, stars and steps to sorted numbers.
create or replace function holdfast.cron_numbers(
  field text, terms text[], low integer, high integer, names text[] default '{}')
returns integer[]
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  numbers integer[] := '{}';
  term text;
  parts text[];
  first integer;
  last integer;
begin
  foreach term in array terms loop
    parts := regexp_match(term, '^([A-Z0-9]+|\*)(?:-([A-Z0-9]+))?(?:/([0-9]{1,4}))?$');
    if parts is null or (parts[1] = '*' and parts[2] is not null) then
      perform holdfast.refuse_cron_field(
        field, term, 'must be a number, a range such as 1-5, a star, or steps such as */2' || case
          when term ~ '\?' then '; for a question mark write a star'
          when term ~ 'W' then '; working days (W) are not known'
          when term ~ '#' then '; the number behind # goes from 1 to 5'
          else ''
        end);
    end if;
    if parts[1] = '*' then
      first := low;
      last := high;
    else
      first := holdfast.cron_number(field, parts[1], low, high, names);
      last := case
        when parts[2] = 'SUN' and first > 0 then 7
        when parts[2] is not null then holdfast.cron_number(field, parts[2], low, high, names)
        when parts[3] is not null then high
        else first
      end;
    end if;
    if last < first then
      perform holdfast.refuse_cron_field(field, term, 'a range must go upwards');
    end if;
    if parts[3]::integer = 0 then
      perform holdfast.refuse_cron_field(field, term, 'a step must be at least 1');
    end if;
    numbers := numbers || array(select generate_series(first, last, coalesce(parts[3]::integer, 1)));
  end loop;
  return array(select distinct n from unnest(numbers) n order by 1);
end
$$;
comment on function holdfast.cron_numbers(text, text[], integer, integer, text[]) is
  'Return the numbers that a list of numbers, ranges and steps in a cron expression means.';

create or replace function holdfast.cron_number(
  field text, given text, low integer, high integer, names text[])
returns integer
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  -- Months count from 1, weekdays from 0.
  number integer := array_position(names, given) - 1 + low;
begin
  if given ~ '^[0-9]{1,4}$' then
    number := given::integer;
  end if;
  if number is null or number not between low and high then
    perform holdfast.refuse_cron_field(
      field, given, format('must be a number from %s to %s', low, high)
        || case when cardinality(names) > 0 then format(' or one of %s', lower(array_to_string(names, ', ')))
          else '' end
        || case when given = 'L' then '; L stands alone' when given ~ 'W$'
          then '; working days (W) are not known' else '' end);
  end if;
  return number;
end
$$;
comment on function holdfast.cron_number(text, text, integer, integer, text[]) is
  'Return the number that a number or a name in a cron expression means.';

create or replace function holdfast.refuse_cron_field(field text, term text, rule text)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.refuse_value('cron', format('%s %L', field, left(term, 40)), rule);
end
$$;
comment on function holdfast.refuse_cron_field(text, text, text) is
  'Raise the error for one field of a cron expression.';

-- A full name such as Europe/Berlin. An abbreviation such as EST has no summer time, and POSIX
-- would accept almost any word as a zone.
create or replace function holdfast.check_zone(zone text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if zone in ('UTC', 'GMT') then
    return;
  end if;
  if zone ~ '^[A-Za-z]+(/[A-Za-z0-9_+-]+)+$' then
    perform now() at time zone zone;
    return;
  end if;
  if exists (select from pg_timezone_abbrevs a where a.abbrev = upper(zone)) then
    perform holdfast.refuse_zone(zone);
  end if;
  -- This reads every file of the time zone database.
  if exists (select from pg_timezone_names z where lower(z.name) = lower(zone)) then
    return;
  end if;
  perform holdfast.refuse_zone(zone);
exception when invalid_parameter_value then
  perform holdfast.refuse_zone(zone);
end
$$;
comment on function holdfast.check_zone(text) is 'Refuse a time zone that is not given by its full name.';

create or replace function holdfast.refuse_zone(zone text)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.refuse_value(
    'zone', zone, 'must be the full name of a time zone, such as Europe/Berlin or UTC');
end
$$;
comment on function holdfast.refuse_zone(text) is 'Raise the error for an unknown time zone.';
