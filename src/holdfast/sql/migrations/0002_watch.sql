-- The duty remembers since when each open writer has been open. The safe heads and the low-water mark of scheduled jobs follow the oldest of
-- them; see functions/advance.sql.
--
-- The table before it stays until the next release: the functions of 0.1.0 write to it until the new ones are in.
comment on table holdfast.head_proof is 'What the functions of release 0.1.0 remember; of no use since.';

create table holdfast.writer_watch (
  only_row boolean primary key default true,
  seq bigint not null,
  at timestamptz not null,
  writers text[] not null default '{}',
  since bigint[] not null default '{}',
  since_at timestamptz[] not null default '{}',
  top bigint not null,
  due_from timestamptz not null default '-infinity',
  constraint "there is one watch" check (only_row)
) with (fillfactor = 20);
comment on table holdfast.writer_watch is 'The transactions that may have taken a place and not yet ended, and a place below all that each of them took.';
comment on column holdfast.writer_watch.seq is 'Whoever is not among the writers and comes later takes places above this one.';
comment on column holdfast.writer_watch.top is 'A number that the sequence has reached: should it ever be below, it was reset.';
comment on column holdfast.writer_watch.due_from is 'No scheduled job is due before this time: promote reads from here.';
