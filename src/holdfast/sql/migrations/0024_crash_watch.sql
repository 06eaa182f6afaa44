-- PostgreSQL empties an unlogged table when it starts after a crash. See functions/cluster.sql.
create unlogged table holdfast.crash_watch (
  only_row boolean primary key default true,
  constraint "there is one row at most" check (only_row)
);
insert into holdfast.crash_watch default values;
comment on table holdfast.crash_watch is 'One row, which is lost if the server crashes.';
