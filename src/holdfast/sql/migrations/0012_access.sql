-- Which queues a role is kept to; a role without a row is kept to none. See functions/access.sql.
create table holdfast.access (
  -- Not its name: a role that is renamed must not be let into everything.
  role_id oid not null,
  -- The name of a queue, or the beginning of names and a star.
  queues text collate "C" not null,
  granted_by text not null,
  granted_at timestamptz not null,
  primary key (role_id, queues)
);
comment on table holdfast.access is 'The queues that a role is kept to; a role that is not here may use them all.';
