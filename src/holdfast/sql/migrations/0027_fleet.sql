-- holdfast: alone
-- A worker with a channel of its own can be woken alone.
--
-- claim() reads `worker` before it reads `live`, and enqueue() reads it after. So no order in which one
-- transaction could lock both tables would be free of deadlocks.
alter table holdfast.worker
  add column channel text collate "C",
  add constraint "channel has 1 to 63 bytes" check (octet_length(channel) between 1 and 63);
comment on column holdfast.worker.channel is
  'The channel on which this worker alone listens. Null if it listens only on the channels of queues.';
-- Workers are counted several times a second, and tombstones stay for a day.
create index worker_registered on holdfast.worker (id) where lost_at is null and left_at is null;

-- Workers look here many times a second, so that a duty runs as often with many workers as with one. Setting
-- an unlogged sequence writes nothing to the log, takes no transaction number and is seen at once. After a
-- crash it stands at its start, and the duties are due.
create unlogged sequence holdfast.duties_at as bigint minvalue 0 start 0;
comment on sequence holdfast.duties_at is 'When the frequent duties last began, in milliseconds since 1970.';
create unlogged sequence holdfast.upkeep_at as bigint minvalue 0 start 0;
comment on sequence holdfast.upkeep_at is
  'When a worker was last told to run the upkeep, in milliseconds since 1970.';
create unlogged sequence holdfast.sweep_at as bigint minvalue 0 start 0;
comment on sequence holdfast.sweep_at is
  'When it was last looked whether a sweep is due, in milliseconds since 1970.';
