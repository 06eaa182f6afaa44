-- Change settings of a queue, or of all queues by the name '*'. They are columns of holdfast.queue,
-- read when they are needed, so a change applies from its commit on.
--
--   select * from holdfast.configure('mail', '{"retention": "7 days", "max_attempts": 5}');
--   select * from holdfast.settings('mail');

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
      'must not be longer than the default for all queues, because your role is restricted to some');
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
  'Change settings of a queue, or of all queues with the name *. A null restores the default. Changes apply '
  'from the commit on, without a restart. Returns what has changed, with the values before and after.';

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
