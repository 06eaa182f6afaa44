-- holdfast: after check
-- Settings of a queue, or of all queues by the name '*'. They are columns of holdfast.queue, read
-- when they are needed, so a change applies from its commit on.
--
--   select * from holdfast.configure('mail', '{"retention": "7 days", "max_attempts": 5}');
--   select * from holdfast.settings('mail');

-- Each setting with its values, its initial value and its meaning. `never` means a duration, or a
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

-- holdfast: role operator
create or replace function holdfast.configure(queue text, settings jsonb)
returns table (name text, before jsonb, after jsonb)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set intervalstyle = 'postgres_verbose'
as $$
#variable_conflict use_column
declare
  known holdfast.queue;
  given holdfast.queue;
  said jsonb := '{}';
  key text;
  value jsonb;
  rule record;
  changed jsonb;
begin
  if configure.queue is distinct from '*' then
    perform holdfast.check_name('queue', configure.queue);
    perform holdfast.check_queue(configure.queue);
  else
    perform holdfast.check_unrestricted('a default');
  end if;
  if jsonb_typeof(configure.settings) is distinct from 'object' or configure.settings = '{}' then
    perform holdfast.refuse_value(
      'settings', configure.settings::text,
      'must be a JSON object of settings, such as {"retention": "7 days"}');
  end if;
  for key, value in select e.key, e.value from jsonb_each(configure.settings) e loop
    select s.* into rule from holdfast.known_settings() s where s.name = key;
    if not found then
      perform holdfast.refuse_setting(key);
    end if;
    if rule.everywhere and configure.queue <> '*' then
      perform holdfast.refuse_value(
        key, value #>> '{}', 'is the same for all queues; set it for the queue *');
    end if;
    said := said || jsonb_build_object(key, case
      when value <> 'null'
        then holdfast.read_setting(key, value, rule.kind, rule.lowest, rule.highest, rule.never)
      -- Back to the default. For all queues together, that is the initial value.
      when configure.queue = '*' and rule.builtin <> 'null'
        then holdfast.read_setting(key, rule.builtin, rule.kind, rule.lowest, rule.highest, rule.never)
      else 'null'
    end);
  end loop;

  -- One change at a time, as in set_retry_policy(): related settings are checked against each other.
  perform from holdfast.queue q where q.name = '*' for update;
  insert into holdfast.queue as q (name) values (configure.queue) on conflict (name) do nothing;
  select q.* into known from holdfast.queue q where q.name = configure.queue for update;
  given := jsonb_populate_record(known, said);
  execute format('update holdfast.queue q set %s where q.name = $2',
    (select string_agg(format('%1$I = $1.%1$I', k), ', ') from jsonb_object_keys(said) k))
  using given, configure.queue;
  perform holdfast.check_thresholds(configure.queue, said);
  -- The longest retention of all decides how long whole days are kept.
  if not holdfast.unrestricted()
    and given.retention > (select q.retention from holdfast.queue q where q.name = '*') then
    perform holdfast.refuse_value(
      'retention', said ->> 'retention',
      'must not be longer than that of all queues for a role that is kept to some');
  end if;

  select jsonb_object_agg(s.name, jsonb_build_array(
      holdfast.show_setting(to_jsonb(known) -> s.name, s.kind, s.never),
      holdfast.show_setting(to_jsonb(given) -> s.name, s.kind, s.never)))
    into changed
  from holdfast.known_settings() s
  where said ? s.name
    and to_jsonb(known) -> s.name is distinct from to_jsonb(given) -> s.name;
  if changed is not null then
    perform holdfast.note('configure', configure.queue, changed);
  end if;
  return query
    select s.name, changed -> s.name -> 0, changed -> s.name -> 1
    from holdfast.known_settings() with ordinality s (
      name, kind, lowest, highest, never, everywhere, builtin, meaning, place)
    where changed ? s.name
    order by s.place;
end
$$;
comment on function holdfast.configure(text, jsonb) is
  'Change settings of a queue, or of all queues with the name *. A null restores the default. Changes apply'
  ' from the commit on, without a restart. Returns what has changed, with the values before and after.';

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

-- A warning must come before the critical threshold, in every queue that the change affects.
create or replace function holdfast.check_thresholds(queue text, said jsonb)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
set intervalstyle = 'postgres_verbose'
as $$
#variable_conflict use_column
declare
  wrong record;
begin
  select t.kind, q.name, t.warning, t.critical, said ? (t.kind || '_warning') as of_warning into wrong
  from holdfast.queue d
  join holdfast.queue q on d.name = '*' and (q.name = check_thresholds.queue or check_thresholds.queue = '*')
  cross join lateral (values
    ('waiting', coalesce(q.waiting_warning, d.waiting_warning)::text,
      coalesce(q.waiting_critical, d.waiting_critical)::text,
     coalesce(q.waiting_warning, d.waiting_warning) > coalesce(q.waiting_critical, d.waiting_critical)),
    ('age', ltrim(coalesce(q.age_warning, d.age_warning)::text, '@ '),
      ltrim(coalesce(q.age_critical, d.age_critical)::text, '@ '),
     coalesce(q.age_warning, d.age_warning) > coalesce(q.age_critical, d.age_critical)),
    ('failures', coalesce(q.failures_warning, d.failures_warning)::text,
      coalesce(q.failures_critical, d.failures_critical)::text,
     coalesce(q.failures_warning, d.failures_warning) > coalesce(q.failures_critical, d.failures_critical))
  ) t (kind, warning, critical, wrong)
  where t.wrong
    and (said ? (t.kind || '_warning') or said ? (t.kind || '_critical'))
  order by q.name
  limit 1;
  if not found then
    return;
  end if;
  if wrong.of_warning then
    perform holdfast.refuse_value(wrong.kind || '_warning', wrong.warning, format(
      'must not be above %s_critical, which is %s for the queue %s; set both together', wrong.kind,
        wrong.critical, wrong.name));
  end if;
  perform holdfast.refuse_value(wrong.kind || '_critical', wrong.critical, format(
    'must not be below %s_warning, which is %s for the queue %s; set both together', wrong.kind,
      wrong.warning, wrong.name));
end
$$;
comment on function holdfast.check_thresholds(text, jsonb) is
  'Refuse a warning threshold above the critical one in a queue that these settings affect.';

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
      then 'is none; holdfast.pause(queue) and resume(queue) do that'
    when near is not null then format('is not known; did you mean %s?', near)
    else format('is not known; there are %s', array_to_string(names, ', '))
  end);
