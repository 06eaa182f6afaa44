-- Check what callers hand in. Each function returns nothing, or raises an error that names the
-- field, the limit and what to do.

create or replace function holdfast.check_name(field text, value text)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if value is null or value !~ '^[a-z0-9_.:-]{1,100}$' then
    raise exception using
      errcode = 'HF005',
      message = format('%s %L is not a valid name', field, left(value, 120)),
      detail = jsonb_build_object('field', field, 'value', left(value, 120)),
      hint = 'Names have 1 to 100 characters out of a-z, 0-9, "_", ".", ":" and "-".';
  end if;
end
$$;
comment on function holdfast.check_name(text, text) is
  'Refuse a queue, task or other name that breaks the rules.';

create or replace function holdfast.refuse_value(field text, value text, rule text)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using
    errcode = 'HF008',
    message = format('%s %s: %s', field, coalesce(left(value, 120), 'null'), rule),
    detail = jsonb_build_object('field', field, 'value', left(value, 120));
end
$$;
comment on function holdfast.refuse_value(text, text, text) is
  'Raise the error for a value outside its limits.';

create or replace function holdfast.check_priority(priority integer)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if priority is null or priority not between -32768 and 32767 then
    perform holdfast.refuse_value('priority', priority::text, 'must be an integer from -32768 to 32767');
  end if;
end
$$;
comment on function holdfast.check_priority(integer) is 'Refuse a priority outside the range of a smallint.';

create or replace function holdfast.check_max_attempts(max_attempts integer)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if max_attempts not between 1 and 32767 then
    perform holdfast.refuse_value('max_attempts', max_attempts::text, 'must be an integer from 1 to 32767');
  end if;
end
$$;
comment on function holdfast.check_max_attempts(integer) is
  'Refuse a number of attempts outside its range; null means the default.';

-- A time far in the past only means that the job is late. A time more than a century ahead is a
-- mistake: often milliseconds that were read as seconds.
create or replace function holdfast.due_time(run_at timestamptz, delay interval, now_at timestamptz)
returns timestamptz
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if run_at is not null and delay is not null then
    perform holdfast.refuse_value('delay', delay::text, 'give either run_at or delay, not both');
  end if;
  if delay is not null then
    if delay < interval '0' or delay > interval '100 years' then
      perform holdfast.refuse_value('delay', delay::text, 'must be between 0 and 100 years');
    end if;
    return now_at + delay;
  end if;
  if run_at is not null and (not isfinite(run_at) or run_at > now_at + interval '100 years') then
    perform holdfast.refuse_value('run_at', run_at::text, 'must be a time within the next 100 years');
  end if;
  return run_at;
end
$$;
comment on function holdfast.due_time(timestamptz, interval, timestamptz) is
  'Return the checked time at which a job is due; null for at once.';

-- The size is that of the JSON text that a claim returns. The stored size says little about it:
-- 1e100000 takes 16 bytes stored and 100,001 as text.
create or replace function holdfast.refuse_payload(id uuid, payload jsonb, payload_limit integer)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  size integer := octet_length(payload::text);
begin
  raise exception using
    errcode = 'HF004',
    message = format('the payload of job %s has %s bytes, the limit is %s', id, size, payload_limit),
    detail = jsonb_build_object('field', 'payload', 'id', id, 'size', size, 'limit', payload_limit),
    hint = 'Store the data elsewhere (a table, a bucket) and put a reference to it into the payload.';
end
$$;
comment on function holdfast.refuse_payload(uuid, jsonb, integer) is
  'Raise the error for a payload whose JSON text is over the limit.';

-- Headers travel with every claim, in addition to the payload. Some names are reserved:
-- `resumes` (replay_dead, take_back), `schedule` and `tick` (enqueue_tick). There is no SET clause, so
-- that PostgreSQL inlines the function.
create or replace function holdfast.are_headers(headers jsonb)
returns boolean
language sql immutable
as $$
  select jsonb_typeof(headers) = 'object'
    and octet_length(headers::text) <= 8192
    and not headers ?| '{resumes,schedule,tick}'
    and holdfast.is_readable(headers, headers::text)
