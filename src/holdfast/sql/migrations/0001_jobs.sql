-- The tables of Holdfast. Types, tables and indexes live in migrations and are
-- never edited once released; every rule lives in functions/, which are
-- re-created whenever their text changes.

-- Two functions stand here because column defaults need them.

create function holdfast.clock()
returns timestamptz
language sql volatile parallel safe
as 'select clock_timestamp()';

do $$
begin
  if to_regprocedure('pg_catalog.uuidv7()') is not null then
    create function holdfast.new_id() returns uuid
    language sql volatile parallel safe
    as 'select pg_catalog.uuidv7()';
  else
    -- A random UUID whose first 48 bits are the milliseconds since 1970 and
    -- whose version nibble is turned from 4 (0100) into 7 (0111).
    create function holdfast.new_id() returns uuid
    language sql volatile parallel safe
    as $new_id$
      select encode(
        set_bit(set_bit(
          overlay(uuid_send(gen_random_uuid())
            placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
            from 1 for 6),
          52, 1), 53, 1),
        'hex')::uuid
    $new_id$;
  end if;
end
$$;

-- The state machine, written down once. The guard on `job` is generated from
-- this table, and the views and functions ask it.
create table holdfast.state (
  name text collate "C" primary key,
  terminal boolean not null,
  claimable boolean not null,
  successors text[] not null,
  meaning text not null
);
comment on table holdfast.state is 'Every state of a job: whether it is terminal, whether it is claimable, and what may follow.';

insert into holdfast.state (name, terminal, claimable, successors, meaning) values
  ('scheduled', false, false, '{pending,cancelled,dead}',                                'due later, or waiting to retry'),
  ('pending',   false, true,  '{claimed,scheduled,cancelled,dead}',                      'ready to be claimed'),
  ('claimed',   false, false, '{running,completed,scheduled,pending,dead,cancelled}',    'handed to a worker'),
  ('running',   false, false, '{completed,scheduled,pending,dead,cancelled}',            'its handler has been seen at work'),
  ('completed', true,  false, '{}',                                                      'done, with a result'),
  ('dead',      true,  false, '{pending}',                                               'out of attempts, kept apart with its errors'),
  ('cancelled', true,  false, '{}',                                                      'called off');

-- A lane is one queue, priority and task; `kind` says which of its jobs:
-- 0 fresh, 1 returned (they have waited before, so they go first), 2 suspect
-- (their worker died, so they run one at a time).
--
-- There is no unique key on purpose: two open transactions that are both the
-- first to use a lane each make a row of their own, and neither waits.
create table holdfast.lane (
  id integer primary key generated always as identity,
  queue text collate "C" not null,
  priority smallint not null,
  task text collate "C" not null,
  kind smallint not null default 0,
  -- No pending job of the lane stands before `head`, except late ones between
  -- safe_head and head, which the advance duty looks for (see functions/advance.sql).
  head bigint not null default 0,
  safe_head bigint not null default 0,
  constraint "a lane is fresh, returned or suspect" check (kind in (0, 1, 2))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200, vacuum_truncate = off);
create index lane_by_queue_and_task on holdfast.lane (queue, task, priority, kind);
comment on table holdfast.lane is 'Where jobs queue up: one row per queue, priority, task and kind, with the head that claims read from.';

-- The place in the lane. It must not cache: a cached block would hand out
-- small numbers late and defeat the proof behind the heads.
create sequence holdfast.job_seq as bigint cache 1;

-- Live jobs only: what is still to do or being done. Finished jobs move to
-- `finished` or `dead_letter` in the statement that finishes them.
create table holdfast.job (
  -- what
  id uuid not null default holdfast.new_id(),
  lane_id integer not null,
  seq bigint not null default nextval('holdfast.job_seq'),
  task text collate "C" not null,
  payload jsonb not null default '{}',
  headers jsonb,
  -- lifecycle
  state text collate "C" not null default 'pending',
  attempt integer not null default 0,
  max_attempts integer not null default 3,
  worker_id uuid,
  lease uuid,
  last_lease uuid,
  last_outcome text collate "C",
  last_error text,
  cancel_requested_at timestamptz,
  -- timing; run_at is null for a job that may run at once
  run_at timestamptz,
  created_at timestamptz not null default holdfast.clock(),
  claimed_at timestamptz,
  changed_at timestamptz,
  constraint job_pkey primary key (id),
  constraint "a live job is scheduled, pending or claimed" check (state in ('scheduled', 'pending', 'claimed')),
  constraint "a claimed job and no other has a lease and a worker" check (
    (state = 'claimed') = (lease is not null) and (state = 'claimed') = (worker_id is not null)),
  constraint "a scheduled job has a time" check (state <> 'scheduled' or run_at is not null),
  constraint "attempts are counted from 0" check (attempt >= 0),
  constraint "max_attempts is between 1 and 32767" check (max_attempts between 1 and 32767)
) with (
  fillfactor = 85,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 2000,
  autovacuum_vacuum_insert_scale_factor = 0.5,
  autovacuum_analyze_scale_factor = 0.1,
  autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = off
);
create index job_pending on holdfast.job (lane_id, seq) where state = 'pending';
create index job_due on holdfast.job (run_at) where state = 'scheduled';
create index job_held on holdfast.job (worker_id) where state = 'claimed';
comment on table holdfast.job is 'Live jobs: scheduled, pending or claimed. Rows leave only through the functions.';
comment on column holdfast.job.last_lease is 'The lease under which the job was last given back.';
comment on column holdfast.job.last_outcome is 'What was reported then, so that the same report twice is one.';

