-- Write durations, times, numbers and names as people read them, for why(), doctor() and health().

create or replace function holdfast.span_in_words(span interval)
returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
  select case
    when s.seconds is null then null
    when s.seconds < 1 then round(s.seconds * 1000) || ' ms'
    when s.seconds < 60 then round(s.seconds) || ' s'
    when s.seconds < 3600
      then concat_ws(' ', div(s.seconds, 60) || ' min', nullif(div(mod(s.seconds, 60), 1), 0) || ' s')
    when s.seconds < 86400
      then concat_ws(' ', div(s.seconds, 3600) || ' h', nullif(div(mod(s.seconds, 3600), 60), 0) || ' min')
    else concat_ws(' ', div(s.seconds, 86400) || ' d', nullif(div(mod(s.seconds, 86400), 3600), 0) || ' h')
  end
  from (select abs(extract(epoch from span)) as seconds) s
$$;
comment on function holdfast.span_in_words(interval) is
  'Return a duration in its two largest units: 4 min 10 s.';

-- For health(), which counts in seconds: it rounds down and never shows milliseconds.
create or replace function holdfast.seconds_in_words(duration interval)
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select case
    when s.seconds < 60 then format('%s s', s.seconds)
    when s.seconds < 3600
      then format('%s min', s.seconds / 60) || coalesce(' ' || nullif(s.seconds % 60, 0) || ' s', '')
    when s.seconds < 86400
      then format('%s h', s.seconds / 3600) || coalesce(' ' || nullif(s.seconds % 3600 / 60, 0) || ' min', '')
    else format('%s d', s.seconds / 86400) || coalesce(' ' || nullif(s.seconds % 86400 / 3600, 0) || ' h', '')
  end
  from (select greatest(floor(extract(epoch from duration)), 0)::bigint as seconds) s
  where duration is not null
$$;
comment on function holdfast.seconds_in_words(interval) is
  'Return a duration in whole seconds, in its two largest units: 14 min 3 s.';

create or replace function holdfast.time_in_words(at timestamptz)
returns text
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
as $$
  select to_char(time_in_words.at, 'YYYY-MM-DD HH24:MI:SS TZ')
$$;
comment on function holdfast.time_in_words(timestamptz) is
  'Return a time to the second, in the time zone of the session.';

create or replace function holdfast.amount_in_words(amount bigint, noun text, most bigint default null)
returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
  select concat(
    case when amount >= most then 'at least ' end,
    ltrim(to_char(amount, '999G999G999G999G990')), ' ', noun,
    case when amount <> 1 then 's' end)
$$;
comment on function holdfast.amount_in_words(bigint, text, bigint) is
  'Return a number of things, or a lower bound if no more were counted: at least 10,000 jobs.';

create or replace function holdfast.worker_in_words(worker holdfast.worker)
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select concat(
    worker.name,
    case when worker.host is not null or worker.pid is not null then
      ' (' || concat_ws(', ', 'host ' || worker.host, 'pid ' || worker.pid) || ')'
    end)
$$;
comment on function holdfast.worker_in_words(holdfast.worker) is
  'Describe a worker by its name, host and process: web-1 (host ship, pid 42).';
