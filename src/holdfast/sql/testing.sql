-- Only for test databases: a clock that can be moved. Everything that Holdfast
-- does in time is judged by holdfast.clock(), so moving it moves everything.
create table holdfast.test_clock (shift interval not null);
insert into holdfast.test_clock values ('0');

create or replace function holdfast.clock()
returns timestamptz
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  select clock_timestamp() + c.shift from holdfast.test_clock c
$$;
grant execute on function holdfast.clock() to public;
