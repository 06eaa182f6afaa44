-- The only clock: Holdfast takes every time that it writes or compares from here. So a wrong
-- clock of a worker has no effect. A test database replaces this function to move time; no
-- runtime role can.
-- holdfast: role producer worker viewer
create or replace function holdfast.clock()
returns timestamptz
language sql volatile parallel safe
as 'select clock_timestamp()';

comment on function holdfast.clock() is 'Return the time of the database, by which everything is decided.';
comment on function holdfast.new_id() is
  'Return a new job id: a UUID of version 7, so that ids sort by the time they were made.';
