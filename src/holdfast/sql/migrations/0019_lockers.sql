-- Transactions that have cancelled or claimed a waiting job and stay open: heads may pass what they hold.
create table holdfast.locker (
  xid xid8 primary key,
  seq bigint,
  run_at timestamptz
);
comment on table holdfast.locker is 'The open transactions and savepoints that hold a waiting job which a head has passed.';
comment on column holdfast.locker.seq is 'The first place that was passed of the pending jobs that it holds.';
comment on column holdfast.locker.run_at is 'The first time that was passed of the scheduled jobs that it holds.';

alter table holdfast.writer_watch
  add column promote_from timestamptz not null default '-infinity',
  add column old_xid xid8 not null default '0',
  add column mark_xid xid8 not null default '0',
  add column mark_at timestamptz not null default '-infinity';
comment on column holdfast.writer_watch.promote_from is 'No scheduled job before this time is due, except those that a locker holds: promote reads from here.';
comment on column holdfast.writer_watch.old_xid is 'Transactions below this number have been open for some seconds.';
comment on column holdfast.writer_watch.mark_xid is 'What old_xid will be when mark_at is some seconds ago.';
