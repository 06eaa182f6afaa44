-- What is remembered of sweeps and exports, and the shape in which settings are shown.

create type holdfast.setting as (
  queue text,
  name text,
  value jsonb,
  own boolean,
  builtin jsonb,
  meaning text,
  seconds double precision
);
comment on type holdfast.setting is
  'A setting of a queue: its value, whether that is its own or the default of all queues, the value after an install, and how many seconds a duration has.';

-- Where the sweep of each partition is; see functions/retention.sql.
create table holdfast.swept (
  partition text collate "C" primary key,
  -- the pass under way: when it began, under which settings, and the block that it looks at next
  began_at timestamptz,
  began_under text,
  hand bigint not null default 0,
  -- the last whole pass
  passed_at timestamptz,
  passed_under text,
  -- how far the table reached at some time, and how far it had been looked at by then
  seen bigint not null default 0,
  seen_at timestamptz,
  tail bigint not null default 0,
  touched_at timestamptz
) with (fillfactor = 50);
comment on table holdfast.swept is 'How far the partitions have been searched for jobs and events past the retention of their queue.';

-- What was exported. A day is in its partition as a whole; of a default partition, everything before `until`.
create table holdfast.exported (
  partition text collate "C" primary key,
  until timestamptz not null,
  rows bigint not null,
  bytes bigint,
  sha256 text,
  location text,
  exported_at timestamptz not null,
  who text not null
);
comment on table holdfast.exported is 'Partitions that were exported: they may be dropped, where disposal asks for an export first.';

-- Dead letters go by the retention of their queue.
create index dead_letter_queue on holdfast.dead_letter (queue, died_at);