end
$$;
comment on function holdfast.refuse_setting(text) is 'Raise the error for a setting that does not exist.';

-- Compare the pairs of letters that both have (Dice's coefficient). It needs only SQL, and finds
-- swapped, missing and doubled letters.
create or replace function holdfast.nearest(word text, candidates text[])
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  with given as (
    select distinct substr('^' || lower(word) || '$', n, 2) as pair
      from generate_series(1, least(length(word), 100) + 1) n
  ),
  compared as (
    select c.word, (
      select 2.0 * count(g.pair) / (count(*) + (select count(*) from given))
      from (
        select distinct substr('^' || c.word || '$', n, 2) as pair
        from generate_series(1, length(c.word) + 1) n) p
      left join given g on g.pair = p.pair
    ) as likeness
    from unnest(candidates) c (word)
  )
  select c.word from compared c where c.likeness >= 0.4 order by c.likeness desc, c.word limit 1
$$;
comment on function holdfast.nearest(text, text[]) is
  'Return the candidate that was probably meant, if one is close.';

-- holdfast: role viewer
create or replace function holdfast.settings(queue text default null)
returns setof holdfast.setting
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set intervalstyle = 'postgres_verbose'
as $$
#variable_conflict use_column
begin
  if settings.queue <> '*' then
    perform holdfast.check_name('queue', settings.queue);
  end if;
  return query
    select
      n.name, s.name, holdfast.show_setting(e.value, s.kind, s.never), e.own, s.builtin, s.meaning,
      case when s.kind = 'duration' and (e.value #>> '{}')::interval < interval '1000 years'
        then extract(epoch from (e.value #>> '{}')::interval)::double precision end
    from (
      select q.name from holdfast.queue q where settings.queue is null
      union
      select settings.queue where settings.queue is not null
    ) n (name)
    join holdfast.queue d on d.name = '*'
    left join holdfast.queue q on q.name = n.name
    cross
      join holdfast.known_settings() with ordinality s (
      name, kind, lowest, highest, never, everywhere, builtin, meaning, place)
    cross
      join lateral (
      select nullif(to_jsonb(q) -> s.name, 'null') as mine, nullif(to_jsonb(d) -> s.name, 'null') as its) v
    cross join lateral (
      select
        coalesce(v.mine, v.its) as value,
        case when n.name = '*' then holdfast.show_setting(v.its, s.kind, s.never) is distinct from s.builtin
          else v.mine is not null end as own
    ) e
    where (not s.everywhere or n.name = '*')
      and (n.name = '*' or (select holdfast.unrestricted()) or holdfast.in_reach(n.name))
    order by n.name collate "C", s.place;
end
$$;
comment on function holdfast.settings(text) is
  'Return the settings of a queue, or of all queues that have any, with the defaults (*) first: the value, '
  'whether it is the queue''s own (for *: whether it was changed), its initial value and its meaning.';
