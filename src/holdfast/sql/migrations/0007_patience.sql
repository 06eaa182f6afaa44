-- How long each of the writers has been open: heads wait a while for it.
alter table holdfast.writer_watch add column seen_at timestamptz[] not null default '{}';
comment on column holdfast.writer_watch.seen_at is 'When each of the writers was first seen.';