$$;
comment on function holdfast.are_headers(jsonb) is
  'Return whether these are headers that a job may be enqueued with.';

create or replace function holdfast.refuse_headers(headers jsonb)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if jsonb_typeof(headers) <> 'object' then
    perform holdfast.refuse_value('headers', jsonb_typeof(headers), 'must be an object');
  elsif octet_length(headers::text) > 8192 then
    perform holdfast.refuse_value(
      'headers', octet_length(headers::text) || ' bytes',
      'may have 8192 bytes: put the rest into the payload');
  end if;
  perform holdfast.refuse_value('headers', format('"%s"', k), 'this name is the queue''s own; take another')
  from jsonb_object_keys(headers) k
  where k in ('resumes', 'schedule', 'tick');
  perform holdfast.check_json('headers', headers);
end
$$;
comment on function holdfast.refuse_headers(jsonb) is 'Raise an error if headers break a rule.';

-- A value that Python cannot read would break every list that contains it. Python's decoders
-- give up at about 900 levels, at a fraction that no double can hold, and at an integer of
-- 4,300 digits. `said` is the text of the value: converting it takes longer than this check.
--
-- A text of fewer than 300 bytes has neither, so most values cost nothing more. The search for
-- many digits comes first, since comparing each number takes several times as long. There is no
-- SET clause, so that PostgreSQL inlines the function.
create or replace function holdfast.is_readable(value jsonb, said text)
returns boolean
language sql immutable
as $$
  select octet_length(said) < 300
    or not (
      jsonb_path_exists(value, 'strict $.**{201}')
      or (said ~ '\d{40}' and holdfast.has_long_number(value))
    )
$$;
comment on function holdfast.is_readable(jsonb, text) is
  'Return whether a value has at most 200 levels and no number that a double cannot hold.';

create or replace function holdfast.has_long_number(value jsonb)
returns boolean
language sql immutable
as $$
  select jsonb_path_exists(value, 'strict $.** ? (@ > 1.7976931348623157e308 || @ < -1.7976931348623157e308)')
$$;
comment on function holdfast.has_long_number(jsonb) is
  'Return whether a value contains a number that a double cannot hold.';

create or replace function holdfast.check_json(field text, value jsonb)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  said constant text := value::text;
begin
  if not holdfast.is_readable(value, said) then
    raise exception using
      errcode = 'HF008',
      message = format('%s: %s', field, case
        when holdfast.has_long_number(value) then 'a number has too many digits'
        else 'it is nested more than 200 levels deep' end),
      detail = jsonb_build_object('field', field, 'value', null),
      hint = 'Store the data elsewhere, or as text, and refer to it.';
  end if;
end
$$;
comment on function holdfast.check_json(text, jsonb) is 'Refuse a value that Python cannot read back.';

-- Claims and duties read what others committed a moment ago. Under an older snapshot a head
-- could pass a job, so they refuse to run.
create or replace function holdfast.check_isolation(verb text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using
      errcode = 'HF009',
      message = format(
        'holdfast.%s cannot run in a %s transaction', verb, current_setting('transaction_isolation')),
      detail = jsonb_build_object('level', current_setting('transaction_isolation')),
      hint = 'Call it in a transaction of its own at READ COMMITTED.';
  end if;
end
$$;
comment on function holdfast.check_isolation(text) is 'Refuse every isolation level except read committed.';

create or replace function holdfast.check_amount(amount integer)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if amount < 1 then
    perform holdfast.refuse_value('amount', amount::text, 'must be at least 1; leave it out for all');
  end if;
end
$$;
comment on function holdfast.check_amount(integer) is 'Refuse an amount below 1; null means all.';
