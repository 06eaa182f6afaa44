-- The only clock: every time that Holdfast writes or compares comes from here,
-- so a worker's own clock may be wrong without effect. A test database replaces
-- this function to move time; no runtime role can.
-- holdfast: role producer worker viewer
create or replace function holdfast.clock()
returns timestamptz
language sql volatile parallel safe
as 'select clock_timestamp()';

comment on function holdfast.clock() is 'The time by which everything is judged: the database''s own.';
comment on function holdfast.new_id() is
  'A new job id: a UUID of version 7, so ids sort by the time they were made.';
