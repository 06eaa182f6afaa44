-- A queue has only so many lanes: see functions/lane.sql.
alter table holdfast.queue
  add column lane_limit integer,
  add constraint "lane_limit is at least 1" check (lane_limit >= 1);
update holdfast.queue set lane_limit = 10000 where name = '*';
comment on column holdfast.queue.lane_limit is 'How many lanes of fresh jobs the queue may have: one for each task and priority.';
