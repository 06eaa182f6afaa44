-- What is seen of a job while it runs, and kept of it: steps, a checkpoint, events; and who waits for its end.

-- The steps that a job has finished, whichever attempt did. A retry goes on after them, and so does a replay.
create table holdfast.step (
  job_id uuid not null,
  -- When its job was made: a caller may use an id again, and that is another job.
  job_created_at timestamptz not null,
  name text collate "C" not null,
  position integer not null,
  result jsonb,
  attempt integer not null,
  worker_id uuid,
  finished_at timestamptz not null,
  duration interval,
  primary key (job_id, name)
);
create index step_time on holdfast.step using brin (finished_at);
comment on table holdfast.step is 'Finished steps of jobs, with their results; a retry continues after them.';

-- How far a loop has come. Apart from `running`, whose row goes with the attempt.
create table holdfast.checkpoint (
  job_id uuid primary key,
  job_created_at timestamptz not null,
  state jsonb not null,
  changed_at timestamptz not null
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
create index checkpoint_time on holdfast.checkpoint using brin (changed_at);
comment on table holdfast.checkpoint is 'The last checkpoint of a job: where its next attempt goes on.';

alter table holdfast.running
  add column step text collate "C",
  add column published integer not null default 0;
comment on column holdfast.running.step is 'The step that is being worked on.';
comment on column holdfast.running.published is 'How many events its worker has published under this lease: one sent twice is one.';

-- One row for each event, one partition a day. Whoever writes one holds the row of its job in `event_count`
-- until it commits, so the events of a job become visible in the order of their ids, without a gap to come.
create sequence holdfast.event_seq as bigint cache 1;
create table holdfast.event (
  id bigint not null default nextval('holdfast.event_seq'),
  job_id uuid not null,
  queue text collate "C" not null,
  task text collate "C" not null,
  name text collate "C" not null,
  attempt integer not null,
  data jsonb,
  at timestamptz not null,
  -- Who wrote it: what a reader has not seen yet is what its last snapshot could not show.
  xid xid8 not null default pg_current_xact_id()
) partition by range (at);
create index event_id on holdfast.event (id);
create index event_xid on holdfast.event (xid);
create index event_job on holdfast.event (job_id, id);
create index event_queue on holdfast.event (queue, id);
create table holdfast.event_default partition of holdfast.event default;
comment on table holdfast.event is 'What happened to jobs, and what their handlers published; daily partitions, dropped after the retention time.';
comment on table holdfast.event_default is 'Events of a day that has no partition of its own.';

create type holdfast.job_event as (
  id bigint,
  job_id uuid,
  queue text,
  task text,
  name text,
  attempt integer,
  data jsonb,
  at timestamptz,
  cursor text
);
comment on type holdfast.job_event is 'An event as a reader gets it, with the cursor to go on after it.';

create table holdfast.event_count (
  job_id uuid primary key,
  events integer not null,
  last_at timestamptz not null
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
create index event_count_time on holdfast.event_count using brin (last_at);
comment on table holdfast.event_count is 'How many events each job has; its row orders those who write them.';

-- Who waits for the end of which job: nearly always empty.
create table holdfast.waiter (
  job_id uuid not null,
  channel text collate "C" not null,
  since timestamptz not null,
  primary key (job_id, channel)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
comment on table holdfast.waiter is 'Channels to notify when a job ends.';
