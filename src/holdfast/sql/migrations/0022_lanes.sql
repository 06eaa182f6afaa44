-- Lanes that have been empty for a while are removed: see functions/retire.sql. The notes for that have tables of their
-- own, because altering the table `lane` here could deadlock with claims, and writing to it would leave dead versions.
create table holdfast.lane_activity (
  lane_id integer primary key,
  at timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
comment on table holdfast.lane_activity is 'When a lane was made, or when jobs of it last ended; to five minutes.';

create table holdfast.retired_lane (
  lane_id integer primary key,
  mark bigint not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
comment on table holdfast.retired_lane is 'Lanes that will be removed: nobody is given them any more.';
comment on column holdfast.retired_lane.mark is 'The transaction that marked the lane.';

create table holdfast.lane_watch (
  only_row boolean primary key default true,
  step smallint not null,
  mark bigint not null,
  open text[] not null,
  noted bigint not null,
  constraint "there is one watch of lanes" check (only_row)
);
comment on table holdfast.lane_watch is 'How far the removal of retired lanes has come, and which transactions must end before: see functions/retire.sql.';
comment on column holdfast.lane_watch.mark is 'This concerns lanes that were marked up to this transaction.';
comment on column holdfast.lane_watch.noted is 'The transaction that has noted this.';

create index lane_by_task on holdfast.lane (task, queue);
