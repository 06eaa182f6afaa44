-- List each setting with its values, its initial value and its meaning. `never` means a duration, or a
-- number, that is not reached.
create or replace function holdfast.known_settings()
returns table (
  name text, kind text, lowest text, highest text, never text, everywhere boolean, builtin jsonb,
  meaning text)
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  values
    ('payload_limit', 'integer', '1024', '67108864', null::text, false, '262144'::jsonb,
     'bytes of JSON text that a payload may have'),
    ('max_attempts', 'integer', '1', '32767', null, false, '3',
     'how often a job is tried, unless its task or its call says otherwise'),
    ('retry_base', 'duration', '0', '100 years', null, false, '"1 min"', 'the first delay before a retry'),
    ('retry_factor', 'number', '1', '100', null, false, '2', 'how that delay grows each time'),
    ('retry_cap', 'duration', '0', '100 years', null, false, '"1 hour"', 'the longest delay before a retry'),
    ('retry_jitter', 'number', '0', '1', null, false, '0.1',
      'up to this fraction of the delay on top, at random'),
    ('retention', 'duration', '0', '1000 years', 'forever', false, '"30 days"',
     'how long finished jobs and their events are kept; 0 is not at all'),
    ('dead_retention', 'duration', '0', '1000 years', 'forever', false, '"365 days"',
      'how long dead letters are kept'),
    ('disposal', 'choice', 'drop, archive, export', null, null, true, '"drop"',
     'what becomes of a day past the longest retention: drop it, move it to the schema holdfast_archive, or '
     'keep it until it was exported'),
    ('lane_limit', 'integer', '1', '1000000', null, false, '10000',
     'how many lanes the queue may have: one for each task and each priority'),
    ('waiting_warning', 'integer', '0', '9223372036854775807', 'never', false, 'null',
      'more jobs waiting than this are a warning'),
    ('waiting_critical', 'integer', '0', '9223372036854775807', 'never', false, 'null',
      'more jobs waiting than this are critical'),
    ('age_warning', 'duration', '0', '1000 years', 'never', false, '"1 min"',
      'a job that waits for longer is a warning'),
    ('age_critical', 'duration', '0', '1000 years', 'never', false, '"10 mins"',
      'a job that waits for longer is critical'),
    ('failures_warning', 'number', '0', '1', null, false, '0.25',
      'a larger share of failed attempts in the last hour is a warning'),
    ('failures_critical', 'number', '0', '1', null, false, '0.75',
      'a larger share of failed attempts in the last hour is critical'),
    ('worker_expected', 'truth', null, null, null, false, 'true',
      'whether it is wrong that jobs wait and no worker serves them'),
    ('payload_visible', 'truth', null, null, null, false, 'true',
      'whether those who may only look see payloads and results at all'),
    ('redacted', 'words', '0', '100', null, false,
      '["password", "passwd", "secret", "token", "api_key", "authorization"]',
     'keys whose values those who may only look do not see; those of a queue stand instead of the default '
     'ones')
$$;
comment on function holdfast.known_settings() is
  'Return every setting with its type, its initial value and its meaning.';

-- Return a setting in the form in which it is stored, or raise an error that says what is allowed.
create or replace function holdfast.read_setting(
  name text, value jsonb, kind text, lowest text, highest text, never text)
returns jsonb
language plpgsql immutable
set search_path = pg_catalog, pg_temp
set intervalstyle = 'postgres_verbose'
as $$
declare
  shown constant text := value #>> '{}';
  number numeric;
  span interval;
begin
  -- Keeping nothing (0) and keeping forever (never) must not be confused.
  if never is not null and lower(shown) in (never, 'infinity') and jsonb_typeof(value) = 'string' then
    return case kind when 'duration' then to_jsonb('1000 years'::text) else to_jsonb(highest::numeric) end;
  end if;
  case kind
    when 'integer', 'number' then
      if jsonb_typeof(value) = 'number' then
        number := value::numeric;
        if number between lowest::numeric and highest::numeric and (kind = 'number' or number = trunc(number))
          then
          return to_jsonb(trunc(number, case kind when 'number' then 9 else 0 end));
        end if;
      end if;
      perform holdfast.refuse_value(name, shown, format('must be %s from %s to %s%s',
        case kind when 'integer' then 'an integer' else 'a number' end, lowest, highest,
          ', or "' || never || '"'));
    when 'duration' then
      begin
        span := case jsonb_typeof(value)
          when 'number' then make_interval(secs => value::double precision)
          when 'string' then shown::interval
        end;
        span := justify_hours(span);
      exception when data_exception then
        span := null; -- not an interval, or too long for one
      end;
      if span between lowest::interval and highest::interval then
        return to_jsonb(span);
      end if;
      perform holdfast.refuse_value(
        name, shown, format('must be a duration from %s to %s, such as "7 days" or a number of seconds%s',
        lowest, highest, ', or "' || never || '"'));
    when 'truth' then
      if jsonb_typeof(value) = 'boolean' then
        return value;
      end if;
      perform holdfast.refuse_value(name, shown, 'must be true or false');
    when 'choice' then
      if jsonb_typeof(value) = 'string' and shown = any(string_to_array(lowest, ', ')) then
        return value;
      end if;
      perform holdfast.refuse_value(name, shown, format('must be one of %s', lowest));
    when 'words' then
      if jsonb_typeof(value) = 'array' and jsonb_array_length(value) <= highest::integer
        and not exists (
          select from jsonb_array_elements(value) w
          where jsonb_typeof(w.value) <> 'string' or length(btrim(w.value #>> '{}')) not between 1 and 100
        )
      then
        -- People may write a list with spaces. With a space before it, no key would ever match.
        return coalesce(
          (select jsonb_agg(btrim(w.value #>> '{}') order by w.n)
          from jsonb_array_elements(value) with ordinality w (value, n)), '[]');
      end if;
      perform holdfast.refuse_value(
        name, shown, format('must be a list of up to %s texts of 1 to 100 characters; [] for none', highest));
  end case;
end
$$;
comment on function holdfast.read_setting(text, jsonb, text, text, text, text) is
  'Return the value of a setting as it is stored. Refuses a value that breaks the rules.';

-- configure() accepts what this returns.
create or replace function holdfast.show_setting(value jsonb, kind text, never text)
returns jsonb
language sql immutable
set search_path = pg_catalog, pg_temp
set intervalstyle = 'postgres_verbose'
as $$
  select case
    when value is null or value = 'null' then 'null'
    when kind = 'duration' and (value #>> '{}')::interval >= interval '1000 years'
      then to_jsonb(coalesce(never, '1000 years'))
    when kind = 'duration' then to_jsonb(ltrim((value #>> '{}')::interval::text, '@ '))
    when kind = 'integer' and value = '9223372036854775807' then to_jsonb(never)
    else value
  end
$$;
comment on function holdfast.show_setting(jsonb, text, text) is
  'Return the value of a setting as people write it.';

create or replace function holdfast.refuse_setting(name text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  names constant text[] := array(select s.name from holdfast.known_settings() s);
  near constant text := holdfast.nearest(refuse_setting.name, names);
begin
  perform holdfast.refuse_value('setting', refuse_setting.name, case
    when refuse_setting.name ~ '^paused?(_at)?$'
      then 'is not a setting; holdfast.pause(queue) and resume(queue) do that'
    when near is not null then format('is not known; did you mean %s?', near)
    else format('is not known; there are %s', array_to_string(names, ', '))
  end);
end
$$;
comment on function holdfast.refuse_setting(text) is 'Raise the error for a setting that does not exist.';