-- Kept apart from `job` so that progress never updates the job's row: an
-- update there would break a REPEATABLE READ handler that finishes in its own
-- transaction.
create table holdfast.running (
  job_id uuid primary key,
  lease uuid not null,
  started_at timestamptz not null,
  deadline_at timestamptz,
  progress smallint,
  stage text,
  message text,
  changed_at timestamptz not null,
  constraint "progress is between 0 and 100" check (progress between 0 and 100)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, vacuum_truncate = off);
comment on table holdfast.running is 'One row per claimed job that has been seen at work: when it started and how far it is.';

-- What a claim hands out, and why a report is refused: named types, because a
-- function's columns may not share the names of its parameters.
create type holdfast.claimed_job as (
  id uuid,
  task text,
  payload jsonb,
  attempt integer,
  lease uuid,
  max_attempts integer,
  queue text,
  priority integer,
  suspect boolean,
  worker uuid,
  created_at timestamptz,
  headers jsonb
);
comment on type holdfast.claimed_job is 'A job as a claim hands it to a worker.';

create type holdfast.refusal as (
  id uuid,
  sqlstate text,
  message text,
  state text,
  lease uuid
);
comment on type holdfast.refusal is 'Why a report on a job was refused: the SQLSTATE, the state of the job and its current lease.';

-- Settings. The row '*' holds the defaults of every queue; a null means "as in '*'".
create table holdfast.queue (
  name text collate "C" primary key,
  paused_at timestamptz,
  payload_limit integer,
  max_attempts integer,
  retry_base interval,
  retry_factor double precision,
  retry_cap interval,
  retry_jitter double precision,
  retention interval,
  constraint "payload_limit is between 1 KiB and 64 MiB" check (payload_limit between 1024 and 67108864),
  constraint "max_attempts is between 1 and 32767" check (max_attempts between 1 and 32767),
  constraint "retry_base is between 0 and 100 years" check (retry_base between interval '0' and interval '100 years'),
  constraint "retry_factor is between 1 and 100" check (retry_factor between 1 and 100),
  constraint "retry_cap is between 0 and 100 years" check (retry_cap between interval '0' and interval '100 years'),
  constraint "retry_jitter is between 0 and 1" check (retry_jitter between 0 and 1),
  constraint "retention is not negative" check (retention >= interval '0')
);
comment on table holdfast.queue is 'Settings per queue; the row * holds the defaults, and a missing row or a null means the default.';

insert into holdfast.queue
  (name, payload_limit, max_attempts, retry_base, retry_factor, retry_cap, retry_jitter, retention)
values
  ('*', 262144, 3, '1 minute', 2, '1 hour', 0.1, '30 days');

create table holdfast.retry_policy (
  task text collate "C" primary key,
  max_attempts integer,
  base interval,
  factor double precision,
  cap interval,
  jitter double precision,
  -- Written by a worker from the task's declaration; an operator's change sets it to false for good.
  declared boolean not null default false,
  constraint "max_attempts is between 1 and 32767" check (max_attempts between 1 and 32767),
  constraint "base is between 0 and 100 years" check (base between interval '0' and interval '100 years'),
  constraint "factor is between 1 and 100" check (factor between 1 and 100),
  constraint "cap is between 0 and 100 years" check (cap between interval '0' and interval '100 years'),
  constraint "jitter is between 0 and 1" check (jitter between 0 and 1)
);
comment on table holdfast.retry_policy is 'How a task is retried; a null means as its queue, else the default.';

