-- The rules for what callers hand in. Each answers with nothing, or raises an
-- error that names the field, the limit and what to do.

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
comment on function holdfast.check_name(text, text) is 'Refuse a queue, task or other name that breaks the rules.';

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
comment on function holdfast.refuse_value(text, text, text) is 'Raise the error for a value outside its limits.';

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
comment on function holdfast.check_max_attempts(integer) is 'Refuse a number of attempts outside its range; null means the default.';

-- When a job is due: null for at once. A time far in the past is only late;
-- one more than a century ahead is a mistake, often milliseconds read as seconds.
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
comment on function holdfast.due_time(timestamptz, interval, timestamptz) is 'The time at which a job is due, checked; null for at once.';

-- The size is that of the JSON text as claims hand it out. What is stored says
-- little about it: 1e100000 takes 16 bytes there and 100,001 as text.
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
comment on function holdfast.refuse_payload(uuid, jsonb, integer) is 'Raise the error for a payload whose JSON text is over the limit.';

-- Claims and duties read what others committed a moment ago: under an older
-- snapshot a head could pass a job, so they refuse to run there.
create or replace function holdfast.check_isolation(verb text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using
      errcode = 'HF009',
      message = format('holdfast.%s cannot run in a %s transaction', verb, current_setting('transaction_isolation')),
      detail = jsonb_build_object('level', current_setting('transaction_isolation')),
      hint = 'Call it in a transaction of its own at READ COMMITTED.';
  end if;
end
$$;
comment on function holdfast.check_isolation(text) is 'Refuse any isolation level but read committed.';
