-- A clock that can be moved, for test databases only. Holdfast takes every time from
-- holdfast.clock(), so moving this clock moves everything.
--
-- The shift is a number of seconds: a day of an interval is 23 or 25 hours long
-- where the clocks change, and so would differ between sessions.
create table holdfast.test_clock (shift double precision not null);
insert into holdfast.test_clock values (0);

create or replace function holdfast.clock()
returns timestamptz
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  select clock_timestamp() + make_interval(secs => c.shift) from holdfast.test_clock c
$$;
grant execute on function holdfast.clock() to public;

create function holdfast.test_advance(seconds double precision)
returns timestamptz
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  update holdfast.test_clock set shift = shift + test_advance.seconds;
  select holdfast.clock();
$$;
comment on function holdfast.test_advance(double precision) is 'Move the clock of a test database by a number of seconds. Returns the time.';

create function holdfast.test_set(at timestamptz)
returns timestamptz
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  update holdfast.test_clock set shift = extract(epoch from test_set.at - clock_timestamp());
  select holdfast.clock();
$$;
comment on function holdfast.test_set(timestamptz) is 'Set the clock of a test database to a time, from which it continues. Returns the time.';

revoke execute on function holdfast.test_advance(double precision), holdfast.test_set(timestamptz) from public;
