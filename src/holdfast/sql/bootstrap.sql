-- What must be there before anything can be remembered: the schema, and the
-- table of what is installed. Like a migration, never edited once released.

do $$
begin
  -- `create schema if not exists` would ask for CREATE on the database even
  -- where a DBA has made the schema beforehand.
  if to_regnamespace('holdfast') is null then
    create schema holdfast;
    comment on schema holdfast is 'Holdfast, a job queue. Its functions are its interface; its tables are its own.';
    revoke all on schema holdfast from public;
  end if;
end
$$;

create table if not exists holdfast.migration (
  name text collate "C" primary key,
  kind text collate "C" not null,
  checksum text collate "C" not null,
  version text collate "C" not null,
  applied_at timestamptz not null default now(),
  constraint a_file_is_a_migration_or_a_function check (kind in ('migration', 'function'))
);

comment on table holdfast.migration is 'The SQL files that made this schema, with their checksums.';
comment on column holdfast.migration.kind is 'A migration runs once and for all; a function file runs again whenever its text changes.';
comment on column holdfast.migration.version is 'The release of Holdfast that applied the file.';
