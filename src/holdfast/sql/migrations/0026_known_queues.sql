-- The names of queues whose lanes were removed. A role that is restricted to some queues is shown
-- the ended jobs of queues that are known by their name.
create table holdfast.known_queue (
  name text primary key,
  seen_at timestamptz not null
);
comment on table holdfast.known_queue is
  'Queues that lost their last lanes, and when. They may still have finished jobs, dead letters and events.';

-- Lanes that earlier releases removed. Finished jobs have no index by queue, so the statistics
-- name their queues.
insert into holdfast.known_queue (name, seen_at)
select q.queue, holdfast.clock()
from (select d.queue from holdfast.dead_letter d union select s.queue from holdfast.stat s) q;
