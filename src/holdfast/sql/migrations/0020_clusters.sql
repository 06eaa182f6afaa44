-- Cursors of events are snapshots of transaction numbers, and each cluster has its own numbers. See functions/cluster.sql.
create table holdfast.cluster (
  only_row boolean primary key default true,
  mark text,
  epoch integer not null default 0,
  shift bigint not null default 0,
  seen_at timestamptz,
  constraint "there is one cluster" check (only_row)
) with (fillfactor = 50);
insert into holdfast.cluster default values;
comment on table holdfast.cluster is 'The cluster in which events were last written, and what is added to its transaction numbers.';
comment on column holdfast.cluster.mark is 'The system identifier and the timeline of the cluster.';
comment on column holdfast.cluster.epoch is 'How often this database has moved to another cluster or timeline.';
comment on column holdfast.cluster.shift is 'What is added to a transaction number, so that numbers grow from one cluster to the next.';
comment on column holdfast.cluster.seen_at is 'The start of the server that was last compared: the same server need not be compared again.';