-- One row per life of a worker process. A lost or departed worker stays for a
-- day as a tombstone, so that it cannot come back under its old registration.
create table holdfast.worker (
  id uuid primary key,
  name text not null,
  host text,
  pid integer,
  version text,
  queues text[],
  tasks text[],
  lease_time interval not null default '30 seconds',
  asleep boolean not null default false,
  started_at timestamptz not null,
  heartbeat_at timestamptz not null,
  graced_at timestamptz,
  left_at timestamptz,
  lost_at timestamptz,
  recovered integer not null default 0,
  constraint "lease_time is between 1 second and 1 day" check (lease_time between interval '1 second' and interval '1 day')
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200, vacuum_truncate = off);
create index worker_asleep on holdfast.worker (id) where asleep;
comment on table holdfast.worker is 'Consumers: who they are, what they serve, when they were last heard of, and what was recovered from them.';
comment on column holdfast.worker.graced_at is 'Its silence before this time does not count: nobody was there to listen.';

-- Completed and cancelled jobs, one partition a day; see functions/upkeep.sql.
create table holdfast.finished (
  id uuid not null,
  queue text collate "C" not null,
  priority smallint not null,
  task text collate "C" not null,
  payload jsonb not null,
  headers jsonb,
  state text collate "C" not null,
  attempt integer not null,
  max_attempts integer not null,
  worker_id uuid,
  lease uuid,
  result jsonb,
  last_error text,
  run_at timestamptz,
  created_at timestamptz not null,
  claimed_at timestamptz,
  started_at timestamptz,
  finished_at timestamptz not null,
  duration interval,
  constraint "a finished job is completed or cancelled" check (state in ('completed', 'cancelled'))
) partition by range (finished_at);
create index finished_id on holdfast.finished (id);
create table holdfast.finished_default partition of holdfast.finished default;
comment on table holdfast.finished is 'Completed and cancelled jobs with their results; daily partitions, dropped after the retention time.';
comment on table holdfast.finished_default is 'Finished jobs of a day that has no partition of its own.';

create table holdfast.dead_letter (
  id uuid primary key,
  queue text collate "C" not null,
  priority smallint not null,
  task text collate "C" not null,
  payload jsonb not null,
  headers jsonb,
  attempt integer not null,
  max_attempts integer not null,
  worker_id uuid,
  lease uuid,
  last_error text,
  run_at timestamptz,
  created_at timestamptz not null,
  claimed_at timestamptz,
  started_at timestamptz,
  died_at timestamptz not null,
  duration interval
);
comment on table holdfast.dead_letter is 'Jobs that are out of attempts, whole, with the time of death.';

create table holdfast.attempt_error (
  job_id uuid not null,
  attempt integer not null,
  failed_at timestamptz not null,
  worker_id uuid,
  error text not null,
  traceback text
);
create index attempt_error_job on holdfast.attempt_error (job_id);
create index attempt_error_time on holdfast.attempt_error using brin (failed_at);
comment on table holdfast.attempt_error is 'What went wrong, attempt by attempt.';

-- Remembers the ids that callers supplied. Only this is right at every
-- isolation level once the job itself has moved on.
create table holdfast.used_id (
  id uuid primary key,
  task text collate "C" not null,
  payload_hash uuid not null,
  used_at timestamptz not null
);
create index used_id_time on holdfast.used_id using brin (used_at);
comment on table holdfast.used_id is 'Ids supplied by callers in the last 7 days, so that the same call twice is one job.';

create table holdfast.duty (
  name text collate "C" primary key,
  looks timestamptz[] not null default '{}',
  error text,
  error_at timestamptz
) with (fillfactor = 20);
comment on table holdfast.duty is 'What the background duties remember: their last error, and when recover last looked.';
comment on column holdfast.duty.looks is 'The last three looks of recover, the newest first; see functions/recover.sql.';

-- The proof under way for the safe heads; see functions/advance.sql.
create table holdfast.head_proof (
  only_row boolean primary key default true,
  seq bigint,
  holders text[],
  taken_at timestamptz not null,
  top bigint not null,
  constraint "there is one proof at a time" check (only_row)
) with (fillfactor = 20);
comment on table holdfast.head_proof is 'A sequence number, and the transactions that must end before the heads may pass it.';
comment on column holdfast.head_proof.top is 'A number that the sequence has reached: should it ever be below, it was reset.';

create table holdfast.audit (
  id bigint primary key generated always as identity,
  at timestamptz not null,
  who text not null,
  action text not null,
  target text,
  detail jsonb
);
comment on table holdfast.audit is 'Who paused, resumed, cancelled or hurried what, and when.';
