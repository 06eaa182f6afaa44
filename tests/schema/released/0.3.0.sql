-- Holdfast 0.3.0, for psql --set ON_ERROR_STOP=1
set client_encoding = 'UTF8';

begin;
set transaction isolation level read committed, read write;
set local lock_timeout = 1000;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local standard_conforming_strings = on;
set local check_function_bodies = off;
select pg_advisory_xact_lock(7525352680829580148);
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set local role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;

-- bootstrap.sql
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

insert into holdfast.migration (name, kind, checksum, version) values
  ('bootstrap', 'migration', '32c51989c66fecd39b8d07703136403491052bbfe91c06d6426dbeb27726bf5a', '0.3.0')
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
revoke all on all routines in schema holdfast from public;
commit;

begin;
set transaction isolation level read committed, read write;
set local lock_timeout = 1000;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local standard_conforming_strings = on;
set local check_function_bodies = off;
select pg_advisory_xact_lock(7525352680829580148);
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set local role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;

-- 0001_jobs.sql
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

insert into holdfast.migration (name, kind, checksum, version) values
  ('0001_jobs', 'migration', '3332d36ab5673df1083e12b633f7ad8a2704e2f12a51362779abf3dd6b2601a8', '0.3.0')
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
revoke all on all routines in schema holdfast from public;
commit;

begin;
set transaction isolation level read committed, read write;
set local lock_timeout = 1000;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local standard_conforming_strings = on;
set local check_function_bodies = off;
select pg_advisory_xact_lock(7525352680829580148);
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set local role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;

-- 0002_watch.sql
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

insert into holdfast.migration (name, kind, checksum, version) values
  ('0002_watch', 'migration', '0aa708d36ae28633cbce7d22f1faa51c1287a08b2fa9dce9b8d9ff644eaa2784', '0.3.0')
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
revoke all on all routines in schema holdfast from public;
commit;

begin;
set transaction isolation level read committed, read write;
set local lock_timeout = 1000;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local standard_conforming_strings = on;
set local check_function_bodies = off;
select pg_advisory_xact_lock(7525352680829580148);
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set local role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;

-- 0003_cancellation.sql
-- Cancels that a worker has yet to hear of. Apart from `job`, so that workers ask a table that is nearly always empty.
create table holdfast.cancellation (
  job_id uuid primary key,
  lease uuid not null,
  worker_id uuid not null,
  requested_at timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
comment on table holdfast.cancellation is 'Cancels of jobs that a worker holds, until the job has ended.';

-- A job that must never run a second time says so when it starts.
alter table holdfast.running add column once boolean not null default false;
comment on column holdfast.running.once is 'It must not run a second time: whatever happens to it now, it is not tried again.';

create index dead_letter_time on holdfast.dead_letter (died_at);

insert into holdfast.migration (name, kind, checksum, version) values
  ('0003_cancellation', 'migration', '42059fdf2bc8b30748982a9842aa5a1db51486fa444225562551583b63c3fed9', '0.3.0')
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
revoke all on all routines in schema holdfast from public;
commit;

begin;
set transaction isolation level read committed, read write;
set local lock_timeout = 1000;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local standard_conforming_strings = on;
set local check_function_bodies = off;
select pg_advisory_xact_lock(7525352680829580148);
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set local role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;

-- 0004_urgent.sql
-- A worker that is busy need not hear of every job, only of those that go before what it has at hand.
alter table holdfast.worker add column above smallint;
comment on column holdfast.worker.above is 'It wants to be notified of jobs of a higher priority than this alone; null for all.';

-- Room for the second entry that each job gets when it is claimed: else a page that is full of first ones is
-- searched for entries that could go, and then split.
alter index holdfast.job_pkey set (fillfactor = 50);

insert into holdfast.migration (name, kind, checksum, version) values
  ('0004_urgent', 'migration', 'd5ce51b730de54a2f0264c71c0debe62cd3fb5709e5514c17e31699618b1c7c6', '0.3.0')
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
revoke all on all routines in schema holdfast from public;
commit;

begin;
set transaction isolation level read committed, read write;
set local lock_timeout = 1000;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local standard_conforming_strings = on;
set local check_function_bodies = off;
select pg_advisory_xact_lock(7525352680829580148);
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set local role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;

-- 0005_schedules.sql
-- A cron expression, taken apart: see functions/cron.sql.
create type holdfast.cron as (
  seconds integer[],
  minutes integer[],
  hours integer[],
  days integer[],
  last_day boolean,
  months integer[],
  weekdays integer[],
  nth_weekdays integer[],
  last_weekdays integer[],
  both_days boolean,
  by_wall_clock boolean
);
comment on type holdfast.cron is 'A cron expression, taken apart; every list is sorted.';

-- A job at regular times. The functions keep its rules; see functions/schedule.sql.
create table holdfast.schedule (
  name text collate "C" primary key,
  cron text,
  every interval,
  zone text not null,
  task text collate "C" not null,
  payload jsonb not null,
  queue text collate "C" not null,
  priority smallint not null,
  max_attempts smallint,
  missed text not null,
  overlap boolean not null,
  jitter interval not null,
  declared boolean not null,
  created_at timestamptz not null,
  paused_at timestamptz,
  next_at timestamptz not null,
  last_at timestamptz,
  last_job uuid,
  skipped bigint not null default 0,
  error text,
  check ((cron is null) <> (every is null))
) with (fillfactor = 50);
comment on table holdfast.schedule is 'Which task runs at which times.';
comment on column holdfast.schedule.missed is 'What happens to times that came while nothing ran: skip, once or all.';
comment on column holdfast.schedule.overlap is 'Whether a job may begin while the last one is unfinished; if not, its time is skipped.';
comment on column holdfast.schedule.declared is 'Whether it comes from code, which may change it at its next start.';
comment on column holdfast.schedule.skipped is 'How many times were skipped, because they were missed or would have overlapped.';
comment on column holdfast.schedule.error is 'Why its last time brought no job, if it was refused.';

-- The last word on "once": no time of a schedule can have two jobs, whatever happens to next_at.
create table holdfast.schedule_tick (
  schedule text collate "C",
  tick timestamptz,
  job_id uuid,
  primary key (schedule, tick)
);
comment on table holdfast.schedule_tick is 'The times of the last 30 days that had their job.';

insert into holdfast.migration (name, kind, checksum, version) values
  ('0005_schedules', 'migration', '5425a223d63ff00f01d7c1c5ef57473db9c17bd8042b87f3a55d6fb3abf4a2b6', '0.3.0')
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
revoke all on all routines in schema holdfast from public;
commit;

begin;
set transaction isolation level read committed, read write;
set local lock_timeout = 1000;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local standard_conforming_strings = on;
set local check_function_bodies = off;
select pg_advisory_xact_lock(7525352680829580148);
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set local role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;

-- 0006_tick_times.sql
-- Old ticks are found by their time when they are forgotten.
create index schedule_tick_time on holdfast.schedule_tick using brin (tick);

insert into holdfast.migration (name, kind, checksum, version) values
  ('0006_tick_times', 'migration', '12e304e9a28e6710d021356bd152f4908dbd020e95d7d9d43824b72762b4ca9b', '0.3.0')
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
revoke all on all routines in schema holdfast from public;
commit;

begin;
set transaction isolation level read committed, read write;
set local lock_timeout = 1000;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local standard_conforming_strings = on;
set local check_function_bodies = off;
select pg_advisory_xact_lock(7525352680829580148);
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set local role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;

-- 0007_patience.sql
-- How long each of the writers has been open: heads wait a while for it.
alter table holdfast.writer_watch add column seen_at timestamptz[] not null default '{}';
comment on column holdfast.writer_watch.seen_at is 'When each of the writers was first seen.';

insert into holdfast.migration (name, kind, checksum, version) values
  ('0007_patience', 'migration', 'bfea7c208ae2ac8513465f1974e390dac5b71b9712a8c9c0d5f230a4999a7761', '0.3.0')
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
revoke all on all routines in schema holdfast from public;
commit;

begin;
set transaction isolation level read committed, read write;
set local lock_timeout = 1000;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local standard_conforming_strings = on;
set local check_function_bodies = off;
select pg_advisory_xact_lock(7525352680829580148);
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set local role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;

-- 0008_inside.sql
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

insert into holdfast.migration (name, kind, checksum, version) values
  ('0008_inside', 'migration', '06cfaef2e878411ad55b580ee2c0f97bcd5855dfedf590c764a33c0448ea1a2c', '0.3.0')
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
revoke all on all routines in schema holdfast from public;
commit;

begin;
set transaction isolation level read committed, read write;
set local lock_timeout = 1000;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local standard_conforming_strings = on;
set local check_function_bodies = off;
select pg_advisory_xact_lock(7525352680829580148);
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set local role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;

-- 0009_settings.sql
-- What an operator may set for a queue, or in the row '*' for all of them. A null
-- means "as in '*'", and a null there that nothing is asked for. A thousand years
-- stand for ever: an infinite interval exists since PostgreSQL 17 only.
update holdfast.queue q set retention = interval '1000 years' where q.retention > interval '1000 years';

alter table holdfast.queue
  -- how long dead letters are kept
  add column dead_retention interval,
  -- what happens to a day's finished jobs and events past the retention: drop,
  -- archive (moved to the schema holdfast_archive), export (kept until they were exported)
  add column disposal text collate "C",
  -- when a queue is not well: jobs that wait, how long the oldest waits, the share
  -- of attempts that failed in the last hour, and whether a worker must be there
  add column waiting_warning bigint,
  add column waiting_critical bigint,
  add column age_warning interval,
  add column age_critical interval,
  add column failures_warning double precision,
  add column failures_critical double precision,
  add column worker_expected boolean,
  -- what those who may only look see of payloads and results: all of it but the
  -- values of these keys, or nothing
  add column payload_visible boolean,
  add column redacted text[],
  add constraint "retention is at most 1000 years" check (retention <= interval '1000 years'),
  add constraint "dead_retention is between 0 and 1000 years" check (dead_retention between interval '0' and interval '1000 years'),
  add constraint "disposal is drop, archive or export" check (disposal in ('drop', 'archive', 'export')),
  add constraint "disposal is set for all queues alone" check (disposal is null or name = '*'),
  add constraint "waiting_warning is not negative" check (waiting_warning >= 0),
  add constraint "waiting_critical is not negative" check (waiting_critical >= 0),
  add constraint "age_warning is between 0 and 1000 years" check (age_warning between interval '0' and interval '1000 years'),
  add constraint "age_critical is between 0 and 1000 years" check (age_critical between interval '0' and interval '1000 years'),
  add constraint "failures_warning is between 0 and 1" check (failures_warning between 0 and 1),
  add constraint "failures_critical is between 0 and 1" check (failures_critical between 0 and 1);

update holdfast.queue q
set
  dead_retention = '365 days',
  disposal = 'drop',
  age_warning = '1 minute',
  age_critical = '10 minutes',
  failures_warning = 0.25,
  failures_critical = 0.75,
  worker_expected = true,
  payload_visible = true,
  redacted = '{password,passwd,secret,token,api_key,authorization}'
where q.name = '*';

insert into holdfast.migration (name, kind, checksum, version) values
  ('0009_settings', 'migration', '367e3e9b8061de445487f8340e548a092a31c33fedff3277d91908bdd2290471', '0.3.0')
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
revoke all on all routines in schema holdfast from public;
commit;

begin;
set transaction isolation level read committed, read write;
set local lock_timeout = 1000;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local standard_conforming_strings = on;
set local check_function_bodies = off;
select pg_advisory_xact_lock(7525352680829580148);
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set local role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;

-- 0010_statistics.sql
-- What was done, counted: each report appends one row, and a duty adds them up.

-- Appended by whoever ends an attempt, so that no two of them ever wait for one row. The arrays go together: so
-- many jobs of a lane that waited and ran for about so long, and the sum of either in seconds.
create table holdfast.stat_delta (
  at timestamptz not null,
  outcome text collate "C" not null,
  lanes integer[] not null,
  buckets integer[] not null,
  jobs bigint[] not null,
  wait_seconds double precision[] not null,
  run_seconds double precision[] not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);
-- Rows are deleted, also where a publication is for all tables.
alter table holdfast.stat_delta replica identity full;
alter table holdfast.finished_default replica identity full;
alter table holdfast.event_default replica identity full;
create index stat_delta_time on holdfast.stat_delta (at);
comment on table holdfast.stat_delta is 'What was reported and is not yet counted in stat: one row for each batch of reports and outcome.';
comment on column holdfast.stat_delta.outcome is 'completed, failed (an attempt), dead or cancelled.';
comment on column holdfast.stat_delta.buckets is 'How long they waited and ran: see holdfast.stat_bucket().';

-- One row for each minute of the last hours, and for each hour of the last days.
create table holdfast.stat (
  span text collate "C" not null,
  at timestamptz not null,
  queue text collate "C" not null,
  task text collate "C" not null,
  completed bigint not null,
  failed bigint not null,
  dead bigint not null,
  cancelled bigint not null,
  wait_seconds double precision not null,
  run_seconds double precision not null,
  waits integer[] not null,
  runs integer[] not null,
  primary key (span, at, queue, task),
  constraint "a span is a minute or an hour" check (span in ('minute', 'hour'))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 500);
comment on table holdfast.stat is 'What was done in each minute and each hour, by queue and task.';
comment on column holdfast.stat.failed is 'Attempts that failed, whether or not the job was tried again.';
comment on column holdfast.stat.waits is 'How many attempts waited for how long: one number for each bucket, see holdfast.stat_bounds().';
comment on column holdfast.stat.runs is 'How many attempts ran for how long: one number for each bucket, see holdfast.stat_bounds().';

create type holdfast.statistic as (
  queue text,
  task text,
  paused_at timestamptz,
  waiting bigint,
  scheduled bigint,
  running bigint,
  dead bigint,
  estimated boolean,
  waiting_since timestamptz,
  hour_completed bigint,
  hour_failed bigint,
  hour_dead bigint,
  hour_cancelled bigint,
  hour_per_second double precision,
  hour_failures double precision,
  hour_wait_avg interval,
  hour_wait_p50 interval,
  hour_wait_p95 interval,
  hour_wait_p99 interval,
  hour_run_avg interval,
  hour_run_p50 interval,
  hour_run_p95 interval,
  hour_run_p99 interval,
  day_completed bigint,
  day_failed bigint,
  day_dead bigint,
  day_cancelled bigint,
  day_per_second double precision,
  day_failures double precision,
  day_wait_avg interval,
  day_wait_p50 interval,
  day_wait_p95 interval,
  day_wait_p99 interval,
  day_run_avg interval,
  day_run_p50 interval,
  day_run_p95 interval,
  day_run_p99 interval,
  minutes bigint[]
);
comment on type holdfast.statistic is
  'A queue, or a task of it: what is there now, and what was done in the last hour and the last day; `minutes` are the jobs completed in each minute of the last hour.';

create type holdfast.queue_report as (
  queue text,
  status text,
  message text,
  waiting bigint,
  estimated boolean,
  waiting_since timestamptz,
  oldest interval,
  attempts bigint,
  failed bigint,
  failures double precision,
  workers integer,
  paused_at timestamptz
);
comment on type holdfast.queue_report is
  'How a queue is: OK, WARNING or CRITICAL, why, and what that was judged by. Attempts and failures are those of the last hour.';

insert into holdfast.migration (name, kind, checksum, version) values
  ('0010_statistics', 'migration', 'f14ea8daf59e4b3126a9cfe74387716ece7a8666a9057064bc0a4b54a6c7f1b0', '0.3.0')
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
revoke all on all routines in schema holdfast from public;
commit;

begin;
set transaction isolation level read committed, read write;
set local lock_timeout = 1000;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local standard_conforming_strings = on;
set local check_function_bodies = off;
select pg_advisory_xact_lock(7525352680829580148);
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set local role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;

-- 0011_retention.sql
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

insert into holdfast.migration (name, kind, checksum, version) values
  ('0011_retention', 'migration', 'b46ab79635d0f69bf588e0f532a5a287849ed6a9f3bdc8c724e9d13a3fee38a2', '0.3.0')
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
revoke all on all routines in schema holdfast from public;
commit;

begin;
set transaction isolation level read committed, read write;
set local lock_timeout = 1000;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local standard_conforming_strings = on;
set local check_function_bodies = off;
select pg_advisory_xact_lock(7525352680829580148);
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set local role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;

-- 0012_access.sql
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

insert into holdfast.migration (name, kind, checksum, version) values
  ('0012_access', 'migration', '5e3da84c32fa5a09de766bf48333d7da8fc744a2f68a901e86dfd1c3a21045db', '0.3.0')
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
revoke all on all routines in schema holdfast from public;
commit;

begin;
set transaction isolation level read committed, read write;
set local lock_timeout = 1000;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local standard_conforming_strings = on;
set local check_function_bodies = off;
select pg_advisory_xact_lock(7525352680829580148);
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set local role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;

-- 0013_attempts.sql
-- A lane knows how often its jobs are tried, so that an enqueue need not look for that in the policies and settings: see functions/policy.sql.
create table holdfast.policy_watch (
  only_row boolean primary key default true,
  changes bigint not null,
  constraint "there is one watch of policies" check (only_row)
) with (fillfactor = 20);
comment on table holdfast.policy_watch is 'How many times what decides on max_attempts has changed.';
insert into holdfast.policy_watch (changes) values (0);

alter table holdfast.lane
  add column max_attempts integer,
  add column policies_seen bigint;
comment on column holdfast.lane.max_attempts is 'How often its jobs are tried unless their call says otherwise, as of policies_seen.';
comment on column holdfast.lane.policies_seen is 'How many changes policy_watch had counted then: if it has counted more by now, max_attempts may be another.';

insert into holdfast.migration (name, kind, checksum, version) values
  ('0013_attempts', 'migration', '50dec0a1686f2dc3f4c6260488629395b5dddb5201ac8b8df108afd885856073', '0.3.0')
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
revoke all on all routines in schema holdfast from public;
commit;

begin;
set transaction isolation level read committed, read write;
set local lock_timeout = 1000;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local standard_conforming_strings = on;
set local check_function_bodies = off;
select pg_advisory_xact_lock(7525352680829580148);
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set local role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;

-- 0014_quiet.sql
-- Less work beside the work: for what is finished, and for workers that are gone.

-- A day's rows are written once, read by their ids, and dropped together. So autovacuum need not go through them, and
-- write them anew, because of the rows that come in: only when they are so old that they must be frozen, if they live
-- so long.
do $$
declare
  part regclass;
begin
  for part in
    select c.oid::regclass
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid and c.relkind = 'r'
    where i.inhparent in ('holdfast.finished'::regclass, 'holdfast.event'::regclass)
    order by c.oid
  loop
    execute format('alter table %s set (autovacuum_vacuum_insert_threshold = -1)', part);
  end loop;
end
$$;

alter table holdfast.worker add column awaits text[];
comment on column holdfast.worker.awaits is 'Of a worker that is gone: the transactions that may yet have claimed for it; empty once all of them have ended and what they brought was taken back.';
comment on column holdfast.duty.looks is 'When it was last done: the last three looks of recover, the newest first; of others the end, and the beginning, of the last.';

insert into holdfast.migration (name, kind, checksum, version) values
  ('0014_quiet', 'migration', '61d45ca3fc1104ace9262ad2d73d1f60a0c2edaeeddcedfb03abbbec9eadb030', '0.3.0')
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
revoke all on all routines in schema holdfast from public;
commit;

begin;
set transaction isolation level read committed, read write;
set local lock_timeout = 1000;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local standard_conforming_strings = on;
set local check_function_bodies = off;
select pg_advisory_xact_lock(7525352680829580148);
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set local role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;
do $$ begin
  if to_regclass('holdfast.lane') is not null then
    lock table holdfast.lane in share mode;
  end if;
end $$;

-- 0015_live.sql
-- holdfast: with functions
-- Hands write `job`, our functions write `live`: the same rows under two names, so that what is checked of others costs
-- our functions nothing. See guard.sql.
alter table holdfast.job rename to live;

create table holdfast.job (like holdfast.live including defaults including comments) partition by list (task);
alter table holdfast.job attach partition holdfast.live default;
comment on table holdfast.job is 'Live jobs: scheduled, pending or claimed. Rows leave only through the functions.';
comment on table holdfast.live is 'The same rows as in job, for our functions alone: nothing is checked here.';

-- Who was given rights on jobs has them under the name that was meant, and under the other none.
do $$
declare
  command text;
begin
  for command in
    select format(c.command, r.privilege, r.columns, r.grantee, r.option)
    from (
      select
        a.privilege_type as privilege, r.columns, case when a.is_grantable then ' with grant option' else '' end as option,
        case a.grantee when 0 then 'public' else a.grantee::regrole::text end as grantee
      from (
        select '' as columns, c.relacl as acl from pg_class c where c.oid = 'holdfast.live'::regclass
        union all
        select format(' (%I)', t.attname), t.attacl from pg_attribute t where t.attrelid = 'holdfast.live'::regclass
      ) r
      cross join lateral aclexplode(r.acl) a
      where a.grantee <> (select c.relowner from pg_class c where c.oid = 'holdfast.live'::regclass)
    ) r
    cross join (values
      (1, 'grant %1$s%2$s on holdfast.job to %3$s%4$s'),
      (2, 'revoke %1$s%2$s on holdfast.live from %3$s cascade')) c (n, command)
    order by c.n
  loop
    execute command;
  end loop;
end
$$;

-- 0016_duties.sql
-- A table for each duty, without rows: who does the duty holds a lock on the table. An advisory lock would do the same,
-- but every login may take one; these tables belong to the owner alone. See functions/duty.sql.
do $$
declare
  duty text;
begin
  foreach duty in array '{promote,recover,advance,fold_stats,upkeep,sweep,export}'::text[] loop
    execute format('create table holdfast.%I ()', 'duty_' || duty);
    execute format(
      'comment on table holdfast.%I is %L', 'duty_' || duty,
      format('Always empty. The session that does the duty %s holds a lock on this table.', duty));
  end loop;
end
$$;

alter table holdfast.duty add column done_at timestamptz;
comment on column holdfast.duty.done_at is 'When it last ended well, to within a minute.';

-- 0017_planned.sql
alter table holdfast.schedule add column planned_at timestamptz;
comment on column holdfast.schedule.planned_at is 'When next_at was worked out; if that lies in the future, the clock was set back since.';

-- 0018_deaths.sql
-- How often a worker died while it ran a job. Apart from `live`, so that jobs that
-- never met a death, which are nearly all, cost nothing.
create table holdfast.death (
  job_id uuid primary key,
  deaths integer not null,
  longest interval not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
comment on table holdfast.death is 'Live jobs that ran on a worker as it died: how many times, and for how long at most.';
comment on column holdfast.death.longest is 'At least as long as the job had run at any of these deaths.';

-- 0019_lockers.sql
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

-- 0020_clusters.sql
-- Cursors of events are snapshots of transaction numbers, and each cluster has its own numbers. See functions/cluster.sql.
create table holdfast.cluster (
  only_row boolean primary key default true,
  mark text,
  epoch integer not null default 0,
  shift bigint not null default 0,
  seen_at timestamptz,
  constraint "there is one cluster" check (only_row)
) with (fillfactor = 50);
insert into holdfast.cluster default values;
comment on table holdfast.cluster is 'The cluster in which events were last written, and what is added to its transaction numbers.';
comment on column holdfast.cluster.mark is 'The system identifier and the timeline of the cluster.';
comment on column holdfast.cluster.epoch is 'How often this database has moved to another cluster or timeline.';
comment on column holdfast.cluster.shift is 'What is added to a transaction number, so that numbers grow from one cluster to the next.';
comment on column holdfast.cluster.seen_at is 'The start of the server that was last compared: the same server need not be compared again.';

-- 0021_id_queue.sql
-- In whose queue an id was used: a tenant must not be told of, or be given, the job of another.
-- Null for ids that were noted before; those are forgotten within seven days.
alter table holdfast.used_id add column queue text collate "C";

-- 0022_lanes.sql
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

-- 0023_lane_limit.sql
-- A queue has only so many lanes: see functions/lane.sql.
alter table holdfast.queue
  add column lane_limit integer,
  add constraint "lane_limit is at least 1" check (lane_limit >= 1);
update holdfast.queue set lane_limit = 10000 where name = '*';
comment on column holdfast.queue.lane_limit is 'How many lanes of fresh jobs the queue may have: one for each task and priority.';

-- 0024_crash_watch.sql
-- PostgreSQL empties an unlogged table when it starts after a crash. See functions/cluster.sql.
create unlogged table holdfast.crash_watch (
  only_row boolean primary key default true,
  constraint "there is one row at most" check (only_row)
);
insert into holdfast.crash_watch default values;
comment on table holdfast.crash_watch is 'One row, which is lost if the server crashes.';

-- 0025_earlier_signatures.sql
-- holdfast: with functions
-- Remove what earlier releases left: signatures that would make a call ambiguous, triggers and constraints.
--
-- The functions that replace them are created in the same transaction, so no caller misses one.

-- Lock the table and its partition in the order of every enqueue. To lock `live` first, as the lines below
-- would, leads to a deadlock.
lock table holdfast.job in access exclusive mode;

-- 0.1 had these signatures without their last parameters.
drop function if exists holdfast.claim(uuid, uuid, text[], text[], integer);
drop function if exists holdfast.finish(
  uuid[], uuid[], text[], jsonb[], text[], text[], boolean[], interval[], double precision[]);
drop function if exists holdfast.progress(uuid, uuid, integer, text, text);
drop function if exists holdfast.progress_many(uuid[], uuid[], integer[], text[], text[]);
drop function if exists holdfast.sleep(uuid, boolean);
drop function if exists holdfast.start(uuid[], uuid[], double precision[]);
drop function if exists holdfast.upkeep();

-- 0.1 guarded `live` itself, with this function and with check constraints.
drop function if exists holdfast.refuse_change() cascade;
drop trigger if exists job_arrival on holdfast.live;
drop trigger if exists job_guard on holdfast.live;
drop trigger if exists job_leaves_by_the_door on holdfast.live;
alter table holdfast.live
  drop constraint if exists "a live job is scheduled, pending or claimed",
  drop constraint if exists "a claimed job and no other has a lease and a worker",
  drop constraint if exists "a scheduled job has a time",
  drop constraint if exists "attempts are counted from 0",
  drop constraint if exists "max_attempts is between 1 and 32767";

-- 0.2 had these triggers under other names.
drop trigger if exists job_arrival on holdfast.job;
drop trigger if exists job_birth on holdfast.live;
drop trigger if exists job_leaves_by_the_door on holdfast.job;

-- The attempts of one finish() that did not end their jobs well.
create type holdfast.returned_attempt as (
  id uuid,
  lane_id integer,
  attempt integer,
  worker_id uuid,
  verb text, -- the next state of the job: dead, cancelled, failed, snoozed, released or interrupted
  error text,
  traceback text,
  wait interval,
  is_failure boolean,
  waited double precision,
  ran double precision
);
comment on type holdfast.returned_attempt is
  'An attempt that did not end well, with the next state of its job. Internal to finish().';

-- 0026_known_queues.sql
-- The names of queues whose lanes were removed. A role that is restricted to some queues is shown
-- the ended jobs of queues that are known by their name.
create table holdfast.known_queue (
  name text primary key,
  seen_at timestamptz not null
);
comment on table holdfast.known_queue is
  'Queues that lost their last lanes, and when. They may still have finished jobs, dead letters and events.';

-- Lanes that earlier releases removed. Finished jobs have no index by queue, so the statistics
-- name their queues.
insert into holdfast.known_queue (name, seen_at)
select q.queue, holdfast.clock()
from (select d.queue from holdfast.dead_letter d union select s.queue from holdfast.stat s) q;

-- advance.sql
-- Move the heads of the lanes forward: this is why claiming never slows down.
--
-- A queue that claims from the beginning of its index walks over the entries of all
-- jobs done since the oldest snapshot that anyone holds: 39,000 jobs/s fell to 6,700
-- after 600,000 jobs under one open report. A claim reads from the head of its lane, and
-- the head moves past what is done.
--
-- A head may lag, but it must never pass a job that is or will be pending. A
-- transaction may take a place (a seq) early and commit late:
--
--      inserter A   takes 100 ........................... commits
--      inserter B      takes 101, commits
--      claim              takes 101; is the first pending job now 102? No: 100 is to come.
--
-- The safe head
--
-- The *safe* head only moves up to a proven place. Each run of this duty
--
--   1. takes S = nextval(job_seq),
--   2. then notes the *writers*: transactions that hold RowExclusiveLock on `job` or
--      `live`. Every inserter takes that lock before it takes a place, and holds it to
--      its end. So a writer that is first seen in this run began after the previous run
--      and took only places above the S of that run. That S is the writer's `since`.
--
-- No job can still appear at or below the least `since` of the open writers (or S, if
-- there are none): head = least(first pending place, that + 1).
--
-- A prepared transaction holds its lock without a process, and changes its name at a
-- restart, so it may look new although it is old. Its `since` is 0, and nothing is
-- proven while one is open.
--
-- The eager head: transactions that stay open
--
-- A transaction that enqueued and stays open for minutes would hold all heads back. If
-- it has been open for 5 seconds, and a safe head lags by more than 10,000 places, claims
-- read from the first pending place instead (the *eager* head). Jobs that commit late
-- between the two heads get a new place, or the head goes back to them if they are very
-- many. Late jobs can only come from a writer that has ended since the last run, so the
-- search for them begins at its `since`, not at the safe head.
--
-- A transaction that has cancelled or claimed a waiting job and stays open leaves that job
-- pending for all others. The eager head passes such a job once its lock is 5 to 10
-- seconds old. The transaction that holds the lock, its *locker*, is noted with the first
-- place that was passed. When the locker has ended, the jobs from that place on are treated
-- like late ones.
--
-- A locker is the number in `xmax`, not a session: a savepoint has its own number and may be
-- rolled back alone, and a prepared transaction keeps its number through a restart. If
-- several transactions lock a row at once, `xmax` is a multixact. It is taken for a number
-- that has ended, so no head passes that row.
--
-- Failures
--
-- If the sequence stands below a place it has reached before, it was reset, restored or
-- replicated, and new jobs would stand behind the heads. Then all heads start over.
--
-- Claims commit without waiting for the disk. The move of a head past a claim is written
-- later in the same log, so a crash that loses the claim loses the move too.
--
-- Scheduled jobs
--
-- The index of scheduled jobs has a mark of the same kind, `due_from`: no scheduled job is
-- due before it. A job is scheduled only for a time after its writer took the lock. So when
-- a writer has ended, the index is searched from the time of the last run before that writer was
-- seen. A second mark, `promote_from`, also passes scheduled jobs that have a locker: promote()
-- reads from there.
--
-- The parts are in writers.sql, move_heads.sql, lockers.sql and due_from.sql. check_heads.sql moves
-- a head back if it has passed a job all the same.
--
-- The body is long on purpose: its steps share the proof, and their order is the proof.
-- holdfast: role worker
create or replace function holdfast.advance()
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  patience constant interval := '5 seconds';
  now_at timestamptz := holdfast.clock();
  s bigint; -- the place that this run takes
  open text[]; -- the writers that are open now
  watch holdfast.writer_watch; -- the notes of the last run, updated by this one
  seen record; -- the known facts about the open writers
  late record; -- the first place and time at which the ended writers may have left jobs
  unlocked record; -- the same for the lockers that have ended
  set_back boolean; -- the clock was set back since the last run
  next_xid xid8 := pg_snapshot_xmax(pg_current_snapshot());
  promote_from timestamptz;
  moved integer;
begin
  perform holdfast.check_isolation('advance');
  if not holdfast.try_duty('advance') then
    return 0;
  end if;

  -- Take the place first and read the writers second: only this order proves anything.
  s := nextval('holdfast.job_seq');
  open := holdfast.writers();
  select w.* into watch from holdfast.writer_watch w;
  if s <= watch.top or s < (select max(l.head) from holdfast.lane l) then
    perform holdfast.repair_sequence();
    return 0;
  end if;
  -- If the clock was set back, the noted times of writers say nothing about scheduled jobs.
  set_back := coalesce(now_at < watch.at, false);
  -- Every 5 seconds old_xid becomes the number noted 5 seconds before (mark_xid). So open
  -- transactions below old_xid are older than `patience`, and heads no longer wait for them.
  if (watch.mark_at between now_at - patience and now_at) is not true then
    watch.old_xid := coalesce(watch.mark_xid, '0');
    watch.mark_xid := next_xid;
    watch.mark_at := now_at;
  end if;
  watch.old_xid := least(watch.old_xid, next_xid); -- it is higher only after a restore elsewhere

  select
    coalesce(array_agg(w.writer), '{}') as writers,
    coalesce(array_agg(w.since), '{}') as since,
    coalesce(array_agg(w.since_at), '{}') as since_at,
    coalesce(array_agg(w.seen_at), '{}') as seen_at,
    coalesce(min(w.since), s) as proven,
    coalesce(min(w.since) filter (where w.seen_at > now_at - patience), s) as waited_for
  into seen
  from (
    select
      o.writer,
      case when o.writer like 'prepared %' then 0 else coalesce(w.since, watch.seq, 0) end as since,
      case
        when set_back or o.writer like 'prepared %' then '-infinity'
        else coalesce(w.since_at, watch.at, '-infinity')
      end as since_at,
      coalesce(w.seen_at, now_at) as seen_at
    from unnest(open) o (writer)
    left join unnest(watch.writers, watch.since, watch.since_at, watch.seen_at) w (
      writer, since, since_at, seen_at)
      on w.writer = o.writer
  ) w;

  select least(watch.seq, min(w.since)) as seq, least(watch.at, min(w.since_at)) as at into late
  from unnest(watch.writers, watch.since, watch.since_at) w (writer, since, since_at)
  where w.writer <> all(open);
  -- Find the ended lockers first, and the jobs that they left second.
  with ended as (
    delete from holdfast.locker k where not holdfast.is_open(k.xid, next_xid) returning k.seq, k.run_at
  )
  select min(e.seq) as seq, min(e.run_at) as run_at, count(*) > 0 as any into unlocked from ended e;
  perform holdfast.include_late_jobs(least(coalesce(late.seq, 0), unlocked.seq));
  if unlocked.seq is not null then
    perform holdfast.note_still_locked(unlocked.seq);
  end if;
  moved := holdfast.advance_safe_heads(seen.proven, next_xid);
  if seen.waited_for > seen.proven + 10000 then
    moved := moved + holdfast.advance_eager_heads(seen.waited_for, watch.old_xid);
  end if;

  -- Write only if something has changed, so that an idle database stays idle.
  if watch.seq is null or open <> '{}' or watch.writers <> '{}' or s > watch.top + 100 or set_back
    or unlocked.any or watch.promote_from < watch.due_from
  then
    promote_from := holdfast.promote_from(
      case when set_back then '-infinity' else least(watch.promote_from, unlocked.run_at) end,
      late.at, now_at, watch.old_xid);
    insert into holdfast.writer_watch
      (seq, at, writers, since, since_at, seen_at, top, due_from, promote_from, old_xid, mark_xid, mark_at)
    values (
      s, now_at, seen.writers, seen.since, seen.since_at, seen.seen_at, s,
      holdfast.due_from(case when set_back then '-infinity' else watch.due_from end, late.at, now_at),
      promote_from, watch.old_xid, watch.mark_xid, watch.mark_at)
    on conflict (only_row) do update set
      (seq, at, writers, since, since_at, seen_at, top, due_from, promote_from, old_xid, mark_xid,
        mark_at) = (
        excluded.seq, excluded.at, excluded.writers, excluded.since, excluded.since_at, excluded.seen_at,
        excluded.top,
        excluded.due_from, excluded.promote_from, excluded.old_xid, excluded.mark_xid, excluded.mark_at);
  end if;
  if holdfast.is_old((select d.done_at from holdfast.duty d where d.name = 'advance'), now_at) then
    perform holdfast.note_done('advance', now_at);
  end if;
  return moved;
end
$$;
comment on function holdfast.advance() is
  'Move the heads of the lanes past the jobs that are done. Returns how many heads moved.';

-- audit.sql
-- Write and read the audit log.

create or replace function holdfast.note(action text, target text, detail jsonb default null)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.audit (at, who, action, target, detail)
  values (holdfast.clock(), session_user, note.action, note.target, note.detail)
$$;
comment on function holdfast.note(text, text, jsonb) is 'Write a line to the audit log.';

-- Return the audit log, the latest entries first.
-- holdfast: role operator
create or replace function holdfast.audit_log(
  amount integer default 50,
  target text default null,
  action text default null,
  who text default null,
  since timestamptz default null
)
returns setof holdfast.audit
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_amount(audit_log.amount);
  perform holdfast.check_unrestricted('the audit log');
  return query
    select a.*
    from holdfast.audit a
    where (audit_log.target is null or a.target = audit_log.target)
      and (audit_log.action is null or a.action = audit_log.action)
      and (audit_log.who is null or a.who = audit_log.who)
      and (audit_log.since is null or a.at >= audit_log.since)
    order by a.id desc
    limit audit_log.amount;
end
$$;
comment on function holdfast.audit_log(integer, text, text, text, timestamptz) is
  'Return who did what and when, the latest first: by target (a queue, a job, a schedule), action, name and '
  'time.';

-- cancel.sql
-- Cancel jobs. A job that is not held is cancelled at once. A held job is marked, and its worker
-- learns of it: the job is cancelled if it fails, is given back or is lost; if it completes first, it
-- is completed. Return for each id `cancelled`, `requested`, the end state that the job had
-- already, or null if there is no such job.
--
-- Lock order: rows of `live` by id. The call that decides holds the row, so of a cancel and a
-- complete exactly one wins.
--
-- Even thousands of ids are looked up one by one: a scan of the table would walk over the rows
-- that earlier calls have removed.
-- holdfast: role producer operator
create or replace function holdfast.cancel_many(ids uuid[])
returns table (id uuid, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  mine constant uuid[] := holdfast.jobs_in_reach(ids);
  waiting uuid[];
  held uuid[];
  others uuid[];
begin
  loop
    select
      coalesce(array_agg(j.id) filter (where j.state <> 'claimed'), '{}'),
      coalesce(array_agg(j.id) filter (where j.state = 'claimed'), '{}')
    into waiting, held
    from (select j.id, j.state from holdfast.live j where j.id = any(mine) order by j.id for update) j;
    -- A dead job may have been replayed while this call waited for others.
    exit when cardinality(waiting || held) = (select count(*) from holdfast.live j where j.id = any(mine));
  end loop;
  perform holdfast.end_jobs('cancelled', waiting, null, now_at);
  update holdfast.live j
  set cancel_requested_at = coalesce(j.cancel_requested_at, now_at)
  where j.id = any(held);
  insert into holdfast.cancellation (job_id, lease, worker_id, requested_at)
  select j.id, j.lease, j.worker_id, now_at
  from holdfast.live j
  where j.id = any(held)
  on conflict (job_id) do update set lease = excluded.lease, worker_id = excluded.worker_id;
  perform holdfast.log_live(held, 'job.cancel_requested', null, now_at);
  others := array(select i from unnest(ids) i except select i from unnest(waiting || held) i);
  return query
    select a.id, a.answer
    from (
      select i as id, 'cancelled' as answer from unnest(waiting) i
      union all
      select i, 'requested' from unnest(held) i
      union all
      select i, case when i = any(mine) then (select v.state from holdfast.verdict(i, null, 'cancel') v) end
        from unnest(others) i
    ) a
    order by a.id;
  if cardinality(ids) = 1 then
    perform holdfast.note('cancel', i::text, case when i = any(held) then '{"requested": true}'::jsonb end)
    from unnest(waiting || held) i;
  elsif cardinality(waiting || held) > 0 then
    perform holdfast.note(
      'cancel many', 'jobs',
      jsonb_build_object('cancelled', cardinality(waiting), 'requested', cardinality(held)));
  end if;
end
$$;
comment on function holdfast.cancel_many(uuid[]) is
  'Cancel jobs. Returns for each: cancelled, requested (a worker holds it), the end state that it had '
  'already, or null if it does not exist.';

-- holdfast: role producer operator
create or replace function holdfast.cancel(id uuid)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  answer text := (select c.answer from holdfast.cancel_many(array[cancel.id]) c);
begin
  if answer is null then
    perform holdfast.refuse_job(cancel.id);
  end if;
  return answer;
end
$$;
comment on function holdfast.cancel(uuid) is
  'Cancel a job. Returns cancelled, requested (a worker holds it), or the end state that it had already.';

-- Cancel the waiting and running jobs of a queue, of a task, or of both; every job only with
-- `everything`. It works in batches of `amount`, so that no transaction holds a million rows:
-- repeat the call with `after => last_id` until that is null. This way every job is read once.
-- Starting from the beginning each time also works, but walks over all jobs that are gone.
-- holdfast: role operator
create or replace function holdfast.cancel_matching(
  queue text default null,
  task text default null,
  state text default null,
  amount integer default 10000,
  after uuid default null,
  everything boolean default false
)
returns table (cancelled bigint, requested bigint, last_id uuid)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  ids uuid[];
  last uuid;
begin
  if nullif(cancel_matching.queue, '') is null and nullif(cancel_matching.task, '') is null
    and cancel_matching.everything is not true then
    perform holdfast.refuse_value('queue', null, 'name a queue, a task or both, or say everything => true');
  end if;
  if cancel_matching.state not in ('scheduled', 'pending', 'claimed') then
    perform holdfast.refuse_value('state', cancel_matching.state, 'must be scheduled, pending or claimed');
  end if;
  perform holdfast.check_amount(cancel_matching.amount);
  ids := array(select holdfast.pick_matching(
    cancel_matching.queue, cancel_matching.task, cancel_matching.state, cancel_matching.amount,
    cancel_matching.after));
  last := case when cardinality(ids) = cancel_matching.amount then ids[cardinality(ids)] end;
  if cancel_matching.state is not null then
    -- The jobs that are still in that state, now that no other session can change it.
    ids := array(
      select j.id
      from unnest(ids) i (id)
      cross join lateral (
        select j.id from holdfast.live j where j.id = i.id and j.state = cancel_matching.state for update
      ) j);
  end if;
  return query
    select
      count(*) filter (where c.answer = 'cancelled'),
      count(*) filter (where c.answer = 'requested'),
      last
    from holdfast.cancel_many(ids) c;
end
$$;
comment on function holdfast.cancel_matching(text, text, text, integer, uuid, boolean) is
  'Cancel up to amount live jobs of a queue or a task, in the order of their ids. Returns how many were '
  'cancelled, for how many it was requested, and the id to continue after if any are left.';

-- Return the live jobs of a queue or a task without a request to cancel, by id. The settings
-- leave one plan, whatever the planner believes: along the primary key from `after` on, until
-- `amount` jobs are found.
create or replace function holdfast.pick_matching(
  queue text, task text, state text, amount integer, after uuid)
returns setof uuid
language sql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
as $$
  select j.id
  from holdfast.live j
  cross join lateral (select l.queue, l.task from holdfast.lane l where l.id = j.lane_id offset 0) l
  where j.id >= coalesce(pick_matching.after, '00000000-0000-0000-0000-000000000000')
    and j.id is distinct from pick_matching.after
    and ((select holdfast.unrestricted()) or holdfast.in_reach(l.queue))
    and (pick_matching.queue is null or l.queue = pick_matching.queue)
    and (pick_matching.task is null or l.task = pick_matching.task)
    and (pick_matching.state is null or j.state = pick_matching.state)
    and j.cancel_requested_at is null
  order by j.id
  limit pick_matching.amount
$$;
comment on function holdfast.pick_matching(text, text, text, integer, uuid) is
  'Return the ids of live jobs that match, in order, after a given one.';

-- The worker asks here which of its jobs were cancelled.
-- holdfast: role worker
create or replace function holdfast.cancels(worker uuid)
returns table (id uuid, lease uuid)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
  select c.job_id, c.lease
  from holdfast.cancellation c
  cross join lateral (select from holdfast.live j where j.id = c.job_id and j.lease = c.lease offset 0) j
  where c.worker_id = cancels.worker
$$;
comment on function holdfast.cancels(uuid) is
  'Return the jobs that this worker holds and that somebody cancelled.';

-- check.sql
-- Check what callers hand in. Each function returns nothing, or raises an error that names the
-- field, the limit and what to do.

create or replace function holdfast.check_name(field text, value text)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if value is null or value !~ '^[a-z0-9_.:-]{1,100}$' then
    raise exception using
      errcode = 'HF005',
      message = format('%s %L is not a valid name', field, left(value, 120)),
      detail = jsonb_build_object('field', field, 'value', left(value, 120)),
      hint = 'Names have 1 to 100 characters out of a-z, 0-9, "_", ".", ":" and "-".';
  end if;
end
$$;
comment on function holdfast.check_name(text, text) is
  'Refuse a queue, task or other name that breaks the rules.';

create or replace function holdfast.refuse_value(field text, value text, rule text)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using
    errcode = 'HF008',
    message = format('%s %s: %s', field, coalesce(left(value, 120), 'null'), rule),
    detail = jsonb_build_object('field', field, 'value', left(value, 120));
end
$$;
comment on function holdfast.refuse_value(text, text, text) is
  'Raise the error for a value outside its limits.';

create or replace function holdfast.check_priority(priority integer)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if priority is null or priority not between -32768 and 32767 then
    perform holdfast.refuse_value('priority', priority::text, 'must be an integer from -32768 to 32767');
  end if;
end
$$;
comment on function holdfast.check_priority(integer) is 'Refuse a priority outside the range of a smallint.';

create or replace function holdfast.check_max_attempts(max_attempts integer)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if max_attempts not between 1 and 32767 then
    perform holdfast.refuse_value('max_attempts', max_attempts::text, 'must be an integer from 1 to 32767');
  end if;
end
$$;
comment on function holdfast.check_max_attempts(integer) is
  'Refuse a number of attempts outside its range; null means the default.';

-- A time far in the past only means that the job is late. A time more than a century ahead is a
-- mistake: often milliseconds that were read as seconds.
create or replace function holdfast.due_time(run_at timestamptz, delay interval, now_at timestamptz)
returns timestamptz
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if run_at is not null and delay is not null then
    perform holdfast.refuse_value('delay', delay::text, 'give either run_at or delay, not both');
  end if;
  if delay is not null then
    if delay < interval '0' or delay > interval '100 years' then
      perform holdfast.refuse_value('delay', delay::text, 'must be between 0 and 100 years');
    end if;
    return now_at + delay;
  end if;
  if run_at is not null and (not isfinite(run_at) or run_at > now_at + interval '100 years') then
    perform holdfast.refuse_value('run_at', run_at::text, 'must be a time within the next 100 years');
  end if;
  return run_at;
end
$$;
comment on function holdfast.due_time(timestamptz, interval, timestamptz) is
  'Return the checked time at which a job is due; null for at once.';

-- The size is that of the JSON text that a claim returns. The stored size says little about it:
-- 1e100000 takes 16 bytes stored and 100,001 as text.
create or replace function holdfast.refuse_payload(id uuid, payload jsonb, payload_limit integer)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  size integer := octet_length(payload::text);
begin
  raise exception using
    errcode = 'HF004',
    message = format('the payload of job %s has %s bytes, the limit is %s', id, size, payload_limit),
    detail = jsonb_build_object('field', 'payload', 'id', id, 'size', size, 'limit', payload_limit),
    hint = 'Store the data elsewhere (a table, a bucket) and put a reference to it into the payload.';
end
$$;
comment on function holdfast.refuse_payload(uuid, jsonb, integer) is
  'Raise the error for a payload whose JSON text is over the limit.';

-- Headers travel with every claim, in addition to the payload. Some names are reserved:
-- `resumes` (replay_dead, take_back), `schedule` and `tick` (enqueue_tick). There is no SET clause, so
-- that PostgreSQL inlines the function.
create or replace function holdfast.are_headers(headers jsonb)
returns boolean
language sql immutable
as $$
  select jsonb_typeof(headers) = 'object'
    and octet_length(headers::text) <= 8192
    and not headers ?| '{resumes,schedule,tick}'
    and holdfast.is_readable(headers, headers::text)
$$;
comment on function holdfast.are_headers(jsonb) is
  'Return whether these are headers that a job may be enqueued with.';

create or replace function holdfast.refuse_headers(headers jsonb)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if jsonb_typeof(headers) <> 'object' then
    perform holdfast.refuse_value('headers', jsonb_typeof(headers), 'must be an object');
  elsif octet_length(headers::text) > 8192 then
    perform holdfast.refuse_value(
      'headers', octet_length(headers::text) || ' bytes',
      'may have 8192 bytes: put the rest into the payload');
  end if;
  perform holdfast.refuse_value('headers', format('"%s"', k), 'this name is the queue''s own; take another')
  from jsonb_object_keys(headers) k
  where k in ('resumes', 'schedule', 'tick');
  perform holdfast.check_json('headers', headers);
end
$$;
comment on function holdfast.refuse_headers(jsonb) is 'Raise an error if headers break a rule.';

-- A value that Python cannot read would break every list that contains it. Python's decoders
-- give up at about 900 levels, at a fraction that no double can hold, and at an integer of
-- 4,300 digits. `said` is the text of the value: converting it takes longer than this check.
--
-- A text of fewer than 300 bytes has neither, so most values cost nothing more. The search for
-- many digits comes first, since comparing each number takes several times as long. There is no
-- SET clause, so that PostgreSQL inlines the function.
create or replace function holdfast.is_readable(value jsonb, said text)
returns boolean
language sql immutable
as $$
  select octet_length(said) < 300
    or not (
      jsonb_path_exists(value, 'strict $.**{201}')
      or (said ~ '\d{40}' and holdfast.has_long_number(value))
    )
$$;
comment on function holdfast.is_readable(jsonb, text) is
  'Return whether a value has at most 200 levels and no number that a double cannot hold.';

create or replace function holdfast.has_long_number(value jsonb)
returns boolean
language sql immutable
as $$
  select jsonb_path_exists(value, 'strict $.** ? (@ > 1.7976931348623157e308 || @ < -1.7976931348623157e308)')
$$;
comment on function holdfast.has_long_number(jsonb) is
  'Return whether a value contains a number that a double cannot hold.';

create or replace function holdfast.check_json(field text, value jsonb)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  said constant text := value::text;
begin
  if not holdfast.is_readable(value, said) then
    raise exception using
      errcode = 'HF008',
      message = format('%s: %s', field, case
        when holdfast.has_long_number(value) then 'a number has too many digits'
        else 'it is nested more than 200 levels deep' end),
      detail = jsonb_build_object('field', field, 'value', null),
      hint = 'Store the data elsewhere, or as text, and refer to it.';
  end if;
end
$$;
comment on function holdfast.check_json(text, jsonb) is 'Refuse a value that Python cannot read back.';

-- Claims and duties read what others committed a moment ago. Under an older snapshot a head
-- could pass a job, so they refuse to run.
create or replace function holdfast.check_isolation(verb text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using
      errcode = 'HF009',
      message = format(
        'holdfast.%s cannot run in a %s transaction', verb, current_setting('transaction_isolation')),
      detail = jsonb_build_object('level', current_setting('transaction_isolation')),
      hint = 'Call it in a transaction of its own at READ COMMITTED.';
  end if;
end
$$;
comment on function holdfast.check_isolation(text) is 'Refuse every isolation level except read committed.';

create or replace function holdfast.check_amount(amount integer)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if amount < 1 then
    perform holdfast.refuse_value('amount', amount::text, 'must be at least 1; leave it out for all');
  end if;
end
$$;
comment on function holdfast.check_amount(integer) is 'Refuse an amount below 1; null means all.';

-- check_heads.sql
-- Find jobs behind a head and move the head back to them. upkeep() runs this every few
-- minutes, in case a promise above was broken.
-- holdfast: role worker
create or replace function holdfast.check_heads()
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  begun_at timestamptz;
  repaired integer;
  lanes integer[];
begin
  perform holdfast.check_isolation('check_heads');
  -- advance() must not move heads meanwhile.
  perform holdfast.await_duty('advance');
  begun_at := holdfast.clock();
  -- Look again for late jobs that were locked when advance() looked.
  perform holdfast.include_late_jobs(0);
  update holdfast.writer_watch w
  set promote_from = j.run_at
  from (
    select j.run_at
    from holdfast.live j
    where j.state = 'scheduled'
      and j.run_at >= (select w.due_from from holdfast.writer_watch w)
      and j.run_at < (select w.promote_from from holdfast.writer_watch w)
    order by j.run_at
    limit 1
    for update skip locked
  ) j;
  with behind as (
    select l.id, f.seq
    from holdfast.lane l
    cross join lateral (
      select j.seq
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq < l.safe_head
      order by j.seq
      limit 1
    ) f
  ),
  moved as (
    update holdfast.lane l
    set head = b.seq, safe_head = b.seq
    from behind b
    where l.id = b.id
    returning l.id, l.head
  ),
  due as (
    update holdfast.writer_watch w
    set due_from = f.run_at, promote_from = f.run_at
    from (select min(j.run_at) as run_at from holdfast.live j where j.state = 'scheduled') f
    where f.run_at < w.due_from
    returning w.due_from
  ),
  noted as (
    insert into holdfast.audit (at, who, action, target, detail)
    select holdfast.clock(), session_user, 'repair', 'lane ' || m.id, jsonb_build_object('head', m.head)
    from moved m
    union all
    select holdfast.clock(), session_user, 'repair', 'due_from', jsonb_build_object('due_from', d.due_from)
    from due d
    returning id
  )
  select (select count(*) from noted), (select array_agg(m.id) from moved m) into repaired, lanes;
  if lanes is not null then
    perform holdfast.wake_lanes(lanes);
  end if;
  perform holdfast.note_look('check_heads', begun_at);
  return repaired;
end
$$;
comment on function holdfast.check_heads() is
  'Find jobs behind the head of their lane, or behind the mark of scheduled jobs, and move it back. Returns '
  'how many were repaired.';

-- Repair a sequence that stands below a place it has reached before: it was reset, restored
-- or replicated. Heads start over, and the sequence moves above everything, with room for
-- places that open transactions have taken.
create or replace function holdfast.repair_sequence()
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  reached bigint;
begin
  select greatest(
    (select max(l.head) from holdfast.lane l),
    (select max(j.seq) from holdfast.live j),
    (select max(w.top) from holdfast.writer_watch w),
    nextval('holdfast.job_seq'))
  into reached;
  perform setval('holdfast.job_seq', reached + 10000);
  -- Nothing is known about the writers that are open now.
  insert into holdfast.writer_watch (seq, at, top)
  values (0, '-infinity', reached)
  on conflict (only_row) do update set
    (seq, at, writers, since, since_at, seen_at, top)
    = (excluded.seq, excluded.at, '{}', '{}', '{}', '{}', excluded.top);
  update holdfast.lane set head = 0, safe_head = 0 where head <> 0 or safe_head <> 0;
  perform holdfast.note('repair', 'job_seq', jsonb_build_object('reached', reached));
end
$$;
comment on function holdfast.repair_sequence() is
  'Set the heads back and the sequence forward after the sequence was reset.';

-- check_inserted.sql
-- Check the jobs that other programs insert into `job`, such as a bulk COPY. enqueue() checks its
-- own jobs and inserts into `live`; guard.sql says why.

-- A new job is pending, or scheduled if it is due later. An insert in any other state is refused.
create or replace function holdfast.set_first_state()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  now_at timestamptz := holdfast.clock();
begin
  if new.state <> 'pending' then
    perform holdfast.refuse_first_state(new.id, new.state);
  elsif holdfast.due_time(new.run_at, null, now_at) > now_at then
    new.state := 'scheduled';
  end if;
  return new;
end
$$;
comment on function holdfast.set_first_state() is
  'Make a new job scheduled if it is due later, and refuse other states.';

create or replace trigger job_first_state
before insert on holdfast.live
for each row when (new.run_at is not null or new.state <> 'pending')
execute function holdfast.set_first_state();

-- Check the jobs that a statement inserts into `job`, such as a COPY, once per statement.
-- enqueue() does these checks itself and inserts into `live`.
create or replace function holdfast.check_inserted()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  batch record;
  accepted boolean;
begin
  select
    min(i.lane_id) as lane_id, max(i.lane_id) as last_lane_id, min(i.task) as task, max(i.task) as last_task,
    max(octet_length(i.payload::text)) as size, bool_and(holdfast.is_new_job(i)) as is_new
  into batch
  from inserted i;
  if batch.size >= 300 then -- a shorter payload can always be read
    batch.is_new := batch.is_new and (
      select bool_and(holdfast.is_readable(i.payload, t.said))
      from inserted i
      cross join lateral (select i.payload::text as said offset 0) t); -- converted once, not for each check
  end if;
  if batch.lane_id = batch.last_lane_id then
    accepted := batch.is_new and holdfast.accept_jobs(batch.lane_id, batch.task, batch.last_task, batch.size);
  else
    select batch.is_new
      and bool_and(holdfast.accept_jobs(i.lane_id, i.task, i.last_task, i.size)) into accepted
    from (
      select i.lane_id, min(i.task) as task, max(i.task) as last_task,
        max(octet_length(i.payload::text)) as size
      from inserted i
      group by i.lane_id
    ) i;
  end if;
  if not accepted then
    perform holdfast.refuse_new_job(i) from inserted i;
  end if;
  if not holdfast.unrestricted() then
    -- A live job of the same id would have violated the primary key.
    perform holdfast.refuse_id(i.id)
    from inserted i
    where exists (select from holdfast.finished f where f.id = i.id and not holdfast.in_reach(f.queue))
      or exists (select from holdfast.dead_letter d where d.id = i.id and not holdfast.in_reach(d.queue));
  end if;
  return null;
end
$$;
comment on function holdfast.check_inserted() is
  'Check the lanes and payloads of new jobs, and wake the workers that sleep for them.';

create or replace function holdfast.is_new_job(new holdfast.job)
returns boolean
language sql immutable
as $$
  select new.attempt = 0
    and new.lease is null
    and new.worker_id is null
    and new.last_lease is null
    and new.claimed_at is null
    and new.cancel_requested_at is null
    and new.max_attempts between 1 and 32767
    and new.state in ('pending', 'scheduled')
    and (new.headers is null or holdfast.are_headers(new.headers))
$$;
comment on function holdfast.is_new_job(holdfast.job) is
  'Return whether a row says only what a new job may say: its task, its time and how often to try it.';

-- Return whether a lane accepts jobs of these tasks (the first and the last by name) up to
-- this size. If it does, wake the workers that sleep for them.
create or replace function holdfast.accept_jobs(lane_id integer, task text, last_task text, size integer)
returns boolean
language plpgsql volatile
as $$
declare
  place record;
begin
  -- One query, since each further one costs a single enqueue at least 10 µs. No limit is
  -- below a kilobyte, so smaller payloads do not look up theirs.
  select
    l.queue, l.task,
    case when accept_jobs.size > 1024 then holdfast.payload_limit(l.queue) else 1024 end as payload_limit,
    s.of_queue, s.of_all, exists (select from holdfast.access) as guarded
  into place
  from holdfast.lane l
  cross join lateral holdfast.sleepers(l.queue, l.task, l.priority) s
  where l.id = accept_jobs.lane_id
    and l.kind = 0
    and holdfast.takes_jobs(l.id);
  if not found
    or place.task <> accept_jobs.task
    or place.task <> accept_jobs.last_task
    or accept_jobs.size > place.payload_limit
  then
    return false;
  end if;
  if place.guarded and not (holdfast.unrestricted() or holdfast.in_reach(place.queue)) then
    return false;
  end if;
  if place.of_queue or place.of_all or not holdfast.sees_sleepers() then
    perform holdfast.wake(place.queue, place.of_queue, place.of_all);
  end if;
  return true;
end
$$;
comment on function holdfast.accept_jobs(integer, text, text, integer) is
  'Return whether a lane accepts new jobs of these tasks; if so, wake the workers that sleep for them.';

-- Find what is wrong with a new job and raise it.
create or replace function holdfast.refuse_new_job(new holdfast.job)
returns void
language plpgsql stable
as $$
declare
  place record;
begin
  if not holdfast.is_new_job(new) then
    if new.headers is not null then
      perform holdfast.refuse_headers(new.headers);
    end if;
    perform holdfast.refuse_broken(new);
    perform holdfast.refuse_first_state(new.id, new.state);
  end if;
  select l.task, l.queue, holdfast.payload_limit(l.queue) as payload_limit into place
  from holdfast.lane l
  where l.id = new.lane_id
    and l.kind = 0
    and holdfast.takes_jobs(l.id);
  if not found or place.task <> new.task then
    perform holdfast.refuse_lane(new.id);
  end if;
  perform holdfast.check_queue(place.queue);
  if octet_length(new.payload::text) > place.payload_limit then
    perform holdfast.refuse_payload(new.id, new.payload, place.payload_limit);
  end if;
  perform holdfast.check_json('payload', new.payload);
end
$$;
comment on function holdfast.refuse_new_job(holdfast.job) is 'Raise an error if a new job breaks a rule.';

create or replace function holdfast.refuse_first_state(id uuid, state text)
returns void
language plpgsql immutable
as $$
begin
  raise exception using
    errcode = 'HF010',
    message = format(
      'job %s cannot begin as %s', refuse_first_state.id,
      case refuse_first_state.state when 'pending' then 'one that was claimed before'
        else refuse_first_state.state end),
    detail = jsonb_build_object(
      'id', refuse_first_state.id, 'from_state', null, 'to_state', refuse_first_state.state),
    hint = 'Leave out state, attempt, worker and lease: a new job is pending, or scheduled by its run_at.';
end
$$;
comment on function holdfast.refuse_first_state(uuid, text) is
  'Raise the error for a new job in a state in which no job begins.';

create or replace function holdfast.refuse_lane(id uuid)
returns void
language plpgsql immutable
as $$
begin
  raise exception using
    errcode = 'HF008',
    message = format('job %s names a lane that is not a lane of its task', refuse_lane.id),
    detail = jsonb_build_object('field', 'lane_id', 'value', null),
    hint = 'Take lane_id from holdfast.lane(queue, priority, task) in the same transaction: '
      'a lane that has been empty for about a quarter of an hour is removed.';
end
$$;
comment on function holdfast.refuse_lane(uuid) is
  'Raise the error for a job in a lane that was removed or belongs to another task.';

create or replace trigger job_check_inserted
after insert on holdfast.job
referencing new table as inserted
for each statement execute function holdfast.check_inserted();

-- check_reports.sql
-- Check a batch of reports before finish() writes any of them.

create or replace function holdfast.check_reports(ids uuid[], leases uuid[], outcomes text[])
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  odd text;
begin
  if cardinality(ids) is distinct from cardinality(leases)
    or cardinality(ids) <> coalesce(cardinality(outcomes), cardinality(ids)) then
    perform holdfast.refuse_value(
      'leases', cardinality(leases)::text, 'ids, leases and outcomes must be of one length');
  end if;
  if not coalesce(
    array_remove(outcomes, null) <@ '{completed,cancelled,failed,snoozed,released,interrupted}', true) then
    select o into odd from unnest(outcomes) o
    where o <> all('{completed,cancelled,failed,snoozed,released,interrupted}') limit 1;
    perform holdfast.refuse_value(
      'outcomes', odd, 'must be one of completed, cancelled, failed, snoozed, released, interrupted');
  end if;
end
$$;
comment on function holdfast.check_reports(uuid[], uuid[], text[]) is
  'Refuse reports with unknown outcomes or arrays of different lengths.';

create or replace function holdfast.refuse_doubles(ids uuid[])
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if cardinality(ids) > 1 and (select count(distinct i) < count(i) from unnest(ids) i) then
    perform holdfast.refuse_value('ids', cardinality(ids)::text, 'a job may be reported only once in a call');
  end if;
end
$$;
comment on function holdfast.refuse_doubles(uuid[]) is 'Refuse reports that name a job twice.';

-- claim.sql
-- Claim up to `amount` pending jobs for one worker, most urgent first.
--
-- Locked rows are skipped, so claims never wait for each other. The worker must present
-- the lease to report on these jobs. The caller makes the lease, so that it can ask
-- claimed(worker, lease) if the reply is lost.
--
-- Higher priorities go first. Within a priority, suspects go first, then returned jobs,
-- then fresh ones; each kind in the order of arrival across all lanes. So a job is
-- overtaken only by jobs of the same claim. A claim takes at most one suspect, as its last
-- job. It ends at 16 MiB of payloads and headers, but takes at least one job. A busy
-- worker can claim only jobs `above` a given priority.
--
-- Each lane is read from its head, never from the beginning of the index: see advance.sql.
-- A look into a lane costs 2 to 5 µs, and lanes outside the claim cost nothing. The
-- plans are pinned: with a table that was never analyzed, or an eager JIT, a claim takes 4
-- to 40 times as long.
-- holdfast: role worker
create or replace function holdfast.claim(
  worker uuid default null,
  lease uuid default null,
  queues text[] default null,
  tasks text[] default null,
  amount integer default 10,
  above integer default null
)
returns setof holdfast.claimed_job
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at constant timestamptz := holdfast.clock();
  consumer constant uuid := coalesce(claim.worker, gen_random_uuid());
  new_lease constant uuid := coalesce(claim.lease, gen_random_uuid());
  known_tasks text[] := claim.tasks;
  room constant bigint := 16 * 1024 * 1024;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform holdfast.check_isolation('claim');
  end if;
  if claim.amount is null or claim.amount not between 1 and 10000 then
    perform holdfast.refuse_value('amount', claim.amount::text, 'must be between 1 and 10000');
  end if;
  if claim.tasks is null then -- lanes are found by their task
    known_tasks := holdfast.tasks_of(claim.queues);
  end if;

  -- The worker is checked only by statements that lock `live` first: see look_after_gone().
  --
  -- The fast path: a small claim where one lane alone has work, as nearly always when a
  -- worker was woken. It locks and takes in one statement. With take() instead of an update
  -- of its own, a claim of one job would cost 10 µs more of 110.
  return query
    with lanes as materialized (
      select l.*
      from holdfast.lanes_at_work(claim.queues, known_tasks, claim.above) l
      where claim.amount <= 100
      limit 2
    )
    update holdfast.live j
    set
      state = 'claimed',
      worker_id = consumer,
      lease = new_lease,
      attempt = j.attempt + 1,
      claimed_at = case when greatest(j.run_at, j.created_at) > now_at then holdfast.clock() else now_at end,
      changed_at = now_at
    from (
      -- In the order of the lane, as they are read: an ORDER BY here would sort them.
      select j.row_id, l.queue, l.priority, sum(j.bytes) over () as total
      from holdfast.attending(consumer, now_at)
      cross join lanes l
      cross join lateral (
        select
          j.ctid as row_id,
          holdfast.bytes_at_most(j.payload) + coalesce(holdfast.bytes_at_most(j.headers), 0) as bytes
        from holdfast.live j
        where j.lane_id = l.id
          and j.state = 'pending'
          and j.seq >= l.first
          and j.attempt < j.max_attempts
        order by j.seq
        limit claim.amount
        for update skip locked
      ) j
      where l.kind <> 2
        and (select count(*) from lanes) = 1
    ) p
    where j.ctid = p.row_id
      and p.total <= room -- otherwise claim_by_level() measures the payloads one by one
    returning
      j.id, j.task, j.payload, j.attempt, j.lease, j.max_attempts, p.queue, p.priority::integer,
      false, j.worker_id, j.created_at, j.headers;
  if not found then
    perform holdfast.attending(consumer, now_at);
    if not found then
      perform holdfast.attend(consumer, now_at, claim.queues, claim.tasks);
    end if;
    return query
      select j.*
      from holdfast.claim_by_level(
        claim.queues, known_tasks, claim.above, claim.amount, room, consumer, new_lease, now_at) j;
  end if;
end
$$;
comment on function holdfast.claim(uuid, uuid, text[], text[], integer, integer) is
  'Claim up to amount pending jobs for one worker under one lease, most urgent first; with above, only jobs '
  'above that priority. A missing worker id or lease is generated.';

create or replace function holdfast.attending(worker uuid, now_at timestamptz)
returns setof boolean
language sql stable
as $$
  select true
  from holdfast.worker w
  where w.id = attending.worker
    and w.lost_at is null
    and w.left_at is null
    and w.heartbeat_at > now_at - w.lease_time / 3
$$;
comment on function holdfast.attending(uuid, timestamptz) is
  'Return a row if a worker is known and sent a heartbeat recently.';

-- A caller whose claim's reply was lost asks for it here.
-- holdfast: role worker
create or replace function holdfast.claimed(worker uuid, lease uuid)
returns setof holdfast.claimed_job
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
  select
    j.id, j.task, j.payload, j.attempt, j.lease, j.max_attempts, l.queue, l.priority::integer,
    l.kind = 2, j.worker_id, j.created_at, j.headers
  from holdfast.live j
  join holdfast.lane l on l.id = j.lane_id
  where j.worker_id = claimed.worker
    and j.state = 'claimed'
    and j.lease = claimed.lease
  order by l.priority desc, l.kind desc, j.seq
$$;
comment on function holdfast.claimed(uuid, uuid) is
  'Return the jobs that a worker holds under a lease. Call it after a claim whose reply was lost.';

-- claim_by_level.sql
-- Claim level by level: the lanes of one priority and kind at a time, the most urgent first.
--
-- Each round finds the place up to which these lanes have the oldest jobs (nth_place), locks those
-- jobs, and gives the worker as many as fit (take).
--
-- The body is long on purpose: a function for the lock would have to return five values, two of
-- them arrays, for each round.
create or replace function holdfast.claim_by_level(
  queues text[], tasks text[], above integer, amount integer, room bigint, worker uuid, lease uuid,
    now_at timestamptz
)
returns setof holdfast.claimed_job
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  remaining integer := claim_by_level.amount;
  room_left bigint := room;
  level record;
  picked record;
  wanted integer;
  passed integer;
  cut bigint;
begin
  <<levels>>
  for level in
    select
      l.priority, l.kind = 2 as is_suspect, count(*)::integer as amount,
      array_agg(l.id) as ids, array_agg(l.first) as firsts, array_agg(l.queue) as queues
    from (
      select l.*
      from holdfast.lanes_at_work(claim_by_level.queues, tasks, above) l
      order by l.priority desc, l.kind desc, l.id
    ) l
    group by l.priority, l.kind
    order by l.priority desc, l.kind desc
  loop
    continue when level.is_suspect and not holdfast.may_take_suspect(worker, now_at);
    passed := 0;

    loop
      wanted := case when level.is_suspect then 1 else remaining end;
      -- Take no job behind the place `cut`, because another lane may have an older one.
      cut := case
        when level.amount = 1 then 9223372036854775807
        else holdfast.nth_place(level.ids, level.firsts, greatest(wanted, passed / 4))
      end;
      -- Lock the jobs and note their row ids (ctid), which stay valid until the rows are updated.
      select
        array_agg(k.row_id) as row_ids,
        array_agg(k.seq) filter (where level.amount > 1) as seqs,
        min(k.n) <> max(k.n) as is_mixed,
        count(*)::integer as found,
        least(count(*), wanted)::integer as amount,
        coalesce(sum(k.bytes), 0) as total
      into picked
      from (
        select j.row_id, j.seq, j.bytes, l.n
        from unnest(level.ids, level.firsts) with ordinality l (id, first, n)
        cross join lateral (
          select
            j.ctid as row_id, j.seq,
            holdfast.bytes_at_most(j.payload) + coalesce(holdfast.bytes_at_most(j.headers), 0) as bytes
          from holdfast.live j
          where j.lane_id = l.id
            and j.state = 'pending'
            and j.seq between l.first and cut
            and j.attempt < j.max_attempts
          order by j.seq
          limit wanted
          for update skip locked
        ) j
        where l.first <= cut
      ) k;
      if picked.is_mixed then -- the jobs of each lane are sorted, but not those of all lanes together
        picked.row_ids := array(
          select k.row_id from unnest(picked.row_ids, picked.seqs) k (row_id, seq) order by k.seq);
      end if;
      if picked.total > room_left then
        select f.amount, f.bytes into picked.amount, picked.total
        from holdfast.fitting(picked.row_ids[:picked.amount], room_left) f;
        if picked.amount = 0 and remaining = claim_by_level.amount and picked.found > 0 then
          picked.amount := 1; -- a claim takes at least one job, however large
          picked.total := room_left + 1;
        end if;
      end if;
      if picked.amount > 0 then
        return query
          select t.*
          from holdfast.take(
            picked.row_ids[:picked.amount], level.ids, level.queues, level.priority, level.is_suspect,
            worker, lease, now_at) t;
      end if;
      remaining := remaining - picked.amount;
      room_left := room_left - picked.total;

      if level.is_suspect and picked.amount > 0 then
        -- Claim one suspect at a time, and no job after it. Record its start before its handler can
        -- run, so that only this job is charged if the worker dies again.
        perform holdfast.start_suspect(worker, lease, level.ids, now_at);
        exit levels;
      end if;
      exit levels when remaining = 0;
      exit levels when picked.found > picked.amount; -- the next job does not fit
      exit when cut = 9223372036854775807; -- these lanes have no more jobs
      -- Some jobs were locked or had no attempts left. Look behind them before taking less urgent
      -- jobs. Look further in each round, because more jobs may be locked than the worker wants.
      passed := passed + greatest(wanted, passed / 4);
      select count(*)::integer, array_agg(l.id), array_agg(j.seq), array_agg(l.queue)
      into level.amount, level.ids, level.firsts, level.queues
      from unnest(level.ids, level.queues) l (id, queue)
      cross join lateral (
        select j.seq
        from holdfast.live j
        where j.lane_id = l.id
          and j.state = 'pending'
          and j.seq > cut
        order by j.seq
        limit 1
      ) j;
      exit when level.amount = 0;
    end loop;
  end loop;
end
$$;
comment on function holdfast.claim_by_level(
  text[], text[], integer, integer, bigint, uuid, uuid, timestamptz) is
  'Claim many jobs, suspects, or jobs from several lanes; a part of claim().';

-- Give jobs to a worker, and return them in the order given. `places` are the row ids (ctid) of the
-- jobs, which the caller has locked.
--
-- One TID scan finds all of them. A join by row id would begin a scan for each job, and each scan
-- asks the system how long the table is, which takes 1 µs. A TID scan returns rows in the order of
-- the table, so jobs that were given in another order are sorted afterwards.
create or replace function holdfast.take(
  places tid[], lanes integer[], queues text[], priority integer, is_suspect boolean,
  worker uuid, lease uuid, now_at timestamptz
)
returns setof holdfast.claimed_job
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  sorted tid[] := places;
  ranks bigint[];
begin
  if cardinality(places) > 1 then
    sorted := array(select p from unnest(places) p order by p);
  end if;
  if places = sorted then
    return query
      update holdfast.live j
      set
        state = 'claimed',
        worker_id = take.worker,
        lease = take.lease,
        attempt = j.attempt + 1,
        -- If the job came or fell due after this call read the clock, read the clock again. The job's
        -- own time would be wrong if the clock was set back.
        claimed_at = case when greatest(j.run_at, j.created_at) > now_at then holdfast.clock()
          else now_at end,
        changed_at = now_at
      where j.ctid = any(places)
      returning
        j.id, j.task, j.payload, j.attempt, j.lease, j.max_attempts,
        take.queues[array_position(lanes, j.lane_id)], take.priority, is_suspect, j.worker_id, j.created_at,
          j.headers;
  else
    ranks := array(select u.n from unnest(places) with ordinality u (row_id, n) order by u.row_id);
    return query
      select
        t.id, t.task, t.payload, t.attempt, t.lease, t.max_attempts, t.queue, t.priority, t.suspect, t.worker,
        t.created_at, t.headers
      from holdfast.take(sorted, lanes, queues, take.priority, is_suspect, take.worker, take.lease, now_at)
        with ordinality t
      order by ranks[t.ordinality];
  end if;
end
$$;
comment on function holdfast.take(tid[], integer[], text[], integer, boolean, uuid, uuid, timestamptz) is
  'Give locked jobs to a worker under a lease and return them in the order given; a part of claim().';

-- clock.sql
-- The only clock: Holdfast takes every time that it writes or compares from here. So a wrong
-- clock of a worker has no effect. A test database replaces this function to move time; no
-- runtime role can.
-- holdfast: role producer worker viewer
create or replace function holdfast.clock()
returns timestamptz
language sql volatile parallel safe
as 'select clock_timestamp()';

comment on function holdfast.clock() is 'Return the time of the database, by which everything is decided.';
comment on function holdfast.new_id() is
  'Return a new job id: a UUID of version 7, so that ids sort by the time they were made.';

-- cluster.sql
-- Make transaction numbers grow from one cluster to the next, and from one start to the next.
--
-- An event carries the number of the transaction that wrote it, and a cursor is a
-- snapshot of such numbers. A dump takes both into another cluster, where numbers
-- start lower. Events would be hidden until that cluster has counted so far, and would
-- then appear again as new. After a failover or a recovery to a point in time, the server
-- uses numbers again that a cursor has already seen.
--
-- So we store and hand out the number plus the shift of the cluster:
--
--      bits 52 and up   epoch: how often the database has moved
--      bits 40 to 51    a hash of the cluster's mark: two restores of one dump differ
--      bits  0 to 39    the cluster's own number, plus 2^24 for each start of the server
--
-- Every number of an epoch is greater than all numbers of earlier epochs, including those in
-- cursors handed out after the dump. So an old cursor continues exactly where it was, and no
-- stored number needs to change. In epoch 0 the shift starts at 0.
--
-- A cluster's *mark* is its system identifier and its timeline. Reading it costs a look into
-- the control file, too much for each event. So it is compared once for each start of the
-- server; the start time is in memory. The new shift depends only on the stored row and the
-- mark, so sessions that compare at the same time agree on it without waiting.
--
-- When PostgreSQL crashes, it forgets the transactions whose log was not yet on disk, and uses
-- their numbers again, even if a cursor has seen them. So each crash within an epoch adds 2^24
-- to the shift: more than a crash can forget. After 60,000 crashes the sum reaches the bits of
-- the hash, and the numbers still grow. An orderly restart forgets nothing and changes nothing.
--
-- The table `crash_watch` is unlogged: PostgreSQL empties it when it starts after a crash, and at
-- no other time.
create or replace function holdfast.server_start()
returns timestamptz
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  -- If one process crashes, the postmaster restarts all others, but not itself. The crash resets these
  -- statistics. A DBA may reset them too: that costs one more comparison.
  select greatest(
    pg_postmaster_start_time(),
    least(pg_stat_get_bgwriter_stat_reset_time(), (select a.stats_reset from pg_stat_get_archiver() a)))
$$;
comment on function holdfast.server_start() is
  'Return when the server started, or restarted all its processes after one had crashed.';

create or replace function holdfast.cluster_mark()
returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  return concat_ws('/',
    (select c.system_identifier from pg_control_system() c),
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8));
exception when insufficient_privilege then
  return null;
end
$$;
comment on function holdfast.cluster_mark() is
  'Return the system identifier and the timeline of this cluster; null if the owner may not read them.';

create or replace function holdfast.cluster_shift(epoch integer, mark text)
returns bigint
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select case
    when epoch = 0 then 0
    else (epoch::bigint << 52) + (('x' || left(md5(coalesce(mark, '')), 3))::bit(12)::bigint << 40)
  end
$$;
comment on function holdfast.cluster_shift(integer, text) is
  'Return what a new epoch adds to the transaction numbers of a cluster.';

-- Compare the stored row with this cluster and return the row as it should be. If the mark
-- is not stored, or cannot be read, the database has moved if events carry numbers that this
-- cluster has not used yet.
create or replace function holdfast.compared_cluster(known holdfast.cluster)
returns holdfast.cluster
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  mark constant text := holdfast.cluster_mark();
  epoch constant integer := coalesce(known.epoch, 0);
  top xid8;
begin
  known.epoch := coalesce(known.epoch, 0); -- in case the table was emptied
  if mark is null or known.mark is null then
    -- Include our own number: this transaction sees its own events.
    top := greatest(pg_snapshot_xmax(pg_current_snapshot()), pg_current_xact_id_if_assigned());
    if exists (
      select from holdfast.event e where e.xid > holdfast.shifted(top, coalesce(known.shift, 0))
    ) then
      known.epoch := known.epoch + 1;
    end if;
  elsif mark <> known.mark then
    known.epoch := known.epoch + 1;
  end if;
  known.mark := coalesce(mark, known.mark);
  known.shift := case
    when known.epoch > epoch or known.shift is null then holdfast.cluster_shift(known.epoch, known.mark)
    when not exists (select from holdfast.crash_watch) then known.shift + 16777216
    else known.shift
  end;
  known.seen_at := holdfast.server_start();
  return known;
end
$$;
comment on function holdfast.compared_cluster(holdfast.cluster) is
  'Return the row of `cluster` after a comparison with this cluster.';

-- Return the shift for a reader: compare, but write nothing. A standby does not compare; it
-- uses the row that its primary has written.
create or replace function holdfast.xid_shift()
returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  known holdfast.cluster;
begin
  select c.* into known from holdfast.cluster c;
  if known.seen_at = holdfast.server_start() or pg_is_in_recovery() then
    return coalesce(known.shift, 0);
  end if;
  known := holdfast.compared_cluster(known);
  return known.shift;
end
$$;
comment on function holdfast.xid_shift() is 'Return what to add to the transaction numbers of this cluster.';

-- Return the shift for a writer or a duty, and store the result of a comparison. If another
-- session has locked the row, this one does not wait: the other one stores the same.
create or replace function holdfast.note_cluster()
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  known holdfast.cluster;
  compared holdfast.cluster;
  pair record;
begin
  select c.* into known from holdfast.cluster c;
  if known.seen_at = holdfast.server_start() then
    return known.shift;
  end if;
  -- Read the row and `crash_watch` in one statement, and so in one snapshot. Another session that
  -- compares changes both together. To see only its mark in `crash_watch` would hide the crash.
  select c as known, holdfast.compared_cluster(c) as compared into pair from holdfast.cluster c;
  if found then
    known := pair.known;
    compared := pair.compared;
  else
    compared := holdfast.compared_cluster(null);
  end if;
  if current_setting('transaction_isolation') = 'read committed' then
    perform from holdfast.cluster c where c is not distinct from known for update skip locked;
    if found then
      -- Duties do not wait for the disk, but the next crash must not forget this row.
      perform set_config('synchronous_commit', 'on', true);
      update holdfast.cluster c
      set mark = compared.mark, epoch = compared.epoch, shift = compared.shift, seen_at = compared.seen_at;
      insert into holdfast.crash_watch default values on conflict do nothing;
      if compared.shift > known.shift then
        -- A cursor of one job is the id of an event. Skip the ids that were used after the dump
        -- or lost in a crash.
        perform setval('holdfast.event_seq', nextval('holdfast.event_seq') + 4294967296);
      end if;
      if compared.epoch > known.epoch then
        perform holdfast.note(
          'repair', 'events', jsonb_build_object('epoch', compared.epoch, 'cluster', compared.mark));
      end if;
    end if;
  end if;
  return compared.shift;
end
$$;
comment on function holdfast.note_cluster() is
  'Return what to add to the transaction numbers of this cluster, and store it if the cluster has changed.';

create or replace function holdfast.shifted(number xid8, shift bigint)
returns xid8
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select (number::text::bigint + shift)::text::xid8
$$;
comment on function holdfast.shifted(xid8, bigint) is
  'Add the shift of a cluster to its transaction numbers.';

create or replace function holdfast.shifted(seen pg_snapshot, shift bigint)
returns pg_snapshot
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select case
    when shift = 0 then seen
    else format(
      '%s:%s:%s', holdfast.shifted(pg_snapshot_xmin(seen), shift),
      holdfast.shifted(pg_snapshot_xmax(seen), shift),
      (select string_agg(holdfast.shifted(x, shift)::text, ',' order by x) from pg_snapshot_xip(seen) x)
    )::pg_snapshot
  end
$$;
comment on function holdfast.shifted(pg_snapshot, bigint) is
  'Add the shift of a cluster to its transaction numbers.';

-- configure.sql
-- Change settings of a queue, or of all queues by the name '*'. They are columns of holdfast.queue,
-- read when they are needed, so a change applies from its commit on.
--
--   select * from holdfast.configure('mail', '{"retention": "7 days", "max_attempts": 5}');
--   select * from holdfast.settings('mail');

-- holdfast: role operator
create or replace function holdfast.configure(queue text, settings jsonb)
returns table (name text, before jsonb, after jsonb)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set intervalstyle = 'postgres_verbose'
as $$
#variable_conflict use_column
declare
  known holdfast.queue;
  given holdfast.queue;
  said jsonb := '{}';
  key text;
  value jsonb;
  rule record;
  changed jsonb;
begin
  if configure.queue is distinct from '*' then
    perform holdfast.check_name('queue', configure.queue);
    perform holdfast.check_queue(configure.queue);
  else
    perform holdfast.check_unrestricted('a default');
  end if;
  if jsonb_typeof(configure.settings) is distinct from 'object' or configure.settings = '{}' then
    perform holdfast.refuse_value(
      'settings', configure.settings::text,
      'must be a JSON object of settings, such as {"retention": "7 days"}');
  end if;
  for key, value in select e.key, e.value from jsonb_each(configure.settings) e loop
    select s.* into rule from holdfast.known_settings() s where s.name = key;
    if not found then
      perform holdfast.refuse_setting(key);
    end if;
    if rule.everywhere and configure.queue <> '*' then
      perform holdfast.refuse_value(
        key, value #>> '{}', 'is the same for all queues; set it for the queue *');
    end if;
    said := said || jsonb_build_object(key, case
      when value <> 'null'
        then holdfast.read_setting(key, value, rule.kind, rule.lowest, rule.highest, rule.never)
      -- Back to the default. For all queues together, that is the initial value.
      when configure.queue = '*' and rule.builtin <> 'null'
        then holdfast.read_setting(key, rule.builtin, rule.kind, rule.lowest, rule.highest, rule.never)
      else 'null'
    end);
  end loop;

  -- One change at a time, as in set_retry_policy(): related settings are checked against each other.
  perform from holdfast.queue q where q.name = '*' for update;
  insert into holdfast.queue as q (name) values (configure.queue) on conflict (name) do nothing;
  select q.* into known from holdfast.queue q where q.name = configure.queue for update;
  given := jsonb_populate_record(known, said);
  execute format('update holdfast.queue q set %s where q.name = $2',
    (select string_agg(format('%1$I = $1.%1$I', k), ', ') from jsonb_object_keys(said) k))
  using given, configure.queue;
  perform holdfast.check_thresholds(configure.queue, said);
  -- The longest retention of all decides how long whole days are kept.
  if not holdfast.unrestricted()
    and given.retention > (select q.retention from holdfast.queue q where q.name = '*') then
    perform holdfast.refuse_value(
      'retention', said ->> 'retention',
      'must not be longer than the default for all queues, because your role is restricted to some');
  end if;

  select jsonb_object_agg(s.name, jsonb_build_array(
      holdfast.show_setting(to_jsonb(known) -> s.name, s.kind, s.never),
      holdfast.show_setting(to_jsonb(given) -> s.name, s.kind, s.never)))
    into changed
  from holdfast.known_settings() s
  where said ? s.name
    and to_jsonb(known) -> s.name is distinct from to_jsonb(given) -> s.name;
  if changed is not null then
    perform holdfast.note('configure', configure.queue, changed);
  end if;
  return query
    select s.name, changed -> s.name -> 0, changed -> s.name -> 1
    from holdfast.known_settings() with ordinality s (
      name, kind, lowest, highest, never, everywhere, builtin, meaning, place)
    where changed ? s.name
    order by s.place;
end
$$;
comment on function holdfast.configure(text, jsonb) is
  'Change settings of a queue, or of all queues with the name *. A null restores the default. Changes apply '
  'from the commit on, without a restart. Returns what has changed, with the values before and after.';

-- A warning must come before the critical threshold, in every queue that the change affects.
create or replace function holdfast.check_thresholds(queue text, said jsonb)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
set intervalstyle = 'postgres_verbose'
as $$
#variable_conflict use_column
declare
  wrong record;
begin
  select t.kind, q.name, t.warning, t.critical, said ? (t.kind || '_warning') as of_warning into wrong
  from holdfast.queue d
  join holdfast.queue q on d.name = '*' and (q.name = check_thresholds.queue or check_thresholds.queue = '*')
  cross join lateral (values
    ('waiting', coalesce(q.waiting_warning, d.waiting_warning)::text,
      coalesce(q.waiting_critical, d.waiting_critical)::text,
     coalesce(q.waiting_warning, d.waiting_warning) > coalesce(q.waiting_critical, d.waiting_critical)),
    ('age', ltrim(coalesce(q.age_warning, d.age_warning)::text, '@ '),
      ltrim(coalesce(q.age_critical, d.age_critical)::text, '@ '),
     coalesce(q.age_warning, d.age_warning) > coalesce(q.age_critical, d.age_critical)),
    ('failures', coalesce(q.failures_warning, d.failures_warning)::text,
      coalesce(q.failures_critical, d.failures_critical)::text,
     coalesce(q.failures_warning, d.failures_warning) > coalesce(q.failures_critical, d.failures_critical))
  ) t (kind, warning, critical, wrong)
  where t.wrong
    and (said ? (t.kind || '_warning') or said ? (t.kind || '_critical'))
  order by q.name
  limit 1;
  if not found then
    return;
  end if;
  if wrong.of_warning then
    perform holdfast.refuse_value(wrong.kind || '_warning', wrong.warning, format(
      'must not be above %s_critical, which is %s for the queue %s; set both together', wrong.kind,
      wrong.critical, wrong.name));
  end if;
  perform holdfast.refuse_value(wrong.kind || '_critical', wrong.critical, format(
    'must not be below %s_warning, which is %s for the queue %s; set both together', wrong.kind,
    wrong.warning, wrong.name));
end
$$;
comment on function holdfast.check_thresholds(text, jsonb) is
  'Refuse a warning threshold above the critical one in a queue that these settings affect.';

-- count.sql
-- Count jobs within milliseconds, even if five million wait.
--
-- Small numbers are counted. Large ones are estimated, and the answer says so:
--
--   pending     counted from the head of each lane up to a bound, by the index alone. A lane with more is
--               cut into two hundred slices of its places. The first 25 jobs of each show how dense the
--               slice is, so bulk loads and the gaps of rolled back transactions are seen.
--   scheduled   counted up to a bound, in the order in which jobs fall due; above it by a sample of pages.
--   dead,       counted up to a bound; above it by a sample of pages.
--   finished
--   held        always counted: no more than what workers hold.

-- Count the live jobs of a queue, or of all, by task and state, with the time when the oldest
-- was made, and since when the first one waits (pending), is held, or is due (scheduled). Jobs
-- get places in the order in which they become pending, so the first job of a lane waits longest.
--
-- The body is long on purpose: it is one query for each state.
create or replace function holdfast.count_live(of_queue text default null)
returns table (
  queue text, task text, state text, jobs bigint, estimated boolean, oldest_at timestamptz, since timestamptz)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  most constant integer := 100000;
  unrestricted constant boolean := holdfast.unrestricted();
  pages constant double precision := 1000;
  due_from timestamptz := coalesce((select w.due_from from holdfast.writer_watch w), '-infinity');
  share integer;
  many boolean;
  size bigint;
  percent double precision;
begin
  select greatest(most / greatest(count(*), 1), 1000) into share
  from holdfast.lane l
  where exists (
    select from holdfast.live j where j.lane_id = l.id and j.state = 'pending'
      and j.seq >= l.safe_head offset 0);
  return query
    select
      l.queue, l.task, 'pending',
      sum(case when c.jobs > share then holdfast.estimate_lane(l.id, f.seq) else c.jobs end)::bigint,
      bool_or(c.jobs > share), min(f.created_at), min(f.since)
    from holdfast.lane l
    cross join lateral (
      select j.seq, j.created_at, greatest(j.changed_at, j.created_at) as since
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.safe_head
      order by j.seq
      limit 1
    ) f
    cross join lateral (
      select count(*) as jobs
      from (
        select from holdfast.live j
        where j.lane_id = l.id
          and j.state = 'pending'
          and j.seq >= f.seq
        limit share + 1
      ) j
    ) c
    where (of_queue is null or l.queue = of_queue)
      and (unrestricted or holdfast.in_reach(l.queue))
    group by l.queue, l.task;

  return query
    select l.queue, l.task, h.state, sum(h.jobs)::bigint, false, min(h.oldest_at), min(h.since)
    from (
      select
        j.lane_id, case when r.job_id is null then 'claimed' else 'running' end as state, count(*) as jobs,
        min(j.created_at) as oldest_at, min(j.claimed_at) as since
      from holdfast.live j
      left join lateral (
        select r.job_id from holdfast.running r where r.job_id = j.id and r.lease = j.lease offset 0) r
        on true
      where j.state = 'claimed'
      group by 1, 2
      offset 0
    ) h
    join holdfast.lane l on l.id = h.lane_id
    where (of_queue is null or l.queue = of_queue)
      and (unrestricted or holdfast.in_reach(l.queue))
    group by l.queue, l.task, h.state;

  many := (
    select count(*) > most
    from (select from holdfast.live j where j.state = 'scheduled' and j.run_at >= due_from limit most + 1) j);
  size := pg_relation_size('holdfast.live') / current_setting('block_size')::integer;
  percent := case when many then least(100 * pages / size, 100) else 0 end;
  return query
    select
      l.queue, l.task, 'scheduled', sum(s.jobs)::bigint, many, min(s.oldest_at), min(s.since)
    from (
      select j.lane_id, count(*) as jobs, min(j.created_at) as oldest_at, min(j.run_at) as since
      from holdfast.live j
      where not many
        and j.state = 'scheduled'
        and j.run_at >= due_from
      group by j.lane_id
      union all
      select j.lane_id, round(count(*) * 100 / percent)::bigint, min(j.created_at), min(j.run_at)
      from holdfast.live j tablesample system (percent) repeatable (1)
      where many
        and j.state = 'scheduled'
      group by j.lane_id
      offset 0
    ) s
    join holdfast.lane l on l.id = s.lane_id
    where (of_queue is null or l.queue = of_queue)
      and (unrestricted or holdfast.in_reach(l.queue))
    group by l.queue, l.task;
end
$$;
comment on function holdfast.count_live(text) is
  'Count live jobs by queue, task and state; estimate large numbers.';

create or replace function holdfast.estimate_lane(lane_id integer, first bigint)
returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
  select round(
    sum(case when s.jobs < 25 then s.jobs
    else least(s.width, 24.0 / (s.last - s.first) * s.width) end))::bigint
  from (
    select w.width, d.jobs, d.first, d.last
    from (
      select (l.last - first) / 200 + 1 as width, first + k * ((l.last - first) / 200 + 1) as start
      from (
        select j.seq as last
        from holdfast.live j
        where j.lane_id = estimate_lane.lane_id and j.state = 'pending'
        order by j.seq desc
        limit 1
      ) l, generate_series(0, 199) k
    ) w
    cross join lateral (
      select count(*) as jobs, min(j.seq) as first, max(j.seq) as last
      from (
        select j.seq
        from holdfast.live j
        where j.lane_id = estimate_lane.lane_id
          and j.state = 'pending'
          and j.seq >= w.start
          and j.seq < w.start + w.width
        order by j.seq
        limit 25
      ) j
    ) d
  ) s
$$;
comment on function holdfast.estimate_lane(integer, bigint) is
  'Estimate how many jobs are pending in a lane from a place on.';

-- Count ended jobs by queue, task and state: dead letters, or finished jobs that are kept.
create or replace function holdfast.count_ended(ended text, of_queue text default null)
returns table (queue text, task text, state text, jobs bigint, estimated boolean, oldest_at timestamptz)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = on
set jit = off
as $$
#variable_conflict use_column
declare
  most constant integer := 50000;
  pages constant double precision := 1000;
  source constant text := case ended when 'dead' then 'dead_letter' else 'finished' end;
  state constant text := case ended when 'dead' then quote_literal('dead') else 'e.state' end;
  everything constant boolean := holdfast.unrestricted();
  mine constant text[] := case when not everything then holdfast.queues_in_reach() end;
  many boolean;
  size bigint;
  percent double precision;
begin
  execute format(
    'select count(*) > $1 from (select from holdfast.%I limit $1 + 1) e', source) into many using most;
  if many then
    select sum(pg_relation_size(t.relid)) / current_setting('block_size')::integer into size
    from pg_partition_tree(('holdfast.' || source)::regclass) t;
    if source = 'dead_letter' then
      size := pg_relation_size('holdfast.dead_letter') / current_setting('block_size')::integer;
    end if;
    percent := least(100 * pages / size, 100);
  end if;
  return query execute format(
    'select e.queue, e.task, %s, round(count(*) * $2)::bigint, $3, min(e.created_at) from holdfast.%I e %s '
    'where ($1 is null or e.queue = $1) and ($4 or e.queue = any($5)) group by 1, 2, 3',
    state, source, case when many then format('tablesample system (%s) repeatable (1)', percent) end)
  using of_queue, case when many then 100 / percent else 1 end, many, everything, mine;
end
$$;
comment on function holdfast.count_ended(text, text) is
  'Count dead or finished jobs by queue, task and state; estimate large numbers.';

-- Count jobs by queue and state, with the time when the oldest was made.
-- holdfast: role worker viewer
create or replace function holdfast.count_jobs()
returns table (queue text, state text, jobs bigint, oldest_at timestamptz, paused boolean, estimated boolean)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    c.queue, c.state, sum(c.jobs)::bigint, min(c.oldest_at),
    exists (select from holdfast.queue q where q.name = c.queue and q.paused_at is not null),
    bool_or(c.estimated)
  from (
    select l.queue, l.state, l.jobs, l.oldest_at, l.estimated from holdfast.count_live() l
    union all
    select d.queue, d.state, d.jobs, d.oldest_at, d.estimated from holdfast.count_ended('dead') d
    union all
    select f.queue, f.state, f.jobs, f.oldest_at, f.estimated from holdfast.count_ended('finished') f
  ) c
  group by c.queue, c.state
  order by c.queue, c.state
$$;
comment on function holdfast.count_jobs() is
  'Return per queue and state: how many jobs, when the oldest was made, whether the queue is paused, and '
  'whether the number is an estimate, as large numbers are.';

-- The same without the last column, which clients of 0.1 do not expect.
-- holdfast: role worker viewer
create or replace function holdfast.stats()
returns table (queue text, state text, jobs bigint, oldest_at timestamptz, paused boolean)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select c.queue, c.state, c.jobs, c.oldest_at, c.paused from holdfast.count_jobs() c
$$;
comment on function holdfast.stats() is
  'Return per queue and state: how many jobs, when the oldest was made, and whether the queue is paused. '
  'Large numbers are estimates: count_jobs() says which.';

-- cron.sql
-- Find the next time that a cron expression matches.
--
--   ┌ second, 0-59, only if there are six fields
--   │ ┌ minute, 0-59
--   │ │ ┌ hour, 0-23
--   │ │ │ ┌ day of the month, 1-31, L for the last
--   │ │ │ │ ┌ month, 1-12 or jan-dec
--   │ │ │ │ │ ┌ day of the week, 0-7 or sun-sat, 0 and 7 are Sunday;
--   │ │ │ │ │ │ 1#2 is the second Monday, 5L the last Friday
--   0 0 9 * * mon-fri
--
-- Each field is a list of numbers, ranges (a-b), everything (*), and steps through one of these
-- (a-b/2, */2; a/2 goes from a to the end). If one of the two fields for days begins with a
-- star, as in `0 9 */2 * mon`, both must match; otherwise one of them is enough.
--
-- When clocks change, we follow Debian's cron. An expression that names a minute and an hour
-- means a time of day: if that hour is skipped, it matches right after it; if the hour comes
-- twice, it matches the first time. All others, and all with seconds, follow elapsed time: they
-- skip what is skipped and match twice what comes twice.
-- holdfast: role viewer
create or replace function holdfast.next_occurrence(cron text, after timestamptz, zone text default 'UTC')
returns timestamptz
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  parsed holdfast.cron := holdfast.parse_cron(next_occurrence.cron);
  found_at timestamptz;
begin
  perform holdfast.check_zone(next_occurrence.zone);
  if after is null or after not between '1900-01-01Z' and '9900-01-01Z' then
    perform holdfast.refuse_value('after', after::text, 'must be a time between the years 1900 and 9900');
  end if;
  found_at := case
    when parsed.by_wall_clock then holdfast.next_by_wall_clock(parsed, after, next_occurrence.zone)
    else holdfast.next_by_elapsed_time(parsed, after, next_occurrence.zone)
  end;
  if found_at is null then
    perform holdfast.refuse_value(
      'cron', next_occurrence.cron, 'never comes: there is no such day in the next 50 years');
  end if;
  return found_at;
end
$$;
comment on function holdfast.next_occurrence(text, timestamptz, text) is
  'Return when a cron expression next matches after a time, in a time zone.';

-- Match every time of the day once, whatever the clocks do.
create or replace function holdfast.next_by_wall_clock(cron holdfast.cron, after timestamptz, zone text)
returns timestamptz
language plpgsql stable
as $$
declare
  wall timestamp := after at time zone zone;
  found_at timestamptz;
begin
  loop
    wall := holdfast.next_match(cron, wall);
    found_at := holdfast.first_moment(wall, zone);
    -- In an hour that comes for the second time, it has matched already.
    if wall is null or found_at > after then
      return found_at;
    end if;
  end loop;
end
$$;
comment on function holdfast.next_by_wall_clock(holdfast.cron, timestamptz, text) is
  'Return the next match of an expression that names times of the day.';

-- Match every moment at which the clocks show a matching time. Between two changes, the clocks
-- run evenly, so each such stretch is searched by itself.
create or replace function holdfast.next_by_elapsed_time(cron holdfast.cron, after timestamptz, zone text)
returns timestamptz
language plpgsql stable
as $$
declare
  -- No change of a clock was ever larger, so no earlier time is shown again.
  stretch constant interval := '26 hours';
  begun timestamptz := date_trunc('second', after) + interval '1 second';
  wall timestamp;
  match timestamp;
  found_at timestamptz;
  changed_at timestamptz;
begin
  loop
    wall := begun at time zone zone;
    match := holdfast.next_match(cron, wall - interval '1 second');
    if match is null then
      return null;
    end if;
    found_at := begun + (match - wall);
    changed_at := holdfast.clock_change(begun, begun + stretch, zone);
    if found_at < coalesce(changed_at, begun + stretch) then
      return found_at;
    end if;
    -- No stretch has a match until shortly before this one.
    begun := coalesce(changed_at, holdfast.first_moment(match - stretch / 2, zone));
  end loop;
end
$$;
comment on function holdfast.next_by_elapsed_time(holdfast.cron, timestamptz, text) is
  'Return the next match of an expression that counts elapsed time.';

-- The first moment at which the clocks show this time, or go past it.
create or replace function holdfast.first_moment(wall timestamp, zone text)
returns timestamptz
language plpgsql stable
as $$
declare
  about timestamptz := wall at time zone zone;
  changed_at timestamptz := holdfast.clock_change(
    about - interval '25 hours', about + interval '25 hours', zone);
  before timestamptz := (
    wall - holdfast.clock_offset(changed_at - interval '1 second', zone)) at time zone 'UTC';
  since timestamptz := (wall - holdfast.clock_offset(changed_at, zone)) at time zone 'UTC';
begin
  return case
    when changed_at is null then about
    when before < changed_at then before
    else greatest(since, changed_at)
  end;
end
$$;
comment on function holdfast.first_moment(timestamp, text) is
  'Return the first moment at which the clocks of a zone show this time, or skip it.';

-- Return the first moment of the new clocks: after `low` and up to `high`, with at most one change in
-- between.
create or replace function holdfast.clock_change(low timestamptz, high timestamptz, zone text)
returns timestamptz
language plpgsql stable
as $$
declare
  old interval := holdfast.clock_offset(low, zone);
  middle timestamptz;
begin
  if old = holdfast.clock_offset(high, zone) then
    return null;
  end if;
  low := date_trunc('second', low);
  high := date_trunc('second', high);
  while high - low > interval '1 second' loop
    middle := date_trunc('second', low + (high - low) / 2);
    if holdfast.clock_offset(middle, zone) = old then
      low := middle;
    else
      high := middle;
    end if;
  end loop;
  return high;
end
$$;
comment on function holdfast.clock_change(timestamptz, timestamptz, text) is
  'Return when the clocks of a zone change between two times, if they do.';

create or replace function holdfast.clock_offset(at timestamptz, zone text)
returns interval
language sql stable
as $$
  select (at at time zone zone) - (at at time zone 'UTC')
$$;
comment on function holdfast.clock_offset(timestamptz, text) is
  'Return how far the clocks of a zone are ahead of UTC at a time.';

-- Return null if there is no match in 50 years.
create or replace function holdfast.next_match(cron holdfast.cron, after timestamp)
returns timestamp
language plpgsql immutable
as $$
declare
  first timestamp := date_trunc('second', after) + interval '1 second';
  day date := holdfast.next_day(cron, first::date);
  moment time;
begin
  if day = first::date then
    moment := holdfast.next_time(cron, first::time);
    if moment is not null then
      return day + moment;
    end if;
    day := holdfast.next_day(cron, day + 1);
  end if;
  return day + make_time(cron.hours[1], cron.minutes[1], cron.seconds[1]);
end
$$;
comment on function holdfast.next_match(holdfast.cron, timestamp) is
  'Return the next matching time on a clock without changes.';

create or replace function holdfast.next_time(cron holdfast.cron, since time)
returns time
language plpgsql immutable
as $$
declare
  hour integer := extract(hour from since);
  minute integer := extract(minute from since);
  later integer;
begin
  if hour = any(cron.hours) then
    if minute = any(cron.minutes) then
      later := (select min(s) from unnest(cron.seconds) s where s >= extract(second from since));
      if later is not null then
        return make_time(hour, minute, later);
      end if;
    end if;
    later := (select min(m) from unnest(cron.minutes) m where m > minute);
    if later is not null then
      return make_time(hour, later, cron.seconds[1]);
    end if;
  end if;
  later := (select min(h) from unnest(cron.hours) h where h > hour);
  return make_time(later, cron.minutes[1], cron.seconds[1]);
end
$$;
comment on function holdfast.next_time(holdfast.cron, time) is
  'Return the first matching time of a day, from a time on.';

-- Go month by month. A 29th of February on a given day of the week comes every 40 years at the
-- latest.
create or replace function holdfast.next_day(cron holdfast.cron, since date)
returns date
language plpgsql immutable
as $$
declare
  month date := date_trunc('month', since::timestamp);
  first_day integer := extract(day from since);
  last_day integer;
  first_weekday integer;
  found_day integer;
begin
  for months in 0..600 loop
    if extract(month from month)::integer = any(cron.months) then
      last_day := extract(day from month + interval '1 month' - interval '1 day');
      first_weekday := extract(dow from month);
      select min(d.day) into found_day
      from (
        select
          m.day,
          m.day = any(cron.days) or (cron.last_day and m.day = last_day) as by_month,
          m.weekday = any(cron.weekdays)
            or m.weekday * 10 + (m.day + 6) / 7 = any(cron.nth_weekdays)
            or (m.day + 7 > last_day and m.weekday = any(cron.last_weekdays)) as by_week
        from (
          select n as day, (first_weekday + n - 1) % 7 as weekday
          from generate_series(first_day, last_day) n) m
      ) d
      where case when cron.both_days then d.by_month and d.by_week else d.by_month or d.by_week end;
      if found_day is not null then
        return month + found_day - 1;
      end if;
    end if;
    month := month + interval '1 month';
    first_day := 1;
  end loop;
  return null;
end
$$;
comment on function holdfast.next_day(holdfast.cron, date) is 'Return the first matching day, from a day on.';

-- cron_fields.sql
-- Parse the fields of a cron expression; see cron.sql.

create or replace function holdfast.parse_cron(cron text)
returns holdfast.cron
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  months constant text[] := '{JAN,FEB,MAR,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC}';
  given text := upper(btrim(parse_cron.cron, E' \t\n\r\f') collate "C");
  fields text[];
  parsed holdfast.cron;
begin
  if given is null or length(given) > 200 then
    perform holdfast.refuse_value('cron', parse_cron.cron, 'must be an expression of at most 200 characters');
  end if;
  fields := regexp_split_to_array(
    case given
      when '@YEARLY' then '0 0 1 1 *'
      when '@ANNUALLY' then '0 0 1 1 *'
      when '@MONTHLY' then '0 0 1 * *'
      when '@WEEKLY' then '0 0 * * 0'
      when '@DAILY' then '0 0 * * *'
      when '@MIDNIGHT' then '0 0 * * *'
      when '@HOURLY' then '0 * * * *'
      else given
    end,
    E'[ \t\n\r\f]+');
  if fields[1] ~ '^@' then
    perform holdfast.refuse_value(
      'cron', parse_cron.cron,
      'must be one of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly, or have fields; for '
      'an interval use every');
  end if;
  if cardinality(fields) not in (5, 6) then
    perform holdfast.refuse_value(
      'cron', parse_cron.cron,
      format(
        'must have five fields (minute, hour, day of the month, month, day of the week), or six with the '
        'second first; it has %s',
        case when given = '' then 0 else cardinality(fields) end));
  end if;
  parsed.by_wall_clock := cardinality(fields) = 5 and fields[1] !~ '^\*' and fields[2] !~ '^\*';
  if cardinality(fields) = 5 then
    fields := array_prepend('0', fields);
  end if;
  parsed.both_days := fields[4] ~ '^\*' or fields[6] ~ '^\*';
  parsed.seconds := holdfast.cron_numbers('second', string_to_array(fields[1], ','), 0, 59);
  parsed.minutes := holdfast.cron_numbers('minute', string_to_array(fields[2], ','), 0, 59);
  parsed.hours := holdfast.cron_numbers('hour', string_to_array(fields[3], ','), 0, 23);
  parsed.last_day := 'L' = any(string_to_array(fields[4], ','));
  parsed.days := holdfast.cron_numbers(
    'day of the month', array_remove(string_to_array(fields[4], ','), 'L'), 1, 31);
  parsed.months := holdfast.cron_numbers('month', string_to_array(fields[5], ','), 1, 12, months);
  return holdfast.parse_weekdays(parsed, string_to_array(fields[6], ','));
end
$$;
comment on function holdfast.parse_cron(text) is
  'Parse a cron expression. An error names the field and what is wrong with it.';

create or replace function holdfast.parse_weekdays(parsed holdfast.cron, terms text[])
returns holdfast.cron
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  field constant text := 'day of the week';
  names constant text[] := '{SUN,MON,TUE,WED,THU,FRI,SAT}';
  plain text[] := '{}';
  term text;
  parts text[];
begin
  parsed.nth_weekdays := '{}';
  parsed.last_weekdays := '{}';
  foreach term in array terms loop
    parts := regexp_match(term, '^([A-Z0-9]+)(L|#[1-5])$');
    if parts is null then
      plain := plain || term;
    elsif parts[2] = 'L' then
      parsed.last_weekdays := parsed.last_weekdays || holdfast.cron_number(field, parts[1], 0, 7, names) % 7;
    else
      parsed.nth_weekdays := parsed.nth_weekdays
        || holdfast.cron_number(field, parts[1], 0, 7, names) % 7 * 10 + right(parts[2], 1)::integer;
    end if;
  end loop;
  parsed.weekdays := array(
    select distinct n % 7 from unnest(holdfast.cron_numbers(field, plain, 0, 7, names)) n order by 1);
  return parsed;
end
$$;
comment on function holdfast.parse_weekdays(holdfast.cron, text[]) is
  'Add a list of weekdays to an expression that is being parsed.';

-- Convert lists of numbers, ranges, stars and steps to sorted numbers.
create or replace function holdfast.cron_numbers(
  field text, terms text[], low integer, high integer, names text[] default '{}')
returns integer[]
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  numbers integer[] := '{}';
  term text;
  parts text[];
  first integer;
  last integer;
begin
  foreach term in array terms loop
    parts := regexp_match(term, '^([A-Z0-9]+|\*)(?:-([A-Z0-9]+))?(?:/([0-9]{1,4}))?$');
    if parts is null or (parts[1] = '*' and parts[2] is not null) then
      perform holdfast.refuse_cron_field(
        field, term, 'must be a number, a range such as 1-5, a star, or steps such as */2' || case
          when term ~ '\?' then '; for a question mark write a star'
          when term ~ 'W' then '; working days (W) are not known'
          when term ~ '#' then '; the number behind # goes from 1 to 5'
          else ''
        end);
    end if;
    if parts[1] = '*' then
      first := low;
      last := high;
    else
      first := holdfast.cron_number(field, parts[1], low, high, names);
      last := case
        when parts[2] = 'SUN' and first > 0 then 7
        when parts[2] is not null then holdfast.cron_number(field, parts[2], low, high, names)
        when parts[3] is not null then high
        else first
      end;
    end if;
    if last < first then
      perform holdfast.refuse_cron_field(field, term, 'a range must go upwards');
    end if;
    if parts[3]::integer = 0 then
      perform holdfast.refuse_cron_field(field, term, 'a step must be at least 1');
    end if;
    numbers := numbers || array(select generate_series(first, last, coalesce(parts[3]::integer, 1)));
  end loop;
  return array(select distinct n from unnest(numbers) n order by 1);
end
$$;
comment on function holdfast.cron_numbers(text, text[], integer, integer, text[]) is
  'Return the numbers that a list of numbers, ranges and steps in a cron expression means.';

create or replace function holdfast.cron_number(
  field text, given text, low integer, high integer, names text[])
returns integer
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  -- Months count from 1, weekdays from 0.
  number integer := array_position(names, given) - 1 + low;
begin
  if given ~ '^[0-9]{1,4}$' then
    number := given::integer;
  end if;
  if number is null or number not between low and high then
    perform holdfast.refuse_cron_field(
      field, given, format('must be a number from %s to %s', low, high)
        || case when cardinality(names) > 0 then format(' or one of %s', lower(array_to_string(names, ', ')))
          else '' end
        || case when given = 'L' then '; L stands alone' when given ~ 'W$'
          then '; working days (W) are not known' else '' end);
  end if;
  return number;
end
$$;
comment on function holdfast.cron_number(text, text, integer, integer, text[]) is
  'Return the number that a number or a name in a cron expression means.';

create or replace function holdfast.refuse_cron_field(field text, term text, rule text)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.refuse_value('cron', format('%s %L', field, left(term, 40)), rule);
end
$$;
comment on function holdfast.refuse_cron_field(text, text, text) is
  'Raise the error for one field of a cron expression.';

-- A full name such as Europe/Berlin. An abbreviation such as EST has no summer time, and POSIX
-- would accept almost any word as a zone.
create or replace function holdfast.check_zone(zone text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if zone in ('UTC', 'GMT') then
    return;
  end if;
  if zone ~ '^[A-Za-z]+(/[A-Za-z0-9_+-]+)+$' then
    perform now() at time zone zone;
    return;
  end if;
  if exists (select from pg_timezone_abbrevs a where a.abbrev = upper(zone)) then
    perform holdfast.refuse_zone(zone);
  end if;
  -- This reads every file of the time zone database.
  if exists (select from pg_timezone_names z where lower(z.name) = lower(zone)) then
    return;
  end if;
  perform holdfast.refuse_zone(zone);
exception when invalid_parameter_value then
  perform holdfast.refuse_zone(zone);
end
$$;
comment on function holdfast.check_zone(text) is 'Refuse a time zone that is not given by its full name.';

create or replace function holdfast.refuse_zone(zone text)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.refuse_value(
    'zone', zone, 'must be the full name of a time zone, such as Europe/Berlin or UTC');
end
$$;
comment on function holdfast.refuse_zone(text) is 'Raise the error for an unknown time zone.';

-- cron_words.sql
-- Describe a cron expression in words:
--
--   */15 9-17 * * mon-fri   every 15 minutes from 09:00 to 17:45, Monday to Friday
--   0 2 1,15 * *            at 02:00, on the 1st and 15th
--   0 9 * * mon#2           at 09:00, on the second Monday of the month
--
-- The words describe the meaning, not the spelling: `1-5` and `mon-fri` read alike.
-- holdfast: role viewer
create or replace function holdfast.cron_in_words(cron text)
returns text
language sql immutable strict security definer
set search_path = pg_catalog, pg_temp
as $$
  select concat_ws(
    ', ', w.times, case when w.times ~ '^at \d' and w.months is null then coalesce(w.days, 'every day')
    else w.days end, w.months)
  from holdfast.parse_cron(cron_in_words.cron) p
  cross join lateral (
    select holdfast.times_in_words(p) as times, holdfast.days_in_words(p) as days,
      holdfast.months_in_words(p.months) as months
  ) w
$$;
comment on function holdfast.cron_in_words(text) is 'Describe a cron expression in words.';

create or replace function holdfast.interval_in_words(every interval)
returns text
language sql immutable strict
set search_path = pg_catalog, pg_temp
as $$
  select 'every ' || case
    when count(*) = 1 and min(part.amount) = 1 then min(part.unit)
    else string_agg(
      part.amount || ' ' || part.unit || case when part.amount > 1 then 's' else '' end, ' ' order by part.n)
  end
  from (select extract(epoch from interval_in_words.every)::bigint as seconds) e
  cross join lateral (
    values (1, e.seconds / 86400, 'day'), (2, e.seconds / 3600 % 24, 'hour'),
      (3, e.seconds / 60 % 60, 'minute'), (4, e.seconds % 60, 'second')
  ) part (n, amount, unit)
  where part.amount > 0
$$;
comment on function holdfast.interval_in_words(interval) is
  'Describe the interval of a schedule in words: every 30 seconds.';

create or replace function holdfast.times_in_words(cron holdfast.cron)
returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  few constant integer := 8;
  whole_minutes boolean := cron.seconds = '{0}';
  whole_hours boolean := whole_minutes and cron.minutes = '{0}';
  every_minute boolean := cardinality(cron.minutes) = 60;
  every_hour boolean := cardinality(cron.hours) = 24;
  one_stretch boolean := holdfast.is_stretch(cron.hours) and not every_hour;
  seconds text;
  minutes text;
  hours text;
begin
  if cardinality(cron.hours) * cardinality(cron.minutes) * cardinality(cron.seconds) <= few then
    return 'at ' || holdfast.listed(array(
      select to_char(make_time(h, m, s), case when whole_minutes then 'HH24:MI' else 'HH24:MI:SS' end)
      from unnest(cron.hours) h, unnest(cron.minutes) m, unnest(cron.seconds) s
      order by h, m, s));
  end if;
  if not whole_minutes then
    seconds := holdfast.numbers_in_words(cron.seconds, 0, 59, 'second');
  end if;
  if not whole_hours and (seconds is null or seconds !~ '^every' or not every_minute) then
    minutes := holdfast.numbers_in_words(cron.minutes, 0, 59, 'minute', alone => seconds is null);
  end if;
  if one_stretch then
    hours := case when whole_hours then 'every hour' end;
  elsif not every_hour or coalesce(minutes, '') !~ '^every' and seconds is null then
    hours := holdfast.numbers_in_words(cron.hours, 0, 23, 'hour', alone => whole_hours);
  end if;
  return regexp_replace(concat_ws(' of ', seconds, minutes, hours), '^(?!every)', 'at ') || case
    when one_stretch then format(
      ' from %s to %s',
      to_char(make_time(cron.hours[1], cron.minutes[1], 0), 'HH24:MI'),
      to_char(
        make_time(cron.hours[cardinality(cron.hours)], cron.minutes[cardinality(cron.minutes)], 0),
        'HH24:MI'))
    else ''
  end;
end
$$;
comment on function holdfast.times_in_words(holdfast.cron) is
  'Describe the times of day of a cron expression in words.';

create or replace function holdfast.days_in_words(cron holdfast.cron)
returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  weekdays constant text[] := '{Sunday,Monday,Tuesday,Wednesday,Thursday,Friday,Saturday}';
  nth constant text[] := '{first,second,third,fourth,fifth}';
  any_day boolean := cardinality(cron.days) = 31;
  any_weekday boolean := cardinality(cron.weekdays) = 7;
  by_month text;
  by_week text;
begin
  if any_day and any_weekday or not cron.both_days and (any_day or any_weekday) then
    return null;
  end if;
  by_month := case
    when holdfast.step_of(cron.days, 1, 31) > 1
      then format('every %s day of the month', holdfast.ordinal(holdfast.step_of(cron.days, 1, 31)))
    else 'the ' || holdfast.listed(
      holdfast.stretches(cron.days, array(select holdfast.ordinal(d) from generate_series(0, 31) d))
        || case when cron.last_day then array['last day of the month'] else '{}' end)
  end;
  by_week := holdfast.listed(
    -- A week begins on Monday here, so that a weekend is one stretch.
    holdfast.stretches(
      array(select (d + 6) % 7 from unnest(cron.weekdays) d order by 1),
      weekdays[2:7] || weekdays[1:1])
    || array(
      select format('the %s %s of the month', nth[n % 10], weekdays[n / 10 + 1])
      from unnest(cron.nth_weekdays) n)
    || array(select format('the last %s of the month', weekdays[d + 1]) from unnest(cron.last_weekdays) d));
  return case
    when any_day then case when by_week ~ ' to ' then by_week else 'on ' || by_week end
    when any_weekday then 'on ' || by_month
    when cron.both_days then format('on %s if it is %s', by_month, by_week)
    else format('on %s, and on %s', by_month, by_week)
  end;
end
$$;
comment on function holdfast.days_in_words(holdfast.cron) is
  'Describe the days of a cron expression in words; null for every day.';

create or replace function holdfast.months_in_words(months integer[])
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select case when cardinality(months) < 12 then 'in ' || holdfast.listed(holdfast.stretches(
    months, '{-,January,February,March,April,May,June,July,August,September,October,November,December}')) end
$$;
comment on function holdfast.months_in_words(integer[]) is
  'Describe the months of a cron expression in words; null for every month.';

create or replace function holdfast.numbers_in_words(
  numbers integer[], low integer, high integer, unit text, alone boolean default true)
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select case
    when n.step = 1 then 'every ' || unit
    when n.step > 1 and alone and (high + 1 - low) % n.step = 0 then format('every %s %ss', n.step, unit)
    when n.step > 1 then format('every %s %s', holdfast.ordinal(n.step), unit)
    when cardinality(numbers) = 1 then format('%s %s', unit, n.first)
    else format(
      '%ss %s', unit,
      holdfast.listed(holdfast.stretches(numbers, array(select d::text from generate_series(0, high) d))))
  end
  from (select holdfast.step_of(numbers, low, high) as step, numbers[1] as first) n
$$;
comment on function holdfast.numbers_in_words(integer[], integer, integer, text, boolean) is
  'Describe seconds, minutes or hours in words: every 15 minutes, hours 1 and 5.';

-- Return null unless they go in equal steps from the lowest value to the end.
create or replace function holdfast.step_of(numbers integer[], low integer, high integer)
returns integer
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select n.step
  from (select numbers[2] - numbers[1] as step) n
  where numbers[1] = low
    and cardinality(numbers) > 2
    and numbers = array(select generate_series(low, high, n.step))
$$;
comment on function holdfast.step_of(integer[], integer, integer) is
  'Return the step by which sorted numbers fill a range, if they do.';

create or replace function holdfast.is_stretch(numbers integer[])
returns boolean
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select numbers[cardinality(numbers)] - numbers[1] = cardinality(numbers) - 1
$$;
comment on function holdfast.is_stretch(integer[]) is
  'Return whether sorted numbers follow each other without a gap.';

-- Three or more in a row become one: 1 to 5. Names count from 0.
create or replace function holdfast.stretches(numbers integer[], names text[])
returns text[]
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(array_agg(s.said order by s.first), '{}')
  from (
    select
      min(g.n) as first,
      unnest(case
        when count(*) > 2 then array[names[min(g.n) + 1] || ' to ' || names[max(g.n) + 1]]
        else array_agg(names[g.n + 1] order by g.n)
      end) as said
    from (select n, n - row_number() over (order by n) as gap from unnest(numbers) n) g
    group by g.gap
  ) s
$$;
comment on function holdfast.stretches(integer[], text[]) is
  'Return sorted numbers by their names, each stretch of three or more as one.';

create or replace function holdfast.listed(words text[])
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select concat_ws(
    ' and ', nullif(array_to_string(words[:cardinality(words) - 1], ', '), ''), words[cardinality(words)])
$$;
comment on function holdfast.listed(text[]) is 'Return words as a list: a, b and c.';

create or replace function holdfast.ordinal(number integer)
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select number || case
    when number % 100 between 11 and 13 then 'th'
    when number % 10 between 1 and 3 then ('{st,nd,rd}'::text[])[number % 10]
    else 'th'
  end
$$;
comment on function holdfast.ordinal(integer) is 'Return a number as an ordinal: 1st, 22nd.';

-- dead_filter.sql
-- Pick dead letters by a filter, for replay_many() and purge_many().
--
-- A null matches everything. `error` matches a part of the last error, in upper or lower case.

-- Oldest first. Letters that another session is replaying or purging are skipped.
create or replace function holdfast.pick_dead(
  queue text, task text, error text, died_after timestamptz, died_before timestamptz, amount integer)
returns setof uuid
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select d.id
  from holdfast.dead_letter d
  where ((select holdfast.unrestricted()) or d.queue = any((select holdfast.queues_in_reach())::text[]))
    and (pick_dead.queue is null or d.queue = pick_dead.queue)
    and (pick_dead.task is null or d.task = pick_dead.task)
    -- Match only what the caller sees, as in list_dead().
    and (
      pick_dead.error is null
      or strpos(lower(d.last_error), lower(pick_dead.error)) > 0
        and strpos(
          lower(holdfast.text_as_seen(d.last_error, d.queue, d.payload, (select holdfast.sees_payloads()))),
          lower(pick_dead.error)) > 0
    )
    and (pick_dead.died_after is null or d.died_at >= pick_dead.died_after)
    and (pick_dead.died_before is null or d.died_at < pick_dead.died_before)
  order by d.died_at, d.id
  limit pick_dead.amount
  for update skip locked
$$;
comment on function holdfast.pick_dead(text, text, text, timestamptz, timestamptz, integer) is
  'Lock and return the dead letters that match.';

-- An empty text is refused as a filter: it comes from a variable that was not set and must not mean "all".
create or replace function holdfast.check_filter(
  queue text, task text, error text, died_after timestamptz, died_before timestamptz, everything boolean
)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if everything is not true
    and coalesce(nullif(queue, ''), nullif(task, ''), nullif(error, '')) is null
    and died_after is null
    and died_before is null
  then
    perform holdfast.refuse_value(
      'everything', everything::text, 'no filter is given; say everything => true for all dead jobs');
  end if;
end
$$;
comment on function holdfast.check_filter(text, text, text, timestamptz, timestamptz, boolean) is
  'Refuse a filter that takes all dead jobs unless the caller asks for everything.';

create or replace function holdfast.refuse_unless_dead(id uuid, verb text, to_state text)
returns void
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.refuse_transition(
    refuse_unless_dead.id, refuse_unless_dead.to_state,
    format('only a dead job can be %s', refuse_unless_dead.verb),
    'holdfast.list_dead() shows those that are.')
$$;
comment on function holdfast.refuse_unless_dead(uuid, text, text) is
  'Raise the error for a job that is not among the dead letters.';

create or replace function holdfast.note_dead(
  action text, jobs bigint, queue text, task text, error text, died_after timestamptz,
  died_before timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.note(note_dead.action, coalesce(note_dead.queue, '*'), jsonb_strip_nulls(jsonb_build_object(
    'jobs', note_dead.jobs, 'task', note_dead.task, 'error', note_dead.error,
    'died_after', note_dead.died_after, 'died_before', note_dead.died_before)))
$$;
comment on function holdfast.note_dead(text, bigint, text, text, text, timestamptz, timestamptz) is
  'Write to the audit log what was done to the dead letters that matched.';

-- disown.sql
-- Give back the jobs that a worker holds in the database but does not know, because the replies
-- to their claims were lost.
--
-- `before` is a time that an earlier heartbeat returned. A claim sent before it is either among
-- the leases in flight or long known, so no reply that is still on its way is taken for lost.
-- Jobs that another transaction has locked are left for the next call.
-- holdfast: role worker
create or replace function holdfast.disown(worker uuid, held uuid[], in_flight uuid[], before timestamptz)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  unknown_ids uuid[];
  unknown_leases uuid[];
  refused bigint;
begin
  perform holdfast.check_worker(disown.worker);
  select array_agg(j.id), array_agg(j.lease) into unknown_ids, unknown_leases
  from holdfast.live j
  where j.worker_id = disown.worker
    and j.state = 'claimed'
    and j.claimed_at < disown.before
    and j.id <> all(disown.held)
    and j.lease <> all(disown.in_flight);
  if unknown_ids is null then
    return 0;
  end if;
  select count(*) into refused
  from holdfast.finish(
    unknown_ids, unknown_leases, array_fill('released'::text, array[cardinality(unknown_ids)]),
    skip_locked => true);
  return cardinality(unknown_ids) - refused;
end
$$;
comment on function holdfast.disown(uuid, uuid[], uuid[], timestamptz) is
  'Give back, without a charge, the jobs that a worker holds but does not know. Returns how many.';

-- doctor.sql
-- Find what is wrong with this system. Each check is a function doctor_…(now_at) that returns
-- nothing if all is well. See doctor_server, doctor_tables, doctor_work and doctor_rights.
--
-- A check that fails, for lack of a right or of a view in this version of PostgreSQL, reports
-- that and stops no other. Nothing is written, no lock is taken, and statements of others are
-- not quoted, since they may hold payloads.
-- holdfast: role operator
create or replace function holdfast.doctor(healthy boolean default false)
returns table (name text, severity text, finding text, remedy text, detail jsonb)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  checks constant text[] := '{
    version, settings, timeouts, connections, snapshots, prepared, long_transactions, blocked, notifications,
      wraparound,
    indexes, triggers, vacuum, size, sequences, partitions, statements,
    duties, heads, lanes, workers, unserved, dead_letters, payloads, attempts, volume,
    rights, test_clock}';
  now_at timestamptz := holdfast.clock();
  found_any boolean;
  found record;
begin
  perform holdfast.check_unrestricted('the doctor');
  foreach name in array checks loop
    found_any := false;
    begin
      for found in execute format('select c.* from holdfast.%I($1) c', 'doctor_' || name) using now_at loop
        found_any := true;
        severity := found.severity;
        finding := found.finding;
        remedy := found.remedy;
        detail := found.detail;
        return next;
      end loop;
    exception when others then
      found_any := true;
      severity := 'info';
      finding := format('This check could not be made: %s.', sqlerrm);
      remedy := 'The owner of the schema holdfast may lack a right: grant pg_monitor to it, or let a '
                'superuser look.';
      detail := jsonb_build_object('sqlstate', sqlstate);
      return next;
    end;
    if doctor.healthy and not found_any then
      severity := 'ok';
      finding := null;
      remedy := null;
      detail := null;
      return next;
    end if;
  end loop;
end
$$;
comment on function holdfast.doctor(boolean) is
  'Return what is wrong with this system, or may soon be: severity (info, warning, critical), finding and '
  'remedy. With healthy, also return the checks that found nothing, as ok.';

-- doctor_duties.sql
-- Check the duties, for doctor(), and the lanes and heads that they look after.

create or replace function holdfast.doctor_duties(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  done_at timestamptz;
begin
  return query
    select
      case when coalesce(d.done_at, d.looks[1]) > d.error_at then 'info' else 'warning' end,
      format('Duty %s failed %s ago%s: %s', d.name, holdfast.span_in_words(now_at - d.error_at),
        case when coalesce(d.done_at, d.looks[1]) > d.error_at then ', and ended well since' else '' end,
          left(d.error, 500)),
      'Fix the cause that it names; the duty is tried again by itself. An error is shown for a day.',
      jsonb_build_object('duty', d.name, 'error_at', d.error_at, 'done_at', d.done_at)
    from holdfast.duty d
    where d.error is not null
      and d.error_at > now_at - interval '1 day';
  return query
    select
      case when h.since < now_at - interval '15 minutes' then 'critical' else 'warning' end,
      h.sentence || '.', h.remedy,
      jsonb_build_object(
        'duty', h.duty, 'pid', h.pid, 'application', h.application, 'role', h.role, 'state', h.state,
        'since', h.since)
    from holdfast.duty_holders(now_at) h;
  -- If there is nothing to do, no duty is needed.
  if not exists (select from holdfast.live_workers(now_at))
    and not exists (select from holdfast.doctor_sample(1)) and not exists (
    select from holdfast.live j where j.state = 'scheduled' and j.run_at <= now_at limit 1
  ) and not exists (select from holdfast.live j where j.state = 'claimed' limit 1) then
    return;
  end if;
  select max(greatest(d.done_at, d.looks[1])) into done_at
  from holdfast.duty d
  where d.name in ('promote', 'recover', 'advance');
  if done_at is null or done_at < now_at - interval '3 minutes' then
    severity := case when done_at > now_at - interval '15 minutes' then 'warning' else 'critical' end;
    finding := format(
      'Nobody has done the duties %s: due jobs do not become pending, and the jobs of lost workers are not '
      'taken back.',
      coalesce('for ' || holdfast.span_in_words(now_at - done_at), 'so far'));
    remedy := 'Start a worker, or let cron or pg_cron call holdfast.tick() every minute: holdfast tick '
              '--pg-cron';
    detail := jsonb_build_object('last_look_at', done_at);
    return next;
    return;
  end if;
  return query
    select
      'warning',
      format('Duty %s has not ended well %s, though others are done.', o.name,
        coalesce('for ' || holdfast.span_in_words(now_at - o.done_at), 'so far')),
      format(
        'Look at the log of a worker, or call it by hand and see what it says: select holdfast.%s();',
        o.name),
      jsonb_build_object('duty', o.name, 'done_at', o.done_at)
    from (
      select e.name, e.every, greatest(d.done_at, d.looks[1]) as done_at
      from (values
        ('promote', interval '3 minutes'), ('recover', interval '3 minutes'),
          ('advance', interval '3 minutes'),
        ('upkeep', interval '2 hours')
      ) e (name, every)
      left join holdfast.duty d on d.name = e.name
    ) o
    -- A new database, or workers that have just started, have not had the time.
    where coalesce(o.done_at, (select min(m.applied_at) from holdfast.migration m)) < now_at - o.every
      and coalesce(
        (select min(w.started_at) from holdfast.live_workers(now_at) w) < now_at - interval '3 minutes',
        true);
end
$$;
comment on function holdfast.doctor_duties(timestamptz) is
  'Find duties that fail, that a session holds for long, that do not end well, or that nobody does.';

create or replace function holdfast.doctor_heads(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with lanes as materialized (
    select l.queue, l.task, l.priority, l.head, l.safe_head, f.seq as first, b.seq as behind
    from holdfast.lane l
    left join lateral (
      select j.seq
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.head
      order by j.seq
      limit 1
    ) f on true
    -- Look back a limited way only: with an old snapshot, the entries of all done jobs lie there.
    left join lateral (
      select j.seq
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.safe_head - 100000
        and j.seq < l.safe_head
      order by j.seq
      limit 1
    ) b on true
    where l.head > 0
  )
  select
    'critical',
    format(
      'Jobs stand behind the head of %s, where claims do not find them: the first of them in queue %s, '
      'task %s.',
      holdfast.amount_in_words(count(*), 'lane'), min(l.queue), min(l.task)),
    'Upkeep finds them within minutes; at once: select holdfast.check_heads();. Has somebody written to '
    'holdfast.lane or job_seq?',
    jsonb_build_object('lanes', count(*))
  from lanes l
  where l.behind is not null
  having count(*) > 0
  union all
  select
    'warning',
    format('The heads of %s do not move: claims walk over up to %s places before they find a job.',
      holdfast.amount_in_words(count(*), 'lane'),
      ltrim(to_char(max(coalesce(l.first, s.last_value) - l.head), '999G999G999G990'))),
    'The checks duties, prepared and long_transactions name the session that holds them back. If there is '
    'none: holdfast tick',
    jsonb_build_object('lanes', count(*), 'places', max(coalesce(l.first, s.last_value) - l.head),
      'watched_since', (select min(t) from holdfast.writer_watch w, unnest(w.seen_at) t))
  from lanes l, holdfast.job_seq s
  where coalesce(l.first, s.last_value) - l.head > 200000
  having count(*) > 0
$$;
comment on function holdfast.doctor_heads(timestamptz) is 'Find heads that do not move, and jobs behind one.';

create or replace function holdfast.doctor_lanes(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'warning',
    format(
      'Queue %s has %s of the %s lanes that it may have. At that number jobs of a new task or priority are '
      'refused.',
      q.queue, q.lanes, q.lane_limit),
    format(
      'Put what differs from job to job into the payload, not into the name of the task or the priority; or '
      'raise the limit: holdfast queue configure %s lane_limit=%s', q.queue, 2 * q.lane_limit),
    jsonb_build_object('queue', q.queue, 'lanes', q.lanes, 'limit', q.lane_limit)
  from (
    select l.queue, count(*) as lanes, holdfast.lane_limit(l.queue)::bigint as lane_limit
    from holdfast.lane l
    where l.kind = 0 and not exists (select from holdfast.retired_lane r where r.lane_id = l.id)
    group by l.queue
  ) q
  where q.lanes >= 0.8 * q.lane_limit
  union all
  select
    'warning',
    format(
      'There are %s lanes. Claims look only into those that they ask for, but the duties go through all of '
      'them.',
      ltrim(to_char(count(*), '999G999G999G990'))),
    'Use fewer tasks, priorities or queues. Empty lanes are removed when the transactions that were open '
    'have ended: see long_transactions and prepared.',
    jsonb_build_object('lanes', count(*))
  from holdfast.lane l
  having count(*) > 20000
  union all
  -- Step from one lane to the next in the index, instead of reading all jobs.
  select
    'critical',
    format(
      'Jobs wait in a lane that does not exist, so no claim finds them: the first is %s, of task %s.',
      min(j.id::text), min(j.task)),
    'Has somebody deleted from holdfast.lane? Read the jobs from holdfast.live, enqueue them again, and ask '
    'the owner to delete those rows.',
    jsonb_build_object('lanes', count(*))
  from (
    with recursive lanes (id) as (
      (select j.lane_id from holdfast.live j where j.state = 'pending' order by j.lane_id limit 1)
      union all
      select (
        select j.lane_id from holdfast.live j where j.state = 'pending' and j.lane_id > n.id
        order by j.lane_id limit 1)
      from lanes n
      where n.id is not null
    )
    select n.id from lanes n where n.id is not null
  ) n
  cross join lateral (
    select j.id, j.task from holdfast.live j where j.lane_id = n.id and j.state = 'pending' order by j.seq
      limit 1
  ) j
  where not exists (select from holdfast.lane l where l.id = n.id)
  having count(*) > 0
$$;
comment on function holdfast.doctor_lanes(timestamptz) is
  'Find queues near their limit of lanes, very many lanes, and jobs without a lane.';

-- doctor_rights.sql
-- Check rights, for doctor(): find roles with more rights than their work needs.

create or replace function holdfast.doctor_rights(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'critical',
    format('Everybody has the right %s on schema holdfast.', string_agg(a.privilege_type, ', ')),
    'revoke all on schema holdfast from public;',
    jsonb_build_object('rights', jsonb_agg(a.privilege_type))
  from pg_namespace n, aclexplode(n.nspacl) a
  where n.nspname = 'holdfast'
    and a.grantee = 0
  having count(*) > 0
  union all
  select
    'critical',
    format(
      'Everybody has rights on %s of holdfast: %s.',
      holdfast.amount_in_words(count(distinct c.relname), 'table'),
      string_agg(distinct c.relname, ', ')),
    'revoke all on all tables in schema holdfast from public;',
    jsonb_build_object('tables', jsonb_agg(distinct c.relname))
  from pg_class c, aclexplode(c.relacl) a
  where c.relnamespace = 'holdfast'::regnamespace
    and a.grantee = 0
  having count(*) > 0
  union all
  select
    'critical',
    format(
      'Everybody may call %s of holdfast: %s.',
      holdfast.amount_in_words(count(distinct p.proname), 'function'),
      string_agg(distinct p.proname, ', ')),
    'revoke all on all routines in schema holdfast from public;',
    jsonb_build_object('functions', jsonb_agg(distinct p.proname))
  from pg_proc p
  cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
  where p.pronamespace = 'holdfast'::regnamespace
    and a.grantee = 0
    -- The clock of a test database is open; the check test_clock reports it.
    and not (p.proname = 'clock' and to_regclass('holdfast.test_clock') is not null)
  having count(*) > 0
  union all
  select
    case when bool_or(c.relname = 'live') then 'critical' else 'warning' end, -- there nothing is checked
    format('Role %s may %s on holdfast.%s directly, past the functions.', pg_get_userbyid(a.grantee),
      lower(string_agg(distinct a.privilege_type, ', ')), string_agg(distinct c.relname, ', holdfast.')),
    format(
      'revoke all on all tables in schema holdfast from %I; then grant it one of our roles: holdfast migrate '
      '--roles',
      pg_get_userbyid(a.grantee)),
    jsonb_build_object('role', pg_get_userbyid(a.grantee), 'tables', jsonb_agg(distinct c.relname))
  from pg_class c, aclexplode(c.relacl) a
  where c.relnamespace = 'holdfast'::regnamespace
    and c.relkind in ('r', 'p')
    and a.grantee not in (0, c.relowner)
    and a.privilege_type in ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER', 'REFERENCES')
  group by a.grantee
  union all
  select
    'info',
    format(
      'Holdfast is connected as superuser %s, in %s.', a.usename,
      holdfast.amount_in_words(count(*), 'session')),
    'A worker needs no more than the functions: holdfast migrate --roles',
    jsonb_build_object('role', a.usename, 'sessions', count(*))
  from pg_stat_activity a
  join pg_roles r on r.rolname = a.usename
  where a.datname = current_database()
    and a.application_name like 'holdfast%'
    and r.rolsuper
    -- a private server has no other users
    and current_setting('holdfast.embedded', true) is distinct from 'on'
  group by a.usename
$$;
comment on function holdfast.doctor_rights(timestamptz) is 'Find rights that are too wide.';

create or replace function holdfast.doctor_test_clock(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'warning',
    'This is a test database: its clock can be moved by hand.',
    'Nothing, unless somebody relies on it. A database for production is made by holdfast migrate alone.',
    jsonb_build_object('time', now_at)
  where to_regclass('holdfast.test_clock') is not null
$$;
comment on function holdfast.doctor_test_clock(timestamptz) is 'Find a clock that can be moved, as in tests.';

-- doctor_server.sql
-- Check the server, for doctor(): its version, its settings and its connections.

create or replace function holdfast.doctor_version(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with server as (
    select
      current_setting('server_version_num')::integer / 10000 as major,
      current_setting('server_version_num')::integer % 10000 as minor
  )
  select
    case when s.major < 15 then 'critical' when s.major > 18 then 'warning' else 'info' end,
    case
      when s.major < 15 then format('PostgreSQL %s is too old: Holdfast is made for 15 to 18.', s.major)
      when s.major > 18
        then format(
        'PostgreSQL %s is newer than what this release was tested with, which is 15 to 18.', s.major)
      else format('PostgreSQL %s.%s lacks the corrections up to %s.%s.', s.major, s.minor, s.major, k.minor)
    end,
    case
      when s.major < 15 then 'Upgrade PostgreSQL.'
      when s.major > 18 then 'Look for a newer release of Holdfast.'
      else 'Install the newest minor release: it changes no data, a restart is enough.'
    end,
    jsonb_build_object('version', current_setting('server_version'))
  from server s
  left join (values (15, 13), (16, 9), (17, 5), (18, 0)) k (major, minor) on k.major = s.major
  where k.major is null
    or s.minor < k.minor
$$;
comment on function holdfast.doctor_version(timestamptz) is
  'Find a PostgreSQL that is too old, too new or lacks fixes.';

create or replace function holdfast.doctor_settings(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  -- The settings of a new session of this role, and of other sessions in this database.
  with said as (
    select s.name, s.reset_val as value, null::text as whose from pg_settings s
    union
    select
      split_part(c, '=', 1), substr(c, strpos(c, '=') + 1),
      concat_ws(' in ',
        case when s.setrole <> 0 then 'role ' || pg_get_userbyid(s.setrole) end,
        case when s.setdatabase <> 0 then 'this database' end)
    from pg_db_role_setting s, unnest(s.setconfig) c
    where s.setdatabase in (0, (select d.oid from pg_database d where d.datname = current_database()))
  ),
  bad (name, value, severity, harm) as (values
    ('fsync', 'off', 'critical', 'a crash of the machine may destroy the database'),
    ('full_page_writes', 'off', 'critical', 'a crash of the machine may destroy the database'),
    ('zero_damaged_pages', 'on', 'critical', 'damaged pages are silently emptied'),
    ('synchronous_commit', 'off', 'warning',
      'jobs that were enqueued in the moment before a crash are gone, and reports are forgotten'),
    ('autovacuum', 'off', 'critical',
      'the tables of a queue grow without end, and the transaction numbers run out'),
    ('track_counts', 'off', 'critical', 'autovacuum does not know what to do without it'),
    ('default_transaction_read_only', 'on', 'critical', 'nothing can be enqueued or claimed'),
    ('session_replication_role', 'replica', 'critical',
      'our triggers do not fire, so jobs are neither checked nor announced'),
    ('default_transaction_isolation', 'repeatable read', 'warning',
      'claims and duties of consumers in SQL are refused (HF009)'),
    ('default_transaction_isolation', 'serializable', 'warning',
      'claims and duties of consumers in SQL are refused (HF009)')
  )
  select
    b.severity,
    format('%s = %s%s: %s.', b.name, b.value, coalesce(' for ' || string_agg(s.whose, ', '), ''), b.harm),
    case
      when bool_and(s.whose is not null) then 'alter role ... (or alter database ...) reset ' || b.name || ';'
      when b.name like 'default\_%' or b.name in ('synchronous_commit', 'session_replication_role')
        then format(
          'Set it back where it is set: select name, setting, source, sourcefile from pg_settings where name '
          '= %L;', b.name)
      else format('alter system reset %s; select pg_reload_conf();', b.name)
    end,
    jsonb_build_object('setting', b.name, 'value', b.value)
  from bad b
  join said s on s.name = b.name and s.value = b.value
  group by b.name, b.value, b.severity, b.harm
  union all
  select
    'critical',
    format('Autovacuum is turned off for holdfast.%s.', c.relname),
    format('alter table holdfast.%I reset (autovacuum_enabled);', c.relname),
    jsonb_build_object('table', c.relname)
  from pg_class c
  where c.relnamespace = 'holdfast'::regnamespace
    and c.relkind = 'r'
    and c.reloptions && '{
        autovacuum_enabled=false,autovacuum_enabled=off,autovacuum_enabled=0,autovacuum_enabled=no
      }'::text[]
$$;
comment on function holdfast.doctor_settings(timestamptz) is 'Find settings that endanger jobs.';

create or replace function holdfast.doctor_timeouts(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with said as (
    select s.name, s.reset_val as value, 'every session of this role' as whose from pg_settings s
    union
    select
      split_part(c, '=', 1), substr(c, strpos(c, '=') + 1),
      concat_ws(' in ',
        case when s.setrole <> 0 then 'role ' || pg_get_userbyid(s.setrole) end,
        case when s.setdatabase <> 0 then 'this database' end)
    from pg_db_role_setting s, unnest(s.setconfig) c
    where s.setdatabase in (0, (select d.oid from pg_database d where d.datname = current_database()))
  ),
  least_of (name, least, harm) as (values
    -- The duties of workers and of `holdfast tick` set their own timeout.
    ('statement_timeout', interval '10 seconds', 'large batches are cut off'),
    -- The reports of workers set their own timeout too.
    ('lock_timeout', interval '1 second', 'calls that wait for a locked row fail'),
    ('transaction_timeout', interval '1 minute', 'handlers that work in a transaction are cut off'),
    ('idle_session_timeout', interval '15 seconds', 'workers that wait for a notification are cut off')
  ),
  spans as materialized (
    select s.name, s.whose, s.value,
      -- A bare number is in milliseconds.
      (case when s.value ~ '^\d+$' then s.value || ' milliseconds' else s.value end)::interval as span
    from said s
    where s.name in (select l.name from least_of l)
      and s.value ~ '^\d+\s*(us|ms|s|min|h|d)?$'
  )
  select
    'warning',
    format('%s is %s for %s: %s.', s.name, holdfast.span_in_words(s.span), s.whose, l.harm),
    format('Raise it to %s or more for roles that work with Holdfast.', holdfast.span_in_words(l.least)),
    jsonb_build_object('setting', s.name, 'value', s.value, 'of', s.whose)
  from spans s
  join least_of l on l.name = s.name
  where s.span > interval '0'
    and s.span < l.least
$$;
comment on function holdfast.doctor_timeouts(timestamptz) is
  'Find timeouts that cut off the calls of workers and of other programs.';

create or replace function holdfast.doctor_connections(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    case when u.used >= 0.95 * u.most then 'critical' else 'warning' end,
    format('%s of %s connections are in use, %s of them by Holdfast.', u.used, u.most, u.ours),
    'Use fewer processes per worker or a smaller pool_size, put PgBouncer in between, or raise '
    'max_connections.',
    jsonb_build_object('used', u.used, 'most', u.most, 'holdfast', u.ours)
  from (
    select
      count(*) as used,
      count(*) filter (where a.application_name like 'holdfast%') as ours,
      current_setting('max_connections')::integer - current_setting(
        'superuser_reserved_connections')::integer as most
    from pg_stat_activity a
    where a.backend_type = 'client backend'
  ) u
  where u.used >= 0.8 * u.most
$$;
comment on function holdfast.doctor_connections(timestamptz) is
  'Find that nearly all connections are in use.';

create or replace function holdfast.doctor_notifications(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    case when u.usage >= 0.5 then 'critical' else 'warning' end,
    format('The queue of notifications is %s %% full%s.', round(100 * u.usage),
      case when u.usage >= 0.5 then ': Holdfast sends none any more, and workers poll' else '' end),
    'Some session has sent LISTEN and stays in a transaction. Find it: select pid, state, xact_start from '
    'pg_stat_activity where '
      'state like ''idle in%'' order by xact_start;',
    jsonb_build_object('usage', u.usage)
  from (select pg_notification_queue_usage()::numeric as usage) u
  where u.usage >= 0.1
$$;
comment on function holdfast.doctor_notifications(timestamptz) is
  'Find a queue of notifications that fills up.';

create or replace function holdfast.doctor_wraparound(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    case when a.age > 1500000000 then 'critical' else 'warning' end,
    format(
      'The oldest %s of this database is %s million old; at 2,000 million it stops taking writes.', a.what,
      a.age / 1000000),
    'End what holds old snapshots (see snapshots), then: vacuumdb --freeze, the oldest tables first.',
    jsonb_build_object('of', a.what, 'age', a.age)
  from pg_database d
  cross join lateral (values
    ('transaction number', age(d.datfrozenxid)::bigint, current_setting('autovacuum_freeze_max_age')::bigint),
    ('multixact', mxid_age(d.datminmxid)::bigint,
      current_setting('autovacuum_multixact_freeze_max_age')::bigint)
  ) a (what, age, usual)
  where d.datname = current_database()
    and a.age > least(2.5 * a.usual, 1500000000)
$$;
comment on function holdfast.doctor_wraparound(timestamptz) is 'Find transaction numbers that run out.';

-- doctor_sessions.sql
-- Check sessions and transactions, for doctor(): find those that hold others up.

-- An old snapshot keeps dead rows from being removed everywhere in the database.
create or replace function holdfast.doctor_snapshots(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    case when now_at - a.xact_start > interval '6 hours' then 'critical' else 'warning' end,
    format(
      'Process %s (%s) has held a snapshot since %s, for %s: rows deleted since then cannot be removed.',
      a.pid, concat_ws(', ', nullif(a.application_name, ''), a.usename, a.state),
      holdfast.time_in_words(a.xact_start), holdfast.span_in_words(now_at - a.xact_start)),
    format(
      'End its transaction: select pg_terminate_backend(%s); and set idle_in_transaction_session_timeout.',
      a.pid),
    jsonb_build_object('pid', a.pid, 'application', a.application_name, 'user', a.usename, 'state', a.state,
      'since', a.xact_start, 'age', age(coalesce(a.backend_xmin, a.backend_xid)))
  from pg_stat_activity a
  where a.datname = current_database()
    and a.backend_type = 'client backend'
    and a.pid <> pg_backend_pid()
    and (a.backend_xmin is not null or a.backend_xid is not null)
    and a.xact_start < now_at - interval '10 minutes'
    and a.pid <> all(array(select w.pid from holdfast.doctor_writers() w where w.pid is not null))
  union all
  select
    'warning',
    format('Replication slot %s (%s) holds a snapshot that is %s transactions old.',
      s.slot_name, case when s.active then 'active' else 'nobody uses it' end,
      age(coalesce(s.xmin, s.catalog_xmin))),
    case
      when s.active then 'Let its consumer catch up.'
      else format('If nobody needs it: select pg_drop_replication_slot(%L);', s.slot_name)
    end,
    jsonb_build_object('slot', s.slot_name, 'active', s.active, 'age', age(coalesce(s.xmin, s.catalog_xmin)))
  from pg_replication_slots s
  where s.xmin is not null
    and (not s.active or age(s.xmin) > 1000000)
  union all
  select
    'warning',
    format('Standby %s holds a snapshot that is %s transactions old, by its feedback.',
      coalesce(nullif(r.application_name, ''), host(r.client_addr), r.pid::text), age(r.backend_xmin)),
    'End the long query on the standby, or turn hot_standby_feedback off there.',
    jsonb_build_object('standby', r.application_name, 'pid', r.pid, 'age', age(r.backend_xmin))
  from pg_stat_replication r
  where age(r.backend_xmin) > 1000000
$$;
comment on function holdfast.doctor_snapshots(timestamptz) is
  'Find old snapshots: of sessions, replication slots and standbys.';

-- Sessions and prepared transactions that hold a lock on one of our tables with which they may write.
create or replace function holdfast.doctor_writers()
returns table (pid integer, tables text)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select k.pid, string_agg(distinct c.relname || ' ' || k.mode, ', ')
  from pg_locks k
  join pg_class c on c.oid = k.relation
  where k.locktype = 'relation'
    and k.granted
    and k.mode <> 'AccessShareLock'
    and k.database = (select d.oid from pg_database d where d.datname = current_database())
    and c.relnamespace = 'holdfast'::regnamespace
    and c.relkind in ('r', 'p')
    and k.pid is distinct from pg_backend_pid()
  group by k.pid, k.virtualtransaction
$$;
comment on function holdfast.doctor_writers() is
  'Find locks on our tables with which other programs may write.';

create or replace function holdfast.doctor_prepared(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    case when now_at - p.prepared > interval '1 hour' then 'critical' else 'warning' end,
    format(
      'Transaction %L of %s has been prepared since %s, for %s. It holds its locks and its snapshot until '
      'somebody ends it%s.',
      p.gid, p.owner, holdfast.time_in_words(p.prepared), holdfast.span_in_words(now_at - p.prepared),
      case when exists (select from holdfast.doctor_writers() w where w.pid is null)
        then ', and no head can be proven to move' else '' end),
    format('commit prepared %L; or rollback prepared %L;', p.gid, p.gid),
    jsonb_build_object('gid', p.gid, 'since', p.prepared)
  from pg_prepared_xacts p
  where p.database = current_database()
    and p.prepared < now_at - interval '1 minute'
$$;
comment on function holdfast.doctor_prepared(timestamptz) is
  'Find prepared transactions that nobody has ended.';

create or replace function holdfast.doctor_long_transactions(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    case when now_at - a.xact_start > interval '1 hour' then 'critical' else 'warning' end,
    format(
      'Process %s (%s) has had a transaction open since %s, for %s, that has written or locked holdfast.%s. '
      'Jobs that it enqueued are not visible yet, no other session can take the jobs that it claimed, and '
      'heads wait for it.',
      a.pid, concat_ws(', ', nullif(a.application_name, ''), a.usename, a.state),
      holdfast.time_in_words(a.xact_start), holdfast.span_in_words(now_at - a.xact_start), w.tables),
    format('Commit sooner. If it hangs: select pg_terminate_backend(%s);', a.pid),
    jsonb_build_object('pid', a.pid, 'application', a.application_name, 'user', a.usename, 'state', a.state,
      'since', a.xact_start, 'locks', w.tables)
  from holdfast.doctor_writers() w
  join pg_stat_activity a on a.pid = w.pid
  where a.xact_start < now_at - interval '1 minute'
    and a.backend_type = 'client backend'
$$;
comment on function holdfast.doctor_long_transactions(timestamptz) is
  'Find transactions that wrote to our tables and stay open.';

create or replace function holdfast.doctor_blocked(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'warning',
    format('Process %s (%s) has waited for a lock on holdfast.%s for %s, behind %s.',
      k.pid, concat_ws(', ', nullif(a.application_name, ''), a.usename), c.relname,
      holdfast.span_in_words(now_at - k.waitstart),
      'process ' || array_to_string(pg_blocking_pids(k.pid), ', ')),
    'End the session that holds the lock: a migration, a LOCK TABLE by hand, or a query on a partition that '
    'is to be dropped.',
    jsonb_build_object(
      'pid', k.pid, 'blocked_by', pg_blocking_pids(k.pid), 'table', c.relname, 'mode', k.mode)
  from pg_locks k
  join pg_class c on c.oid = k.relation
  left join pg_stat_activity a on a.pid = k.pid
  where not k.granted
    and k.database = (select d.oid from pg_database d where d.datname = current_database())
    and c.relnamespace = 'holdfast'::regnamespace
    and k.waitstart < now_at - interval '5 seconds'
$$;
comment on function holdfast.doctor_blocked(timestamptz) is
  'Find sessions that wait for a lock on one of our tables.';

-- doctor_tables.sql
-- Check our tables, for doctor(): everything that the migrations made exists, it is maintained,
-- and no other program writes to it.

create or replace function holdfast.doctor_indexes(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with wanted (name, of) as (values
    ('job_pkey', 'live'), ('job_pending', 'live'), ('job_due', 'live'), ('job_held', 'live'),
    ('lane_pkey', 'lane'), ('lane_by_queue_and_task', 'lane'), ('lane_by_task', 'lane'),
      ('running_pkey', 'running'), ('queue_pkey', 'queue'),
    ('worker_pkey', 'worker'), ('worker_asleep', 'worker'), ('finished_id', 'finished'),
    ('dead_letter_pkey', 'dead_letter'), ('dead_letter_time', 'dead_letter'),
      ('dead_letter_queue', 'dead_letter'),
    ('attempt_error_job', 'attempt_error'), ('attempt_error_time', 'attempt_error'),
    ('used_id_pkey', 'used_id'), ('used_id_time', 'used_id'), ('cancellation_pkey', 'cancellation'),
    ('schedule_pkey', 'schedule'), ('schedule_tick_pkey', 'schedule_tick'),
      ('schedule_tick_time', 'schedule_tick'),
    ('step_pkey', 'step'), ('step_time', 'step'), ('checkpoint_pkey', 'checkpoint'),
      ('checkpoint_time', 'checkpoint'),
    ('event_id', 'event'), ('event_xid', 'event'), ('event_job', 'event'), ('event_queue', 'event'),
    ('event_count_pkey', 'event_count'), ('event_count_time', 'event_count'), ('waiter_pkey', 'waiter'),
    ('death_pkey', 'death')
  ),
  ours as (
    select i.relname as name, t.relname as of, i.relkind = 'I' as partitioned, i.relispartition as part,
      x.indisvalid and x.indisready as valid
    from pg_index x
    join pg_class i on i.oid = x.indexrelid
    join pg_class t on t.oid = x.indrelid
    where t.relnamespace = 'holdfast'::regnamespace
  )
  select
    'critical',
    format('Index %s of holdfast.%s is missing%s.', w.name, w.of,
      case when w.of = 'live' then ': every claim reads the whole table' else '' end),
    'Create it again as the migrations do: holdfast migrate --print, without --dsn, shows how.',
    jsonb_build_object('index', w.name, 'table', w.of)
  from wanted w
  where w.name not in (select o.name from ours o)
  union all
  select
    'critical',
    format('Index %s of holdfast.%s is not valid, so it costs time and is not used.', o.name, o.of),
    format('reindex index concurrently holdfast.%I;', o.name),
    jsonb_build_object('index', o.name, 'table', o.of)
  from ours o
  where not o.valid
  union all
  select
    'warning',
    format(
      'Index %s on holdfast.%s does not belong to Holdfast, and slows down every claim and finish.',
      o.name, o.of),
    format(
      'drop index %sholdfast.%I; and index a table of your own, or ask holdfast.jobs.', case
      when not o.partitioned then 'concurrently ' else '' end, o.name),
    jsonb_build_object('index', o.name, 'table', o.of)
  from ours o
  where o.of in ('job', 'live')
    and not o.part
    and o.name not in (select w.name from wanted w)
$$;
comment on function holdfast.doctor_indexes(timestamptz) is
  'Find missing and invalid indexes, and foreign indexes on jobs.';

create or replace function holdfast.doctor_triggers(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with wanted (name, of) as (values
    ('job_refuse_delete', 'job'), ('job_is_not_truncated', 'job'), ('job_is_not_truncated', 'live'),
    ('job_first_state', 'live'), ('job_check_inserted', 'job'), ('job_guard', 'job')
  ),
  found as (
    select t.tgname as name, c.relname as of, t.tgenabled as enabled
    from pg_trigger t
    join pg_class c on c.oid = t.tgrelid
    where c.oid in ('holdfast.job'::regclass, 'holdfast.live'::regclass)
      and not t.tgisinternal
      and t.tgparentid = 0
  )
  select
    'critical',
    format(
      'Trigger %s of holdfast.%s %s: what must never happen to a job is not refused any more.', w.name, w.of,
      case when f.name is null then 'is missing' else 'is disabled' end),
    case
      when f.name is null then 'delete from holdfast.migration where name = ''guard''; then: holdfast migrate'
      else format('alter table holdfast.%I enable trigger %I;', w.of, w.name)
    end,
    jsonb_build_object('trigger', w.name)
  from wanted w
  left join found f on f.name = w.name and f.of = w.of
  where f.name is null
    or f.enabled in ('D', 'R')
  union all
  select
    'warning',
    format(
      'Trigger %s on holdfast.%s does not belong to Holdfast: it runs in enqueues, claims or finishes. '
      'Its errors stop them.', f.name, f.of),
    format(
      'Follow the events instead (holdfast.read_events), and: drop trigger %I on holdfast.%I;', f.name, f.of),
    jsonb_build_object('trigger', f.name)
  from found f
  where (f.name, f.of) not in (select w.name, w.of from wanted w)
$$;
comment on function holdfast.doctor_triggers(timestamptz) is
  'Find missing and disabled triggers, and foreign triggers on jobs.';

create or replace function holdfast.doctor_vacuum(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    case when s.n_dead_tup > 10000000 then 'critical' else 'warning' end,
    format('holdfast.%s has %s dead rows beside %s live ones; %s.', s.relname,
      ltrim(to_char(s.n_dead_tup, '999G999G999G990')), ltrim(to_char(s.n_live_tup, '999G999G999G990')),
      coalesce(
        'the last vacuum was ' || holdfast.span_in_words(
        now_at - greatest(s.last_autovacuum, s.last_vacuum)) || ' ago',
        'it was never vacuumed')),
    format(
      'See snapshots for who keeps them from being removed; if nobody does: vacuum (verbose) holdfast.%I;',
      s.relname),
    jsonb_build_object('table', s.relname, 'dead', s.n_dead_tup, 'live', s.n_live_tup,
      'vacuumed_at', greatest(s.last_autovacuum, s.last_vacuum))
  from pg_stat_all_tables s
  where s.schemaname = 'holdfast'
    and s.n_dead_tup > 100000
    and s.n_dead_tup > 2 * s.n_live_tup
    and coalesce(greatest(s.last_autovacuum, s.last_vacuum), '-infinity') < now_at - interval '10 minutes'
$$;
comment on function holdfast.doctor_vacuum(timestamptz) is 'Find dead rows that autovacuum does not remove.';

create or replace function holdfast.doctor_size(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'info',
    format('holdfast.%s takes %s for about %s live rows.', s.relname, pg_size_pretty(s.size),
      ltrim(to_char(s.n_live_tup, '999G999G999G990'))),
    format(
      'The room is used again, so this costs disk alone. To give it back, at a quiet time: vacuum (full) '
      'holdfast.%I; '
      'or pg_repack, which locks for a moment only.', s.relname),
    jsonb_build_object('table', s.relname, 'bytes', s.size, 'live', s.n_live_tup)
  from (
    select s.relname, s.n_live_tup, pg_total_relation_size(s.relid) as size
    from pg_stat_all_tables s
    where s.schemaname = 'holdfast'
      and s.relname in ('live', 'lane', 'running', 'worker', 'event_count', 'cancellation', 'waiter')
  ) s
  where s.size > 1024 * 1024 * 1024
    and s.size > 20000 * greatest(s.n_live_tup, 1)
$$;
comment on function holdfast.doctor_size(timestamptz) is
  'Find tables of live jobs that take far more room than their rows.';

create or replace function holdfast.doctor_sequences(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    case when s.last_value > 0.95 * s.max_value then 'critical' else 'warning' end,
    format(
      'Sequence holdfast.%s has used up %s %% of its numbers.', s.sequencename,
      round(100.0 * s.last_value / s.max_value)),
    case when s.data_type = 'integer'::regtype
      then 'Queues, priorities and tasks make lanes: do not put ids or times into their names.'
      else 'Jobs alone never reach such a number: somebody set it. Ask before you set it back, because heads '
           'rely on it.'
    end,
    jsonb_build_object('sequence', s.sequencename, 'last_value', s.last_value, 'max_value', s.max_value)
  from pg_sequences s
  where s.schemaname = 'holdfast'
    and s.last_value > 0.8 * s.max_value
  union all
  select
    'critical',
    'Sequence holdfast.job_seq hands out numbers in blocks, so a small one may come late: jobs can be '
    'missed.',
    'alter sequence holdfast.job_seq cache 1;',
    jsonb_build_object('sequence', s.sequencename, 'cache', s.cache_size)
  from pg_sequences s
  where s.schemaname = 'holdfast'
    and s.sequencename = 'job_seq'
    and s.cache_size <> 1
$$;
comment on function holdfast.doctor_sequences(timestamptz) is
  'Find sequences that reach their end or must not cache.';

create or replace function holdfast.doctor_partitions(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  today date := (now_at at time zone 'UTC')::date;
  parent text;
  days date[];
  missing date[];
  stray integer;
begin
  foreach parent in array '{finished,event}'::text[] loop
    days := array(
      select (p.low at time zone 'UTC')::date
      from holdfast.partitions() p (of_table, name, place, low, high)
      where p.of_table = parent
        and p.low > '-infinity');
    missing := array(
      select d::date from generate_series(today + 1, today + 2, interval '1 day') d where d::date <> all(days)
      order by d);
    -- There is no partition for the day of the installation, and only for that day.
    if cardinality(days) > 0 and today > (select min(d) from unnest(days) d) and today <> all(days) then
      missing := array_prepend(today, missing);
    end if;
    -- otherwise no duty has run yet
    if cardinality(missing) > 0 and exists (select from holdfast.duty d where d.name = 'upkeep') then
      severity := case when today = any(missing) then 'critical' else 'warning' end;
      finding := format(
        'holdfast.%s has no partition for %s: rows of %s day go to the default partition, and are deleted '
        'one by one later.',
        parent, array_to_string(missing, ', '), case when today = any(missing) then 'this' else 'that' end);
      remedy := 'Start a worker or call holdfast tick: upkeep makes them. If it fails, duties says why.';
      detail := jsonb_build_object('table', parent, 'missing', missing);
      return next;
    end if;
    -- Only if the look costs nothing.
    if pg_relation_size(('holdfast.' || parent || '_default')::regclass) < 64 * 1024 * 1024 then
      execute format('select count(distinct (%I at time zone ''UTC'')::date) from holdfast.%I',
        case parent when 'finished' then 'finished_at' else 'at' end, parent || '_default') into stray;
      if stray > 1 then
        severity := 'info';
        finding := format('holdfast.%s_default holds rows of %s days that had no partition.', parent, stray);
        remedy := 'Nothing: upkeep deletes them past the retention. It happens when nobody did the duties '
                  'for days.';
        detail := jsonb_build_object('table', parent || '_default', 'days', stray);
        return next;
      end if;
    end if;
  end loop;
end
$$;
comment on function holdfast.doctor_partitions(timestamptz) is
  'Find days without a partition, and rows in a default partition.';

-- Other programs that write to our tables, as far as pg_stat_statements knows.
create or replace function holdfast.doctor_statements(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  view text := (
    select quote_ident(n.nspname) || '.pg_stat_statements'
    from pg_extension e
    join pg_namespace n on n.oid = e.extnamespace
    where e.extname = 'pg_stat_statements');
begin
  if view is null or current_setting('shared_preload_libraries') !~ 'pg_stat_statements' then
    return;
  end if;
  -- It leaves out constants, but the statement is not quoted, to be safe.
  return query execute format($query$
    select
      'warning',
      format('%%s has sent %%s on holdfast.job by itself %%s times.', s.sender, s.verb, sum(s.calls)),
      'Claim, finish and cancel through the functions. A select with a later update loses races, and no '
      'worker is notified.',
      jsonb_build_object('user', s.sender, 'verb', s.verb, 'calls', sum(s.calls))
    from (
      select
        pg_get_userbyid(s.userid) as sender, s.calls,
        case
          when s.query ~* '^\s*update\s+(only\s+)?"?holdfast"?\."?(job|live)"?\M' then 'update'
          when s.query ~* '^\s*delete\s+from\s+(only\s+)?"?holdfast"?\."?(job|live)"?\M' then 'delete'
          when s.query ~* ('^\s*select\M.*\mfrom\s+"?holdfast"?\."?(job|live)"?\M.*'
          '\mfor\s+(no\s+key\s+)?update\M') then 'select for update'
        end as verb
      from %s s
      where s.dbid = (select d.oid from pg_database d where d.datname = current_database())
        and s.toplevel
    ) s
    where s.verb is not null
    group by s.sender, s.verb
    $query$, view);
exception
  when undefined_column then null; -- an older pg_stat_statements
end
$$;
comment on function holdfast.doctor_statements(timestamptz) is
  'Find statements of other programs that write to jobs directly.';

-- doctor_work.sql
-- Check the work, for doctor(): workers, jobs that no worker serves, and habits that hurt later.

create or replace function holdfast.doctor_workers(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'warning',
    format('%s lost in the last hour, with %s: %s.',
      case count(*) when 1 then '1 worker was' else count(*) || ' workers were' end,
      holdfast.amount_in_words(sum(w.recovered)::bigint, 'job'),
      string_agg(distinct holdfast.worker_in_words(w), ', ')),
    'Find out why they died: no memory, a handler that ends its process, a machine that was switched off.',
    jsonb_build_object('workers', count(*), 'jobs', sum(w.recovered))
  from holdfast.worker w
  where w.lost_at > now_at - interval '1 hour'
    and not holdfast.is_consumer_without_jobs(w)
  having count(*) > 0
  union all
  select
    'warning',
    format('Worker %s has sent no heartbeat for %s; its lease is %s.', holdfast.worker_in_words(w),
      holdfast.span_in_words(now_at - w.heartbeat_at), holdfast.span_in_words(w.lease_time)),
    'Check whether it still runs and reaches the database.',
    jsonb_build_object('worker', w.id, 'heartbeat_at', w.heartbeat_at)
  from holdfast.worker w
  where w.lost_at is null
    and w.left_at is null
    and greatest(w.heartbeat_at, w.graced_at) < now_at - w.lease_time / 2
    and not holdfast.is_consumer_without_jobs(w)
$$;
comment on function holdfast.doctor_workers(timestamptz) is 'Find workers that were lost or are silent.';

create or replace function holdfast.doctor_unserved(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with waiting as (
    select l.queue, l.task, min(greatest(f.created_at, f.run_at, f.changed_at)) as since
    from holdfast.lane l
    cross join lateral (
      select j.created_at, j.run_at, j.changed_at
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.head
      order by j.seq
      limit 1
    ) f
    where not exists (select from holdfast.queue q where q.name = l.queue and q.paused_at is not null)
      and not exists (select from holdfast.live_workers(now_at) w where holdfast.serves(w, l.queue, l.task))
    group by l.queue, l.task
  )
  select
    case when exists (select from holdfast.live_workers(now_at)) then 'warning' else 'critical' end,
    format('%s: task %s in queue %s%s has waited for %s.',
      case when exists (select from holdfast.live_workers(now_at))
        then 'No worker serves some jobs that wait' else 'No worker is alive, and jobs wait' end,
      (array_agg(w.task order by w.since))[1], (array_agg(w.queue order by w.since))[1],
      case when count(*) > 1 then format(' (and %s more)', count(*) - 1) else '' end,
      holdfast.span_in_words(now_at - min(w.since))),
    'Start a worker that knows them and serves their queue; or cancel them: holdfast cancel --task ...',
    jsonb_build_object(
      'jobs',
      jsonb_agg(jsonb_build_object('queue', w.queue, 'task', w.task, 'since', w.since) order by w.since))
  from (select w.* from waiting w where w.since < now_at - interval '5 minutes' order by w.since limit 100) w
  having count(*) > 0
$$;
comment on function holdfast.doctor_unserved(timestamptz) is 'Find waiting jobs that no worker serves.';

-- A claim from psql is not a worker that died, if the jobs that it took were done.
create or replace function holdfast.is_consumer_without_jobs(worker holdfast.worker)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select worker.name = 'consumer-' || left(worker.id::text, 8)
    and worker.recovered = 0
    and not exists (select from holdfast.live j where j.worker_id = worker.id and j.state = 'claimed')
$$;
comment on function holdfast.is_consumer_without_jobs(holdfast.worker) is
  'Return whether a worker has claimed without registering and left nothing behind.';

create or replace function holdfast.doctor_dead_letters(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'warning',
    format('%s died in the last hour.', holdfast.amount_in_words(d.lately, 'job', 10000)),
    'holdfast dead shows why. When that is mended: holdfast replay --task ...',
    jsonb_build_object('last_hour', d.lately)
  from (
    select count(*) as lately
    from (select from holdfast.dead_letter l where l.died_at > now_at - interval '1 hour' limit 10000) l
  ) d
  where d.lately >= 100
  union all
  select
    'info',
    format('There are about %s dead letters.', ltrim(to_char(c.reltuples, '999G999G999G990'))),
    'Replay or purge them: holdfast dead, holdfast purge --task ...',
    jsonb_build_object('dead', c.reltuples::bigint)
  from pg_class c
  where c.oid = 'holdfast.dead_letter'::regclass
    and c.reltuples > 100000
$$;
comment on function holdfast.doctor_dead_letters(timestamptz) is 'Find dead letters that accumulate.';

create or replace function holdfast.doctor_payloads(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'warning',
    format(
      'Payloads are large: %s on average in a sample of %s, %s for task %s.',
      pg_size_pretty(round(avg(s.size))),
      holdfast.amount_in_words(count(*), 'job'), pg_size_pretty(max(s.size)),
      (array_agg(s.task order by s.size desc))[1]),
    'Put the data into a table or a bucket, and a reference to it into the payload: each claim and each '
    'finish carries all of it.',
    jsonb_build_object('average', round(avg(s.size)), 'largest', max(s.size))
  from (select j.task, octet_length(j.payload::text)::bigint as size from holdfast.doctor_sample(200) j) s
  having avg(s.size) > 10240
$$;
comment on function holdfast.doctor_payloads(timestamptz) is 'Find large payloads.';

create or replace function holdfast.doctor_attempts(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'warning',
    format(
      '%s is tried up to %s times: that is no limit. A job that cannot succeed costs as much as one that '
      'can, each time.', m.whose, m.most),
    m.remedy,
    jsonb_build_object('of', m.whose, 'max_attempts', m.most)
  from (
    select 'Every job of queue ' || q.name, q.max_attempts,
      format('holdfast queue configure %L max_attempts=10', q.name)
    from holdfast.queue q
    union all
    select 'Task ' || p.task, p.max_attempts, format('holdfast policy set %s --max-attempts 10', p.task)
    from holdfast.retry_policy p
    union all
    -- Each snooze adds one attempt to the maximum and uses one.
    select 'A waiting job of task ' || j.task, max(j.max_attempts - j.attempt),
      'Enqueue with a smaller max_attempts.'
    from holdfast.doctor_sample(200) j
    group by j.task
  ) m (whose, most, remedy)
  where m.most > 100
$$;
comment on function holdfast.doctor_attempts(timestamptz) is 'Find jobs without a real limit of attempts.';

create or replace function holdfast.doctor_volume(now_at timestamptz)
returns table (severity text, finding text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with seen as materialized (
    select holdfast.doctor_rate(now_at)::numeric as rate
  ),
  advice (above, needed, advice) as (values
    (100, current_setting('shared_buffers') = '128MB',
      'shared_buffers is 128MB as installed: give it a quarter of the memory.'),
    (1000, pg_size_bytes(current_setting('max_wal_size')) <= 1024 * 1024 * 1024,
      'max_wal_size is 1GB or less: with 4 GB or more there are fewer checkpoints, and less is written.'),
    (1000, exists (select from holdfast.queue q where q.name = '*' and q.retention > interval '7 days'),
      'Finished jobs are kept for more than 7 days: at this rate that is a large table. Lower the retention '
      'of queues whose past nobody reads.'),
    (10000, true,
      'Above 10,000 jobs a second every option counts: enqueue in bulk, several worker processes, retention '
      '0 where results are not asked for, a disk of its own for the WAL.')
  )
  select
    'info',
    format(
      'About %s jobs a second end here in the busiest hour. %s', ltrim(to_char(s.rate, '999G999G990')),
      a.advice),
    'The guide "Sizing" says which option pays at which volume.',
    jsonb_build_object('jobs_per_second', round(s.rate))
  from seen s
  join advice a on s.rate > a.above and a.needed
$$;
comment on function holdfast.doctor_volume(timestamptz) is 'Find options that pay at the measured volume.';

-- How many jobs a second end for an hour or longer: in the busiest hour of the last day, and on
-- average since the statistics of the server began. A burst of a minute says nothing about the
-- volume.
create or replace function holdfast.doctor_rate(now_at timestamptz)
returns double precision
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  since timestamptz;
  average double precision;
  busiest double precision;
begin
  select coalesce(d.stats_reset, (select min(m.applied_at) from holdfast.migration m)) into since
  from pg_stat_database d
  where d.datname = current_database();
  select s.n_tup_del / greatest(extract(epoch from now_at - since), 3600) into average
  from pg_stat_all_tables s
  where s.relid = 'holdfast.live'::regclass;
  select max(h.jobs) / 3600.0 into busiest
  from (
    select sum(s.completed + s.dead + s.cancelled) as jobs
    from holdfast.stat s
    where s.span = 'minute'
      and s.at > now_at - interval '1 day'
    group by date_trunc('hour', s.at)
  ) h;
  return greatest(average, busiest);
end
$$;
comment on function holdfast.doctor_rate(timestamptz) is
  'Return how many jobs end in a second, sustained for an hour.';

-- Sample some waiting jobs, a few from the head of each lane.
create or replace function holdfast.doctor_sample(amount integer)
returns setof holdfast.live
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select s.*
  from (
    select f.*
    from holdfast.lane l
    cross join lateral (
      select j.*
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.head
      order by j.seq
      limit 20
    ) f
    limit amount
  ) s
$$;
comment on function holdfast.doctor_sample(integer) is 'Return some waiting jobs, a few of each lane.';

-- drop_partitions.sql
-- Drop, archive or keep the days past the longest retention, by the setting `disposal`:
--
--   drop      it is dropped
--   archive   it is detached and moved to the schema holdfast_archive, where you own it
--   export    it stays until somebody has exported it (`holdfast export`), and is dropped then
--
-- Each needs a lock on the whole table for a moment. It gives up after 50 ms if the table is in
-- use, since every finish would wait behind it.
create or replace function holdfast.drop_partitions(now_at timestamptz, parent text)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
as $$
#variable_conflict use_column
declare
  disposal constant text := coalesce((select q.disposal from holdfast.queue q where q.name = '*'), 'drop');
  keep constant interval := holdfast.longest_retention();
  old record;
  gone integer := 0;
begin
  for old in
    select p.partition, p.low
    from holdfast.partitions() p
    where p.parent = drop_partitions.parent
      and p.low > '-infinity'
      and p.high < now_at - keep
      and (disposal <> 'export' or exists (select from holdfast.exported e where e.partition = p.partition))
    order by p.low
  loop
    begin
      if disposal = 'archive' then
        perform holdfast.archive_partition(parent, old.partition, now_at);
      else
        execute format('drop table holdfast.%I', old.partition);
      end if;
      gone := gone + 1;
    exception when lock_not_available then
      exit; -- the table is in use; the next round tries again
    end;
  end loop;
  return gone;
end
$$;
comment on function holdfast.drop_partitions(timestamptz, text) is
  'Drop or archive the partitions of finished jobs, or of events, that are past the longest retention.';

create or replace function holdfast.archive_partition(parent text, partition text, now_at timestamptz)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.make_archive(null);
  execute format('alter table holdfast.%I detach partition holdfast.%I', parent, partition);
  -- here it stays
  execute format('alter table holdfast.%I reset (autovacuum_vacuum_insert_threshold)', partition);
  execute format('alter table holdfast.%I set schema holdfast_archive', partition);
  execute format('comment on table holdfast_archive.%I is %L', partition, format(
    '%s of %s, archived by Holdfast on %s.',
    case parent when 'finished' then 'Finished jobs' else 'Events of jobs' end,
    to_date(right(partition, 8), 'YYYYMMDD'), (now_at at time zone 'UTC')::date));
end
$$;
comment on function holdfast.archive_partition(text, text, timestamptz) is
  'Move a partition to the schema holdfast_archive, under its name.';

-- Create the schema, and a table for rows of a default partition. That table is made once and
-- stays. So it gets the columns that it lacks: those that a later release has added, and those
-- that were dropped there by hand.
create or replace function holdfast.make_archive(parent text)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  name constant text := parent || '_default';
  lacking record;
begin
  if to_regnamespace('holdfast_archive') is null then
    create schema holdfast_archive;
    comment
      on schema holdfast_archive is 'Days past the retention of Holdfast; it does not look at them again.';
  end if;
  if parent is null then
    return;
  end if;
  if to_regclass(format('holdfast_archive.%I', name)) is null then
    execute format('create table holdfast_archive.%I (like holdfast.%I)', name, parent);
    execute format(
      'comment on table holdfast_archive.%I is %L', name,
      'Rows of days that had no partition of their own, archived by Holdfast.');
  end if;
  for lacking in
    select a.attname, format_type(a.atttypid, a.atttypmod) as type, a.attcollation::regcollation as collation,
      a.attcollation > 0 as collates
    from pg_attribute a
    where a.attrelid = format('holdfast.%I', parent)::regclass
      and a.attnum > 0
      and not a.attisdropped
      and not exists (
        select from pg_attribute o
        where o.attrelid = format('holdfast_archive.%I', name)::regclass and o.attname = a.attname
          and not o.attisdropped)
    order by a.attnum
  loop
    execute format('alter table holdfast_archive.%I add column %I %s %s', name, lacking.attname, lacking.type,
      case when lacking.collates then 'collate ' || lacking.collation end);
  end loop;
end
$$;
comment on function holdfast.make_archive(text) is
  'Create the schema holdfast_archive if it is missing, and a table in it with every column of a '
  'partitioned table.';

-- due_from.sql
-- Return the time before which no scheduled job is due: the time of the first scheduled job,
-- at most a second ago. The search begins at the last such time, or at the time from which jobs may have
-- come late. The second is for writers that read the clock before they took the lock.
create or replace function holdfast.due_from(due_from timestamptz, late_at timestamptz, now_at timestamptz)
returns timestamptz
language plpgsql volatile
as $$
declare
  looked_from timestamptz := coalesce(least(due_from.due_from, late_at - interval '1 second'), '-infinity');
begin
  return least(
    (select min(j.run_at) from holdfast.live j where j.state = 'scheduled' and j.run_at >= looked_from),
    now_at - interval '1 second');
end
$$;
comment on function holdfast.due_from(timestamptz, timestamptz, timestamptz) is
  'Return a time before which no scheduled job is due, from the last such time and the time from which jobs '
  'may have come late.';

-- Return the time from which promote() reads. It is like due_from(), but passes jobs that a
-- locker below `old_xid` holds.
create or replace function holdfast.promote_from(
  promote_from timestamptz, late_at timestamptz, now_at timestamptz, old_xid xid8)
returns timestamptz
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  looked_from timestamptz := coalesce(
    least(promote_from.promote_from, late_at - interval '1 second'), '-infinity');
  until timestamptz := now_at - interval '1 second';
  next_xid xid8 := pg_snapshot_xmax(pg_current_snapshot());
  first record;
  next_at timestamptz;
  are_few boolean;
begin
  select j.run_at, holdfast.is_open(holdfast.long_xid(j.xmax, next_xid), old_xid) as is_locked
  into first
  from holdfast.live j
  where j.state = 'scheduled'
    and j.run_at >= looked_from
    and j.run_at < until
  order by j.run_at
  limit 1;
  if first.is_locked is distinct from true then
    return coalesce(first.run_at, until);
  end if;
  next_at := coalesce(
    (
      select j.run_at
      from holdfast.live j
      where j.state = 'scheduled'
        and j.run_at >= first.run_at
        and j.run_at < until
        and not holdfast.is_open(holdfast.long_xid(j.xmax, next_xid), old_xid)
      order by j.run_at
      limit 1
    ),
    until);
  with locked as materialized (
    select holdfast.long_xid(j.xmax, next_xid) as xid, min(j.run_at) as run_at
    from (
      select j.xmax, j.run_at
      from holdfast.live j
      where j.state = 'scheduled'
        and j.run_at >= first.run_at
        and j.run_at < next_at
    ) j
    group by 1
  ),
  few as (
    select (select count(*) from locked) + (select count(*) from holdfast.locker) <= 1000 as are_few
  ),
  noted as (
    insert into holdfast.locker (xid, run_at)
    select k.xid, k.run_at from locked k, few where few.are_few
    on conflict (xid) do update set run_at = least(locker.run_at, excluded.run_at)
  )
  select few.are_few into are_few from few;
  return case when are_few then next_at else first.run_at end;
end
$$;
comment on function holdfast.promote_from(timestamptz, timestamptz, timestamptz, xid8) is
  'Return the time from which promote() reads, from the last such time and the time from which jobs may '
  'have come late.';

-- duty.sql
-- Let one session at a time do a duty, and record when it ended and whether it failed.
--
-- Each duty has an empty table of its own. The session that does the duty holds a lock on that
-- table until its transaction ends. Only the owner has rights on these tables, so no other role
-- can take the lock; any login can take an advisory lock. Locking a row instead would write to
-- the log several times a second. A table lock writes nothing, and pg_locks names its holder.
--
-- SHARE UPDATE EXCLUSIVE conflicts with itself, but not with a dump or with the fast path of
-- other locks.
--
-- Each lock is written out, and no search_path is set: this takes 385 µs after a pause instead
-- of 440; an advisory lock takes 335.
create or replace function holdfast.try_duty(duty text)
returns boolean
language plpgsql volatile
as $$
begin
  case try_duty.duty
    when 'promote' then lock table holdfast.duty_promote in share update exclusive mode nowait;
    when 'advance' then lock table holdfast.duty_advance in share update exclusive mode nowait;
    when 'recover' then lock table holdfast.duty_recover in share update exclusive mode nowait;
    when 'fold_stats' then lock table holdfast.duty_fold_stats in share update exclusive mode nowait;
    when 'upkeep' then lock table holdfast.duty_upkeep in share update exclusive mode nowait;
    when 'sweep' then lock table holdfast.duty_sweep in share update exclusive mode nowait;
  end case;
  return true;
exception when lock_not_available then
  return false;
end
$$;
comment on function holdfast.try_duty(text) is
  'Take the lock of a duty until the end of the transaction. Returns false if another session has it.';

create or replace function holdfast.await_duty(duty text)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  execute format('lock table holdfast.%I in share update exclusive mode', 'duty_' || await_duty.duty);
end
$$;
comment on function holdfast.await_duty(text) is
  'Wait for the lock of a duty, up to lock_timeout, and hold it until the end of the transaction.';

-- The log gets the same error only once a minute.
create or replace function holdfast.note_duty(duty text, error text)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  now_at constant timestamptz := holdfast.clock();
  known holdfast.duty;
begin
  if note_duty.error is null then
    return;
  end if;
  select d.* into known from holdfast.duty d where d.name = note_duty.duty;
  if known.error is distinct from note_duty.error or now_at not between known.error_at
    and known.error_at + interval '1 minute' then
    raise warning 'duty % failed: %', note_duty.duty, note_duty.error;
  end if;
  insert into holdfast.duty (name, error, error_at)
  values (note_duty.duty, note_duty.error, now_at)
  on conflict (name) do update set error = excluded.error, error_at = excluded.error_at;
end
$$;
comment on function holdfast.note_duty(text, text) is
  'Store the error of a duty that failed, and warn of it.';

-- A duty that was interrupted by a timeout or a lock cannot record its own error, because its transaction
-- is rolled back.
-- holdfast: role worker
create or replace function holdfast.report_duty(duty text, error text)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if report_duty.duty is null or report_duty.duty not in (select d.name from holdfast.list_duties() d) then
    perform holdfast.refuse_value('duty', report_duty.duty, 'must be the name of a duty');
  end if;
  if report_duty.error is null then
    perform holdfast.refuse_value('error', null, 'must say what went wrong');
  end if;
  insert into holdfast.duty (name, error, error_at)
  values (report_duty.duty, left(report_duty.error, 1000), holdfast.clock())
  on conflict (name) do update set error = excluded.error, error_at = excluded.error_at;
end
$$;
comment on function holdfast.report_duty(text, text) is
  'Report the failure of a duty that could not record its own error; for a worker.';

-- promote() and advance() run several times a second, so they first check whether the last note
-- is old.
create or replace function holdfast.note_done(duty text, now_at timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.duty as d (name, done_at)
  select note_done.duty, note_done.now_at
  where holdfast.is_old(
    (select o.done_at from holdfast.duty o where o.name = note_done.duty), note_done.now_at)
  on conflict (name) do update set done_at = excluded.done_at
$$;
comment on function holdfast.note_done(text, timestamptz) is 'Record that a duty ended well.';

-- A note is written once a minute, so that an idle database stays idle.
create or replace function holdfast.is_old(done_at timestamptz, now_at timestamptz)
returns boolean
language sql stable
as $$
  select is_old.done_at is null or is_old.now_at not between is_old.done_at
    and is_old.done_at + interval '1 minute'
$$;
comment on function holdfast.is_old(timestamptz, timestamptz) is
  'Return whether it is more than a minute since a duty was recorded to have ended well.';

-- A duty takes seconds at most. A session that has held one for a minute hangs, is idle in its
-- transaction, or blocks the duty on purpose. The owner of the schema sees when the transaction
-- of another role began only with pg_read_all_stats. Otherwise the age is counted from the last
-- time that the duty ended well.
create or replace function holdfast.duty_holders(now_at timestamptz)
returns table (
  duty text, pid integer, application text, role text, state text, since timestamptz, sentence text,
  remedy text)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    h.duty, h.pid, h.application, h.role, h.state, h.since,
    format('%s has held duty %s for %s, and nobody else can do it',
      case when h.pid is null then 'A prepared transaction' else
        format('Process %s (%s)', h.pid, concat_ws(', ', nullif(h.application, ''), h.role, h.state)) end,
      h.duty, holdfast.span_in_words(now_at - h.since)),
    case
      when h.pid is null then 'Commit it or roll it back: select * from pg_prepared_xacts;'
      else format('Let it commit. If it hangs: select pg_terminate_backend(%s);', h.pid)
    end
  from (
    select
      substr(c.relname, 6) as duty, k.pid, a.application_name as application, a.usename::text as role,
      a.state,
      coalesce(
        a.xact_start,
        case when k.pid is null then (
          select min(p.prepared) from pg_prepared_xacts p where p.database = current_database()
        ) end,
        (select coalesce(d.done_at, d.looks[1]) from holdfast.duty d
          where d.name = substr(c.relname, 6))) as since
    from pg_locks k
    join pg_class c on c.oid = k.relation
    left join pg_stat_activity a on a.pid = k.pid
    where k.locktype = 'relation'
      and k.granted
      and k.mode = 'ShareUpdateExclusiveLock'
      and k.database = (select d.oid from pg_database d where d.datname = current_database())
      and c.relnamespace = 'holdfast'::regnamespace
      and c.relname like 'duty\_%'
  ) h
  where h.since < now_at - interval '1 minute'
$$;
comment on function holdfast.duty_holders(timestamptz) is
  'Return the sessions that have held a duty for more than a minute, each with a sentence and a remedy.';

-- Return whether a duty rests: for the rest that it is given, and for a multiple of the time that
-- it took, up to a maximum. Without a rest, as by hand, it does not rest.
create or replace function holdfast.rests(
  duty text, rest interval, times integer, most interval, now_at timestamptz)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select
    from holdfast.duty d
    where d.name = rests.duty
      and now_at between d.looks[1]
        and d.looks[1] + greatest(rests.rest, least(times * (d.looks[1] - d.looks[2]), most))
      and rests.rest is not null)
$$;
comment on function holdfast.rests(text, interval, integer, interval, timestamptz) is
  'Return whether a duty ended so recently that it should rest: for a given time, and for a multiple of the '
  'time that it took.';

create or replace function holdfast.note_look(duty text, begun_at timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.duty (name, looks)
  values (note_look.duty, array[holdfast.clock(), begun_at])
  on conflict (name) do update set looks = excluded.looks
$$;
comment on function holdfast.note_look(text, timestamptz) is
  'Record when a duty began, and that it has ended.';

-- end_jobs.sql
-- Move live jobs to the dead letters, or to the finished ones as cancelled.
--
-- A caller may use an id again after 7 days, so a dead letter may replace an older one of the same id.
create or replace function holdfast.end_jobs(outcome text, ids uuid[], errors text[], now_at timestamptz)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  amount bigint;
begin
  if cardinality(ids) = 0 then
    return 0;
  end if;
  perform holdfast.log_live(
    ids, 'job.' || end_jobs.outcome,
    case when end_jobs.outcome = 'dead' then holdfast.death_details(ids, errors) end, now_at);
  with gone as (
    delete from holdfast.live j where j.id = any(ids) returning j.*
  ),
  ended as materialized (
    select
      g.*, l.queue, l.priority, x.started_at, now_at - x.started_at as duration,
      coalesce(g.lease, g.last_lease) as its_lease, coalesce(left(e.error, 10000), g.last_error) as error
    from gone g
    join holdfast.lane l on l.id = g.lane_id
    left join unnest(ids, case when end_jobs.outcome = 'dead' then errors end) e (id, error) on e.id = g.id
    left join lateral (select x.* from holdfast.running x where x.job_id = g.id offset 0) x on true
  ),
  counted as (
    insert into holdfast.stat_delta (at, outcome, lanes, buckets, jobs, wait_seconds, run_seconds)
    select
      now_at, end_jobs.outcome, array_agg(c.lane_id), array_agg(4095), array_agg(c.jobs), array_agg(0),
      array_agg(0)
    from (select e.lane_id, count(*) as jobs from ended e group by 1) c
    having count(*) > 0
  ),
  buried as (
    insert into holdfast.dead_letter (
      id, queue, priority, task, payload, headers, attempt, max_attempts, worker_id, lease, last_error,
      run_at, created_at, claimed_at, started_at, died_at, duration
    )
    select
      e.id, e.queue, e.priority, e.task, e.payload, e.headers, e.attempt, e.max_attempts, e.worker_id,
      e.its_lease, e.error, e.run_at, e.created_at, e.claimed_at, e.started_at, now_at, e.duration
    from ended e
    where end_jobs.outcome = 'dead'
    on conflict (id) do update set
      (queue, priority, task, payload, headers, attempt, max_attempts, worker_id, lease, last_error,
        run_at, created_at, claimed_at, started_at, died_at, duration)
      = (excluded.queue, excluded.priority, excluded.task, excluded.payload, excluded.headers,
        excluded.attempt,
        excluded.max_attempts, excluded.worker_id, excluded.lease, excluded.last_error, excluded.run_at,
        excluded.created_at, excluded.claimed_at, excluded.started_at, excluded.died_at, excluded.duration)
  ),
  cancelled as (
    insert into holdfast.finished (
      id, queue, priority, task, payload, headers, state, attempt, max_attempts, worker_id, lease, last_error,
      run_at, created_at, claimed_at, started_at, finished_at, duration
    )
    select
      e.id, e.queue, e.priority, e.task, e.payload, e.headers, 'cancelled', e.attempt, e.max_attempts,
      e.worker_id,
      e.its_lease, e.error, e.run_at, e.created_at, e.claimed_at, e.started_at, now_at, e.duration
    from ended e
    where end_jobs.outcome = 'cancelled'
  )
  select count(*) into amount from ended;
  delete from holdfast.running x where x.job_id = any(ids);
  if exists (select from holdfast.waiter) then
    perform holdfast.tell_waiters(ids);
  end if;
  return amount;
end
$$;
comment on function holdfast.end_jobs(text, uuid[], text[], timestamptz) is
  'Move live jobs to the dead letters (dead) or to the finished ones (cancelled). Returns how many were '
  'moved.';

create or replace function holdfast.death_details(ids uuid[], errors text[])
returns jsonb[]
language plpgsql stable
as $$
#variable_conflict use_column
begin
  return array(
    select jsonb_strip_nulls(jsonb_build_object(
      'error', left(coalesce(e.error, j.last_error), 1000), 'progress', x.progress, 'stage', x.stage, 'step',
      x.step))
    from unnest(ids, errors) with ordinality e (id, error, n)
    left join lateral (select j.last_error from holdfast.live j where j.id = e.id offset 0) j on true
    left join lateral (select x.* from holdfast.running x where x.job_id = e.id offset 0) x on true
    order by e.n
  );
end
$$;
comment on function holdfast.death_details(uuid[], text[]) is
  'Return the data of the event `job.dead` for each of these jobs: its error and its last progress.';

-- replace.sql
-- Remove an earlier signature of a function. Call this after the new signature was created.
-- Rights that were granted by hand on the old one go to the new one.
create or replace function holdfast.replace_function(earlier text, later text)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  old regprocedure := to_regprocedure(replace_function.earlier);
  new regprocedure := to_regprocedure(replace_function.later);
  grantee name;
begin
  if old is null then
    return;
  end if;
  for grantee in
    select pg_get_userbyid(a.grantee)
    from pg_proc p, aclexplode(p.proacl) a
    where p.oid = old
      and a.grantee not in (0, p.proowner)
  loop
    execute format('grant execute on function %s to %I', new, grantee);
  end loop;
  execute format('drop function %s', old);
end
$$;
comment on function holdfast.replace_function(text, text) is
  'Remove the earlier signature of a function and give its rights to the later one.';

-- export.sql
-- Export days past the longest retention before they are dropped.

-- Whole days wait to be exported, and of a default partition the rows since the last export. A
-- table is left out while an open transaction has written to it: its rows would be dropped
-- unseen. No new transaction writes there, since the day is over.
-- holdfast: role owner
create or replace function holdfast.due_exports()
returns table (
  partition text, parent text, from_at timestamptz, until_at timestamptz, rows bigint, bytes bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
as $$
#variable_conflict use_column
declare
  past constant timestamptz := holdfast.clock() - holdfast.longest_retention();
begin
  if (select q.disposal from holdfast.queue q where q.name = '*') is distinct from 'export' then
    return;
  end if;
  return query
    select p.partition, p.parent, p.low, p.high, holdfast.about_rows(p.place), pg_total_relation_size(p.place)
    from holdfast.partitions() p
    where p.low > '-infinity'
      and p.high < past
      and not exists (select from holdfast.exported e where e.partition = p.partition)
      and not holdfast.is_written(p.place)
    union all
    select d.partition, d.parent, r.first, date_trunc('day', past), r.rows, pg_total_relation_size(d.place)
    from holdfast.partitions() d
    left join holdfast.exported e on e.partition = d.partition
    cross join lateral (
      select min(t.at) as first, count(*) as rows
      from (
        select f.finished_at from holdfast.finished_default f where d.parent = 'finished'
        union all
        select v.at from holdfast.event_default v where d.parent = 'event'
      ) t (at)
      where t.at >= coalesce(e.until, '-infinity') and t.at < date_trunc('day', past)
    ) r
    where d.low = '-infinity'
      and r.rows > 0
      and not holdfast.is_written(d.place)
    order by 3, 1;
end
$$;
comment on function holdfast.due_exports() is
  'Return the partitions past the longest retention that wait to be exported if disposal is export; with '
  'the times of their rows and about how many there are.';

create or replace function holdfast.is_written(place regclass)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select
    from pg_locks k
    where k.locktype = 'relation'
      and k.database = (select d.oid from pg_database d where d.datname = current_database())
      and k.relation = place
      and k.mode = 'RowExclusiveLock'
      and k.pid is distinct from pg_backend_pid()
  )
$$;
comment on function holdfast.is_written(regclass) is
  'Return whether an open transaction has written to a table.';

-- holdfast: role owner
create or replace function holdfast.mark_exported(
  partition text,
  until timestamptz default null,
  rows bigint default 0,
  bytes bigint default null,
  sha256 text default null,
  location text default null
)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  due record;
begin
  perform holdfast.await_duty('export');
  select d.* into due from holdfast.due_exports() d where d.partition = mark_exported.partition;
  if not found then
    if exists (select from holdfast.exported e where e.partition = mark_exported.partition) then
      return false; -- another session was faster
    end if;
    perform holdfast.refuse_value(
      'partition', mark_exported.partition,
      'does not wait to be exported; holdfast.due_exports() has those that do');
  end if;
  if mark_exported.until > due.until_at then
    perform holdfast.refuse_value(
      'until', mark_exported.until::text,
      format('must be at most %s: what is younger is not past its retention', due.until_at));
  end if;
  insert into holdfast.exported as e (partition, until, rows, bytes, sha256, location, exported_at, who)
  values (
    mark_exported.partition, coalesce(mark_exported.until, due.until_at), mark_exported.rows,
    mark_exported.bytes, mark_exported.sha256, mark_exported.location, now_at, session_user)
  on conflict (partition) do update
    set
      until = excluded.until, rows = excluded.rows, bytes = excluded.bytes, sha256 = excluded.sha256,
      location = excluded.location, exported_at = excluded.exported_at, who = excluded.who;
  delete from holdfast.swept s where s.partition = mark_exported.partition; -- it may be dropped now
  perform holdfast.note('export', mark_exported.partition, jsonb_strip_nulls(jsonb_build_object(
    'rows', mark_exported.rows, 'sha256', mark_exported.sha256, 'location', mark_exported.location)));
  return true;
end
$$;
comment on function holdfast.mark_exported(text, timestamptz, bigint, bigint, text, text) is
  'Record that a partition was exported, so that it can be dropped. Of a default partition, rows older than '
  '`until` count as exported. Returns false if another session has recorded it.';

-- For COPY: in a select list these functions return row by row and keep nothing in memory.
-- holdfast: role owner
create or replace function holdfast.export_finished(
  from_at timestamptz, until_at timestamptz, of_default boolean)
returns setof holdfast.finished
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select f.* from holdfast.finished f where not of_default and f.finished_at >= from_at
    and f.finished_at < until_at
  union all
  select f.* from holdfast.finished_default f where of_default and f.finished_at >= from_at
    and f.finished_at < until_at
$$;
comment on function holdfast.export_finished(timestamptz, timestamptz, boolean) is
  'Return the finished jobs of a period, or those that lie in the default partition.';

-- holdfast: role owner
create or replace function holdfast.export_event(
  from_at timestamptz, until_at timestamptz, of_default boolean)
returns setof holdfast.event
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select e.* from holdfast.event e where not of_default and e.at >= from_at and e.at < until_at
  union all
  select e.* from holdfast.event_default e where of_default and e.at >= from_at and e.at < until_at
$$;
comment on function holdfast.export_event(timestamptz, timestamptz, boolean) is
  'Return the events of a period, or those that lie in the default partition.';

-- holdfast: role owner
create or replace function holdfast.export_columns(parent text)
returns table (name text, type text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select a.attname, format_type(a.atttypid, a.atttypmod)
  from pg_attribute a
  where a.attrelid = ('holdfast.' || quote_ident(parent))::regclass
    and parent in ('finished', 'event')
    and a.attnum > 0
    and not a.attisdropped
  order by a.attnum
$$;
comment on function holdfast.export_columns(text) is
  'Return the columns of finished jobs (finished) or events (event), in order, with their types.';

-- finish.sql
-- Report the outcomes of many jobs in one statement.
--
-- Outcomes:
--
--   completed     the job has ended, and may have a result
--   cancelled     the job has ended
--   failed        the job is tried again by the retry policy, or after `delays`, or not at all if
--                 `retries` is false
--   snoozed       the job is tried again after `delays`, and the snooze uses up no attempt
--   released      the job never started: it is pending at once, and its attempt is refunded
--   interrupted   the job is pending at once, and its attempt stays counted
--
-- The other arrays are as long as `ids`, or null. Without an outcome a job is completed. A single
-- lease is used for all ids.
--
-- A report is accepted only under the lease of the current claim. Refused reports are returned,
-- each with its SQLSTATE. If the reply was lost and a report is repeated, it is accepted too.
--
-- With `skip_locked` the call does not wait for jobs that another transaction has locked, such
-- as an open cancel. It leaves such a job as it is and returns it as 55P03; report on it again
-- a little later. Set a `lock_timeout` too, for a lock that is taken while the function runs.
--
-- Lock order: rows of `live` by id, then the rows of other tables that belong to these jobs.
--
-- The body is long on purpose: each step that is a function of its own would cost a single
-- report 5 to 10 µs of 170. Steps that only some reports need are functions.
-- holdfast: role worker
create or replace function holdfast.finish(
  ids uuid[],
  leases uuid[],
  outcomes text[] default null,
  results jsonb[] default null,
  errors text[] default null,
  tracebacks text[] default null,
  retries boolean[] default null,
  delays interval[] default null,
  durations double precision[] default null,
  skip_locked boolean default false
)
returns setof holdfast.refusal
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at timestamptz;
  mixed boolean := coalesce(outcomes && '{failed,snoozed,released,interrupted}', false);
  locked boolean := mixed;
  shown uuid[];
  found record;
  lanes record;
  row_ids tid[];
  started boolean;
  maybe uuid[] := '{}'; -- jobs that may have events
  ended uuid[] := '{}'; -- jobs that the first round has ended
  lowest uuid;
  highest uuid;
  begun_at timestamptz;
  amount bigint;
  accepted bigint := 0;
begin
  if cardinality(leases) = 1 then
    leases := array_fill(leases[1], array[cardinality(ids)]);
  end if;
  perform holdfast.check_reports(ids, leases, outcomes);
  if results is not null then
    perform holdfast.check_json('result', r) from unnest(results) r
      where not holdfast.is_readable(r, r::text);
  end if;
  shown := leases;

  -- If all outcomes are completed or cancelled and the ids are sorted, no row is locked beforehand:
  -- the delete locks them in that order. If a row changes meanwhile, or there are other outcomes,
  -- all rows are locked first, in the order of ids, and read under the locks.
  --
  -- With skip_locked, the rows are also locked first if a transaction has touched one of them
  -- since its claim, because that transaction may still be open. (Always locking them would cost
  -- 0.7 µs a job of 6.3.) If a row is locked after it was read and before it is written, this call
  -- waits for it up to its lock_timeout, and then fails.
  loop
    if locked and skip_locked then
      -- Lock and read at once, so that the result lacks the jobs that others have locked.
      select
        array_agg(k.id) as ids, array_agg(k.row_id) as row_ids, array_agg(k.lane_id) as lanes,
        array_agg(k.id) filter (where k.came_back) as came_back, false as touched
      into found
      from (
        select j.id, j.ctid as row_id, j.lane_id, j.attempt > 1 or j.headers ? 'resumes' as came_back
        from holdfast.live j
        where j.id = any(ids)
          and j.lease = any(array(select distinct l from unnest(leases) l))
        order by j.id
        for update skip locked
      ) k;
    else
      if locked then
        -- Skip jobs that another claim holds by now: this call would wait for their reports.
        perform
        from (select r.id, r.lease from unnest(ids, leases) r (id, lease) order by r.id offset 0) r
        cross join lateral (
          select from holdfast.live j where j.id = r.id and (j.lease = r.lease or j.lease is null) for update
        ) j;
      end if;
      select
        array_agg(k.id) as ids, array_agg(k.row_id) as row_ids, array_agg(k.lane_id) as lanes,
        array_agg(k.id) filter (where k.came_back) as came_back, bool_or(k.touched) as touched
      into found
      from (
        select
          j.id, j.ctid as row_id, j.lane_id, j.attempt > 1 or j.headers ? 'resumes' as came_back,
          j.xmax <> j.xmin and j.xmax <> '0' as touched
        from holdfast.live j
        where j.id = any(ids)
        order by j.id
      ) k;
      if skip_locked and found.touched then
        locked := true;
        continue;
      end if;
    end if;
    maybe := maybe || coalesce(found.came_back, '{}');
    lowest := least(lowest, found.ids[1]);
    highest := greatest(highest, found.ids[cardinality(found.ids)]);
    if found.ids = ids then -- so the ids are sorted and distinct
      row_ids := found.row_ids;
    elsif locked then
      perform holdfast.refuse_doubles(ids);
      row_ids := array(
        select found.row_ids[array_position(found.ids, i.id)] from unnest(ids) with ordinality i (id, n)
          order by i.n
      );
      if skip_locked then -- without its lease, a skipped job matches no statement below
        leases := array(
          select case when r.row_id is not null or r.id = any(ended) then r.lease end
          from unnest(ids, leases, row_ids) with ordinality r (id, lease, row_id, n)
          order by r.n
        );
      end if;
    else
      locked := true;
      continue;
    end if;
    -- Look up each lane once, not once for each job. While any session holds an old snapshot, a
    -- look-up reads one dead row version for each move of the head.
    select array_agg(l.id) as ids, array_agg(l.queue) as queues,
      array_agg(l.priority) as priorities into lanes
    from holdfast.lane l
    where l.id = any(found.lanes);
    now_at := holdfast.clock(); -- read it here, because the wait for a lock may have been long
    begun_at := coalesce(begun_at, now_at);
    started := exists (select from holdfast.running x where x.job_id = any(ids));

    with gone as (
      delete from holdfast.live j
      using unnest(ids, leases, row_ids, outcomes, results, errors, durations) r (
        id, lease, row_id, outcome, result, error, duration)
      where j.ctid = r.row_id
        and j.id = r.id
        and j.lease = r.lease
        and (r.outcome is null or r.outcome in ('completed', 'cancelled'))
      returning
        j.id, j.task, j.payload, j.headers, j.attempt, j.max_attempts, j.worker_id, j.lease, j.run_at,
        j.created_at, j.claimed_at,
        coalesce(r.outcome, 'completed') as outcome, r.result, coalesce(r.error, j.last_error) as last_error,
        array_position(lanes.ids, j.lane_id) as lane,
        -- Keep the start between the claim and now, because the worker measured by its own clock.
        greatest(
          coalesce(
            case when started
              then (
              select x.started_at from holdfast.running x where x.job_id = j.id and x.lease = j.lease) end,
            now_at - case when r.duration is not null
              then least(greatest(r.duration, 0), 1e9) end * interval '1 second',
            j.claimed_at),
          j.claimed_at) as started_at,
        date_part('epoch', j.claimed_at - greatest(j.run_at, j.created_at)) as waited
    ),
    kept as (
      insert into holdfast.finished (
        id, queue, priority, task, payload, headers, state, attempt, max_attempts, worker_id, lease, result,
        last_error, run_at, created_at, claimed_at, started_at, finished_at, duration
      )
      select
        g.id, lanes.queues[g.lane], lanes.priorities[g.lane], g.task, g.payload, g.headers, g.outcome,
        g.attempt, g.max_attempts,
        g.worker_id, g.lease, g.result, g.last_error, g.run_at, g.created_at, g.claimed_at,
        g.started_at, now_at, now_at - g.started_at
      from gone g
    ),
    -- Count them here: one row for all that completed, and one for all that were cancelled.
    counted as (
      insert into holdfast.stat_delta (at, outcome, lanes, buckets, jobs, wait_seconds, run_seconds)
      select
        now_at, c.outcome, array_agg(lanes.ids[c.lane]), array_agg(c.bucket), array_agg(c.jobs),
        array_agg(c.waited), array_agg(c.ran)
      from (
        select
          g.lane, g.outcome,
          holdfast.stat_bucket(g.waited, date_part('epoch', now_at - g.started_at)) as bucket,
          count(*) as jobs,
          sum(greatest(g.waited, 0)) as waited, sum(date_part('epoch', now_at - g.started_at)) as ran
        from gone g
        group by 1, 2, 3
      ) c
      group by c.outcome
    )
    select count(*), array_agg(g.id) into amount, ended from gone g;

    accepted := accepted + amount;
    -- An event may have been published after the first check and before the delete.
    started := started or exists (select from holdfast.running x where x.job_id = any(ids));
    exit when locked or accepted = cardinality(ids);
    locked := true;
  end loop;

  -- Only in READ COMMITTED. A handler may finish its own job in a transaction with an older
  -- snapshot. If progress was reported meanwhile, this delete would make that transaction fail.
  -- upkeep() deletes the rows that stay.
  if started and current_setting('transaction_isolation') = 'read committed' then
    maybe := maybe || array(select x.job_id from holdfast.running x where x.job_id = any(ids));
    delete from holdfast.running x
    where x.job_id = any(ids)
      and not exists (select from holdfast.live j where j.id = x.job_id offset 0);
  end if;
  if maybe <> '{}' or 'cancelled' = any(outcomes) then
    perform holdfast.log_ends(ids, leases, outcomes, maybe, begun_at);
  end if;
  -- Search only this range of ids. While any session holds an old snapshot, a search of the whole
  -- index would read all waiters that were deleted since.
  if accepted > 0 and exists (select from holdfast.waiter w where w.job_id between lowest and highest) then
    perform holdfast.tell_waiters(ids);
  end if;

  if mixed then
    accepted := accepted + holdfast.give_back(
      ids, leases, outcomes, errors, tracebacks, retries, delays, durations, now_at);
  end if;

  if accepted < cardinality(ids) then
    return query
      select
        v.id, coalesce(v.sqlstate, '55P03'),
        coalesce(v.message, format('another transaction has locked job %s', v.id)), v.state, v.lease
      from unnest(ids, shown, outcomes) r (id, lease, outcome)
      cross join lateral holdfast.verdict(r.id, r.lease, coalesce(r.outcome, 'completed')) v
      where v.sqlstate is not null
        -- The job is still held under this lease, so it was skipped. A repeated report is accepted even
        -- if another claim holds the job.
        or (skip_locked
          and exists (select from holdfast.live j where j.id = r.id and j.lease = r.lease offset 0));
  end if;
end
$$;
comment on function holdfast.finish(
  uuid[], uuid[], text[], jsonb[], text[], text[], boolean[], interval[], double precision[], boolean) is
  'Report the outcomes of many jobs, each under the lease of its claim. Returns the refused reports with '
  'the reasons; with skip_locked also those of jobs that another transaction has locked, as 55P03.';

-- Write the events of jobs that finish() has just completed or cancelled. A completed job gets
-- one only if it has other events, which the jobs in `maybe` may have.
create or replace function holdfast.log_ends(
  ids uuid[], leases uuid[], outcomes text[], maybe uuid[], begun_at timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.log_events(
    array_agg(f.id), array_agg(f.queue), array_agg(f.task), array_agg(f.attempt),
    array_agg('job.' || f.state),
    array_agg(
      case when f.state = 'cancelled'
      then jsonb_strip_nulls(jsonb_build_object('reason', left(f.last_error, 1000))) end),
    max(f.finished_at))
  from unnest(ids, leases, outcomes) r (id, lease, outcome)
  cross join lateral (
    select f.* from holdfast.finished f where f.id = r.id and f.lease = r.lease
      and f.finished_at >= begun_at offset 0
  ) f
  where r.outcome = 'cancelled'
    or (
      r.id = any(maybe)
      -- Only in READ COMMITTED: under an older snapshot, an event that another session wrote meanwhile
      -- would make the transaction fail.
      and current_setting('transaction_isolation') = 'read committed'
      and exists (select from holdfast.event_count c where c.job_id = r.id offset 0)
    )
$$;
comment on function holdfast.log_ends(uuid[], uuid[], text[], uuid[], timestamptz) is
  'Write the events of jobs that were just completed or cancelled.';

-- fire.sql
-- Fire the schedules that are due: put one job on its queue for each tick, a time of a schedule.
--
-- The duty locks the schedules that are due, enqueues their jobs and sets `next_at` to the
-- next tick, all in one transaction. So a crash leaves either both or neither. A schedule
-- that is locked is looked at a little later, so no session waits. The primary key of
-- `schedule_tick` decides whether a tick has had its job.
--
-- Ticks that were due while nothing ran:
--
--   skip   none of them, except one of the last minute
--   once   the last one
--   all    each of the last 7 days, a thousand at a time

-- Run for about a second. The result is zero or less if more schedules are due, and null if
-- there is no schedule. A schedule that another session has locked is looked at again a little
-- later.
-- holdfast: role worker
create or replace function holdfast.fire()
returns interval
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  deadline timestamptz := clock_timestamp() + interval '1 second';
  due holdfast.schedule;
  most constant integer := 1000;
  looked_at integer := 0;
  more boolean := false;
  behind boolean := false; -- a schedule that had more ticks than are fired at a time
  next_at timestamptz;
begin
  perform holdfast.check_isolation('fire');
  -- The clock was ahead and was set back. No tick comes twice.
  update holdfast.schedule s
  set
    next_at = holdfast.tick_again(s, now_at), planned_at = now_at,
    last_at = case when s.last_at <= now_at + interval '1 minute' then s.last_at end
  where s.paused_at is null
    and holdfast.planned_ahead(s, now_at);
  for due in
    select s.*
    from holdfast.schedule s
    where s.paused_at is null
      and s.next_at <= now_at
    order by s.next_at
    limit most
    for update skip locked
  loop
    looked_at := looked_at + 1;
    more := clock_timestamp() > deadline;
    exit when more;
    begin
      perform holdfast.fire_one(due, now_at, deadline);
      behind := behind or (select s.next_at <= now_at from holdfast.schedule s where s.name = due.name);
    exception when others then
      -- Locks, deadlocks and full disks pass, and the tick is still due then.
      if left(sqlstate, 2) in ('40', '53', '55', '57', '58') then
        raise;
      end if;
      -- A schedule that is refused must not stop others. It is tried again at its next tick.
      update holdfast.schedule s
      set error = left(sqlerrm, 1000), next_at = holdfast.tick_again(due, now_at), planned_at = now_at,
        skipped = s.skipped + 1
      where s.name = due.name;
    end;
  end loop;
  if looked_at > 0 then
    perform holdfast.note_fired(now_at);
  end if;
  next_at := (select min(s.next_at) from holdfast.schedule s where s.paused_at is null);
  more := more or behind or looked_at = most or clock_timestamp() > deadline;
  return case when next_at <= now_at and not more then interval '100 milliseconds' else next_at - now_at end;
end
$$;
comment on function holdfast.fire() is
  'Put the jobs of all due schedules on their queues. Returns how long it is until the next schedule is '
  'due.';

-- Fire the due ticks of one schedule by its policy, until the deadline. The caller has locked the schedule.
create or replace function holdfast.fire_one(due holdfast.schedule, now_at timestamptz, deadline timestamptz)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  most constant integer := 1000;
  moment timestamptz := due.next_at;
  done integer := 0;
begin
  if due.missed = 'all' then
    if moment < now_at - interval '7 days' then
      moment := holdfast.tick_after(due, now_at - interval '7 days');
    end if;
  else
    moment := holdfast.tick_before(due, now_at);
  end if;
  while moment <= now_at and done < most loop
    if due.missed = 'skip' and moment < now_at - interval '1 minute'
      or not due.overlap and exists (select from holdfast.live j where j.id = due.last_job offset 0) then
      due.skipped := due.skipped + 1;
    else
      insert into holdfast.schedule_tick (schedule, tick) values (due.name, moment) on conflict do nothing;
      if found then
        due.last_job := holdfast.enqueue_tick(due, moment, now_at);
        update holdfast.schedule_tick t set job_id = due.last_job where t.schedule = due.name
          and t.tick = moment;
      end if;
    end if;
    due.last_at := moment;
    moment := holdfast.tick_after(due, moment);
    done := done + 1;
    exit when clock_timestamp() > deadline;
  end loop;
  update holdfast.schedule s
  set next_at = moment, planned_at = now_at, last_at = due.last_at, last_job = due.last_job,
    skipped = due.skipped, error = null
  where s.name = due.name;
end
$$;
comment on function holdfast.fire_one(holdfast.schedule, timestamptz, timestamptz) is
  'Put the jobs of one schedule on its queue for the ticks that are due.';

-- The headers of the job name its schedule and its tick.
create or replace function holdfast.enqueue_tick(due holdfast.schedule, tick timestamptz, now_at timestamptz)
returns uuid
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  job_id uuid := holdfast.enqueue(
    due.task,
    due.payload,
    due.queue,
    due.priority,
    run_at => case when due.jitter > interval '0' and tick is not null
      then nullif(greatest(tick + random() * due.jitter, now_at), now_at) end,
    max_attempts => due.max_attempts);
begin
  -- These names are reserved; enqueue() refuses them.
  update holdfast.live j
  set headers = jsonb_strip_nulls(jsonb_build_object('schedule', due.name, 'tick', enqueue_tick.tick))
  where j.id = job_id;
  return job_id;
end
$$;
comment on function holdfast.enqueue_tick(holdfast.schedule, timestamptz, timestamptz) is
  'Put the job of a schedule on its queue.';

-- A schedule of 0.1 has no planned_at: it was planned no earlier than its last tick.
create or replace function holdfast.planned_ahead(given holdfast.schedule, now_at timestamptz)
returns boolean
language sql stable
as $$
  select coalesce(given.planned_at, greatest(given.last_at, given.created_at)) > now_at + interval '1 minute'
$$;
comment on function holdfast.planned_ahead(holdfast.schedule, timestamptz) is
  'Return whether the next time of a schedule was computed by a clock that has been set back since.';

-- A minute from now if there is no next tick, for example because the zone is no longer known.
create or replace function holdfast.tick_again(given holdfast.schedule, now_at timestamptz)
returns timestamptz
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  return holdfast.tick_after(given, now_at);
exception when others then
  return now_at + interval '1 minute';
end
$$;
comment on function holdfast.tick_again(holdfast.schedule, timestamptz) is
  'Return the next time of a schedule, or a minute from now if it cannot be computed.';

-- Record that the duty ended well, at most once a minute. Several sessions may fire at the same
-- time, and none of them waits for another one's note.
create or replace function holdfast.note_fired(now_at timestamptz)
returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  if not holdfast.is_old((select d.done_at from holdfast.duty d where d.name = 'fire'), now_at) then
    return;
  end if;
  if not exists (select from holdfast.duty d where d.name = 'fire') then
    insert into holdfast.duty (name, done_at) values ('fire', now_at) on conflict (name) do nothing;
  end if;
  update holdfast.duty d
  set done_at = now_at
  where d.name = (select o.name from holdfast.duty o where o.name = 'fire' for update skip locked);
end
$$;
comment on function holdfast.note_fired(timestamptz) is
  'Record that schedules were fired, unless another session is recording it.';

-- A schedule that was planned by a clock that was ahead is due at once.
create or replace function holdfast.next_tick(now_at timestamptz)
returns timestamptz
language sql stable
as $$
  select min(case when holdfast.planned_ahead(s, next_tick.now_at) then next_tick.now_at else s.next_at end)
  from holdfast.schedule s
  where s.paused_at is null
$$;
comment on function holdfast.next_tick(timestamptz) is
  'Return when the next schedule is due; null if there is none.';

-- fitting.sql
-- Measure payloads, so that one claim returns no more than 16 MiB.

-- The exact size of a compressed payload is known only after unpacking it. At most, pglz makes
-- 88 bytes of one byte, and lz4 255. There is no SET clause, so that PostgreSQL inlines the
-- function.
create or replace function holdfast.bytes_at_most(payload jsonb)
returns integer
language sql stable
as $$
  select case
    when pg_column_compression(payload) is null then pg_column_size(payload)
    -- the sum of two still fits an integer
    else least(255::bigint * pg_column_size(payload), 1023 * 1024 * 1024)::integer
  end
$$;
comment on function holdfast.bytes_at_most(jsonb) is
  'Return an upper bound of the size of a payload as it is sent, without unpacking it.';

-- Return how many of the first jobs fit, and unpack no more payloads than that. `places` are the
-- row ids (ctid) of the jobs.
create or replace function holdfast.fitting(places tid[], room bigint)
returns table (amount integer, bytes bigint)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  row_id tid;
  size integer;
begin
  amount := 0;
  bytes := 0;
  foreach row_id in array places loop
    select
      case when pg_column_compression(j.payload) is null then pg_column_size(j.payload)
        else octet_length(j.payload::text) end
      + coalesce(
        case when pg_column_compression(j.headers) is null then pg_column_size(j.headers)
        else octet_length(j.headers::text) end, 0)
    into size
    from holdfast.live j
    where j.ctid = row_id;
    exit when bytes + size > room;
    amount := amount + 1;
    bytes := bytes + size;
  end loop;
  return next;
end
$$;
comment on function holdfast.fitting(tid[], bigint) is
  'Return how many of the first jobs fit together, and how many bytes they have.';

-- fold_stats.sql
-- Count what was done: finish() and others append to stat_delta, and fold_stats() adds it up in stat.
--
-- A batch of reports costs one more row and waits for nobody. Once a second, the duty adds the
-- latest rows to those of their minute and their hour. Rows that a long transaction committed
-- late are found once a minute: each search for them walks over all that was deleted since the
-- oldest snapshot that anyone holds.

-- Add up what was appended, for up to a second; the next call continues. Return how many rows of
-- stat_delta were added up.
-- holdfast: role worker
create or replace function holdfast.fold_stats(all_of_them boolean default true)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  begun constant timestamptz := clock_timestamp();
  oldest constant timestamptz := case when all_of_them then '-infinity'
    else holdfast.clock() - interval '1 minute' end;
  row_ids tid[];
  total integer := 0;
begin
  perform holdfast.check_isolation('fold_stats');
  if not holdfast.try_duty('fold_stats') then
    return 0;
  end if;
  loop
    row_ids := array(select d.ctid from holdfast.stat_delta d where d.at >= oldest order by d.at limit 1000);
    exit when row_ids = '{}';
    with gone as (
      delete from holdfast.stat_delta d where d.ctid = any(row_ids) returning d.*
    ),
    grouped as materialized (
      select
        date_trunc('minute', g.at, 'UTC') as at, g.outcome, u.lane, u.bucket,
        sum(u.jobs) as jobs, sum(u.waited) as waited, sum(u.ran) as ran
      from gone g
      cross join lateral unnest(g.lanes, g.buckets, g.jobs, g.wait_seconds, g.run_seconds)
        u (lane, bucket, jobs, waited, ran)
      group by 1, 2, 3, 4
    ),
    -- Look up each lane once.
    lanes as materialized (
      select n.lane, l.queue, l.task
      from (select distinct g.lane from grouped g) n
      cross join lateral (select l.queue, l.task from holdfast.lane l where l.id = n.lane offset 0) l
    ),
    -- The lane must not be removed when it is empty for a moment.
    noted as (
      insert into holdfast.lane_activity (lane_id, at)
      select n.lane, holdfast.clock()
      from lanes n
      where not exists (
        select from holdfast.lane_activity a where a.lane_id = n.lane
          and a.at >= holdfast.clock() - interval '5 minutes' offset 0)
      on conflict (lane_id) do update set at = excluded.at
    )
    insert into holdfast.stat (
      span, at, queue, task, completed, failed, dead, cancelled, wait_seconds, run_seconds, waits, runs
    )
    select
      s.span, date_trunc(s.span, g.at, 'UTC'), l.queue, l.task,
      coalesce(sum(g.jobs) filter (where g.outcome = 'completed'), 0),
      coalesce(sum(g.jobs) filter (where g.outcome = 'failed'), 0),
      coalesce(sum(g.jobs) filter (where g.outcome = 'dead'), 0),
      coalesce(sum(g.jobs) filter (where g.outcome = 'cancelled'), 0),
      sum(g.waited), sum(g.ran),
      holdfast.histogram(array_agg(g.bucket / 64), array_agg(g.jobs)),
      holdfast.histogram(array_agg(g.bucket % 64), array_agg(g.jobs))
    from grouped g
    join lanes l on l.lane = g.lane
    cross join (values ('minute'), ('hour')) s (span)
    group by 1, 2, 3, 4
    on conflict (span, at, queue, task) do update set
      completed = stat.completed + excluded.completed,
      failed = stat.failed + excluded.failed,
      dead = stat.dead + excluded.dead,
      cancelled = stat.cancelled + excluded.cancelled,
      wait_seconds = stat.wait_seconds + excluded.wait_seconds,
      run_seconds = stat.run_seconds + excluded.run_seconds,
      waits = holdfast.add_counts(stat.waits, excluded.waits),
      runs = holdfast.add_counts(stat.runs, excluded.runs);
    total := total + cardinality(row_ids);
    exit when cardinality(row_ids) < 1000 or clock_timestamp() > begun + interval '1 second';
  end loop;
  return total;
end
$$;
comment on function holdfast.fold_stats(boolean) is
  'Add up the reports since the last fold into the statistics of their minute and hour. With all_of_them '
  'false, only those of the last minute.';

-- For calls that end a few jobs. finish() does the same with the rows that it has.
create or replace function holdfast.note_ends(
  outcome text, lanes integer[], waits double precision[], runs double precision[], now_at timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.stat_delta (at, outcome, lanes, buckets, jobs, wait_seconds, run_seconds)
  select now_at, note_ends.outcome, array_agg(g.lane), array_agg(g.bucket), array_agg(g.jobs),
    array_agg(g.waited), array_agg(g.ran)
  from (
    select
      e.lane, holdfast.stat_bucket(e.waited, e.ran) as bucket, count(*) as jobs,
      coalesce(sum(greatest(e.waited, 0)), 0) as waited, coalesce(sum(greatest(e.ran, 0)), 0) as ran
    from unnest(lanes, waits, runs) e (lane, waited, ran)
    group by 1, 2
  ) g
  having count(*) > 0
$$;
comment on function holdfast.note_ends(
  text, integer[], double precision[], double precision[], timestamptz) is
  'Add attempts that ended to the statistics, with how long they waited and ran.';

-- Minutes are kept for two hours, hours for eight days.
create or replace function holdfast.forget_stats(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  forgotten integer;
begin
  perform holdfast.fold_stats();
  delete from holdfast.stat s
  where s.span = 'minute' and s.at < now_at - interval '2 hours'
    or s.span = 'hour' and s.at < now_at - interval '8 days';
  get diagnostics forgotten = row_count;
  return forgotten;
end
$$;
comment on function holdfast.forget_stats(timestamptz) is
  'Fold all statistics, then delete those of old minutes and hours.';

-- forget_dead.sql
-- Delete dead letters that are past the dead_retention of their queue, and their events. A caller
-- may have used the id of a letter again: then the events stay with the later job.

create or replace function holdfast.forget_dead(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  ids constant uuid[] := array(select holdfast.dead_past(now_at, 5000));
  gone uuid[];
begin
  delete from holdfast.dead_letter d where d.id = any(ids);
  gone := holdfast.ids_without_job(ids);
  delete from holdfast.event e where e.job_id = any(gone);
  perform holdfast.delete_rest(gone);
  return cardinality(ids);
end
$$;
comment on function holdfast.forget_dead(timestamptz) is
  'Delete up to 5,000 dead letters past the retention of their queue, with their errors and steps. Returns '
  'how many.';

-- Queue by queue along the index, so that letters that are kept longer are not read.
create or replace function holdfast.dead_past(now_at timestamptz, amount integer)
returns setof uuid
language sql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
  with recursive queues (name) as (
    (select d.queue from holdfast.dead_letter d order by d.queue limit 1)
    union all
    select (select d.queue from holdfast.dead_letter d where d.queue > q.name order by d.queue limit 1)
    from queues q
    where q.name is not null
  ),
  kept as materialized (
    select q.name, coalesce(own.dead_retention, every.dead_retention, interval '365 days') as span
    from queues q
    left join holdfast.queue own on own.name = q.name
    left join holdfast.queue every on every.name = '*'
    where q.name is not null
  )
  select d.id
  from kept k
  cross join lateral (
    select d.id
    from holdfast.dead_letter d
    where d.queue = k.name
      and d.died_at < now_at - k.span
    order by d.died_at
    limit dead_past.amount
    for update skip locked
  ) d
  limit dead_past.amount
$$;
comment on function holdfast.dead_past(timestamptz, integer) is
  'Lock and return dead letters past the retention of their queue.';

-- forget_finished.sql
-- Delete, past the longest retention, what no dropped partition removes: errors, steps,
-- checkpoints and event counts of jobs that no longer exist, and waiters that were not heard from
-- again. Bounded in rows.
create or replace function holdfast.forget_finished(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  oldest timestamptz;
  waiters integer;
begin
  oldest := now_at - holdfast.longest_retention();
  delete from holdfast.waiter w
  where w.since < now_at - interval '1 minute'
    and (
      w.since < now_at - interval '7 days'
      or not exists (select from holdfast.live j where j.id = w.job_id offset 0));
  get diagnostics waiters = row_count;
  return waiters
    + holdfast.forget_old('attempt_error', 'failed_at', oldest, '{live,dead_letter}')
    + holdfast.forget_old('step', 'finished_at', oldest, '{live,dead_letter}')
    + holdfast.forget_old('checkpoint', 'changed_at', oldest, '{live,dead_letter}')
    + holdfast.forget_old('event_count', 'last_at', oldest, '{live,dead_letter}');
end
$$;
comment on function holdfast.forget_finished(timestamptz) is
  'Delete, past the longest retention, what is left of jobs that no longer exist, and waiters that are '
  'gone.';

-- Delete up to 10,000 old rows of a table, except those of jobs in one of the other tables. The
-- time is checked again in the delete, since a row may have a newer version by then.
create or replace function holdfast.forget_old(
  from_table text, time_column text, oldest timestamptz, unless_in text[])
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  others text := (
    select string_agg(
      format(' and not exists (select from holdfast.%I x where x.id = o.job_id offset 0)', u), '')
    from unnest(unless_in) u);
  forgotten integer;
begin
  execute format(
    'delete from holdfast.%1$I t where t.%2$I < $1 and t.ctid = any(array('
    'select o.ctid from holdfast.%1$I o where o.%2$I < $1%3$s limit 10000))',
    from_table, time_column, others)
  using oldest;
  get diagnostics forgotten = row_count;
  return forgotten;
end
$$;
comment on function holdfast.forget_old(text, text, timestamptz, text[]) is
  'Delete old rows of a table whose job is in none of the other tables given. Returns how many.';

-- forget_leftovers.sql
-- Delete what ended jobs and workers have left behind: ids, names of queues, rows of attempts,
-- tombstones of workers. Also delete old ticks of schedules.
create or replace function holdfast.forget_leftovers(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  forgotten integer := 0;
  amount integer;
begin
  -- An id stays known for 7 days, and as long as its job lives.
  delete from holdfast.used_id u
  where u.id in (
    select o.id from holdfast.used_id o
    where o.used_at < now_at - interval '7 days'
      and not exists (select from holdfast.live j where j.id = o.id offset 0)
    limit 50000);
  get diagnostics amount = row_count;
  forgotten := forgotten + amount;

  delete from holdfast.known_queue k
  where k.seen_at < now_at - holdfast.longest_retention()
    and not exists (select from holdfast.dead_letter d where d.queue = k.name offset 0);
  get diagnostics amount = row_count;
  forgotten := forgotten + amount;

  delete from holdfast.worker w
  where greatest(w.lost_at, w.left_at) < now_at - interval '1 day'
    and not exists (select from holdfast.live j where j.worker_id = w.id and j.state = 'claimed' offset 0);
  get diagnostics amount = row_count;
  forgotten := forgotten + amount;

  -- A handler that finished its job in its own transaction may have left these behind.
  delete from holdfast.running r
  where r.changed_at < now_at - interval '1 minute'
    and not exists (select from holdfast.live j where j.id = r.job_id and j.lease = r.lease offset 0);
  get diagnostics amount = row_count;
  forgotten := forgotten + amount;

  delete from holdfast.cancellation c
  where not exists (select from holdfast.live j where j.id = c.job_id and j.lease = c.lease offset 0);
  get diagnostics amount = row_count;
  forgotten := forgotten + amount;

  delete from holdfast.death d
  where not exists (select from holdfast.live j where j.id = d.job_id offset 0);
  get diagnostics amount = row_count;
  forgotten := forgotten + amount;

  delete from holdfast.schedule_tick t
  where t.ctid = any(array(
    select o.ctid from holdfast.schedule_tick o where o.tick < now_at - interval '30 days' limit 50000));
  get diagnostics amount = row_count;
  forgotten := forgotten + amount;
  return forgotten;
end
$$;
comment on function holdfast.forget_leftovers(timestamptz) is
  'Delete old ids, the tombstones of workers, old ticks, and rows of jobs that are no longer live. Returns '
  'how many.';

-- gauges.sql
-- Measure the database for a monitoring system, in addition to the jobs.
--
-- Each value is read from memory or from a few rows, so it may be asked for every few seconds
-- however many jobs wait. New gauges may be added in any release.
-- holdfast: role worker viewer
create or replace function holdfast.gauges()
returns table (name text, value double precision, meaning text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
begin
  return query values
    ('notify_queue_usage', pg_notification_queue_usage(),
      'How full the queue of notifications of the server is, from 0 to 1.'),
    ('heads_lag_places',
      coalesce((select max(greatest(l.head - l.safe_head, 0)) from holdfast.lane l), 0)::double precision,
      'How far the proven heads are behind those that claims read from.'),
    ('oldest_writer_seconds',
      coalesce((
        select extract(epoch from now_at - min(s.seen_at))
        from holdfast.writer_watch w
        cross join lateral unnest(w.seen_at) s (seen_at)
      ), 0)::double precision,
      'How long the oldest transaction that may have enqueued something is open.'),
    ('duties_failed',
      (select count(*) from holdfast.duty d
      where d.error_at > now_at - interval '5 minutes')::double precision,
      'Background duties that failed within the last five minutes.');
end
$$;
comment on function holdfast.gauges() is
  'Return measures of the database for a monitoring system: each with its name, value and meaning.';

-- give_back.sql
-- Write the failed, snoozed, released and interrupted reports of finish().
--
--   1. Decide the `verb` of each report: what happens to its job.
--   2. Store the errors, count the failures and log the events.
--   3. Change the jobs:
--
--        failed, snoozed         the job becomes scheduled
--        released, interrupted   the job becomes pending
--        dead                    the job may not be tried again: it moves to the dead letters
--        cancelled               the job was asked to cancel: it moves to the finished jobs
--
--   4. Delete the rows of these jobs in `running`.
--
-- finish() has locked the jobs. So a statement can find a job first and update it by its ctid: no
-- other transaction moves the row in between.
create or replace function holdfast.give_back(
  ids uuid[],
  leases uuid[],
  outcomes text[],
  errors text[],
  tracebacks text[],
  retries boolean[],
  delays interval[],
  durations double precision[],
  now_at timestamptz
)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  attempts holdfast.returned_attempt[];
begin
  attempts := holdfast.returned_attempts(
    ids, leases, outcomes, errors, tracebacks, retries, delays, durations, now_at);
  if attempts = '{}' then
    return 0;
  end if;

  insert into holdfast.attempt_error (job_id, attempt, failed_at, worker_id, error, traceback)
  select r.id, r.attempt, now_at, r.worker_id, left(r.error, 10000), left(r.traceback, 20000)
  from unnest(attempts) r
  where r.error is not null;
  perform holdfast.note_ends('failed', array_agg(r.lane_id), array_agg(r.waited), array_agg(r.ran), now_at)
  from unnest(attempts) r
  where r.is_failure
  having count(*) > 0;
  perform holdfast.log_returned(attempts, now_at);

  perform holdfast.end_jobs(r.verb, array_agg(r.id), array_agg(r.error), now_at)
  from unnest(attempts) r
  where r.verb in ('dead', 'cancelled')
  group by r.verb;
  -- Call return_jobs() once for each of the two verbs. Interrupted jobs go to the returned lane
  -- (kind 1). Released jobs get their attempt back, and pass no kind, so suspects stay suspects.
  -- Interrupted jobs had started, so they come first and get the earlier places.
  perform holdfast.return_jobs(
    array_agg(r.id), array_agg(r.error), case r.verb when 'released' then array_agg(r.id) else '{}' end,
    case r.verb when 'interrupted' then 1 end, now_at)
  from unnest(attempts) r
  where r.verb in ('interrupted', 'released')
  group by r.verb
  order by r.verb;

  update holdfast.live j
  set
    state = 'scheduled',
    run_at = now_at + r.wait,
    -- Raise max_attempts, so that a snooze uses up no attempt. At 32767 it stops rising, so that a
    -- job cannot snooze forever.
    max_attempts = case when r.verb = 'snoozed' then least(j.max_attempts + 1, 32767) else j.max_attempts end,
    last_error = coalesce(left(r.error, 10000), j.last_error),
    last_lease = j.lease,
    last_outcome = r.verb,
    lease = null,
    worker_id = null,
    changed_at = now_at
  from (
    select i.verb, i.error, i.wait, p.row_id
    from unnest(attempts) i
    cross join lateral (select j.ctid as row_id from holdfast.live j where j.id = i.id offset 0) p
    where i.verb in ('failed', 'snoozed')
  ) r
  where j.ctid = r.row_id;

  delete from holdfast.running x where x.job_id = any(array(select r.id from unnest(attempts) r));
  return cardinality(attempts);
end
$$;
comment on function holdfast.give_back(
  uuid[], uuid[], text[], text[], text[], boolean[], interval[], double precision[], timestamptz) is
  'Write failed, snoozed, released and interrupted reports, and change the state of their jobs. Returns how '
  'many reports were accepted.';

-- Return the accepted reports, each with the `verb` for its job: the outcome, or dead, or cancelled.
-- A report is accepted only under the lease of the current claim.
--
-- The language is PL/pgSQL because it keeps the plan. SQL would plan the query in each transaction.
create or replace function holdfast.returned_attempts(
  ids uuid[],
  leases uuid[],
  outcomes text[],
  errors text[],
  tracebacks text[],
  retries boolean[],
  delays interval[],
  durations double precision[],
  now_at timestamptz
)
returns holdfast.returned_attempt[]
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  return array(
    select row( -- the columns of the type, in its order
      j.id, j.lane_id, j.attempt, j.worker_id,
      -- verb. A job that was started as `once` must not run a second time.
      case
        when j.cancel_requested_at is not null then 'cancelled'
        when r.outcome in ('failed', 'interrupted')
          and (r.retry is false or x.once or j.attempt >= j.max_attempts) then 'dead'
        else r.outcome
      end,
      -- error
      case r.outcome
        when 'interrupted' then coalesce(r.error, 'interrupted: its worker was stopped')
        when 'failed' then coalesce(r.error, 'failed')
      end,
      r.traceback,
      -- wait: between 0 and 100 years. A null delay becomes 0, because greatest() ignores nulls.
      least(
        greatest(
          case
            when r.outcome = 'failed' then coalesce(r.delay, holdfast.retry_delay(j.task, j.attempt, l.queue))
            else r.delay
          end,
          interval '0'),
        interval '100 years'),
      -- is_failure. A failed attempt does not count as a failure if its job was asked to cancel.
      r.outcome = 'failed' and j.cancel_requested_at is null,
      -- waited: how many seconds the job was due before its claim
      date_part('epoch', j.claimed_at - greatest(j.run_at, j.created_at)),
      -- ran: the seconds that the worker has measured, or those since the start
      case
        when r.duration is null then date_part('epoch', now_at - coalesce(x.started_at, j.claimed_at))
        else least(greatest(r.duration, 0), 1e9)
      end
    )::holdfast.returned_attempt
    from unnest(ids, leases, outcomes, errors, tracebacks, retries, delays, durations)
      r (id, lease, outcome, error, traceback, retry, delay, duration)
    cross join lateral (select * from holdfast.live j where j.id = r.id and j.lease = r.lease offset 0) j
    join holdfast.lane l on l.id = j.lane_id
    left join lateral (
      select x.* from holdfast.running x where x.job_id = j.id and x.lease = j.lease offset 0
    ) x on true
    where r.outcome in ('failed', 'snoozed', 'released', 'interrupted')
  );
end
$$;
comment on function holdfast.returned_attempts(
  uuid[], uuid[], text[], text[], text[], boolean[], interval[], double precision[], timestamptz) is
  'Return the accepted reports, each with the verb for its job: the outcome, or dead, or cancelled.';

-- Write the events of failed, snoozed and interrupted attempts. The events keep the progress, which
-- give_back() then deletes with the row in `running`.
--
-- end_jobs() logs the dead and the cancelled jobs. A release is not logged.
create or replace function holdfast.log_returned(returned holdfast.returned_attempt[], now_at timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.log_events(
    array_agg(r.id), array_agg(l.queue), array_agg(j.task), array_agg(r.attempt), array_agg('job.' || r.verb),
    array_agg(jsonb_strip_nulls(jsonb_build_object(
      'error', left(r.error, 1000),
      'run_at', case when r.verb <> 'interrupted' then now_at + r.wait end,
      'progress', x.progress, 'stage', x.stage, 'step', x.step))),
    now_at)
  from unnest(returned) r
  cross join lateral (select j.task from holdfast.live j where j.id = r.id offset 0) j
  join holdfast.lane l on l.id = r.lane_id
  left join lateral (select x.* from holdfast.running x where x.job_id = r.id offset 0) x on true
  where r.verb in ('failed', 'snoozed', 'interrupted')
$$;
comment on function holdfast.log_returned(holdfast.returned_attempt[], timestamptz) is
  'Write the events of failed, snoozed and interrupted attempts.';

-- Make held jobs pending again in their old order. Claims take them before fresh jobs.
--
-- Each job moves to the lane of this `kind` that has its queue, priority and task:
--
--   1      returned
--   2      suspect
--   null   a suspect stays a suspect, because it had not started and nothing has cleared it; any
--          other job is returned
--
-- Jobs in `refunded` get the attempt of this claim back.
--
-- Each job gets a new place after its old one. If the sequence was reset, its next place may be
-- before an old one: then check_places() raises an error.
create or replace function holdfast.return_jobs(
  ids uuid[], errors text[], refunded uuid[], kind integer, now_at timestamptz)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  lanes record;
begin
  if cardinality(ids) = 0 then
    return;
  end if;
  perform holdfast.check_places(ids);
  -- Find the new lane of each old lane once, and keep both in arrays. If the planner assumes that
  -- `live` is empty, a join would look up the lane again for each job.
  select
    array_agg(d.lane_id) as old,
    array_agg(holdfast.lane_of_kind(
      d.lane_id,
      coalesce(
        return_jobs.kind, (select greatest(l.kind, 1) from holdfast.lane l where l.id = d.lane_id)))) as new
  into lanes
  from (select distinct j.lane_id from holdfast.live j where j.id = any(ids)) d;
  update holdfast.live j
  set
    state = 'pending',
    lane_id = o.new_lane,
    seq = o.new_seq,
    attempt = case when j.id = any(refunded) then greatest(j.attempt - 1, 0) else j.attempt end,
    last_lease = j.lease,
    last_outcome = case when j.id = any(refunded) then 'released' else 'interrupted' end,
    last_error = coalesce(left(o.error, 10000), j.last_error),
    lease = null,
    worker_id = null,
    changed_at = now_at
  from (
    -- Call nextval() on the sorted rows. A join at this level could change their order.
    select b.row_id, b.error, b.new_lane, nextval('holdfast.job_seq') as new_seq
    from (
      select j.row_id, i.error, lanes.new[array_position(lanes.old, j.lane_id)] as new_lane
      from unnest(ids, errors) i (id, error)
      cross join lateral (
        select j.ctid as row_id, j.lane_id, j.seq from holdfast.live j where j.id = i.id offset 0
      ) j
      order by j.seq
    ) b
  ) o
  where j.ctid = o.row_id;
  perform holdfast.wake_lanes(lanes.new);
end
$$;
comment on function holdfast.return_jobs(uuid[], text[], uuid[], integer, timestamptz) is
  'Make held jobs pending again in their old order. Claims take them before fresh jobs.';

-- give_up.sql
-- Send a waiting job to the dead letters by hand.
-- holdfast: role operator
create or replace function holdfast.give_up(id uuid, reason text default null)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  why text := coalesce(nullif(give_up.reason, ''), 'given up by hand');
  known record;
begin
  perform holdfast.check_job(give_up.id);
  select j.state, j.attempt into known from holdfast.live j where j.id = give_up.id for update;
  if known.state in ('scheduled', 'pending') then
    insert into holdfast.attempt_error (job_id, attempt, failed_at, error)
    values (give_up.id, known.attempt, now_at, left(why, 10000));
    perform holdfast.end_jobs('dead', array[give_up.id], array[why], now_at);
    perform holdfast.note('give up', give_up.id::text, jsonb_build_object('reason', left(why, 1000)));
    return 'dead';
  end if;
  if (select v.state from holdfast.job(give_up.id) v) is distinct from 'dead' then
    perform holdfast.refuse_transition(
      give_up.id, 'dead', 'only a waiting job can be given up',
      'Cancel a job that a worker holds; one that has ended stays as it is.');
  end if;
  return 'dead';
end
$$;
comment on function holdfast.give_up(uuid, text) is
  'Send a waiting job to the dead letters by hand, with a reason.';

-- grants.sql
-- Restrict roles to queues. Only the owner may.

-- holdfast: role owner
create or replace function holdfast.grant_queues(role text, queues text[])
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if coalesce(cardinality(grant_queues.queues), 0) = 0 then
    perform holdfast.refuse_value('queues', grant_queues.queues::text, 'name at least one queue');
  end if;
  if not exists (select from pg_roles r where r.rolname = grant_queues.role) then
    perform holdfast.refuse_value('role', grant_queues.role, 'there is no such role in this cluster');
  end if;
  if holdfast.is_owner(grant_queues.role::name) then
    perform holdfast.refuse_value(
      'role', grant_queues.role, 'owns the tables, so it cannot be restricted');
  end if;
  if holdfast.acts_as(grant_queues.role::name, 'holdfast_worker') then
    perform holdfast.refuse_value(
      'role', grant_queues.role, 'is a worker, and workers claim from every queue');
  end if;
  perform holdfast.check_queues(q) from unnest(grant_queues.queues) q;
  insert into holdfast.access (role_id, queues, granted_by, granted_at)
  select (select r.oid from pg_roles r where r.rolname = grant_queues.role), q, session_user, holdfast.clock()
  from (select distinct unnest(grant_queues.queues) as q) q
  on conflict (role_id, queues) do nothing;
  perform holdfast.note('grant queues', grant_queues.role, to_jsonb(grant_queues.queues));
end
$$;
comment on function holdfast.grant_queues(text, text[]) is
  'Restrict a role to these queues, in addition to those granted before. acme.* means all queues whose '
  'names begin with acme.';

create or replace function holdfast.check_queues(queues text)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if check_queues.queues is null or check_queues.queues !~ '^[a-z0-9_.:-]{0,99}([a-z0-9_.:-]|\*)$' then
    perform holdfast.refuse_value(
      'queues', check_queues.queues, 'must be names of queues, or how names begin and a star, as in acme.*');
  end if;
end
$$;
comment on function holdfast.check_queues(text) is
  'Refuse a pattern that is neither the name of a queue nor the beginning of names with a star.';

-- holdfast: role owner
create or replace function holdfast.revoke_queues(role text, queues text[] default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known constant oid := (select r.oid from pg_roles r where r.rolname = revoke_queues.role);
  gone text[];
begin
  if known is null then
    perform holdfast.refuse_value('role', revoke_queues.role, 'there is no such role in this cluster');
  end if;
  with revoked as (
    delete from holdfast.access a
    where a.role_id = known
      and (revoke_queues.queues is null or a.queues = any(revoke_queues.queues))
    returning a.queues
  )
  select coalesce(array_agg(r.queues), '{}') into gone from revoked r;
  if revoke_queues.queues is not null and cardinality(gone) > 0
    and not exists (select from holdfast.access a where a.role_id = known) then
    -- Without its last queue the role would see all of them, so the caller must say that explicitly.
    perform holdfast.refuse_value(
      'queues', revoke_queues.queues::text,
      'these are the only queues of the role: leave queues out to let it use every queue');
  end if;
  if cardinality(gone) > 0 then
    perform holdfast.note('revoke queues', revoke_queues.role, to_jsonb(gone));
  end if;
  return cardinality(gone);
end
$$;
comment on function holdfast.revoke_queues(text, text[]) is
  'Take queues from a restricted role. Without queues, lift the restriction: the role may then use every '
  'queue. Returns how many were taken.';

-- holdfast: role owner
create or replace function holdfast.list_grants()
returns table (role text, queues text, granted_by text, granted_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(r.rolname::text, format('(dropped: %s)', a.role_id)), a.queues, a.granted_by, a.granted_at
  from holdfast.access a
  left join pg_roles r on r.oid = a.role_id
  order by 1, 2
$$;
comment on function holdfast.list_grants() is 'List which roles are restricted to which queues.';

-- guard.sql
-- Refuse changes to jobs that must never happen: an illegal change of state, and a place in a
-- lane that a head may have passed. check_inserted.sql checks new jobs, and refuse_delete.sql
-- keeps rows from being deleted.
--
-- Other programs write to `job`, and our functions write to `live`, its only partition.
-- A statement-level trigger fires only for the table that the statement names. So these
-- checks cost our functions nothing, and no other role has rights on `live`. A transition
-- table on `live` would cost each enqueue 27 µs, a quarter of its time. A row-level check
-- would cost a fifteenth of a claim.
--
-- `live` has no check constraints and only one WHEN clause. Each statement parses them
-- again: the check constraints of 0.1 took a third of the time of a single claim.

create or replace function holdfast.guard()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_nestloop = off -- the plan is made for the first update of a session, which may change one row
as $$
declare
  wrong record;
begin
  select o.id, o.state, n.state as new_state into wrong
  from before o
  join after n on n.id = o.id
  where o.state <> n.state
    and (select n.state <> all(s.successors) from holdfast.state s where s.name = o.state)
  limit 1;
  if found then
    raise exception using
      errcode = 'HF010',
      message = format('job %s cannot go from %s to %s', wrong.id, wrong.state, wrong.new_state),
      detail = jsonb_build_object('id', wrong.id, 'from_state', wrong.state, 'to_state', wrong.new_state),
      hint = 'The legal changes are in holdfast.state.';
  end if;
  select o.id, n.id as new_id into wrong
  from (select id from before except select id from after) o
  cross join (select id from after except select id from before) n
  limit 1;
  if found then
    raise exception using
      errcode = 'HF010',
      message = format('job %s cannot become job %s', wrong.id, wrong.new_id),
      detail = jsonb_build_object('id', wrong.id),
      hint = 'A job keeps its id.';
  end if;
  perform holdfast.refuse_place(o.id, o.seq, n.seq)
  from before o
  join after n on n.id = o.id
  where n.seq < o.seq
    or (n.seq = o.seq and n.state = 'pending' and (o.state <> 'pending' or o.lane_id <> n.lane_id));
  perform holdfast.refuse_broken(n) from after n;
  perform holdfast.refuse_lane(n.id)
  from before o
  join after n on n.id = o.id
  where n.lane_id <> o.lane_id
    and not exists (select from holdfast.lane l where l.id = n.lane_id and holdfast.takes_jobs(l.id));
  return null;
end
$$;
comment on function holdfast.guard() is
  'Refuse updates of jobs that change a state illegally, reuse an id or a place, or break a rule.';

create or replace function holdfast.refuse_place(id uuid, old_seq bigint, new_seq bigint)
returns void
language plpgsql immutable
as $$
begin
  raise exception using
    errcode = 'HF010',
    message = format(
      'job %s would stand at place %s, not behind its old place %s', refuse_place.id, new_seq, old_seq),
    detail = jsonb_build_object('id', refuse_place.id),
    hint = 'One that becomes pending or changes lane needs a new nextval(''holdfast.job_seq'').';
end
$$;
comment on function holdfast.refuse_place(uuid, bigint, bigint) is
  'Raise the error for a job whose new place is not behind its old one.';

-- Our functions call this before they give out new places, since the sequence may have been reset.
create or replace function holdfast.check_places(ids uuid[])
returns void
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.refuse_place(j.id, j.seq, s.next)
  from (select j.id, j.seq from holdfast.live j where j.id = any(ids) order by j.seq desc limit 1) j
  join (select s.last_value + s.is_called::integer as next from holdfast.job_seq s) s on s.next <= j.seq
$$;
comment on function holdfast.check_places(uuid[]) is
  'Refuse to move these jobs if their next places are not behind their old ones.';

-- Raise the error that a check constraint would raise, if a job breaks a rule of live jobs.
create or replace function holdfast.refuse_broken(new holdfast.job)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  rule text := case
    when new.state not in ('scheduled', 'pending', 'claimed')
      then 'a live job is scheduled, pending or claimed'
    when (new.state = 'claimed') <> (new.lease is not null)
      or (new.state = 'claimed') <> (new.worker_id is not null)
      then 'a claimed job and no other has a lease and a worker'
    when new.state = 'scheduled' and new.run_at is null then 'a scheduled job has a time'
    when new.attempt < 0 then 'attempts are counted from 0'
    when new.max_attempts not between 1 and 32767 then 'max_attempts is between 1 and 32767'
  end;
begin
  if rule is not null then
    raise exception using
      errcode = 'check_violation',
      message = format('job %s: %s', new.id, rule),
      schema = 'holdfast',
      table = 'job',
      constraint = rule;
  end if;
end
$$;
comment on function holdfast.refuse_broken(holdfast.job) is
  'Raise an error if a job breaks a rule of live jobs.';

create or replace trigger job_guard
after update on holdfast.job
referencing old table as before new table as after
for each statement execute function holdfast.guard();

-- health.sql
-- Judge the health of each queue: OK, WARNING or CRITICAL, with a message that says how many jobs
-- wait, for how long, and what is wrong. The thresholds are columns of holdfast.queue. A null
-- means the value of '*', and a null there switches the check off.
--
--   waiting    more jobs wait than waiting_warning, waiting_critical
--   age        the oldest waits longer than age_warning, age_critical. A due job that is still
--              scheduled waits too: nobody does the duties.
--   failures   a larger share of the last hour's attempts failed than failures_warning,
--              failures_critical; checked from ten attempts on, since one of one says nothing
--   workers    jobs wait for a task that no live worker serves: a warning, and critical once they
--              wait for longer than age_warning (otherwise a minute), so that no deploy raises an
--              alarm. Checked if worker_expected is true.
--   paused     jobs in a paused queue are meant to wait: a warning at most, and no worker is
--              missed
--
-- The body is long on purpose: it is one query, a part for each threshold.
-- holdfast: role viewer
create or replace function holdfast.health(queue text default null)
returns setof holdfast.queue_report
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
begin
  if health.queue is not null then
    perform holdfast.check_queue(health.queue);
    perform holdfast.check_known_queue(health.queue);
  end if;
  return query
    with names as materialized (
      select q.name from holdfast.queue q where q.name <> '*'
      union
      select l.queue from holdfast.lane l
      union
      select health.queue where health.queue is not null
    ),
    live as materialized (
      select c.queue, c.task, c.state, c.jobs, c.estimated, c.since
      from holdfast.count_live(health.queue) c
      where c.state = 'pending' or c.state = 'scheduled' and c.since < now_at - interval '5 seconds'
    ),
    waiting as materialized (
      select
        l.queue,
        coalesce(sum(l.jobs) filter (where l.state = 'pending'), 0)::bigint as jobs,
        coalesce(bool_or(l.estimated) filter (where l.state = 'pending'), false) as estimated,
        min(l.since) as since,
        min(l.since) filter (where l.state = 'scheduled') as due_since
      from live l
      group by l.queue
    ),
    workers as materialized (
      select w.queues, w.tasks from holdfast.live_workers(now_at) w
    ),
    alone as materialized (
      select l.queue, array_agg(l.task order by l.task) as tasks, min(l.since) as since
      from live l
      where l.state = 'pending'
        and not exists (
          select from workers w
          where (w.queues is null or l.queue = any(w.queues)) and (w.tasks is null or l.task = any(w.tasks)))
      group by l.queue
    ),
    done as materialized (
      select s.queue, sum(s.completed + s.failed)::bigint as attempts, sum(s.failed)::bigint as failed
      from holdfast.stat s
      where s.span = 'minute'
        and s.at between date_trunc('minute', now_at, 'UTC') - interval '59 minutes' and now_at
        and (health.queue is null or s.queue = health.queue)
      group by s.queue
    ),
    facts as materialized (
      select
        n.name, q.paused_at, coalesce(w.jobs, 0) as jobs, coalesce(w.estimated, false) as estimated,
        w.since, case when w.since is not null then greatest(now_at - w.since, interval '0') end as age,
        w.due_since = w.since as overdue, a.tasks as alone, now_at - a.since as alone_for,
        coalesce(d.attempts, 0) as attempts, coalesce(d.failed, 0) as failed,
        d.failed / nullif(d.attempts, 0)::double precision as failures,
        (select count(*) from workers w where w.queues is null or n.name = any(w.queues))::integer as workers,
        coalesce(q.waiting_warning, s.waiting_warning) as waiting_warning,
        coalesce(q.waiting_critical, s.waiting_critical) as waiting_critical,
        coalesce(q.age_warning, s.age_warning) as age_warning,
        coalesce(q.age_critical, s.age_critical) as age_critical,
        coalesce(q.failures_warning, s.failures_warning) as failures_warning,
        coalesce(q.failures_critical, s.failures_critical) as failures_critical,
        coalesce(q.worker_expected, s.worker_expected, false) as worker_expected
      from names n
      left join holdfast.queue q on q.name = n.name
      left join holdfast.queue s on s.name = '*'
      left join waiting w on w.queue = n.name
      left join alone a on a.queue = n.name
      left join done d on d.queue = n.name
      where (health.queue is null or n.name = health.queue)
        and ((select holdfast.unrestricted()) or holdfast.in_reach(n.name))
    )
    select
      f.name, (array['OK', 'WARNING', 'CRITICAL'])[coalesce(c.level, 0) + 1],
      case
        when f.jobs = 0 then 'no job waits'
        when f.jobs = 1 then 'one job waits, for ' || holdfast.seconds_in_words(now_at - f.since)
        else format(
          '%s%s jobs wait, the oldest for %s', case when f.estimated then 'about ' end, f.jobs,
          holdfast.seconds_in_words(f.age))
      end
      || coalesce(
        ': ' || nullif(
          concat_ws('; ', c.words, 'paused for ' || holdfast.seconds_in_words(now_at - f.paused_at)), ''),
        ''),
      f.jobs, f.estimated, f.since, f.age, f.attempts, f.failed, f.failures, f.workers, f.paused_at
    from facts f
    cross join lateral (
      select max(c.level) as level, string_agg(c.words, '; ' order by c.level desc, c.n) as words
      from (
        select 1 as n, case when f.jobs > f.waiting_critical then 2 else 1 end as level,
          case when f.jobs > f.waiting_critical then format('more than %s are critical', f.waiting_critical)
            else format('more than %s are a warning', f.waiting_warning) end as words
        where f.jobs > least(f.waiting_warning, f.waiting_critical)
        union all
        select 2, case when f.age > f.age_critical and f.paused_at is null then 2 else 1 end,
          case when f.overdue
            then format(
            'a scheduled job has been due for %s and is not pending yet, ', holdfast.seconds_in_words(f.age))
            else '' end
          || case when f.age > f.age_critical and f.paused_at is null
            then format('longer than %s is critical', holdfast.seconds_in_words(f.age_critical))
            else format(
              'longer than %s is a warning',
              holdfast.seconds_in_words(least(f.age_warning, f.age_critical))) end
        where f.age > least(f.age_warning, f.age_critical)
        union all
        select 3, case when f.failures > f.failures_critical then 2 else 1 end,
          format('%s of %s attempts of the last hour failed, more than %s %% is %s', f.failed, f.attempts,
            round(
              100 * (
              case when f.failures > f.failures_critical then f.failures_critical
              else f.failures_warning end)::numeric, 1)::real,
            case when f.failures > f.failures_critical then 'critical' else 'a warning' end)
        where f.attempts >= 10 and f.failures > least(f.failures_warning, f.failures_critical)
        union all
        select 4, case when f.alone_for > coalesce(f.age_warning, interval '1 minute') then 2 else 1 end,
          case when f.workers = 0 then 'no worker serves this queue'
            else 'no worker knows ' || array_to_string(f.alone[:3], ', ') || case
              when cardinality(f.alone) > 3 then ', ...' else '' end end
          || case when f.alone_for > coalesce(f.age_warning, interval '1 minute')
            then format(
              ', longer than %s without one is critical',
              holdfast.seconds_in_words(coalesce(f.age_warning, interval '1 minute'))) else '' end
        where f.worker_expected and f.alone is not null and f.paused_at is null
      ) c
    ) c
    order by f.name;
end
$$;
comment on function holdfast.health(text) is
  'Return the health of each queue, or of one: OK, WARNING or CRITICAL by its thresholds, with a message '
  'that says how many jobs wait, for how long, and what is wrong.';

-- holdfast: role viewer
create or replace view holdfast.queue_health as
select h.* from holdfast.health() h;
comment on view holdfast.queue_health is 'The health of each queue: OK, WARNING or CRITICAL, and why.';

-- A monitor that misspells a queue must not see OK forever.
create or replace function holdfast.check_known_queue(queue text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.check_name('queue', check_known_queue.queue);
  if exists (select from holdfast.lane l where l.queue = check_known_queue.queue)
    or exists (select from holdfast.queue q where q.name = check_known_queue.queue)
    or exists (select from holdfast.worker w where check_known_queue.queue = any(w.queues))
    or exists (select from holdfast.schedule s where s.queue = check_known_queue.queue) then
    return;
  end if;
  perform holdfast.refuse_value(
    'queue', check_known_queue.queue,
    'no job was ever enqueued there and no worker serves it; known are ' || coalesce(
      (select string_agg(n.queue, ', ')
       from (
         select l.queue from holdfast.lane l where holdfast.unrestricted() or holdfast.in_reach(l.queue)
         group by l.queue order by l.queue limit 10) n),
      'none yet'));
end
$$;
comment on function holdfast.check_known_queue(text) is
  'Refuse a queue that nobody has used, configured or serves.';

-- heartbeat.sql
-- Record that a worker is alive.
--
-- There is one heartbeat per worker, not per job. So the lease of a job lasts as long as its
-- worker lives, however long the job runs. Only the worker's row is written.
-- holdfast: role worker
create or replace function holdfast.heartbeat(worker uuid)
returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  now_at timestamptz := holdfast.clock();
begin
  update holdfast.worker w
  set heartbeat_at = now_at
  where w.id = heartbeat.worker
    and w.lost_at is null
    and w.left_at is null;
  if not found then
    perform holdfast.refuse_worker(heartbeat.worker);
  end if;
  return now_at;
end
$$;
comment on function holdfast.heartbeat(uuid) is
  'Record that a worker is alive. Refuses a worker that was declared lost. Returns the time of the '
  'database.';

-- histogram.sql
-- Return the bounds of the buckets: five per power of ten, from 0.1 ms to 11 days. Bucket 0 lies
-- below the first bound, and bucket 51 above the last one.
-- holdfast: role viewer
create or replace function holdfast.stat_bounds()
returns double precision[]
language sql immutable parallel safe
as $$
  select '{0.0001,0.00016,0.00025,0.0004,0.00063,0.001,0.0016,0.0025,0.004,0.0063,0.01,0.016,0.025,0.04,0.063,0.1,0.16,0.25,0.4,0.63,1,1.6,2.5,4,6.3,10,16,25,40,63,100,160,250,400,630,1000,1600,2500,4000,6300,10000,16000,25000,40000,63000,100000,160000,250000,400000,630000,1000000}'::double precision[]
$$;
comment on function holdfast.stat_bounds() is
  'Return the bounds, in seconds, of the buckets for waiting and running times.';

-- Return 64 × the bucket of the waiting time + the bucket of the running time. Bucket 63 means
-- unknown. There is no SET clause, so that PostgreSQL inlines the function.
create or replace function holdfast.stat_bucket(waited double precision, ran double precision)
returns integer
language sql immutable parallel safe
as $$
  select coalesce(width_bucket(waited, holdfast.stat_bounds()), 63) * 64 + coalesce(
    width_bucket(ran, holdfast.stat_bounds()), 63)
$$;
comment on function holdfast.stat_bucket(double precision, double precision) is
  'Return the buckets of a waiting and a running time as one number.';

-- Return one number for each of the 52 buckets.
create or replace function holdfast.histogram(buckets integer[], jobs numeric[])
returns integer[]
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select array_agg(coalesce(p.jobs, 0)::integer order by b.bucket)
  from generate_series(0, 51) b (bucket)
  left join (
    select p.bucket, sum(p.jobs) as jobs from unnest(buckets, jobs) p (bucket, jobs) group by p.bucket) p
    on p.bucket = b.bucket
$$;
comment on function holdfast.histogram(integer[], numeric[]) is 'Return how many jobs each bucket has.';

create or replace function holdfast.add_counts(one integer[], other integer[])
returns integer[]
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select array_agg(p.a + p.b) from unnest(one, other) p (a, b)
$$;
comment on function holdfast.add_counts(integer[], integer[]) is 'Return the sum of two histograms.';

-- Return null if no job is counted. Within a bucket, times are assumed to be spread evenly by
-- their logarithm.
create or replace function holdfast.percentiles(counts bigint[], shares double precision[])
returns double precision[]
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  bounds constant double precision[] := holdfast.stat_bounds();
  total constant double precision := (select sum(c) from unnest(counts) c);
  result double precision[] := '{}';
  passed double precision := 0;
  bucket integer := 1;
  share double precision;
  part double precision;
begin
  if coalesce(total, 0) = 0 then
    return null;
  end if;
  foreach share in array shares loop -- ascending
    while passed + counts[bucket] < share * total and bucket < cardinality(counts) loop
      passed := passed + counts[bucket];
      bucket := bucket + 1;
    end loop;
    part := (share * total - passed) / greatest(counts[bucket], 1);
    result := result || case
      when bucket = 1 then bounds[1] * part
      when bucket > cardinality(bounds) then bounds[cardinality(bounds)]
      else bounds[bucket - 1] * power(bounds[bucket] / bounds[bucket - 1], part)
    end;
  end loop;
  return result;
end
$$;
comment on function holdfast.percentiles(bigint[], double precision[]) is
  'Return the percentiles of a histogram, in seconds. The shares must ascend, as in {0.5,0.95,0.99}.';

-- mask.sql
-- Decide how much of payloads, results and errors each role sees. Nothing else decides this.
--
--   a Secret         {"$secret": …} is ***** to everybody, and so is its value in other texts
--   redacted keys    their values are ***** except to operators and the owner
--   not visible      payloads and results are hidden except from operators and the owner
--
-- Workers get payloads unchanged from claim().

-- holdfast: role viewer
create or replace function holdfast.sees_payloads()
returns boolean
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.is_owner(holdfast.caller()) or holdfast.acts_as(holdfast.caller(), 'holdfast_operator')
$$;
comment on function holdfast.sees_payloads() is
  'Return whether the caller sees payloads and results except their secrets.';

-- Return two settings of a queue: whether viewers see payloads at all, and the keys to mask, in
-- lower case.
create or replace function holdfast.redaction(queue text, out visible boolean, out keys text[])
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    coalesce(q.payload_visible, d.payload_visible, true),
    array(select lower(k) from unnest(coalesce(q.redacted, d.redacted, '{}')) k)
  from (values (1)) one (row)
  left join holdfast.queue q on q.name = redaction.queue
  left join holdfast.queue d on d.name = '*'
$$;
comment on function holdfast.redaction(text) is 'Return what viewers see of the payloads of a queue.';

-- Values that are nested more than 40 levels deep are masked too: a payload must not exhaust the
-- stack of a session that lists jobs.
create or replace function holdfast.cover(value jsonb, keys text[], texts text[], depth integer default 0)
returns jsonb
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  mask constant jsonb := '"*****"';
begin
  case jsonb_typeof(value)
    when 'object' then
      if value ? '$secret' or depth > 40 then
        return mask;
      end if;
      return coalesce((
        select jsonb_object_agg(
          holdfast.scrub(e.key, texts),
          case when lower(e.key) = any(keys) then mask
            else holdfast.cover(e.value, keys, texts, depth + 1) end)
        from jsonb_each(value) e), '{}');
    when 'array' then
      if depth > 40 then
        return mask;
      end if;
      return coalesce((
        select jsonb_agg(holdfast.cover(e.value, keys, texts, depth + 1) order by e.n)
        from jsonb_array_elements(value) with ordinality e (value, n)), '[]');
    when 'string' then
      return case when cardinality(texts) = 0 then value
        else to_jsonb(holdfast.scrub(value #>> '{}', texts)) end;
    when 'number' then
      return case when value::text = any(texts) then mask else value end;
    else
      return value;
  end case;
end
$$;
comment on function holdfast.cover(jsonb, text[], text[], integer) is
  'Return a JSON value with ***** in place of secrets, of the values of these keys, and of these texts.';

-- All texts and keys inside a secret are hidden. The texts under the redacted `keys`, or all texts
-- if `everything` is true, are hidden if they have at least 4 characters: shorter ones are too
-- similar to ordinary words.
create or replace function holdfast.hidden_texts(payload jsonb, keys text[], everything boolean)
returns text[]
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  with recursive part (value, key, secret, hidden, depth) as (
    select payload, null::text, false, everything, 0
    union all
    select
      c.value,
      case when p.secret then c.key end,
      p.secret or c.key = '$secret', p.hidden or lower(c.key) = any(keys), p.depth + 1
    from part p
    cross join lateral (
      select e.key, e.value from jsonb_each(case when jsonb_typeof(p.value) = 'object' then p.value end) e
      union all
      select null, e.value
        from jsonb_array_elements(case when jsonb_typeof(p.value) = 'array' then p.value end) e
    ) c
    where p.depth < 1000
  )
  select coalesce(array_agg(t.text order by length(t.text) desc), '{}')
  from (
    select distinct form.text
    from (
      select p.value, p.secret, p.hidden from part p
      union all
      -- A key in a secret is as secret as its value.
      select to_jsonb(p.key), true, true from part p where p.key is not null
    ) p
    cross join lateral (
      select p.value #>> '{}'
      union all
      select substr(p.value::text, 2, length(p.value::text) - 2) where jsonb_typeof(p.value) = 'string'
    ) form (text)
    where jsonb_typeof(p.value) in ('string', 'number')
      and (p.secret and form.text <> '' or p.hidden and length(form.text) >= 4)
  ) t
$$;
comment on function holdfast.hidden_texts(jsonb, text[], boolean) is
  'Return the texts in a payload that must not be shown elsewhere, the longest first.';

-- Each hidden text is searched for in each string that is shown. Without a limit, a payload of 171 KiB took
-- six seconds, and a list shows many. So with more than a hundred texts the whole value is
-- hidden.
create or replace function holdfast.are_too_many(texts text[])
returns boolean
language sql immutable
as $$
  select cardinality(texts) > 100
$$;
comment on function holdfast.are_too_many(text[]) is
  'Return whether there are so many texts to hide that a whole value is hidden.';

-- A short text is replaced only as a whole word: a three-digit code inside every longer number
-- would shred the text and hide nothing.
create or replace function holdfast.scrub(value text, texts text[])
returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  hidden text;
  scrubbed text := scrub.value;
begin
  foreach hidden in array scrub.texts loop
    if strpos(scrubbed, hidden) > 0 then
      scrubbed := case when length(hidden) >= 4
        then replace(scrubbed, hidden, '*****')
        else regexp_replace(
          scrubbed, '(?<!\w)' || regexp_replace(hidden, '(\W)', '\\\1', 'g') || '(?!\w)', '*****', 'g')
      end;
    end if;
  end loop;
  return scrubbed;
end
$$;
comment on function holdfast.scrub(text, text[]) is
  'Return a text with ***** in place of each of these texts.';

-- `in_full` is sees_payloads(), evaluated once for all rows.
-- holdfast: role viewer
create or replace function holdfast.as_seen(value jsonb, queue text, payload jsonb, in_full boolean)
returns jsonb
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  shown record;
  said text;
  hidden text[];
begin
  if value is null then
    return null;
  end if;
  if payload is null then -- the job is gone, so its secrets are unknown
    return case when holdfast.is_owner(holdfast.caller()) then value else '"*****"' end;
  end if;
  if in_full then
    if strpos(value::text, '"$secret"') = 0 and coalesce(strpos(payload::text, '"$secret"'), 0) = 0 then
      return value;
    end if;
    hidden := holdfast.hidden_texts(payload, '{}', false);
    return case when holdfast.are_too_many(hidden) then '"*****"'
      else holdfast.cover(value, '{}', hidden) end;
  end if;
  select r.visible, r.keys into shown from holdfast.redaction(as_seen.queue) r;
  if not shown.visible then
    return '"*****"';
  end if;
  -- Most values are short, so they are not nested deeply and have nothing to hide.
  said := lower(concat(value::text, payload::text));
  if length(said) < 1000
    and not exists (
    select from unnest(shown.keys || '$secret'::text) k where strpos(said, to_jsonb(k)::text) > 0) then
    return value;
  end if;
  hidden := holdfast.hidden_texts(payload, shown.keys, false);
  return case when holdfast.are_too_many(hidden) then '"*****"'
    else holdfast.cover(value, shown.keys, hidden) end;
end
$$;
comment on function holdfast.as_seen(jsonb, text, jsonb, boolean) is
  'Return a value of a job of this queue and payload as the caller may see it.';

-- Mask as as_seen() does, for the texts of a handler: an error, a message, a stage.
-- holdfast: role viewer
create or replace function holdfast.text_as_seen(value text, queue text, payload jsonb, in_full boolean)
returns text
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  shown record;
  hidden text[];
begin
  if value is null then
    return null;
  end if;
  if payload is null then
    return case when holdfast.is_owner(holdfast.caller()) then value else '*****' end;
  end if;
  if in_full then
    if strpos(payload::text, '"$secret"') = 0 then
      return value;
    end if;
    hidden := holdfast.hidden_texts(payload, '{}', false);
  else
    select r.visible, r.keys into shown from holdfast.redaction(text_as_seen.queue) r;
    hidden := holdfast.hidden_texts(payload, shown.keys, not shown.visible);
  end if;
  return case when holdfast.are_too_many(hidden) then '*****' else holdfast.scrub(value, hidden) end;
end
$$;
comment on function holdfast.text_as_seen(text, text, jsonb, boolean) is
  'Return a text of a job of this queue and payload as the caller may see it.';

-- Only the owner may call this, and the owner can read the table anyway.
-- holdfast: role owner
create or replace function holdfast.stored_payload(id uuid)
returns jsonb
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select f.payload from holdfast.found_job(stored_payload.id) f
$$;
comment on function holdfast.stored_payload(uuid) is
  'Return the payload of a job as it is stored, with secrets in plain text; for the owner.';

-- reach.sql
-- Find the role of the caller, and the queues that it may use.
--
-- Holdfast's functions run with their owner's rights, so PostgreSQL does not check the caller's
-- rights on tables. These functions check them instead. A session has two roles, the one that logged
-- in and the one that SET ROLE has chosen. A queue must be allowed to both, so SET ROLE lifts no
-- restriction.
--
--   roles     caller, acts_as, is_owner, is_restricted
--   queues    unrestricted, in_reach, queues_in_reach; check_queue and check_unrestricted raise an
--             error
--   jobs      jobs_in_reach, jobs_with_id, found_job; check_job raises an error
--
-- The table `access` holds the queues of restricted roles. It is nearly always empty.

-- In a function with its owner's rights, current_user is the owner. The setting `role` still names
-- the role that SET ROLE has chosen, or is none.
create or replace function holdfast.caller()
returns name
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(nullif(current_setting('role'), 'none'), session_user)::name
$$;
comment on function holdfast.caller() is
  'Return the current role of the session: the one that SET ROLE has chosen, or the one that logged in.';

-- Return false if the other role does not exist.
create or replace function holdfast.acts_as(role name, other name)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select from pg_roles r where r.rolname = acts_as.other and pg_has_role(acts_as.role, r.oid, 'usage')
  )
$$;
comment on function holdfast.acts_as(name, name) is 'Return whether a role has the rights of another role.';

create or replace function holdfast.is_owner(role name)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select pg_has_role(is_owner.role, c.relowner, 'usage') from pg_class c
    where c.oid = 'holdfast.live'::regclass
$$;
comment on function holdfast.is_owner(name) is
  'Return whether a role owns the tables of Holdfast or is a superuser.';

-- A role is restricted if `access` names it, or a role that it is a member of. An owner reads the
-- tables directly, and a worker claims from any queue, so neither can be restricted.
create or replace function holdfast.is_restricted(role name)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    exists (
      select from holdfast.access a join pg_roles r on r.oid = a.role_id
        where pg_has_role(is_restricted.role, r.oid, 'member')
    )
    and not holdfast.is_owner(is_restricted.role)
    and not holdfast.acts_as(is_restricted.role, 'holdfast_worker')
$$;
comment on function holdfast.is_restricted(name) is 'Return whether a role is restricted to some queues.';

-- Queries call this once and check single queues only if it is false: (select unrestricted()) or
-- in_reach(queue).
-- holdfast: role viewer
create or replace function holdfast.unrestricted()
returns boolean
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if not exists (select from holdfast.access) then
    return true; -- the usual case
  end if;
  return not holdfast.is_restricted(session_user) and not holdfast.is_restricted(holdfast.caller());
end
$$;
comment on function holdfast.unrestricted() is 'Return whether the caller may use every queue.';

-- Each entry in `access` is the name of a queue, or the beginning of names followed by *.
--
-- The cost is lower than the real one on purpose. Usually unrestricted() is true and this function is
-- not called. With the real cost, the planner might choose a worse plan to call it less often.
-- holdfast: role viewer
create or replace function holdfast.in_reach(queue text)
returns boolean
language sql stable security definer cost 1
set search_path = pg_catalog, pg_temp
as $$
  select bool_and(
    not holdfast.is_restricted(both_roles.role)
    or exists (
      select
      from holdfast.access a
      join pg_roles r on r.oid = a.role_id
      where pg_has_role(both_roles.role, r.oid, 'member')
        and case when right(a.queues, 1) = '*' then starts_with(in_reach.queue, left(a.queues, -1))
          else in_reach.queue = a.queues end
    ))
  from (values (session_user::name), (holdfast.caller())) both_roles (role)
$$;
comment on function holdfast.in_reach(text) is 'Return whether the caller may see and use this queue.';

-- Functions that read many jobs call this once, instead of in_reach() for each job. `known_queue`
-- has the queues that lost their lanes.
-- holdfast: role viewer
create or replace function holdfast.queues_in_reach()
returns text[]
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select array(
    select q.name
    from (select l.queue from holdfast.lane l union select k.name from holdfast.known_queue k) q (name)
    where holdfast.in_reach(q.name))
$$;
comment on function holdfast.queues_in_reach() is
  'Return the queues that the caller may use, among those that have jobs or had some.';

-- Functions that work on one queue call this.
create or replace function holdfast.check_queue(queue text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if not holdfast.unrestricted() and not coalesce(holdfast.in_reach(check_queue.queue), false) then
    raise exception using
      errcode = 'insufficient_privilege',
      message = format(
        'role %s may not use queue %s', holdfast.caller(), coalesce(check_queue.queue, 'null')),
      hint = format(
        'The owner can let it: select holdfast.grant_queues(%L, array[%L]).', holdfast.caller(),
        check_queue.queue);
  end if;
end
$$;
comment on function holdfast.check_queue(text) is 'Refuse a queue that the caller may not use.';

-- Functions that affect all queues call this.
create or replace function holdfast.check_unrestricted(what text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if not holdfast.unrestricted() then
    raise exception using
      errcode = 'insufficient_privilege',
      message = format(
        'role %s is restricted to some queues, and %s applies to all', holdfast.caller(), what),
      hint = 'Ask an operator who may use every queue.';
  end if;
end
$$;
comment on function holdfast.check_unrestricted(text) is
  'Refuse a call that affects all queues if the caller is restricted to some.';

-- If several jobs have had the same id, all of them must be in these queues: see jobs_with_id(). An
-- id without a job is left out.
create or replace function holdfast.jobs_in_reach(ids uuid[])
returns uuid[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if holdfast.unrestricted() then
    return jobs_in_reach.ids;
  end if;
  return array(
    select i
    from unnest(jobs_in_reach.ids) i
    where (select bool_and(holdfast.in_reach(f.queue)) from holdfast.jobs_with_id(i) f));
end
$$;
comment on function holdfast.jobs_in_reach(uuid[]) is
  'Return which of these jobs are in queues that the caller may use.';

-- The error is the one for an unknown id, so a caller cannot find out which ids exist.
create or replace function holdfast.check_job(id uuid)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if not holdfast.unrestricted() and cardinality(holdfast.jobs_in_reach(array[check_job.id])) = 0 then
    perform holdfast.refuse_job(check_job.id);
  end if;
end
$$;
comment on function holdfast.check_job(uuid) is
  'Refuse a job in a queue that the caller may not use, as if it did not exist.';

-- Usually this is one job, but an id may be used again after its job has ended. Errors, steps and
-- checkpoints are stored by id, and do not say to which of these jobs they belong. So a caller may
-- see them only if it may see all of these jobs.
create or replace function holdfast.jobs_with_id(id uuid)
returns table (queue text, payload jsonb, at timestamptz)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select l.queue, j.payload, 'infinity'::timestamptz
  from holdfast.live j join holdfast.lane l on l.id = j.lane_id
  where j.id = jobs_with_id.id
  union all
  select f.queue, f.payload, f.finished_at from holdfast.finished f where f.id = jobs_with_id.id
  union all
  select d.queue, d.payload, d.died_at from holdfast.dead_letter d where d.id = jobs_with_id.id
$$;
comment on function holdfast.jobs_with_id(uuid) is
  'Return the queues and payloads of all jobs under this id that are kept.';

-- Return the queue of the latest job, and its payload. If the id was used again, return an array of
-- all payloads. as_seen() and text_as_seen() search it for secrets: an error may contain a secret of
-- any of these jobs.
create or replace function holdfast.found_job(id uuid)
returns table (queue text, payload jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    (array_agg(f.queue order by f.at desc))[1],
    case when count(*) = 1 then (array_agg(f.payload))[1] else jsonb_agg(f.payload order by f.at desc) end
  from holdfast.jobs_with_id(found_job.id) f
  having count(*) > 0
$$;
comment on function holdfast.found_job(uuid) is
  'Return the queue and the payload of a live, finished or dead job, or an array of all payloads if its id '
  'was used again.';

-- known_settings.sql
-- List each setting with its values, its initial value and its meaning. `never` means a duration, or a
-- number, that is not reached.
create or replace function holdfast.known_settings()
returns table (
  name text, kind text, lowest text, highest text, never text, everywhere boolean, builtin jsonb,
  meaning text)
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  values
    ('payload_limit', 'integer', '1024', '67108864', null::text, false, '262144'::jsonb,
     'bytes of JSON text that a payload may have'),
    ('max_attempts', 'integer', '1', '32767', null, false, '3',
     'how often a job is tried, unless its task or its call says otherwise'),
    ('retry_base', 'duration', '0', '100 years', null, false, '"1 min"', 'the first delay before a retry'),
    ('retry_factor', 'number', '1', '100', null, false, '2', 'how that delay grows each time'),
    ('retry_cap', 'duration', '0', '100 years', null, false, '"1 hour"', 'the longest delay before a retry'),
    ('retry_jitter', 'number', '0', '1', null, false, '0.1',
      'up to this fraction of the delay on top, at random'),
    ('retention', 'duration', '0', '1000 years', 'forever', false, '"30 days"',
     'how long finished jobs and their events are kept; 0 is not at all'),
    ('dead_retention', 'duration', '0', '1000 years', 'forever', false, '"365 days"',
      'how long dead letters are kept'),
    ('disposal', 'choice', 'drop, archive, export', null, null, true, '"drop"',
     'what becomes of a day past the longest retention: drop it, move it to the schema holdfast_archive, or '
     'keep it until it was exported'),
    ('lane_limit', 'integer', '1', '1000000', null, false, '10000',
     'how many lanes the queue may have: one for each task and each priority'),
    ('waiting_warning', 'integer', '0', '9223372036854775807', 'never', false, 'null',
      'more jobs waiting than this are a warning'),
    ('waiting_critical', 'integer', '0', '9223372036854775807', 'never', false, 'null',
      'more jobs waiting than this are critical'),
    ('age_warning', 'duration', '0', '1000 years', 'never', false, '"1 min"',
      'a job that waits for longer is a warning'),
    ('age_critical', 'duration', '0', '1000 years', 'never', false, '"10 mins"',
      'a job that waits for longer is critical'),
    ('failures_warning', 'number', '0', '1', null, false, '0.25',
      'a larger share of failed attempts in the last hour is a warning'),
    ('failures_critical', 'number', '0', '1', null, false, '0.75',
      'a larger share of failed attempts in the last hour is critical'),
    ('worker_expected', 'truth', null, null, null, false, 'true',
      'whether it is wrong that jobs wait and no worker serves them'),
    ('payload_visible', 'truth', null, null, null, false, 'true',
      'whether those who may only look see payloads and results at all'),
    ('redacted', 'words', '0', '100', null, false,
      '["password", "passwd", "secret", "token", "api_key", "authorization"]',
     'keys whose values those who may only look do not see; those of a queue stand instead of the default '
     'ones')
$$;
comment on function holdfast.known_settings() is
  'Return every setting with its type, its initial value and its meaning.';

-- Return a setting in the form in which it is stored, or raise an error that says what is allowed.
create or replace function holdfast.read_setting(
  name text, value jsonb, kind text, lowest text, highest text, never text)
returns jsonb
language plpgsql immutable
set search_path = pg_catalog, pg_temp
set intervalstyle = 'postgres_verbose'
as $$
declare
  shown constant text := value #>> '{}';
  number numeric;
  span interval;
begin
  -- Keeping nothing (0) and keeping forever (never) must not be confused.
  if never is not null and lower(shown) in (never, 'infinity') and jsonb_typeof(value) = 'string' then
    return case kind when 'duration' then to_jsonb('1000 years'::text) else to_jsonb(highest::numeric) end;
  end if;
  case kind
    when 'integer', 'number' then
      if jsonb_typeof(value) = 'number' then
        number := value::numeric;
        if number between lowest::numeric and highest::numeric and (kind = 'number' or number = trunc(number))
          then
          return to_jsonb(trunc(number, case kind when 'number' then 9 else 0 end));
        end if;
      end if;
      perform holdfast.refuse_value(name, shown, format('must be %s from %s to %s%s',
        case kind when 'integer' then 'an integer' else 'a number' end, lowest, highest,
          ', or "' || never || '"'));
    when 'duration' then
      begin
        span := case jsonb_typeof(value)
          when 'number' then make_interval(secs => value::double precision)
          when 'string' then shown::interval
        end;
        span := justify_hours(span);
      exception when data_exception then
        span := null; -- not an interval, or too long for one
      end;
      if span between lowest::interval and highest::interval then
        return to_jsonb(span);
      end if;
      perform holdfast.refuse_value(
        name, shown, format('must be a duration from %s to %s, such as "7 days" or a number of seconds%s',
        lowest, highest, ', or "' || never || '"'));
    when 'truth' then
      if jsonb_typeof(value) = 'boolean' then
        return value;
      end if;
      perform holdfast.refuse_value(name, shown, 'must be true or false');
    when 'choice' then
      if jsonb_typeof(value) = 'string' and shown = any(string_to_array(lowest, ', ')) then
        return value;
      end if;
      perform holdfast.refuse_value(name, shown, format('must be one of %s', lowest));
    when 'words' then
      if jsonb_typeof(value) = 'array' and jsonb_array_length(value) <= highest::integer
        and not exists (
          select from jsonb_array_elements(value) w
          where jsonb_typeof(w.value) <> 'string' or length(btrim(w.value #>> '{}')) not between 1 and 100
        )
      then
        -- People may write a list with spaces. With a space before it, no key would ever match.
        return coalesce(
          (select jsonb_agg(btrim(w.value #>> '{}') order by w.n)
          from jsonb_array_elements(value) with ordinality w (value, n)), '[]');
      end if;
      perform holdfast.refuse_value(
        name, shown, format('must be a list of up to %s texts of 1 to 100 characters; [] for none', highest));
  end case;
end
$$;
comment on function holdfast.read_setting(text, jsonb, text, text, text, text) is
  'Return the value of a setting as it is stored. Refuses a value that breaks the rules.';

-- configure() accepts what this returns.
create or replace function holdfast.show_setting(value jsonb, kind text, never text)
returns jsonb
language sql immutable
set search_path = pg_catalog, pg_temp
set intervalstyle = 'postgres_verbose'
as $$
  select case
    when value is null or value = 'null' then 'null'
    when kind = 'duration' and (value #>> '{}')::interval >= interval '1000 years'
      then to_jsonb(coalesce(never, '1000 years'))
    when kind = 'duration' then to_jsonb(ltrim((value #>> '{}')::interval::text, '@ '))
    when kind = 'integer' and value = '9223372036854775807' then to_jsonb(never)
    else value
  end
$$;
comment on function holdfast.show_setting(jsonb, text, text) is
  'Return the value of a setting as people write it.';

create or replace function holdfast.refuse_setting(name text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  names constant text[] := array(select s.name from holdfast.known_settings() s);
  near constant text := holdfast.nearest(refuse_setting.name, names);
begin
  perform holdfast.refuse_value('setting', refuse_setting.name, case
    when refuse_setting.name ~ '^paused?(_at)?$'
      then 'is not a setting; holdfast.pause(queue) and resume(queue) do that'
    when near is not null then format('is not known; did you mean %s?', near)
    else format('is not known; there are %s', array_to_string(names, ', '))
  end);
end
$$;
comment on function holdfast.refuse_setting(text) is 'Raise the error for a setting that does not exist.';

-- lane.sql
-- Find the lane of a queue, priority, task and kind, or make it.
--
-- There is no unique key and no lock. If two open transactions are both the first to use a
-- lane, each makes a row, and claims read both. A lane is removed when it has been empty for a
-- while and no transaction can still use it: see retire.sql.
--
-- The number of lanes of a queue is limited, since a claim looks into each lane that has work.
-- Existing jobs always get a lane: see lane_of_kind().
-- holdfast: role producer
create or replace function holdfast.lane(queue text, priority integer, task text, kind integer default 0)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  found_id integer;
begin
  select l.id into found_id
  from holdfast.lane l
  where l.queue = lane.queue
    and l.task = lane.task
    and l.priority = lane.priority
    and l.kind = lane.kind
    and not exists (select from holdfast.retired_lane r where r.lane_id = l.id)
  order by l.id
  limit 1;
  if found then
    return found_id;
  end if;
  perform holdfast.check_name('queue', lane.queue);
  perform holdfast.check_queue(lane.queue);
  perform holdfast.check_name('task', lane.task);
  perform holdfast.check_priority(lane.priority);
  perform holdfast.check_lanes(lane.queue, lane.priority, lane.task);
  return holdfast.make_lane(lane.queue, lane.priority, lane.task, lane.kind);
end
$$;
comment on function holdfast.lane(text, integer, text, integer) is
  'Return the lane of a queue, priority and task; create it if it is new. A bulk COPY into holdfast.job '
  'needs it as lane_id.';

create or replace function holdfast.make_lane(queue text, priority integer, task text, kind integer)
returns integer
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  with made as (
    -- One snapshot for both, so that a policy change in between is seen by both or by neither.
    insert into holdfast.lane (queue, priority, task, kind, max_attempts, policies_seen)
    values (
      make_lane.queue, make_lane.priority, make_lane.task, make_lane.kind,
      holdfast.max_attempts(make_lane.task, make_lane.queue), (select w.changes from holdfast.policy_watch w)
    )
    returning id
  ),
  noted as (
    insert into holdfast.lane_activity (lane_id, at) select m.id, holdfast.clock() from made m
  )
  select m.id from made m
$$;
comment on function holdfast.make_lane(text, integer, text, integer) is
  'Create a lane without checks and return its id.';

-- Two calls at the same time may both succeed, so the limit is not exact.
create or replace function holdfast.check_lanes(queue text, priority integer, task text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  lane_limit constant integer := holdfast.lane_limit(check_lanes.queue);
  lanes bigint;
begin
  select count(*) into lanes
  from holdfast.lane l
  where l.queue = check_lanes.queue
    and l.kind = 0
    and not exists (select from holdfast.retired_lane r where r.lane_id = l.id);
  if lanes >= lane_limit then
    raise exception using
      errcode = 'HF019',
      message = format(
        'queue %s has %s lanes, and its lane_limit is %s: there is none for task %s at priority %s',
        check_lanes.queue, lanes, lane_limit, check_lanes.task, check_lanes.priority),
      detail = jsonb_build_object('queue', check_lanes.queue, 'lanes', lanes, 'limit', lane_limit),
      hint = format(
        'Each task and each priority takes a lane: put what differs from job to job into the payload. '
        'Lanes are removed when they have been empty for about a quarter of an hour. Or raise the limit: '
        'holdfast queue configure %s lane_limit=%s',
        check_lanes.queue, 2 * lane_limit::bigint);
  end if;
end
$$;
comment on function holdfast.check_lanes(text, integer, text) is
  'Refuse a new lane in a queue that has reached its limit.';

-- Return the lane of this kind for jobs that are in a lane of the same queue, priority and task.
--
-- Such jobs exist already, so the limit of lanes does not apply: one full queue would
-- otherwise stop promote() for all queues.
create or replace function holdfast.lane_of_kind(lane_id integer, kind integer)
returns integer
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(
    (
      select o.id
      from holdfast.lane o
      where o.queue = l.queue
        and o.task = l.task
        and o.priority = l.priority
        and o.kind = lane_of_kind.kind
        and not exists (select from holdfast.retired_lane r where r.lane_id = o.id)
      order by o.id
      limit 1),
    holdfast.make_lane(l.queue, l.priority, l.task, lane_of_kind.kind))
  from holdfast.lane l
  where l.id = lane_of_kind.lane_id
$$;
comment on function holdfast.lane_of_kind(integer, integer) is
  'Return the fresh, returned or suspect lane beside a lane.';

-- Return what a bulk COPY into holdfast.job must know, once for each queue, priority and task,
-- in the order given. `declared` is the max_attempts in the code of each task: a policy that an
-- operator has set wins over it.
--
-- This function runs with its owner's rights. The COPY runs with those of the session at that
-- time: of `role` if it was set, otherwise of the session's user. A COPY reads the defaults of
-- the columns that it does not name, so it also needs the sequence and the clock.
-- holdfast: role producer
create or replace function holdfast.places(
  tasks text[], queues text[], priorities integer[], declared integer[] default null)
returns table (lane_id integer, max_attempts integer, may_copy boolean, now_at timestamptz)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  with caller as materialized (
    select
      bool_and(has_column_privilege(c.name, 'holdfast.job', needed, 'insert'))
      and bool_and(has_sequence_privilege(c.name, 'holdfast.job_seq', 'usage'))
      and bool_and(has_function_privilege(c.name, 'holdfast.clock()', 'execute')) as may_copy,
      holdfast.clock() as now_at
    from (select coalesce(nullif(current_setting('role'), 'none'), session_user)::name as name) c,
      unnest(array['id', 'lane_id', 'task', 'payload', 'headers', 'max_attempts', 'run_at']) needed
    group by c.name
  )
  select
    holdfast.lane(p.queue, p.priority, p.task),
    case
      when p.declared is null or holdfast.has_operator_policy(p.task)
        then holdfast.max_attempts(p.task, p.queue)
      else p.declared
    end,
    c.may_copy,
    c.now_at
  from unnest(places.tasks, places.queues, places.priorities, places.declared)
      with ordinality p (task, queue, priority, declared, n),
    caller c
  order by p.n
$$;
comment on function holdfast.places(text[], text[], integer[], integer[]) is
  'Return what a bulk COPY into holdfast.job needs for each task, queue and priority: the lane and '
  'max_attempts. Each row also says whether the session may COPY, and what time it is.';

-- lane_attempts.sql
-- Store in each lane how often its jobs are tried, so that an enqueue looks at one row.

-- Count a change of what decides on max_attempts: from now on the value stored in lanes is not
-- used.
--
--   a policy or a queue's setting changes    policy_watch counts it, in the same transaction
--   a lane is made, or upkeep() runs         the lane stores max_attempts and the count, in one snapshot
--   a job is enqueued                        if the count is the same, the lane's value is used;
--                                            otherwise the policies are looked up
--
-- A transaction that sees a change also sees that no lane knows it. The same holds for a lane
-- made by a transaction that does not see the change. Looking up three tables instead would take
-- an eighth of the time of an enqueue.
create or replace function holdfast.count_policy_change()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if old.max_attempts is distinct from new.max_attempts then -- a policy that does not exist has no values
    update holdfast.policy_watch w set changes = w.changes + 1;
  end if;
  return null;
end
$$;
comment on function holdfast.count_policy_change() is 'Count a change of what decides on max_attempts.';

create or replace trigger policy_change_counts
after insert or update or delete on holdfast.retry_policy
for each row execute function holdfast.count_policy_change();

create or replace trigger queue_change_counts
after insert or update or delete on holdfast.queue
for each row execute function holdfast.count_policy_change();

-- Store again in each lane how often its jobs are tried. This also repairs lanes with another
-- value, if a policy was changed without the triggers.
create or replace function holdfast.settle_lanes()
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  settled integer;
begin
  update holdfast.lane l
  set max_attempts = holdfast.max_attempts(l.task, l.queue), policies_seen = w.changes
  from holdfast.policy_watch w
  where l.id = any(array(
    select o.id
    from holdfast.lane o
    where o.kind = 0
      and (o.policies_seen is distinct from (select w.changes from holdfast.policy_watch w)
        or o.max_attempts is distinct from holdfast.max_attempts(o.task, o.queue))
    for update skip locked));
  get diagnostics settled = row_count;
  return settled;
end
$$;
comment on function holdfast.settle_lanes() is
  'Store in each lane how often its jobs are tried, if that has changed. Returns how many lanes changed.';

-- lanes_at_work.sql
-- Find the lanes that a claim may take jobs from, and how far into each lane its jobs lie.

-- Return the tasks of all lanes of some queues, because lanes are found by their task.
create or replace function holdfast.tasks_of(queues text[])
returns text[]
language plpgsql volatile -- so that it sees what was committed while it waited for a lock
as $$
begin
  if tasks_of.queues is null then
    return array(select l.task from holdfast.lane l where l.id > 0);
  end if;
  return array(
    select l.task
    from unnest(tasks_of.queues) q (name)
    cross join lateral (select l.task from holdfast.lane l where l.queue = q.name offset 0) l);
end
$$;
comment on function holdfast.tasks_of(text[]) is
  'Return the tasks of all lanes of some queues, or of every queue.';

-- Return the lanes that have work, each with the place of its first job. The entries between
-- the head and that job are read here, and not again. This function and the next have no SET
-- clause, so that PostgreSQL inlines them.
create or replace function holdfast.lanes_at_work(queues text[], tasks text[], above integer)
returns table (id integer, queue text, priority smallint, kind smallint, first bigint)
language sql stable
as $$
  select l.id, l.queue, l.priority, l.kind, first.seq
  from (
    -- Both branches use an index, so the lanes of others cost nothing.
    select l.* from holdfast.lane l where l.task = any(lanes_at_work.tasks)
      and l.queue = any(lanes_at_work.queues)
    union all
    select l.* from holdfast.lane l where l.task = any(lanes_at_work.tasks) and lanes_at_work.queues is null
  ) l
  cross join lateral (
    select j.seq
    from holdfast.live j
    where j.lane_id = l.id
      and j.state = 'pending'
      and j.seq >= l.head
    order by j.seq
    limit 1
  ) first
  where (lanes_at_work.above is null or l.priority > lanes_at_work.above)
    and not exists (select from holdfast.queue q where q.name = l.queue and q.paused_at is not null)
$$;
comment on function holdfast.lanes_at_work(text[], text[], integer) is
  'Return the lanes that have jobs to claim, each with the place of the first one.';

-- Return the place up to which the `amount` oldest jobs of these lanes lie, given the first job
-- of each lane. If there are fewer jobs, return the largest possible place.
--
-- Reading that many jobs of each lane would cost more than the claim. So the first look covers
-- twice an even share. A lane with that many jobs before the place found so far may have more
-- of them there, and is read further, until no such lane is left. Equal lanes need one look. If
-- one lane holds all the oldest jobs, its own jobs are the answer.
create or replace function holdfast.nth_place(lanes integer[], firsts bigint[], amount integer)
returns bigint
language plpgsql volatile
as $$
declare
  furthest constant bigint := 9223372036854775807;
  ids integer[];
  starts bigint[];
  ahead bigint[] := '{}';
  cut bigint;
  glance integer;
begin
  -- An upper bound: `amount` lanes have a job up to here, or the lane with the oldest job has that many.
  with bound as materialized (
    select least(
      furthest,
      (select f from unnest(firsts) f order by f offset amount - 1 limit 1),
      (
        select j.seq
        from (select l.id, l.first from unnest(lanes, firsts) l (id, first) order by l.first limit 1) l
        cross join lateral (
          select j.seq
          from holdfast.live j
          where j.lane_id = l.id
            and j.state = 'pending'
            and j.seq >= l.first
          order by j.seq
          offset amount - 1
          limit 1
        ) j
      )) as place
  )
  select b.place, array_agg(l.id), array_agg(l.first) into cut, ids, starts
  from bound b
  join unnest(lanes, firsts) l (id, first) on l.first <= b.place
  group by b.place;
  if cardinality(ids) = 1 then
    return cut;
  end if;
  loop
    glance := least(amount, 2 * amount / cardinality(ids) + 8);
    with looked as materialized (
      select l.id, s.seqs
      from unnest(ids, starts) l (id, first)
      cross join lateral (
        select array(
          select j.seq
          from holdfast.live j
          where j.lane_id = l.id
            and j.state = 'pending'
            and j.seq between l.first and cut
          order by j.seq
          limit glance
        ) as seqs
      ) s
    ),
    merged as materialized (
      select array(
        (select unnest(ahead) as seq union all select unnest(l.seqs) from looked l) order by seq limit amount
      ) as seqs
    )
    select
      m.seqs, coalesce(m.seqs[amount], furthest),
      array_agg(l.id) filter (where l.seqs[glance] < coalesce(m.seqs[amount], furthest)),
      array_agg(l.seqs[glance] + 1) filter (where l.seqs[glance] < coalesce(m.seqs[amount], furthest))
    into ahead, cut, ids, starts
    from merged m
    left join looked l on true
    group by m.seqs;
    exit when ids is null;
  end loop;
  return cut;
end
$$;
comment on function holdfast.nth_place(integer[], bigint[], integer) is
  'Return the place up to which the oldest jobs of several lanes lie, for a given number of jobs.';

-- leave.sql
-- Deregister a worker. The jobs that it still holds go back, unstarted ones without a charge.
--
-- Leaving twice is no error, since the reply to the first call may have been lost. If another
-- transaction has locked a job, recover() takes it back later.
-- holdfast: role worker
create or replace function holdfast.leave(worker uuid)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  held_ids uuid[];
  held_leases uuid[];
  outcomes text[];
  refused bigint;
begin
  update holdfast.worker w
  set left_at = holdfast.clock(), asleep = false
  where w.id = leave.worker
    and w.left_at is null
    and w.lost_at is null;
  if not found then
    perform from holdfast.worker w where w.id = leave.worker and w.lost_at is null;
    if not found then
      perform holdfast.refuse_worker(leave.worker);
    end if;
  end if;
  -- No plain join: if the planner takes `live` for empty, as after a vacuum beside an old snapshot,
  -- it would read all ids in the order of the join.
  select array_agg(j.id), array_agg(j.lease),
    array_agg(case when r.started then 'interrupted' else 'released' end)
  into held_ids, held_leases, outcomes
  from (
    select j.id, j.lease from holdfast.live j where j.worker_id = leave.worker
      and j.state = 'claimed' offset 0
  ) j
  left join lateral (
    select true as started from holdfast.running r where r.job_id = j.id and r.lease = j.lease offset 0
  ) r on true;
  if held_ids is null then
    return 0;
  end if;
  select count(*) into refused from holdfast.finish(held_ids, held_leases, outcomes, skip_locked => true);
  return cardinality(held_ids) - refused;
end
$$;
comment on function holdfast.leave(uuid) is
  'Deregister a worker and give back the jobs that it holds. Returns how many.';

-- list_queues.sql
-- List the queues that hold live jobs, are paused, or have settings of their own.
-- holdfast: role worker viewer
create or replace function holdfast.list_queues()
returns table (
  name text, paused_at timestamptz, scheduled bigint, pending bigint, held bigint, oldest_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    n.name,
    (select q.paused_at from holdfast.queue q where q.name = n.name),
    coalesce(sum(c.jobs) filter (where c.state = 'scheduled'), 0)::bigint,
    coalesce(sum(c.jobs) filter (where c.state = 'pending'), 0)::bigint,
    coalesce(sum(c.jobs) filter (where c.state in ('claimed', 'running')), 0)::bigint,
    min(c.oldest_at) filter (where c.state = 'pending')
  from (
    select q.name from holdfast.queue q where q.name <> '*'
    union
    select l.queue from holdfast.lane l
  ) n (name)
  left join holdfast.count_live() c on c.queue = n.name
  where ((select holdfast.unrestricted()) or holdfast.in_reach(n.name))
  group by n.name
  order by n.name
$$;
comment on function holdfast.list_queues() is
  'List every queue that was used or has settings: since when it is paused, how many jobs are scheduled, '
  'pending and held, and when the oldest pending one was made. Large numbers are estimates.';

-- list_schedules.sql
-- List schedules with their next times, as the caller may see them.

-- holdfast: role worker viewer
create or replace function holdfast.list_schedules(upcoming integer default 5)
returns table (
  name text, words text, cron text, every interval, zone text, task text, payload jsonb, queue text,
  priority integer, max_attempts integer, missed text, overlap boolean, jitter interval, declared boolean,
  paused_at timestamptz,
  next_at timestamptz, upcoming timestamptz[], last_at timestamptz, last_job uuid, skipped bigint, error text)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    s.name, coalesce(holdfast.cron_in_words(s.cron), holdfast.interval_in_words(s.every)), s.cron, s.every,
    s.zone, s.task,
    holdfast.as_seen(s.payload, s.queue, s.payload, holdfast.sees_payloads()), s.queue, s.priority::integer,
    s.max_attempts::integer, s.missed, s.overlap, s.jitter, s.declared, s.paused_at,
    case when s.paused_at is null then s.next_at end,
      array(select holdfast.ticks_ahead(s, list_schedules.upcoming)), s.last_at, s.last_job, s.skipped,
      s.error
  from holdfast.schedule s
  where ((select holdfast.unrestricted()) or holdfast.in_reach(s.queue))
  order by s.name
$$;
comment on function holdfast.list_schedules(integer) is
  'List all schedules, each with a number of its next times (none if it is paused) and a description in '
  'words.';

-- holdfast: role viewer
create or replace function holdfast.upcoming(name text, amount integer default 5)
returns setof timestamptz
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.ticks_ahead(holdfast.seen_schedule(upcoming.name), upcoming.amount)
$$;
comment on function holdfast.upcoming(text, integer) is
  'Return the next times of a schedule; none if it is paused.';

create or replace function holdfast.ticks_ahead(given holdfast.schedule, amount integer)
returns setof timestamptz
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  tick timestamptz := given.next_at;
begin
  if amount is null or amount not between 0 and 1000 then
    perform holdfast.refuse_value('amount', amount::text, 'must be between 0 and 1000');
  end if;
  begin
    for n in 1..case when given.paused_at is null then amount else 0 end loop
      return next tick;
      tick := holdfast.tick_after(given, tick);
    end loop;
  exception when sqlstate 'HF008' then
    null; -- this server no longer knows the zone; the row of the schedule says so in `error`
  end;
end
$$;
comment on function holdfast.ticks_ahead(holdfast.schedule, integer) is
  'Return the next times of a given schedule.';

-- Functions that only read a schedule call this one.
create or replace function holdfast.seen_schedule(name text)
returns holdfast.schedule
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known holdfast.schedule;
begin
  select s.* into known from holdfast.schedule s where s.name = seen_schedule.name;
  if not found or not (holdfast.unrestricted() or holdfast.in_reach(known.queue)) then
    perform holdfast.refuse_value(
      'name', seen_schedule.name,
      'there is no schedule of this name; holdfast.list_schedules() has them all');
  end if;
  return known;
end
$$;
comment on function holdfast.seen_schedule(text) is
  'Return a schedule by its name. Refuses a name that does not exist.';

-- list_settings.sql
-- List the settings of queues, with the values that apply.

-- holdfast: role viewer
create or replace function holdfast.settings(queue text default null)
returns setof holdfast.setting
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set intervalstyle = 'postgres_verbose'
as $$
#variable_conflict use_column
begin
  if settings.queue <> '*' then
    perform holdfast.check_name('queue', settings.queue);
  end if;
  return query
    select
      n.name, s.name, holdfast.show_setting(e.value, s.kind, s.never), e.own, s.builtin, s.meaning,
      case when s.kind = 'duration' and (e.value #>> '{}')::interval < interval '1000 years'
        then extract(epoch from (e.value #>> '{}')::interval)::double precision end
    from (
      select q.name from holdfast.queue q where settings.queue is null
      union
      select settings.queue where settings.queue is not null
    ) n (name)
    join holdfast.queue d on d.name = '*'
    left join holdfast.queue q on q.name = n.name
    cross join holdfast.known_settings() with ordinality
      s (name, kind, lowest, highest, never, everywhere, builtin, meaning, place)
    cross join lateral (
      select nullif(to_jsonb(q) -> s.name, 'null') as mine, nullif(to_jsonb(d) -> s.name, 'null') as its
    ) v
    cross join lateral (
      select
        coalesce(v.mine, v.its) as value,
        case when n.name = '*' then holdfast.show_setting(v.its, s.kind, s.never) is distinct from s.builtin
          else v.mine is not null end as own
    ) e
    where (not s.everywhere or n.name = '*')
      and (n.name = '*' or (select holdfast.unrestricted()) or holdfast.in_reach(n.name))
    order by n.name collate "C", s.place;
end
$$;
comment on function holdfast.settings(text) is
  'Return the settings of a queue, or of all queues that have any, with the defaults (*) first: the value, '
  'whether it is the queue''s own (for *: whether it was changed), its initial value and its meaning.';

-- list_workers.sql
-- List workers, and whether they are alive.

-- holdfast: role worker viewer
create or replace function holdfast.list_workers()
returns table (
  id uuid, name text, host text, pid integer, queues text[], tasks text[], status text, holds bigint,
  started_at timestamptz, heartbeat_at timestamptz, recovered integer)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    w.id, w.name, w.host, w.pid, w.queues, w.tasks,
    case
      when w.lost_at is not null then 'lost'
      when w.left_at is not null then 'left'
      -- As health() and why() see it. A worker is `lost` once its jobs were taken back.
      when w.heartbeat_at + w.lease_time <= (select holdfast.clock()) then 'silent'
      when exists (select from holdfast.live j where j.worker_id = w.id and j.state = 'claimed') then 'busy'
      else 'idle'
    end,
    (select count(*) from holdfast.live j where j.worker_id = w.id and j.state = 'claimed'),
    w.started_at, w.heartbeat_at, w.recovered
  from holdfast.worker w
  where (select holdfast.unrestricted())
    or w.queues is null
    or exists (select from unnest(w.queues) q where holdfast.in_reach(q))
  order by w.started_at desc
$$;
comment on function holdfast.list_workers() is
  'List the workers of the last day, what they serve and hold, and when they were last heard from.';

-- lockers.sql
-- Note the lockers: transactions that hold a job which a head has passed. advance.sql explains them.

-- Note the transactions that now lock the jobs that were passed. When a locker has ended,
-- another transaction may have waited for its lock and hold it.
create or replace function holdfast.note_still_locked(from_seq bigint)
returns void
language sql volatile
as $$
  insert into holdfast.locker (xid, seq)
  select holdfast.long_xid(j.xmax, pg_snapshot_xmax(pg_current_snapshot())), min(j.seq)
  from holdfast.lane l
  cross join lateral (
    select j.xmax, j.seq
    from holdfast.live j
    where j.lane_id = l.id
      and j.state = 'pending'
      and j.seq >= greatest(l.safe_head, from_seq)
      and j.seq < l.head
  ) j
  where l.head > l.safe_head
  group by 1
  on conflict (xid) do update set seq = least(locker.seq, excluded.seq)
$$;
comment on function holdfast.note_still_locked(bigint) is
  'Record which transactions lock the jobs between the safe heads and the heads, from a given place on.';

-- Return the full number of a transaction from the 32 bits that a row has: the one nearest to
-- `next_xid`. This function and is_open() have no SET clause, so that PostgreSQL inlines them.
create or replace function holdfast.long_xid(xid xid, next_xid xid8)
returns xid8
language sql immutable
as $$
  select greatest(
    next_xid::text::bigint - 2147483648
      + (xid::text::bigint - next_xid::text::bigint % 4294967296 + 6442450944) % 4294967296,
    0)::text::xid8
$$;
comment on function holdfast.long_xid(xid, xid8) is
  'Return the full number of a transaction from the part of it that a row has.';

-- Return whether a transaction or savepoint is open and has a number less than `below`. That may
-- be at most the next number: PostgreSQL refuses to tell the status of a future transaction.
create or replace function holdfast.is_open(xid xid8, below xid8)
returns boolean
language sql volatile
as $$
  select case when xid < below then coalesce(pg_xact_status(xid) = 'in progress', false) else false end
$$;
comment on function holdfast.is_open(xid8, xid8) is
  'Return whether the transaction with this number is open and older than another number.';

-- log_events.sql
-- Write the log of a job: what happened to it, and what its handler published.
--
-- Holdfast's own events begin with `job.`: failed, dead, cancelled, cancel_requested, snoozed,
-- interrupted, recovered, replayed, step. A job gets `job.completed` only if it has other
-- events, because most jobs only complete, and `finished` records that.

-- Write events of jobs in the order given, each with its queue, task and attempt. The counters
-- come first, in the order of ids. Their rows are locked until the commit, so the events of one
-- job become visible in the order of their ids: a reader that sees one has seen all before it.
-- Of events beyond `most`, only the number is kept.
create or replace function holdfast.log_events(
  ids uuid[],
  queues text[],
  tasks text[],
  attempts integer[],
  names text[],
  datas jsonb[],
  now_at timestamptz,
  most integer default null
)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  full_ids uuid[];
  totals integer[];
  number xid8;
begin
  if coalesce(cardinality(ids), 0) = 0 then
    return;
  end if;
  number := holdfast.shifted(pg_current_xact_id(), holdfast.note_cluster());
  with counts as (
    insert into holdfast.event_count as c (job_id, events, last_at)
    select i.id, count(*), now_at
    from unnest(ids) i (id)
    group by i.id
    order by i.id
    on conflict (job_id) do update set events = c.events + excluded.events, last_at = excluded.last_at
    returning c.job_id, c.events
  )
  select array_agg(c.job_id), array_agg(c.events) into full_ids, totals
  from counts c
  where c.events > log_events.most;
  insert into holdfast.event (job_id, queue, task, attempt, name, data, at, xid)
  select e.id, e.queue, e.task, e.attempt, e.name, e.data, now_at, number
  from (
    select e.*, row_number() over (partition by e.id order by e.n desc) as from_last
    from unnest(ids, queues, tasks, attempts, names, datas) with ordinality e (
      id, queue, task, attempt, name, data, n)
  ) e
  where full_ids is null
    or e.id <> all(full_ids)
    or totals[array_position(full_ids, e.id)] - e.from_last < log_events.most
  order by e.n;
end
$$;
comment on function holdfast.log_events(
  uuid[], text[], text[], integer[], text[], jsonb[], timestamptz, integer) is
  'Write events of jobs in the order given.';

-- Write one event for each of these jobs that still exist.
create or replace function holdfast.log_live(ids uuid[], name text, datas jsonb[], now_at timestamptz)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
begin
  if cardinality(ids) > 0 then
    perform holdfast.log_events(
      array_agg(j.id), array_agg(l.queue), array_agg(j.task), array_agg(j.attempt), array_agg(log_live.name),
      array_agg(i.data), now_at)
    from unnest(ids, datas) i (id, data)
    cross join lateral (
      select j.id, j.task, j.attempt, j.lane_id from holdfast.live j where j.id = i.id offset 0
    ) j
    join holdfast.lane l on l.id = j.lane_id;
  end if;
end
$$;
comment on function holdfast.log_live(uuid[], text, jsonb[], timestamptz) is
  'Write an event for each of these live jobs.';

-- make_partitions.sql
-- Make a partition of `finished`, or of `event`, for each of the next 7 days. Each is made as a
-- separate table and then attached, with a short lock_timeout: a report that reads the table
-- would otherwise make the attach wait, and every finish behind it. Never for today: a finish on
-- its way to the default partition would wait for the attach, and then be refused (23514),
-- because its day has a partition now.
create or replace function holdfast.make_partitions(now_at timestamptz, parent text)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
set timezone = 'UTC'
as $$
declare
  time_column constant text := case parent when 'finished' then 'finished_at' else 'at' end;
  today date := (now_at at time zone 'UTC')::date;
  day date;
  name text;
  taken boolean;
  made integer := 0;
begin
  for day in select generate_series(today + 1, today + 7, interval '1 day')::date loop
    name := parent || to_char(day, '_YYYYMMDD');
    continue when to_regclass('holdfast.' || name) is not null;
    -- Rows of that day are already in the default partition. Leave them there.
    execute format(
      'select exists (select from holdfast.%I d where d.%I >= %L and d.%I < %L)',
      parent || '_default', time_column, day::timestamptz, time_column, (day + 1)::timestamptz) into taken;
    continue when taken;
    begin
      -- Autovacuum need not read them because rows come in: see migration 0014.
      execute format(
        'create table holdfast.%I (like holdfast.%I including defaults including constraints)
          with (vacuum_truncate = off, autovacuum_vacuum_insert_threshold = -1)',
        name, parent);
      -- rows can be deleted even if all tables are published
      execute format('alter table holdfast.%I replica identity full', name);
      execute format(
        'alter table holdfast.%I attach partition holdfast.%I for values from (%L) to (%L)',
        parent, name, day::timestamptz, (day + 1)::timestamptz);
      made := made + 1;
    exception when lock_not_available then
      exit; -- the table is in use; the next round tries again
    end;
  end loop;
  return made;
end
$$;
comment on function holdfast.make_partitions(timestamptz, text) is
  'Create the daily partitions of finished jobs, or of events, for the next week.';

-- move_heads.sql
-- Move heads for advance(): the safe head moves up to a proven place, and the eager head moves past
-- jobs that a long transaction holds back. advance.sql explains both.

-- Move the heads up to `proven`: no job can still appear at or below it.
create or replace function holdfast.advance_safe_heads(proven bigint, next_xid xid8)
returns integer
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  step bigint := holdfast.head_step();
  moved integer;
begin
  update holdfast.lane l
  set
    safe_head = n.head,
    head = case when n.waits and n.head < l.head then n.head else greatest(l.head, n.head) end
  from (
    -- The eager head may have passed a locked job on purpose, so only a job that is not locked
    -- (`waits`) pulls it back.
    select l.id, coalesce(f.seq, proven + 1) as head, not coalesce(f.is_locked, true) as waits
    from holdfast.lane l
    left join lateral (
      select j.seq, holdfast.is_open(holdfast.long_xid(j.xmax, next_xid), next_xid) as is_locked
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq between l.safe_head and proven
      order by j.seq
      limit 1
    ) f on true
    where proven + 1 > l.safe_head + step
  ) n
  where l.id = n.id
    and (n.head > l.safe_head + step or (n.waits and n.head < l.head));
  get diagnostics moved = row_count;
  return moved;
end
$$;
comment on function holdfast.advance_safe_heads(bigint, xid8) is
  'Move the heads up to a place below which no job can appear any more.';

-- Let claims read past the jobs that a long transaction holds back. These are jobs that it has not
-- committed yet, and pending jobs whose locker is below `old_xid`.
--
-- Locked jobs are read twice: to find the new head, and to note their lockers. The second read
-- notes the transactions that hold the jobs at that moment.
--
-- Each savepoint is a locker of its own. If there are more than a thousand lockers, heads pass no
-- locked job.
create or replace function holdfast.advance_eager_heads(most bigint, old_xid xid8)
returns integer
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  step bigint := holdfast.head_step();
  next_xid xid8 := pg_snapshot_xmax(pg_current_snapshot());
  moved integer;
begin
  with n as materialized (
    select l.id, f.is_locked, f.seq as first,
      coalesce(case when f.is_locked then u.seq else f.seq end, most) as head
    from holdfast.lane l
    left join lateral (
      select j.seq, holdfast.is_open(holdfast.long_xid(j.xmax, next_xid), old_xid) as is_locked
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq between l.head and most
      order by j.seq
      limit 1
    ) f on true
    left join lateral (
      select j.seq
      from holdfast.live j
      where f.is_locked
        and j.lane_id = l.id
        and j.state = 'pending'
        and j.seq between f.seq and most
        and not holdfast.is_open(holdfast.long_xid(j.xmax, next_xid), old_xid)
      order by j.seq
      limit 1
    ) u on true
    where most > l.safe_head + 10000
  ),
  ahead as materialized (
    select n.*
    from n
    join holdfast.lane l on l.id = n.id
    where n.head > l.safe_head + 10000
      and n.head > l.head + step
  ),
  locked as materialized (
    select holdfast.long_xid(j.xmax, next_xid) as xid, min(j.seq) as seq
    from ahead a
    cross join lateral (
      select j.xmax, j.seq
      from holdfast.live j
      where j.lane_id = a.id
        and j.state = 'pending'
        and j.seq >= a.first
        and j.seq < a.head
    ) j
    where a.is_locked
    group by 1
  ),
  few as (
    select (select count(*) from locked) + (select count(*) from holdfast.locker) <= 1000 as are_few
  ),
  noted as (
    insert into holdfast.locker (xid, seq)
    select k.xid, k.seq from locked k, few where few.are_few
    on conflict (xid) do update set seq = least(locker.seq, excluded.seq)
  )
  update holdfast.lane l
  set head = a.head
  from ahead a, few
  where l.id = a.id
    and (few.are_few or a.is_locked is distinct from true);
  get diagnostics moved = row_count;
  return moved;
end
$$;
comment on function holdfast.advance_eager_heads(bigint, xid8) is
  'Let claims read past jobs that a long transaction holds back, up to a given place.';

-- Let claims find jobs that committed late, at or above `from_seq`, between a safe head and the
-- head that is ahead of it. These jobs get new places. If a lane has a thousand or more of them,
-- its head goes back to the first instead.
--
-- The commit of these jobs woke workers, but they found nothing behind the head. So wake them
-- again.
create or replace function holdfast.include_late_jobs(from_seq bigint)
returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  many constant integer := 1000;
  lanes integer[];
begin
  with late as materialized (
    select l.id as lane_id, j.row_id, j.seq, count(*) over (partition by l.id) >= many as are_many
    from holdfast.lane l
    cross join lateral (
      select j.ctid as row_id, j.seq
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= greatest(l.safe_head, from_seq)
        and j.seq < l.head
      order by j.seq
      limit many
      for update skip locked
    ) j
    where l.head > l.safe_head
  ),
  back as (
    update holdfast.lane l
    set head = f.seq
    from (select late.lane_id, min(late.seq) as seq from late where late.are_many group by late.lane_id) f
    where l.id = f.lane_id
  ),
  placed as (
    update holdfast.live j
    set seq = o.new_seq
    from (
      select late.row_id, nextval('holdfast.job_seq') as new_seq
      from (select late.row_id from late where not late.are_many order by late.seq) late
    ) o
    where j.ctid = o.row_id
  )
  select array_agg(distinct late.lane_id) into lanes from late;
  if lanes is not null then
    perform holdfast.wake_lanes(lanes);
  end if;
end
$$;
comment on function holdfast.include_late_jobs(bigint) is
  'Make jobs that committed late reachable for claims: give them new places, or move the head back if there '
  'are many.';

-- Return how many places a move must gain. Each move writes a new version of the lane's row, so
-- small moves are not worth it. With more lanes a move must gain more.
--
-- Every enqueue and claim reads over the dead versions, which cannot be removed while a session
-- holds an old snapshot. So the step also grows with their number. Then both the dead versions
-- and the index entries that a claim reads over grow only with the square root of the jobs done.
create or replace function holdfast.head_step()
returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select greatest(
    500 + 5 * pg_stat_get_live_tuples('holdfast.lane'::regclass),
    pg_stat_get_dead_tuples('holdfast.lane'::regclass))
$$;
comment on function holdfast.head_step() is 'Return how many places a move of a head must gain.';

-- nearest.sql
-- Find the name that was probably meant.
--
-- The pairs of letters that both have are compared (Dice's coefficient). This needs only SQL, and
-- finds swapped, missing and doubled letters.
create or replace function holdfast.nearest(word text, candidates text[])
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  with given as (
    select distinct substr('^' || lower(word) || '$', n, 2) as pair
      from generate_series(1, least(length(word), 100) + 1) n
  ),
  compared as (
    select c.word, (
      select 2.0 * count(g.pair) / (count(*) + (select count(*) from given))
      from (
        select distinct substr('^' || c.word || '$', n, 2) as pair
        from generate_series(1, length(c.word) + 1) n) p
      left join given g on g.pair = p.pair
    ) as likeness
    from unnest(candidates) c (word)
  )
  select c.word from compared c where c.likeness >= 0.4 order by c.likeness desc, c.word limit 1
$$;
comment on function holdfast.nearest(text, text[]) is
  'Return the candidate that was probably meant, if one is close.';

-- not_held.sql
-- Return which of a worker's jobs were taken away from it.
-- holdfast: role worker
create or replace function holdfast.not_held(ids uuid[], leases uuid[])
returns setof uuid
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
  select r.id
  from unnest(not_held.ids, not_held.leases) r (id, lease)
  where not exists (select from holdfast.live j where j.id = r.id and j.lease = r.lease offset 0)
$$;
comment on function holdfast.not_held(uuid[], uuid[]) is
  'Return which of these jobs are no longer held under the leases given.';

-- notify.sql
-- Wake workers. NOTIFY takes a database-wide lock at commit. So it is sent only if a live
-- worker sleeps that serves the queue and task, and never while the notification queue fills
-- up. It is a hint: polling finds the jobs that it misses.

-- Return the channel of a queue: `holdfast_` and its name, or the beginning of its SHA-256 if
-- that would be longer than the 63 bytes of a channel. A worker that serves every queue listens
-- on holdfast.channel('*').
-- holdfast: role worker
create or replace function holdfast.channel(queue text)
returns text
language sql immutable parallel safe
as $$
  select case
    when length(queue) <= 54 then 'holdfast_' || queue
    else 'holdfast_' || left(encode(sha256(queue::bytea), 'hex'), 32)
  end
$$;
comment on function holdfast.channel(text) is
  'Return the channel to LISTEN on for a queue, or for all queues (*). The payload of a notification is the '
  'name of a queue, or empty if a schedule has changed.';

-- Workers that sleep and want to be woken, except those that are silent for their lease time
-- but not yet declared lost.
create or replace view holdfast.sleeper as
select w.id, w.queues, w.tasks, w.above
from holdfast.worker w
where w.asleep
  and w.lost_at is null
  and w.left_at is null
  and w.heartbeat_at + w.lease_time > holdfast.clock();
comment on view holdfast.sleeper is
  'Live workers that want to be notified: sleeping ones of all jobs, busy ones of jobs above a priority.';

-- Return whether workers that serve this queue, or all queues, sleep for jobs of a task. There
-- is no SET clause, so that PostgreSQL inlines the function.
create or replace function holdfast.sleepers(queue text, task text, priority integer)
returns table (of_queue boolean, of_all boolean)
language sql stable
as $$
  select bool_or(s.queues is not null), bool_or(s.queues is null)
  from holdfast.sleeper s
  where (s.queues is null or sleepers.queue = any(s.queues))
    and (s.tasks is null or sleepers.task = any(s.tasks))
    and (s.above is null or sleepers.priority > s.above)
$$;
comment on function holdfast.sleepers(text, text, integer) is
  'Return whether workers sleep for jobs of this queue, task and priority: workers that serve the queue, '
  'and workers that serve all queues.';

-- An older snapshot shows the workers that slept when it began. Then all workers are woken.
create or replace function holdfast.sees_sleepers()
returns boolean
language sql stable
as $$
  select current_setting('transaction_isolation') = 'read committed'
$$;
comment on function holdfast.sees_sleepers() is
  'Return whether this transaction sees which workers sleep now.';

-- Wake the workers that sleep for jobs of a task: those of its queue, those of every queue, or
-- both. `set holdfast.notify = off` keeps a session silent for two-phase transactions, because
-- PREPARE refuses a transaction with a NOTIFY.
create or replace function holdfast.wake(queue text, of_queue boolean, of_all boolean)
returns void
language plpgsql volatile
as $$
begin
  if current_setting('holdfast.notify', true) is distinct from 'off' and pg_notification_queue_usage() < 0.5
    then
    if of_queue or not holdfast.sees_sleepers() then
      perform pg_notify(holdfast.channel(wake.queue), wake.queue);
    end if;
    if of_all or not holdfast.sees_sleepers() then
      perform pg_notify(holdfast.channel('*'), wake.queue);
    end if;
  end if;
end
$$;
comment on function holdfast.wake(text, boolean, boolean) is
  'Notify the workers that sleep for this queue, and those that sleep for all queues.';

create or replace function holdfast.wake_lanes(lanes integer[])
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.wake(l.queue, bool_or(s.of_queue), bool_or(s.of_all))
  from holdfast.lane l
  cross join lateral holdfast.sleepers(l.queue, l.task, l.priority) s
  where l.id = any(lanes)
    and (s.of_queue or s.of_all or not holdfast.sees_sleepers())
  group by l.queue
$$;
comment on function holdfast.wake_lanes(integer[]) is 'Notify the live workers that sleep for these lanes.';

-- orphans.sql
-- Find live jobs that no claim and no other duty takes: parts of upkeep().

-- Take back the jobs of an unknown worker, or of one that left a day ago: no report will come.
--
-- recover() has taken back all others. The search goes between the known workers, because with
-- an old snapshot it would walk over all that these have held. It does not run beside recover(),
-- which writes to the same workers.
create or replace function holdfast.take_back_orphans(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  orphans uuid[];
begin
  if not holdfast.try_duty('recover') then
    return 0;
  end if;
  orphans := array(
    select j.id
    from (
      select
        coalesce(lag(w.id) over (order by w.id), '00000000-0000-0000-0000-000000000000') as after,
        w.id as before
      from (select w.id from holdfast.worker w union all select 'ffffffff-ffff-ffff-ffff-ffffffffffff') w
    ) w
    cross join lateral (
      select j.id from holdfast.live j
      where j.state = 'claimed'
        and j.worker_id > w.after
        and j.worker_id < w.before
        and j.claimed_at < now_at - interval '30 seconds'
      limit 50000
      for update skip locked
    ) j
    limit 50000);
  orphans := orphans || array(
    select j.id
    from holdfast.worker w
    cross join lateral (
      select j.id from holdfast.live j where j.state = 'claimed' and j.worker_id = w.id
        limit 50000 for update skip locked
    ) j
    where greatest(w.lost_at, w.left_at) < now_at - interval '1 day'
    limit 50000);
  return holdfast.take_back(orphans, now_at, null);
end
$$;
comment on function holdfast.take_back_orphans(timestamptz) is
  'Take back the jobs that are held by an unknown worker, or by one that left a day ago. Returns how many.';

-- End pending jobs without attempts left, because the maximum was lowered: claims skip them.
--
-- Only jobs that were tried before can be in this state, so only lanes of returned and suspect
-- jobs are read.
create or replace function holdfast.end_pending_without_attempts(now_at timestamptz)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  spent uuid[];
begin
  spent := array(
    select j.id
    from holdfast.lane l
    cross join lateral (
      select j.id
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.safe_head
        and j.attempt >= j.max_attempts
      limit 1000
      for update skip locked
    ) j
    where l.kind <> 0);
  if spent = '{}' then
    return 0;
  end if;
  return coalesce(holdfast.end_jobs_without_attempts(spent, now_at), 0);
end
$$;
comment on function holdfast.end_pending_without_attempts(timestamptz) is
  'Move pending jobs that have no attempts left to the dead letters. Returns how many.';

-- partitions.sql
-- Return the partitions of finished jobs and of events with their bounds.
create or replace function holdfast.partitions()
returns table (parent text, partition text, place regclass, low timestamptz, high timestamptz)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select p.relname, c.relname, c.oid::regclass, coalesce(d.low, '-infinity'),
    coalesce(d.low + interval '24 hours', 'infinity')
  from pg_class p
  join pg_inherits i on i.inhparent = p.oid
  join pg_class c on c.oid = i.inhrelid
  cross join lateral (
    select case when c.relname ~ '_[0-9]{8}$'
      then to_date(right(c.relname, 8), 'YYYYMMDD')::timestamp at time zone 'UTC' end as low
  ) d
  where p.relnamespace = 'holdfast'::regnamespace
    and p.relname in ('finished', 'event')
$$;
comment on function holdfast.partitions() is
  'Return the partitions of finished jobs and of events with their bounds.';

create or replace function holdfast.about_rows(place regclass)
returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select greatest(
    pg_stat_get_live_tuples(place), (select c.reltuples::bigint from pg_class c where c.oid = place), 0)
$$;
comment on function holdfast.about_rows(regclass) is 'Return the approximate number of rows of a table.';

-- holdfast: role viewer
create or replace function holdfast.list_partitions()
returns table (
  parent text, partition text, day date, rows bigint, bytes bigint, goes_at timestamptz, fate text,
  exported_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    p.parent, p.partition, d.day, holdfast.about_rows(p.place), pg_total_relation_size(p.place),
    case when k.keep < interval '1000 years' and d.day is not null then p.high + k.keep end,
    case when d.day is null then 'row by row' when k.keep >= interval '1000 years' then 'keep'
      else k.disposal end,
    e.exported_at
  from holdfast.partitions() p
  cross join lateral (
    select (p.low at time zone 'UTC')::date as day where p.low > '-infinity'
    union all
    select null where p.low = '-infinity'
  ) d
  cross join (
    select holdfast.longest_retention() as keep,
      coalesce((select q.disposal from holdfast.queue q where q.name = '*'), 'drop') as disposal
  ) k
  left join holdfast.exported e on e.partition = p.partition
  order by p.parent desc, d.day nulls first
$$;
comment on function holdfast.list_partitions() is
  'List the partitions of finished jobs and of events: their approximate rows, their bytes with indexes, '
  'and when and how they go.';

-- pause.sql
-- Pause a queue: it accepts jobs but hands none out. Running jobs continue.
-- holdfast: role operator
create or replace function holdfast.pause(queue text)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.check_name('queue', pause.queue);
  perform holdfast.check_queue(pause.queue);
  insert into holdfast.queue (name, paused_at)
  values (pause.queue, holdfast.clock())
  on conflict (name) do update set paused_at = coalesce(queue.paused_at, excluded.paused_at);
  perform holdfast.note('pause', pause.queue);
end
$$;
comment on function holdfast.pause(text) is 'Stop handing out the jobs of a queue. Running jobs continue.';

-- holdfast: role operator
create or replace function holdfast.resume(queue text)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.check_name('queue', resume.queue);
  perform holdfast.check_queue(resume.queue);
  -- Lock like an enqueue, so that a worker that falls asleep before this commit sees the lock and
  -- looks again.
  lock table holdfast.live in row exclusive mode;
  update holdfast.queue q set paused_at = null where q.name = resume.queue;
  perform holdfast.note('resume', resume.queue);
  perform holdfast.wake_lanes(array(select l.id from holdfast.lane l where l.queue = resume.queue));
end
$$;
comment on function holdfast.resume(text) is 'Hand out the jobs of a paused queue again.';

-- pause_schedule.sql
-- Pause and resume a schedule.

-- holdfast: role operator
create or replace function holdfast.pause_schedule(name text)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known holdfast.schedule := holdfast.known_schedule(pause_schedule.name);
begin
  if known.paused_at is not null then
    return false;
  end if;
  update holdfast.schedule s set paused_at = holdfast.clock() where s.name = known.name;
  perform holdfast.note('pause schedule', known.name);
  return true;
end
$$;
comment on function holdfast.pause_schedule(text) is
  'Pause a schedule: its times pass without a job. Returns whether it was running.';

-- Ticks that passed during the pause, or were due before it, are not made up for.
-- holdfast: role operator
create or replace function holdfast.resume_schedule(name text)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  known holdfast.schedule := holdfast.known_schedule(resume_schedule.name);
begin
  if known.paused_at is null then
    return false;
  end if;
  update holdfast.schedule s
  set paused_at = null, next_at = holdfast.tick_after(known, now_at), planned_at = now_at
  where s.name = known.name;
  perform holdfast.note('resume schedule', known.name);
  perform holdfast.wake_schedulers(known.queue);
  return true;
end
$$;
comment on function holdfast.resume_schedule(text) is
  'Resume a paused schedule from its next time on. Returns whether it was paused.';

-- progress.sql
-- Record what a running job reports about itself. It is written to `running`, never to the job's row,
-- and only under the lease of the current claim.

-- holdfast: role worker
create or replace function holdfast.progress(
  id uuid,
  lease uuid,
  percent integer default null,
  stage text default null,
  message text default null,
  step text default null
)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
begin
  if progress.percent not between 0 and 100 then
    perform holdfast.refuse_value('percent', progress.percent::text, 'must be between 0 and 100');
  end if;
  if length(progress.stage) > 100 then
    perform holdfast.refuse_value('stage', progress.stage, 'must have at most 100 characters');
  end if;
  if length(progress.step) > 100 then
    perform holdfast.refuse_value('step', progress.step, 'must have at most 100 characters');
  end if;
  perform holdfast.check_held(progress.id, progress.lease, 'progress');
  update holdfast.running x
  set
    progress = coalesce(progress.percent, x.progress),
    stage = coalesce(progress.stage, x.stage),
    message = coalesce(left(progress.message, 1000), x.message),
    step = coalesce(progress.step, x.step),
    changed_at = now_at
  where x.job_id = progress.id
    and x.lease = progress.lease;
end
$$;
comment on function holdfast.progress(uuid, uuid, integer, text, text, text) is
  'Report the progress of a running job: percent, stage, message and step. A null leaves a value as it is.';

-- Report the progress of many jobs, as a worker flushes it, with the checkpoints of those that
-- have one. Return the ids that are no longer held. With `skip_locked`, also return the jobs that
-- another transaction has locked; nothing was written for them. An empty step means that the
-- step has ended.
-- holdfast: role worker
create or replace function holdfast.progress_many(
  ids uuid[],
  leases uuid[],
  percents integer[],
  stages text[],
  messages text[],
  steps text[] default null,
  states jsonb[] default null,
  skip_locked boolean default false
)
returns table (progress_many uuid, locked boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  others uuid[];
  are_locked boolean[];
begin
  select coalesce(array_agg(s.start), '{}'), array_agg(s.locked) into others, are_locked
  from holdfast.start(ids, leases, skip_locked => progress_many.skip_locked) s;
  update holdfast.running x
  set
    progress = coalesce(r.percent, x.progress),
    stage = coalesce(left(r.stage, 100), x.stage),
    message = coalesce(left(r.message, 1000), x.message),
    step = case when r.step is null then x.step else nullif(left(r.step, 100), '') end,
    changed_at = now_at
  from unnest(ids, leases, percents, stages, messages, steps) r (id, lease, percent, stage, message, step)
  where x.job_id = r.id
    and x.lease = r.lease
    and r.id <> all(others);
  if states is not null then
    perform holdfast.check_checkpoint(s) from unnest(states) s where s is not null;
    perform holdfast.put_checkpoints(array_agg(r.id), array_agg(r.state), now_at)
    from unnest(ids, states) r (id, state)
    where r.id <> all(others);
  end if;
  return query select * from unnest(others, are_locked);
end
$$;
comment on function holdfast.progress_many(
  uuid[], uuid[], integer[], text[], text[], text[], jsonb[], boolean) is
  'Report the progress of many running jobs, and store their checkpoints. Returns the jobs that are no '
  'longer held, and with skip_locked also those that another transaction has locked.';

-- publish.sql
-- Publish an event of a running job under its lease.
-- holdfast: role worker
create or replace function holdfast.publish(id uuid, lease uuid, name text, data jsonb default null)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_event(publish.name, publish.data);
  perform holdfast.check_held(publish.id, publish.lease, 'event');
  if (select c.events from holdfast.event_count c where c.job_id = publish.id) >= 10000 then
    perform holdfast.refuse_value('name', publish.name, 'the job has 10000 events, and may have no more');
  end if;
  perform holdfast.log_live(array[publish.id], publish.name, array[publish.data], holdfast.clock());
end
$$;
comment on function holdfast.publish(uuid, uuid, text, jsonb) is
  'Publish an event of a running job under its lease.';

-- Publish many events, as a worker flushes them. A worker numbers the events of a lease, so a
-- batch that is sent again after a lost reply is written once. Return the jobs that are no
-- longer held. With `skip_locked`, also return the jobs that another transaction has locked;
-- nothing was written for them.
-- holdfast: role worker
create or replace function holdfast.publish_many(
  ids uuid[], leases uuid[], numbers integer[], names text[], datas jsonb[],
  skip_locked boolean default false)
returns table (publish_many uuid, locked boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  jobs uuid[];
  job_leases uuid[];
  others uuid[];
  are_locked boolean[];
  held uuid[];
  published integer[];
begin
  perform holdfast.check_event(e.name, e.data) from unnest(names, datas) e (name, data);
  select array_agg(d.id), array_agg(d.lease) into jobs, job_leases
  from (select distinct r.id, r.lease from unnest(ids, leases) r (id, lease)) d;
  select coalesce(array_agg(s.start), '{}'), array_agg(s.locked) into others, are_locked
  from holdfast.start(jobs, job_leases, skip_locked => publish_many.skip_locked) s;
  -- Another session that publishes for the same job waits here.
  select array_agg(x.job_id), array_agg(x.published) into held, published
  from (
    select x.job_id, x.published
    from (
      select r.id, r.lease from unnest(jobs, job_leases) r (id, lease) where r.id <> all(others)
      order by r.id offset 0) r
    cross join lateral (
      select x.job_id, x.published from holdfast.running x where x.job_id = r.id
        and x.lease = r.lease for update
    ) x
  ) x;
  perform holdfast.log_events(
    array_agg(e.id), array_agg(l.queue), array_agg(j.task), array_agg(j.attempt), array_agg(e.name),
    array_agg(e.data), holdfast.clock(), 10000)
  from (
    select e.id, e.name, e.data
    from unnest(ids, numbers, names, datas) with ordinality e (id, number, name, data, n)
    join unnest(held, published) h (id, published) on h.id = e.id
    where e.number > h.published
    order by e.n
    offset 0
  ) e
  cross join lateral (select j.task, j.attempt, j.lane_id from holdfast.live j where j.id = e.id offset 0) j
  join holdfast.lane l on l.id = j.lane_id;
  update holdfast.running x
  set published = greatest(x.published, p.number)
  from (select e.id, max(e.number) as number from unnest(ids, numbers) e (id, number) group by e.id) p
  where x.job_id = p.id
    and x.job_id = any(held);
  return query select * from unnest(others, are_locked);
end
$$;
comment on function holdfast.publish_many(uuid[], uuid[], integer[], text[], jsonb[], boolean) is
  'Publish numbered events of running jobs. Returns the jobs that are no longer held, and with skip_locked '
  'also those that another transaction has locked.';

create or replace function holdfast.check_event(name text, data jsonb)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.check_name('name', name);
  if name like 'job.%' then
    perform holdfast.refuse_value('name', name, 'events of this name are the queue''s own; take another');
  end if;
  if octet_length(data::text) > 32768 then
    perform holdfast.refuse_value(
      'data', octet_length(data::text) || ' bytes',
      'the data of an event may have 32768 bytes: store it elsewhere and say where it is');
  end if;
  perform holdfast.check_json('data', data);
end
$$;
comment on function holdfast.check_event(text, jsonb) is
  'Refuse an event with a name that is not allowed, or with too much data.';

-- purge.sql
-- Delete dead letters by hand. Each purge is written to the audit log.

-- holdfast: role operator
create or replace function holdfast.purge(id uuid)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_job(purge.id);
  if holdfast.erase_dead(array[purge.id]) = 0 then
    perform holdfast.refuse_unless_dead(purge.id, 'purged', null);
  end if;
  perform holdfast.note('purge', purge.id::text);
end
$$;
comment on function holdfast.purge(uuid) is 'Delete a dead job with its errors and steps.';

-- holdfast: role operator
create or replace function holdfast.purge_many(
  queue text default null,
  task text default null,
  error text default null,
  died_after timestamptz default null,
  died_before timestamptz default null,
  amount integer default null,
  everything boolean default false
)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  purged bigint;
begin
  perform holdfast.check_amount(purge_many.amount);
  perform holdfast.check_filter(
    purge_many.queue, purge_many.task, purge_many.error, purge_many.died_after, purge_many.died_before,
    purge_many.everything);
  purged := holdfast.erase_dead(array(select holdfast.pick_dead(
    purge_many.queue, purge_many.task, purge_many.error, purge_many.died_after, purge_many.died_before,
    purge_many.amount)));
  perform holdfast.note_dead(
    'purge many', purged, purge_many.queue, purge_many.task, purge_many.error, purge_many.died_after,
    purge_many.died_before);
  return purged;
end
$$;
comment on function holdfast.purge_many(text, text, text, timestamptz, timestamptz, integer, boolean) is
  'Delete the dead jobs that match, or all of them, with their errors. Returns how many.';

-- The errors of these jobs go too.
create or replace function holdfast.erase_dead(ids uuid[])
returns bigint
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  with gone as (
    delete from holdfast.dead_letter d where d.id = any(ids) returning d.id
  ),
  errors as (
    delete from holdfast.attempt_error e using gone g where e.job_id = g.id
  ),
  steps as (
    delete from holdfast.step s using gone g where s.job_id = g.id
  ),
  checkpoints as (
    delete from holdfast.checkpoint c using gone g where c.job_id = g.id
  ),
  -- Errors and events were masked by the payload, which is gone.
  events as (
    delete from holdfast.event e using gone g where e.job_id = g.id
  ),
  counts as (
    delete from holdfast.event_count c using gone g where c.job_id = g.id
  )
  select count(*) from gone
$$;
comment on function holdfast.erase_dead(uuid[]) is
  'Delete dead letters with their errors and steps. Returns how many.';

-- read_events.sql
-- Read events. A cursor says what a reader has seen. For one job it is the id of the last
-- event. For a queue, or all queues, it is a snapshot, because transactions may commit late.
--
-- New events are those that are visible now and were not visible then: their transaction was
-- open then, or began later. A cursor `old/new/id` lies in the middle of such a batch: between
-- these two snapshots, up to this event. So a reader that continues after any event sees every
-- event once and waits for no transaction. The numbers in a snapshot and in the column xid grow
-- from one cluster to the next: see cluster.sql.
-- holdfast: role viewer
create or replace function holdfast.read_events(
  job_id uuid default null,
  queue text default null,
  after text default null,
  amount integer default 1000
)
returns setof holdfast.job_event
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  parts text[] := string_to_array(read_events.after, '/');
  now_seen pg_snapshot := holdfast.seen_now();
  old_seen pg_snapshot;
  new_seen pg_snapshot;
  from_id bigint := 0;
  found_rows bigint := 0;
  in_full constant boolean := holdfast.sees_payloads();
  everything constant boolean := holdfast.unrestricted();
begin
  if read_events.amount is null or read_events.amount not between 1 and 10000 then
    perform holdfast.refuse_value('amount', read_events.amount::text, 'must be between 1 and 10000');
  end if;
  if read_events.job_id is not null then
    if read_events.after is not null and read_events.after !~ '^[0-9]{1,18}$' then
      perform holdfast.refuse_value('after', read_events.after, 'is not a cursor of one job''s events');
    end if;
    return query
      select e.id, e.job_id, e.queue, e.task, e.name, e.attempt, holdfast.event_as_seen(e, in_full), e.at,
        e.id::text
      from holdfast.event e
      where e.job_id = read_events.job_id
        and (everything or e.queue = any((select holdfast.queues_in_reach())::text[]))
        and e.id > coalesce(read_events.after, '0')::bigint
      order by e.id
      limit read_events.amount;
    return;
  end if;

  begin
    if cardinality(parts) = 1 then
      old_seen := parts[1]::pg_snapshot;
      new_seen := now_seen;
    elsif cardinality(parts) = 3 then
      old_seen := nullif(parts[1], '')::pg_snapshot;
      new_seen := parts[2]::pg_snapshot;
      from_id := parts[3]::bigint;
    elsif read_events.after is null then
      new_seen := now_seen;
    else
      raise invalid_text_representation;
    end if;
  exception when invalid_text_representation or numeric_value_out_of_range then
    perform holdfast.refuse_value(
      'after', read_events.after,
      'is not a cursor of the events of a queue, or of all; those of a job have their own');
  end;
  if greatest(pg_snapshot_xmax(old_seen), pg_snapshot_xmax(new_seen)) > pg_snapshot_xmax(now_seen) then
    perform holdfast.refuse_value(
      'after', read_events.after,
      'is a cursor of another server: begin with after => null for all events that are kept, or with '
      'holdfast.event_cursor() for those to come');
  end if;

  loop
    return query
      select e.id, e.job_id, e.queue, e.task, e.name, e.attempt, holdfast.event_as_seen(e, in_full), e.at,
        concat_ws('/', coalesce(old_seen::text, ''), new_seen, e.id)
      from holdfast.events_between(
        read_events.queue, old_seen, new_seen, from_id, read_events.amount - found_rows) e
      order by e.id;
    get diagnostics found_rows = row_count;
    exit when new_seen::text = now_seen::text or found_rows >= read_events.amount;
    old_seen := new_seen;
    new_seen := now_seen;
    from_id := 0;
  end loop;
end
$$;
comment on function holdfast.read_events(uuid, text, text, integer) is
  'Return the events of a job, a queue or all queues after a cursor, in order, each with the cursor behind '
  'it.';

-- Handlers publish what they like, even confidential values.
create or replace function holdfast.event_as_seen(given holdfast.event, in_full boolean)
returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select case when given.data is not null then
    holdfast.as_seen(
      given.data, given.queue, (select f.payload from holdfast.found_job(given.job_id) f), in_full)
  end
$$;
comment on function holdfast.event_as_seen(holdfast.event, boolean) is
  'Return the data of an event as the caller may see it.';

-- Return what is visible now, without what this transaction itself has written. A standby
-- leaves out all numbers after the oldest open transaction too, since it does not know which
-- later ones are open.
create or replace function holdfast.seen_now()
returns pg_snapshot
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.shifted(case
    when pg_is_in_recovery() then format('%1$s:%1$s:', pg_snapshot_xmin(s.seen))::pg_snapshot
    when o.own is null or o.own >= pg_snapshot_xmax(s.seen) then s.seen
    else format(
      '%s:%s:%s', least(pg_snapshot_xmin(s.seen), o.own), pg_snapshot_xmax(s.seen),
      (select string_agg(x.xid::text, ',' order by x.xid)
        from (select pg_snapshot_xip(s.seen) as xid union select o.own) x)
    )::pg_snapshot
  end, (select holdfast.xid_shift()))
  from (select pg_current_snapshot() as seen) s, (select pg_current_xact_id_if_assigned() as own) o
$$;
comment on function holdfast.seen_now() is
  'Return the current snapshot, without what this transaction has written.';

-- The events that the first snapshot did not show and the second does, by id.
create or replace function holdfast.events_between(
  queue text, old_seen pg_snapshot, new_seen pg_snapshot, from_id bigint, amount bigint)
returns setof holdfast.event
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  everything constant boolean := holdfast.unrestricted();
begin
  if old_seen is null then
    return query
      select e.*
      from holdfast.event e
      where (events_between.queue is null or e.queue = events_between.queue)
        and (everything or e.queue = any((select holdfast.queues_in_reach())::text[]))
        and e.id > from_id
        and pg_visible_in_snapshot(e.xid, new_seen)
      order by e.id
      limit events_between.amount;
  else
    return query
      select e.*
      from (
        -- Kept apart, or the planner may read along the ids from the first one.
        select e.*
        from holdfast.event e
        where (e.xid >= pg_snapshot_xmax(old_seen) or e.xid = any(array(select pg_snapshot_xip(old_seen))))
        offset 0
      ) e
      where (events_between.queue is null or e.queue = events_between.queue)
        and (everything or e.queue = any((select holdfast.queues_in_reach())::text[]))
        and e.id > from_id
        and pg_visible_in_snapshot(e.xid, new_seen)
      order by e.id
      limit events_between.amount;
  end if;
end
$$;
comment on function holdfast.events_between(text, pg_snapshot, pg_snapshot, bigint, bigint) is
  'Return the events that are visible in the second snapshot and not in the first.';

-- Return the current cursor, for a reader that wants only later events.
-- holdfast: role viewer
create or replace function holdfast.event_cursor(job_id uuid default null)
returns text
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select case
    when event_cursor.job_id is null then holdfast.seen_now()::text
    else coalesce((select max(e.id) from holdfast.event e where e.job_id = event_cursor.job_id), 0)::text
  end
$$;
comment on function holdfast.event_cursor(uuid) is
  'Return the current cursor in the events of a job, a queue or all queues.';

-- refuse_delete.sql
-- Keep rows of `job` from being deleted other than by our functions, which delete from `live`.

create or replace function holdfast.refuse_delete()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using
    errcode = 'HF010',
    message = 'jobs do not leave holdfast.job by hand',
    detail = '{"id": null}',
    hint = 'Use holdfast.cancel(id) or a worker''s report.';
end
$$;
comment on function holdfast.refuse_delete() is
  'Raise the error for a job that is deleted other than by our functions.';

-- Functions of 0.1 delete from `job` and call this first. They may still run while a database of 0.1 is
-- upgraded.
create or replace function holdfast.door(is_open boolean)
returns void
language sql volatile
as $$
  select set_config('holdfast.door', case when is_open then 'open' else '' end, true)
$$;
comment on function holdfast.door(boolean) is
  'Let the next statements of this transaction delete from holdfast.job, or not.';

create or replace trigger job_refuse_delete
before delete on holdfast.job
for each statement when (current_setting('holdfast.door', true) is distinct from 'open')
execute function holdfast.refuse_delete();

create or replace trigger job_is_not_truncated
before truncate on holdfast.job
for each statement execute function holdfast.refuse_delete();

create or replace trigger job_is_not_truncated
before truncate on holdfast.live
for each statement execute function holdfast.refuse_delete();

-- refuse_transition.sql
-- Raise the errors for a job that does not exist, or is in the wrong state for a call.

create or replace function holdfast.refuse_job(id uuid)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using
    errcode = 'HF002',
    message = format('there is no job %s', id),
    detail = jsonb_build_object('id', id),
    hint = 'Check the id, and that its transaction has committed. Old jobs are removed.';
end
$$;
comment on function holdfast.refuse_job(uuid) is 'Raise the error for an id that no job has.';

create or replace function holdfast.refuse_transition(id uuid, to_state text, rule text, hint text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  known text := (select j.state from holdfast.job(refuse_transition.id) j);
begin
  if known is null then
    perform holdfast.refuse_job(refuse_transition.id);
  end if;
  raise exception using
    errcode = 'HF010',
    message = format('job %s is %s: %s', refuse_transition.id, known, rule),
    detail = jsonb_build_object('id', refuse_transition.id, 'from_state', known, 'to_state', to_state),
    hint = refuse_transition.hint;
end
$$;
comment on function holdfast.refuse_transition(uuid, text, text, text) is
  'Raise the error for a job that is in the wrong state for a call, or does not exist.';

-- register.sql
-- Register workers, and refuse those that were lost or have left.
--
-- A registration is a random id for one life of a process; the name is a label. A registration
-- that was declared lost cannot be revived: the process registers again.

-- holdfast: role worker
create or replace function holdfast.register(
  name text default null,
  queues text[] default null,
  tasks text[] default null,
  lease_time interval default '30 seconds',
  host text default null,
  pid integer default null,
  version text default null
)
returns uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  new_worker uuid := gen_random_uuid();
begin
  if register.lease_time is null or register.lease_time not between interval '1 second' and interval '1 day'
    then
    perform holdfast.refuse_value(
      'lease_time', register.lease_time::text, 'must be between 1 second and 1 day');
  end if;
  insert into holdfast.worker (
    id, name, host, pid, version, queues, tasks, lease_time, started_at, heartbeat_at)
  values (
    new_worker, coalesce(left(register.name, 200), 'worker-' || left(new_worker::text, 8)), register.host,
    register.pid, register.version, register.queues, register.tasks, register.lease_time, now_at, now_at
  );
  return new_worker;
end
$$;
comment on function holdfast.register(text, text[], text[], interval, text, integer, text) is
  'Register a worker for one life of its process. Returns its id.';

-- claim() calls this. It registers an unknown worker with the default lease time, takes a known
-- one as alive, and refuses a lost one.
create or replace function holdfast.attend(worker uuid, now_at timestamptz, queues text[], tasks text[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known holdfast.worker;
begin
  select w.* into known from holdfast.worker w where w.id = attend.worker;
  if not found then
    insert into holdfast.worker (id, name, queues, tasks, started_at, heartbeat_at)
    values (
      attend.worker, 'consumer-' || left(attend.worker::text, 8), attend.queues, attend.tasks, now_at, now_at)
    on conflict (id) do nothing;
  elsif known.lost_at is not null or known.left_at is not null then
    perform holdfast.refuse_worker(attend.worker);
  elsif known.heartbeat_at < now_at - known.lease_time / 3 then
    update holdfast.worker w
    set heartbeat_at = now_at
    where w.id = attend.worker
      and w.lost_at is null
      and w.left_at is null;
    if not found then -- declared lost meanwhile
      perform holdfast.refuse_worker(attend.worker);
    end if;
  end if;
end
$$;
comment on function holdfast.attend(uuid, timestamptz, text[], text[]) is
  'Record that a worker claims: register it if it is unknown, refuse it if it is lost.';

create or replace function holdfast.check_worker(worker uuid)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform from holdfast.worker w where w.id = check_worker.worker and w.lost_at is null and w.left_at is null;
  if not found then
    perform holdfast.refuse_worker(check_worker.worker);
  end if;
end
$$;
comment on function holdfast.check_worker(uuid) is 'Refuse a worker that is lost, has left or is unknown.';

create or replace function holdfast.refuse_worker(worker uuid)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  known holdfast.worker;
begin
  select w.* into known from holdfast.worker w where w.id = refuse_worker.worker;
  raise exception using
    errcode = 'HF006',
    message = case
      when known.lost_at is not null then
        format(
          'worker %s was declared lost at %s, after no heartbeat since %s', refuse_worker.worker,
          known.lost_at, known.heartbeat_at)
      when known.left_at is not null then format('worker %s left at %s', refuse_worker.worker, known.left_at)
      else format('worker %s is not registered', refuse_worker.worker)
    end,
    detail = jsonb_build_object('worker', refuse_worker.worker),
    hint = 'Register again with holdfast.register(); other workers run the jobs that the lost one held.';
end
$$;
comment on function holdfast.refuse_worker(uuid) is
  'Raise the error for a worker that is lost, has left or is unknown.';

-- replay.sql
-- Put dead letters back on their queues. Each replay is written to the audit log.

-- holdfast: role operator
create or replace function holdfast.replay(id uuid, start_over boolean default false)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_job(replay.id);
  perform from holdfast.dead_letter d where d.id = replay.id for update;
  if not found or holdfast.replay_dead(array[replay.id], holdfast.clock(), replay.start_over) = 0 then
    perform holdfast.refuse_unless_dead(replay.id, 'replayed', 'pending');
  end if;
  perform holdfast.note('replay', replay.id::text);
  return 'pending';
end
$$;
comment on function holdfast.replay(uuid, boolean) is
  'Put a dead job back on its queue, with attempts from 0. Its id, payload, errors and finished steps stay; '
  'the steps go if it starts over. Returns pending.';

-- holdfast: role operator
create or replace function holdfast.replay_many(
  queue text default null,
  task text default null,
  error text default null,
  died_after timestamptz default null,
  died_before timestamptz default null,
  amount integer default null,
  start_over boolean default false,
  everything boolean default false
)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  replayed bigint;
begin
  perform holdfast.check_amount(replay_many.amount);
  perform holdfast.check_filter(
    replay_many.queue, replay_many.task, replay_many.error, replay_many.died_after, replay_many.died_before,
    replay_many.everything);
  replayed := holdfast.replay_dead(
    array(select holdfast.pick_dead(
      replay_many.queue, replay_many.task, replay_many.error, replay_many.died_after, replay_many.died_before,
      replay_many.amount)),
    holdfast.clock(), replay_many.start_over);
  perform holdfast.note_dead(
    'replay many', replayed, replay_many.queue, replay_many.task, replay_many.error, replay_many.died_after,
    replay_many.died_before);
  return replayed;
end
$$;
comment on function holdfast.replay_many(
  text, text, text, timestamptz, timestamptz, integer, boolean, boolean) is
  'Put the dead jobs that match, or all of them, back on their queues, oldest first. They continue after '
  'their finished steps unless they start over. Returns how many.';

-- The caller has locked the letters. The id, payload, headers, priority and creation time stay
-- the same. Attempts and deaths start again at 0, and the earlier errors stay. So do the
-- finished steps and the checkpoint, from which the job continues unless it starts over: the
-- header `resumes` tells the worker to load them in a first attempt. A letter whose id a live
-- job has is left alone.
create or replace function holdfast.replay_dead(ids uuid[], now_at timestamptz, start_over boolean)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  lanes integer[];
  revived uuid[];
begin
  with placed as materialized (
    select p.queue, p.priority, p.task, holdfast.lane(p.queue, p.priority, p.task) as lane_id
    from (select distinct d.queue, d.priority, d.task from holdfast.dead_letter d where d.id = any(ids)) p
  ),
  back as (
    insert into holdfast.live (
      id, lane_id, task, payload, headers, max_attempts, last_error, run_at, created_at, changed_at)
    select
      d.id, p.lane_id, d.task, d.payload,
      coalesce(d.headers, '{}') || '{"resumes": true}',
      d.max_attempts, d.last_error, now_at, d.created_at, now_at -- it waits from now on
    from holdfast.dead_letter d
    join placed p on p.queue = d.queue and p.priority = d.priority and p.task = d.task
    where d.id = any(ids)
    order by d.died_at, d.id
    on conflict (id) do nothing
    returning id, lane_id
  )
  select array_agg(b.id), array_agg(distinct b.lane_id) into revived, lanes from back b;
  if revived is null then
    return 0;
  end if;
  delete from holdfast.dead_letter d where d.id = any(revived);
  delete from holdfast.death d where d.job_id = any(revived);
  if start_over then
    perform holdfast.forget_memory(revived);
  end if;
  perform holdfast.log_live(
    revived, 'job.replayed',
    array_fill(jsonb_build_object('start_over', coalesce(start_over, false)), array[cardinality(revived)]),
    now_at);
  perform holdfast.wake_lanes(lanes);
  return cardinality(revived);
end
$$;
comment on function holdfast.replay_dead(uuid[], timestamptz, boolean) is
  'Put dead letters back on their queues. Returns how many.';

-- report.sql
-- Report on one job: wrappers around finish() for people and other languages. Each raises an
-- error if its report is refused.

-- Return why a report is refused, with a null sqlstate if it only repeats an accepted one.
--
-- HF002: there is no such job. HF001: the lease was lost, because another claim holds the job
-- or has finished it, or because it was taken away and waits again. HF003: the job is not held,
-- because it was never claimed, or because this lease has already reported another outcome.
create or replace function holdfast.verdict(id uuid, lease uuid, outcome text)
returns setof holdfast.refusal
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known record;
  repeated boolean;
begin
  select j.state, j.claimed_at, j.lease as current_lease, j.last_lease as past_lease,
    j.last_outcome into known
  from holdfast.live j where j.id = verdict.id;
  if not found then
    select f.state, f.claimed_at, null::uuid as current_lease, f.lease as past_lease,
      null as last_outcome into known
    from holdfast.finished f where f.id = verdict.id
    order by f.finished_at desc limit 1;
  end if;
  if not found then
    select 'dead' as state, d.claimed_at, null::uuid as current_lease, d.lease as past_lease,
      null as last_outcome into known
    from holdfast.dead_letter d where d.id = verdict.id;
  end if;

  if not found then
    return query select verdict.id, 'HF002', format('there is no job %s', verdict.id), null::text, null::uuid;
    return;
  end if;
  repeated := known.past_lease = verdict.lease and case known.state
    when 'completed' then verdict.outcome = 'completed'
    when 'dead' then verdict.outcome in ('failed', 'interrupted')
    when 'cancelled' then verdict.outcome in ('cancelled', 'failed', 'snoozed', 'released', 'interrupted')
    else verdict.outcome = known.last_outcome
  end;
  if repeated or known.current_lease = verdict.lease then
    return query select verdict.id, null::text, null::text, known.state, verdict.lease;
  elsif known.claimed_at is null or (known.current_lease is null and known.past_lease = verdict.lease) then
    return query select verdict.id, 'HF003',
      format(
        case when known.state in ('completed', 'cancelled', 'dead') then 'job %s is finished: it is %s'
        else 'job %s is %s: nobody holds it' end,
        verdict.id, known.state),
      known.state, null::uuid;
  else
    return query select verdict.id, 'HF001',
      format('the lease %s on job %s is lost: the job is %s%s', verdict.lease, verdict.id, known.state,
        ' under lease ' || known.current_lease),
      known.state, known.current_lease;
  end if;
end
$$;
comment on function holdfast.verdict(uuid, uuid, text) is
  'Return why a report under this lease is refused; without an sqlstate if it is accepted.';

create or replace function holdfast.refuse_report(refused holdfast.refusal, shown uuid)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using
    errcode = refused.sqlstate,
    message = refused.message,
    detail = jsonb_build_object(
      'id', refused.id, 'shown', shown, 'current', refused.lease, 'state', refused.state),
    hint = case refused.sqlstate
      when 'HF001'
        then 'Stop working on it: nothing was changed by this report, and another worker has the job or will '
             'have it.'
      when 'HF002' then 'Check the id, and that its transaction has committed. Old jobs are removed.'
      else case when refused.state in ('completed', 'cancelled', 'dead')
        then 'Report nothing more: a job that has ended stays as it is.'
        else 'Claim the job before reporting on it.'
      end
    end;
end
$$;
comment on function holdfast.refuse_report(holdfast.refusal, uuid) is 'Raise the error for a refused report.';

-- A repeated report counts as accepted, since the reply to the first may have been lost. In a
-- transaction that has written something before, it is refused: the caller repeats all of that
-- transaction, which would then be written twice.
create or replace function holdfast.refuse_repetition(id uuid, lease uuid, outcome text)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  refused holdfast.refusal;
begin
  if pg_current_xact_id_if_assigned() is null then
    return;
  end if;
  -- With a lock, since the first report may be about to commit.
  perform from holdfast.live j where j.id = refuse_repetition.id
    and j.lease = refuse_repetition.lease for update;
  if found then
    return;
  end if;
  select v.* into refused
    from holdfast.verdict(refuse_repetition.id, refuse_repetition.lease, refuse_repetition.outcome) v;
  if refused.sqlstate is null then
    refused.sqlstate := 'HF003';
    refused.message := format(
      'job %s is %s: this lease has reported on it already', refused.id, refused.state);
    refused.lease := null;
  end if;
  perform holdfast.refuse_report(refused, refuse_repetition.lease);
end
$$;
comment on function holdfast.refuse_repetition(uuid, uuid, text) is
  'Refuse a repeated report in a transaction that has written something before it.';

-- holdfast: role worker
create or replace function holdfast.complete(id uuid, lease uuid, result jsonb default null)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  refused holdfast.refusal;
begin
  perform holdfast.refuse_repetition(complete.id, complete.lease, 'completed');
  select f.* into refused
  from holdfast.finish(array[complete.id], array[complete.lease], results => array[complete.result]) f;
  if found then
    perform holdfast.refuse_report(refused, complete.lease);
  end if;
end
$$;
comment on function holdfast.complete(uuid, uuid, jsonb) is
  'Report a job as completed, with its result, under the lease of its claim.';

-- holdfast: role worker
create or replace function holdfast.fail(
  id uuid, lease uuid, error text, retry boolean default true, retry_in interval default null,
  traceback text default null)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  refused holdfast.refusal;
begin
  if fail.retry_in < interval '0' or fail.retry_in > interval '100 years' then
    perform holdfast.refuse_value('retry_in', fail.retry_in::text, 'must be between 0 and 100 years');
  end if;
  perform holdfast.refuse_repetition(fail.id, fail.lease, 'failed');
  select f.* into refused
  from holdfast.finish(
    array[fail.id], array[fail.lease], '{failed}',
    errors => array[coalesce(fail.error, 'failed')], tracebacks => array[fail.traceback],
    retries => array[fail.retry], delays => array[fail.retry_in]) f;
  if found then
    perform holdfast.refuse_report(refused, fail.lease);
  end if;
end
$$;
comment on function holdfast.fail(uuid, uuid, text, boolean, interval, text) is
  'Report a job as failed. It is retried by its policy, or after retry_in, or never if retry is false.';

-- holdfast: role worker
create or replace function holdfast.snooze(id uuid, lease uuid, delay interval)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  refused holdfast.refusal;
begin
  if snooze.delay is null or snooze.delay < interval '0' or snooze.delay > interval '100 years' then
    perform holdfast.refuse_value('delay', snooze.delay::text, 'must be between 0 and 100 years');
  end if;
  perform holdfast.refuse_repetition(snooze.id, snooze.lease, 'snoozed');
  select f.* into refused
  from holdfast.finish(array[snooze.id], array[snooze.lease], '{snoozed}', delays => array[snooze.delay]) f;
  if found then
    perform holdfast.refuse_report(refused, snooze.lease);
  end if;
end
$$;
comment on function holdfast.snooze(uuid, uuid, interval) is
  'Put off a job for some time without using up an attempt.';

-- holdfast: role worker
create or replace function holdfast.release(id uuid, lease uuid)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  refused holdfast.refusal;
begin
  perform holdfast.refuse_repetition(release.id, release.lease, 'released');
  select f.* into refused from holdfast.finish(array[release.id], array[release.lease], '{released}') f;
  if found then
    perform holdfast.refuse_report(refused, release.lease);
  end if;
end
$$;
comment on function holdfast.release(uuid, uuid) is
  'Give back a claimed job that was not started, and refund its attempt.';

-- reschedule.sql
-- Change the time of a job that waits for its time or backoff. A time that has passed makes it
-- pending at once. The clock is read after the job is locked, since the time may have passed
-- meanwhile, and no scheduled job may lie behind the low-water mark.
-- holdfast: role operator
create or replace function holdfast.reschedule(
  id uuid, run_at timestamptz default null, delay interval default null)
returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  due_at timestamptz := holdfast.due_time(reschedule.run_at, reschedule.delay, holdfast.clock());
  now_at timestamptz;
  known record;
begin
  if due_at is null then
    perform holdfast.refuse_value('run_at', null, 'give run_at or delay; run_now() is for at once');
  end if;
  perform holdfast.check_job(reschedule.id);
  select j.state, j.lane_id into known from holdfast.live j where j.id = reschedule.id for update;
  if known.state is distinct from 'scheduled' then
    perform holdfast.refuse_transition(
      reschedule.id, 'scheduled', 'only a scheduled job can be given another time',
      'Cancel it, and enqueue it again with run_at or delay.');
  end if;
  now_at := holdfast.clock();
  due_at := holdfast.due_time(reschedule.run_at, reschedule.delay, now_at);
  if due_at <= now_at then
    due_at := now_at;
    perform holdfast.make_pending_now(reschedule.id, now_at);
  else
    update holdfast.live j set run_at = due_at, changed_at = now_at where j.id = reschedule.id;
    perform holdfast.wake_lanes(array[known.lane_id]); -- they sleep until the next job is due
  end if;
  perform holdfast.note('reschedule', reschedule.id::text, jsonb_build_object('run_at', due_at));
  return due_at;
end
$$;
comment on function holdfast.reschedule(uuid, timestamptz, interval) is
  'Change the time of a scheduled job. Returns when it is due.';

-- retention.sql
-- Return how long ended jobs are kept: finished jobs and events for the retention of their queue, dead
-- letters for its dead_retention. Jobs that have not ended are never touched.

-- At least a minute, so that a waiting session finds the result.
create or replace function holdfast.retentions()
returns table (queue text, span interval)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select q.name, greatest(coalesce(q.retention, interval '30 days'), interval '1 minute')
  from holdfast.queue q
  where q.retention is not null
    or q.name = '*'
$$;
comment on function holdfast.retentions() is
  'Return how long each queue with a retention of its own keeps its finished jobs, and * for all others.';

create or replace function holdfast.longest_retention()
returns interval
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select max(r.span) from holdfast.retentions() r
$$;
comment on function holdfast.longest_retention() is
  'Return the longest time for which a queue keeps its finished jobs.';

-- retire.sql
-- Remove empty lanes in which no attempt has ended for about ten minutes.
--
-- A lane is empty if it has no live job, and no row of `stat_delta` names it. Such a row would
-- otherwise lose its queue and task.
--
-- A lane may be removed only when no transaction can still put a job into it. An open
-- transaction may have looked the lane up, or may hold a snapshot that shows it, and insert
-- later. So retire_lanes() works in rounds of four steps, and each step is a transaction of its
-- own. The row of `lane_watch` holds the current step:
--
--   1. Mark empty lanes as retired (`lane_watch` has no row yet). After the commit, lane() and
--      enqueue() make a new lane instead of using a retired one. Claims still visit it.
--   2. Note the open transactions (step = 2). After the commit, a trigger refuses inserts by
--      hand into a retired lane. Only the noted transactions may still insert there, because
--      they may have looked the lane up before it was marked.
--   3. Note the open transactions again (step = 3). Some began after the first note but before
--      its commit. They may not see that note, so they may insert too.
--   4. When all of these have ended, delete each marked lane that is still empty. The other
--      ones are ordinary lanes again.
--
-- The next round marks lanes only after this. A mark is the number of the transaction that marked
-- the lane.
create or replace function holdfast.retire_lanes(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  me constant bigint := pg_current_xact_id()::text::bigint;
  watch holdfast.lane_watch;
  newest_mark bigint;
begin
  select w.* into watch from holdfast.lane_watch w;
  -- Each note needs a transaction of its own, because others do not see it before its commit.
  if watch.noted = me then
    return 0;
  end if;
  if watch.step is null then
    select max(r.mark) into newest_mark from holdfast.retired_lane r;
    if newest_mark is null then -- step 1
      perform holdfast.mark_lanes(me, now_at);
    else -- step 2
      insert into holdfast.lane_watch (step, mark, open, noted)
      values (2, newest_mark, holdfast.open_transactions(), me);
    end if;
  elsif watch.step = 2 then -- step 3
    update holdfast.lane_watch set step = 3, open = holdfast.open_transactions(), noted = me;
  else -- step 4
    watch.open := holdfast.still_open(watch.open);
    if watch.open = '{}' then
      delete from holdfast.lane_watch;
      return holdfast.remove_lanes(watch.mark);
    end if;
    update holdfast.lane_watch w set open = watch.open where w.open <> watch.open;
  end if;
  return 0;
end
$$;
comment on function holdfast.retire_lanes(timestamptz) is
  'Take one step towards removing empty lanes in which no attempt has ended for ten minutes. Returns how '
  'many were removed.';

-- List the lanes of scheduled and held jobs, and those that stat_delta names. No index finds these
-- rows by lane, so one query reads them all, instead of one query per lane. Pending jobs are
-- missing here: an index finds them by lane. Held jobs have the state `claimed`, even while they run.
create or replace view holdfast.lane_in_use as
select j.lane_id from holdfast.live j where j.state = 'scheduled'
union
select j.lane_id from holdfast.live j where j.state = 'claimed'
union
select unnest(d.lanes) from holdfast.stat_delta d;
comment on view holdfast.lane_in_use is
  'Return the lanes of scheduled jobs, held jobs and counts that are not yet folded.';

create or replace function holdfast.mark_lanes(me bigint, now_at timestamptz)
returns void
language sql volatile
as $$
  insert into holdfast.retired_lane (lane_id, mark)
  select l.id, mark_lanes.me
  from holdfast.lane l
  where not exists (select from holdfast.retired_lane r where r.lane_id = l.id offset 0)
    and not exists (
      select from holdfast.lane_activity a where a.lane_id = l.id
        and a.at >= now_at - interval '10 minutes' offset 0)
    -- Read from the safe head: before it are no pending jobs, but perhaps many dead index entries.
    and not exists (
      select from holdfast.live j
      where j.lane_id = l.id and j.state = 'pending' and j.seq >= l.safe_head
      offset 0)
    and not exists (select from holdfast.lane_in_use u where u.lane_id = l.id)
  limit 20000
$$;
comment on function holdfast.mark_lanes(bigint, timestamptz) is
  'Mark empty lanes in which no attempt has ended for ten minutes.';

-- Delete the marked lanes that are empty, and forget all marks.
--
-- One statement looks for jobs in all states, so it sees a job in exactly one state. With
-- several statements, a job could change its state between them, and each would miss it. This
-- statement does not rely on the safe head.
--
-- `known_queue` keeps the names of the queues for queues_in_reach().
create or replace function holdfast.remove_lanes(mark bigint)
returns integer
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  removed integer;
begin
  with gone as (
    delete from holdfast.lane l
    where l.id = any(array(
      select o.id
      from holdfast.retired_lane r
      join holdfast.lane o on o.id = r.lane_id
      where r.mark <= remove_lanes.mark
        and not exists (select from holdfast.live j where j.lane_id = o.id and j.state = 'pending' offset 0)
        and not exists (select from holdfast.lane_in_use u where u.lane_id = o.id)
      for update of o skip locked))
    returning l.id, l.queue
  ),
  known as (
    insert into holdfast.known_queue (name, seen_at)
    select distinct g.queue, holdfast.clock() from gone g
    on conflict (name) do update set seen_at = excluded.seen_at
  ),
  forgotten as (
    delete from holdfast.lane_activity a using gone g where a.lane_id = g.id
  )
  select count(*) into removed from gone;
  delete from holdfast.retired_lane r where r.mark <= remove_lanes.mark;
  return removed;
end
$$;
comment on function holdfast.remove_lanes(bigint) is
  'Remove retired lanes that are empty, and make the others ordinary lanes again.';

-- Return the names of the open transactions. Every transaction locks its own virtual id from begin
-- to end, even if it writes nothing, and any role can see that lock. So its name is this id. A
-- prepared transaction has no such lock, and its name is `prepared` with its transaction number.
create or replace function holdfast.open_transactions()
returns text[]
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(array_agg(k.virtualtransaction), '{}') || holdfast.prepared_transactions()
  from pg_locks k
  left join pg_stat_activity a on a.pid = k.pid
  where k.locktype = 'virtualxid'
    and k.mode = 'ExclusiveLock'
    and k.pid <> pg_backend_pid()
    -- Leave out sessions of other databases and autovacuum, which has no user: they insert no jobs
    -- here. Keep a transaction whose database is unknown.
    and (a.datname is null or (a.datname = current_database() and a.usesysid is not null))
$$;
comment on function holdfast.open_transactions() is
  'Return the open transactions of this database, except this one.';

create or replace function holdfast.prepared_transactions()
returns text[]
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(array_agg('prepared ' || p.transaction), '{}')
  from pg_prepared_xacts p
  where p.database = current_database()
$$;
comment on function holdfast.prepared_transactions() is 'Return the prepared transactions of this database.';

-- Return which of the noted transactions may still be open.
--
-- Preparing a transaction changes its name. So if a noted name is gone, the transaction has ended,
-- or it is now one of the prepared ones. Nothing tells which one, so all of these then count as
-- still open.
create or replace function holdfast.still_open(noted text[])
returns text[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  unprepared text[] := array(select n from unnest(noted) n where n not like 'prepared %');
  prepared text[] := holdfast.prepared_transactions();
  open constant text[] := holdfast.open_transactions();
  still text[] := array(select n from unnest(unprepared) n where n = any(open));
begin
  -- A name is gone. Read the prepared transactions again, because this one may be prepared by now.
  if cardinality(still) < cardinality(unprepared) then
    return still || holdfast.prepared_transactions();
  end if;
  return still || array(select n from unnest(noted) n where n like 'prepared %' and n = any(prepared));
end
$$;
comment on function holdfast.still_open(text[]) is
  'Return which of these transactions are still open, or may have been prepared since.';

-- Return whether the current transaction may insert jobs into a lane by hand. It may not if the
-- lane is retired, its mark is covered by `lane_watch`, and the transaction is not noted there.
create or replace function holdfast.takes_jobs(lane_id integer)
returns boolean
language sql stable
as $$
  select not exists (
    select
    from holdfast.retired_lane r
    join holdfast.lane_watch w on w.mark >= r.mark
    where r.lane_id = takes_jobs.lane_id
      and not exists (
        select
        from pg_locks k
        where k.locktype = 'virtualxid'
          and k.mode = 'ExclusiveLock'
          and k.pid = pg_backend_pid()
          and k.virtualtransaction = any(w.open)))
$$;
comment on function holdfast.takes_jobs(integer) is
  'Return whether this transaction may insert jobs into a lane by hand. It may unless the lane was retired '
  'before the transaction can have looked it up.';

-- retry_policy.sql
-- Set how a task is retried, at run time. A null leaves a value to the queue and the
-- defaults. A policy that an operator has set wins over one that is declared in code.
-- holdfast: role operator
create or replace function holdfast.set_retry_policy(
  task text,
  max_attempts integer default null,
  base interval default null,
  factor double precision default null,
  cap interval default null,
  jitter double precision default null,
  declared boolean default false
)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known holdfast.retry_policy;
  given holdfast.retry_policy;
begin
  perform holdfast.check_name('task', set_retry_policy.task);
  perform holdfast.check_unrestricted('a retry policy');
  perform holdfast.check_max_attempts(set_retry_policy.max_attempts);
  if base not between interval '0' and interval '100 years' then
    perform holdfast.refuse_value('base', base::text, 'must be between 0 and 100 years');
  end if;
  if cap not between interval '0' and interval '100 years' then
    perform holdfast.refuse_value('cap', cap::text, 'must be between 0 and 100 years');
  end if;
  if factor not between 1 and 100 then
    perform holdfast.refuse_value('factor', factor::text, 'must be between 1 and 100');
  end if;
  if jitter not between 0 and 1 then
    perform holdfast.refuse_value('jitter', jitter::text, 'must be between 0 and 1');
  end if;
  if set_retry_policy.declared and exists (
    select
    from holdfast.retry_policy p
    where p.task = set_retry_policy.task
      and (not p.declared
        or (p.max_attempts, p.base, p.factor, p.cap, p.jitter) is not distinct from (
          set_retry_policy.max_attempts, set_retry_policy.base, set_retry_policy.factor, set_retry_policy.cap,
          set_retry_policy.jitter))
  ) then
    return; -- the usual case when a worker starts: it then waits for nobody
  end if;
  -- One change at a time, as in configure(): all changes count in one row. A worker that starts
  -- does not wait for changes of other settings.
  if not set_retry_policy.declared then
    perform from holdfast.queue q where q.name = '*' for update;
  end if;
  perform from holdfast.policy_watch w for update;
  select p.* into known from holdfast.retry_policy p where p.task = set_retry_policy.task;
  insert into holdfast.retry_policy as p (task, max_attempts, base, factor, cap, jitter, declared)
  values (
    set_retry_policy.task, set_retry_policy.max_attempts, set_retry_policy.base, set_retry_policy.factor,
    set_retry_policy.cap, set_retry_policy.jitter, set_retry_policy.declared
  )
  on conflict (task) do update
    set
      max_attempts = excluded.max_attempts, base = excluded.base, factor = excluded.factor,
      cap = excluded.cap, jitter = excluded.jitter, declared = excluded.declared
    where (p.declared or not excluded.declared)
      and (p.max_attempts, p.base, p.factor, p.cap, p.jitter, p.declared) is distinct from (
        excluded.max_attempts, excluded.base, excluded.factor, excluded.cap, excluded.jitter,
        excluded.declared);
  if not set_retry_policy.declared then
    select p.* into given from holdfast.retry_policy p where p.task = set_retry_policy.task;
    perform holdfast.note('set retry policy', set_retry_policy.task, holdfast.policy_changes(known, given));
  end if;
end
$$;
comment on function holdfast.set_retry_policy(
  text, integer, interval, double precision, interval, double precision, boolean) is
  'Set how a task is retried from now on. With declared, only if no operator has set a policy.';

-- A worker may call this one only: it declares what its code says.
-- holdfast: role worker operator
create or replace function holdfast.declare_retry_policy(
  task text,
  max_attempts integer default null,
  base interval default null,
  factor double precision default null,
  cap interval default null,
  jitter double precision default null
)
returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.set_retry_policy(
    declare_retry_policy.task, declare_retry_policy.max_attempts, declare_retry_policy.base,
    declare_retry_policy.factor, declare_retry_policy.cap, declare_retry_policy.jitter, true)
$$;
comment on function holdfast.declare_retry_policy(
  text, integer, interval, double precision, interval, double precision) is
  'Set how a task is retried, as its code says. A policy that an operator has set wins.';

-- The task follows its queue and the default again. A worker that declares a policy may write it
-- at its next start.
-- holdfast: role operator
create or replace function holdfast.reset_retry_policy(task text)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known holdfast.retry_policy;
begin
  perform holdfast.check_unrestricted('a retry policy');
  perform from holdfast.queue q where q.name = '*' for update;
  perform from holdfast.policy_watch w for update;
  delete from holdfast.retry_policy p where p.task = reset_retry_policy.task returning p.* into known;
  if not found then
    return false;
  end if;
  perform holdfast.note('reset retry policy', reset_retry_policy.task, holdfast.policy_changes(known, null));
  return true;
end
$$;
comment on function holdfast.reset_retry_policy(text) is
  'Remove the retry policy of a task, so that its queue and the default decide. Returns whether there was '
  'one.';

-- Return the differences, for the audit log, in the form that configure() writes.
create or replace function holdfast.policy_changes(known holdfast.retry_policy, given holdfast.retry_policy)
returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select jsonb_object_agg(k, jsonb_build_array(to_jsonb(known) -> k, to_jsonb(given) -> k))
  from unnest(array['max_attempts', 'base', 'factor', 'cap', 'jitter']) k
  where to_jsonb(known) ->> k is distinct from to_jsonb(given) ->> k
$$;
comment on function holdfast.policy_changes(holdfast.retry_policy, holdfast.retry_policy) is
  'Return the differences between two policies of a task, before and after.';

-- holdfast: role viewer
create or replace function holdfast.list_retry_policies()
returns table (
  task text, max_attempts integer, base interval, factor double precision, cap interval,
  jitter double precision,
  declared boolean)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select p.task, p.max_attempts, p.base, p.factor, p.cap, p.jitter, p.declared
  from holdfast.retry_policy p
  order by p.task
$$;
comment on function holdfast.list_retry_policies() is
  'List the retry policies of tasks. A null is left to the queue and the default.';

-- Called for each job whose code declares its max_attempts.
create or replace function holdfast.has_operator_policy(task text)
returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  return exists (
    select from holdfast.retry_policy p where p.task = has_operator_policy.task and not p.declared);
end
$$;
comment on function holdfast.has_operator_policy(text) is
  'Return whether an operator has set how this task is retried.';

-- rights.sql
-- Generated by `make reference` from the lines `-- holdfast: role …` beside the functions. Do not edit.
--
-- The list is long on purpose. `owner` means no other role. A function without a line is
-- internal. An operator may do all that a viewer may.
create or replace function holdfast.role_rights()
returns table (kind text, name text, role text)
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  with given (kind, name, roles) as (
    values
      ('column', 'headers', 'producer'),
      ('column', 'id', 'producer'),
      ('column', 'lane_id', 'producer'),
      ('column', 'max_attempts', 'producer'),
      ('column', 'payload', 'producer'),
      ('column', 'run_at', 'producer'),
      ('column', 'task', 'producer'),
      ('function', 'add_schedule', 'operator'),
      ('function', 'advance', 'worker'),
      ('function', 'as_seen', 'viewer'),
      ('function', 'audit_log', 'operator'),
      ('function', 'await_jobs', 'producer operator'),
      ('function', 'await_no_more', 'producer operator'),
      ('function', 'cancel', 'producer operator'),
      ('function', 'cancel_many', 'producer operator'),
      ('function', 'cancel_matching', 'operator'),
      ('function', 'cancels', 'worker'),
      ('function', 'change_schedule', 'operator'),
      ('function', 'channel', 'worker'),
      ('function', 'check_heads', 'worker'),
      ('function', 'claim', 'worker'),
      ('function', 'claimed', 'worker'),
      ('function', 'clock', 'producer worker viewer'),
      ('function', 'complete', 'worker'),
      ('function', 'configure', 'operator'),
      ('function', 'count_jobs', 'worker viewer'),
      ('function', 'cron_in_words', 'viewer'),
      ('function', 'declare_retry_policy', 'worker operator'),
      ('function', 'declare_schedule', 'worker operator'),
      ('function', 'disown', 'worker'),
      ('function', 'doctor', 'operator'),
      ('function', 'due_exports', 'owner'),
      ('function', 'ends', 'producer viewer'),
      ('function', 'enqueue', 'producer'),
      ('function', 'enqueue_many', 'producer'),
      ('function', 'event_cursor', 'viewer'),
      ('function', 'export_columns', 'owner'),
      ('function', 'export_event', 'owner'),
      ('function', 'export_finished', 'owner'),
      ('function', 'fail', 'worker'),
      ('function', 'finish', 'worker'),
      ('function', 'fire', 'worker'),
      ('function', 'fold_stats', 'worker'),
      ('function', 'gauges', 'worker viewer'),
      ('function', 'give_up', 'operator'),
      ('function', 'grant_queues', 'owner'),
      ('function', 'health', 'viewer'),
      ('function', 'heartbeat', 'worker'),
      ('function', 'in_reach', 'viewer'),
      ('function', 'is_terminal', 'producer worker viewer'),
      ('function', 'job', 'producer viewer'),
      ('function', 'job_checkpoint', 'viewer'),
      ('function', 'job_errors', 'viewer'),
      ('function', 'job_steps', 'viewer'),
      ('function', 'keep_checkpoint', 'worker'),
      ('function', 'keep_step', 'worker'),
      ('function', 'lane', 'producer'),
      ('function', 'leave', 'worker'),
      ('function', 'list_dead', 'viewer'),
      ('function', 'list_duties', 'worker operator'),
      ('function', 'list_grants', 'owner'),
      ('function', 'list_jobs', 'viewer'),
      ('function', 'list_partitions', 'viewer'),
      ('function', 'list_queues', 'worker viewer'),
      ('function', 'list_retry_policies', 'viewer'),
      ('function', 'list_schedules', 'worker viewer'),
      ('function', 'list_workers', 'worker viewer'),
      ('function', 'mark_exported', 'owner'),
      ('function', 'memory', 'worker'),
      ('function', 'new_id', 'producer worker viewer'),
      ('function', 'next_occurrence', 'viewer'),
      ('function', 'not_held', 'worker'),
      ('function', 'pause', 'operator'),
      ('function', 'pause_schedule', 'operator'),
      ('function', 'places', 'producer'),
      ('function', 'progress', 'worker'),
      ('function', 'progress_many', 'worker'),
      ('function', 'promote', 'worker'),
      ('function', 'publish', 'worker'),
      ('function', 'publish_many', 'worker'),
      ('function', 'purge', 'operator'),
      ('function', 'purge_many', 'operator'),
      ('function', 'queues_in_reach', 'viewer'),
      ('function', 'read_events', 'viewer'),
      ('function', 'recover', 'worker operator'),
      ('function', 'register', 'worker'),
      ('function', 'release', 'worker'),
      ('function', 'remove_schedule', 'operator'),
      ('function', 'replay', 'operator'),
      ('function', 'replay_many', 'operator'),
      ('function', 'report_duty', 'worker'),
      ('function', 'reschedule', 'operator'),
      ('function', 'reset_retry_policy', 'operator'),
      ('function', 'resume', 'operator'),
      ('function', 'resume_schedule', 'operator'),
      ('function', 'retry_delay', 'worker viewer'),
      ('function', 'revoke_queues', 'owner'),
      ('function', 'role_rights', 'owner'),
      ('function', 'run_now', 'operator'),
      ('function', 'run_schedule', 'operator'),
      ('function', 'sees_payloads', 'viewer'),
      ('function', 'set_retry_policy', 'operator'),
      ('function', 'settings', 'viewer'),
      ('function', 'sleep', 'worker'),
      ('function', 'snooze', 'worker'),
      ('function', 'start', 'worker'),
      ('function', 'stat_bounds', 'viewer'),
      ('function', 'statistics', 'viewer'),
      ('function', 'stats', 'worker viewer'),
      ('function', 'stored_payload', 'owner'),
      ('function', 'sweep', 'worker'),
      ('function', 'text_as_seen', 'viewer'),
      ('function', 'tick', 'worker operator'),
      ('function', 'unrestricted', 'viewer'),
      ('function', 'upcoming', 'viewer'),
      ('function', 'upkeep', 'worker'),
      ('function', 'why', 'viewer'),
      ('sequence', 'job_seq', 'producer'),
      ('view', 'installed', 'producer worker viewer'),
      ('view', 'jobs', 'viewer'),
      ('view', 'queue_health', 'viewer'),
      ('view', 'queue_stats', 'viewer'),
      ('view', 'task_stats', 'viewer')
  )
  select g.kind, g.name, r.role
  from given g, (values ('producer'), ('worker'), ('viewer'), ('operator'), ('owner')) r (role)
  where r.role = any(string_to_array(g.roles, ' '))
    or r.role = 'operator' and 'viewer' = any(string_to_array(g.roles, ' '))
$$;
comment on function holdfast.role_rights() is
  'List which role may call which function, read which view, and insert into which column of holdfast.job.';

-- roles.sql
-- Create the roles of those who use Holdfast, and give them their rights.
--
-- A line `-- holdfast: role …` stands beside each function and view that a role may use;
-- rights.sql is generated from these lines. An operator may do all that a viewer may.
--
-- The roles belong to the cluster, and cannot log in: a DBA grants them to logins.
-- `holdfast migrate --roles` creates them and lets them into this database. From then on
-- every migrate gives them exactly these rights. A DBA who wants to grant more should use
-- another role.

-- Give the roles that were let into this schema their rights, and take all others. Only
-- differences are changed.
create or replace function holdfast.grant_rights()
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  command text;
begin
  for round in 1..2 loop -- revoking a right on a table also revokes it on the columns
    for command in
      with let_in as (
        select r.oid, r.rolname, substr(r.rolname, length('holdfast_') + 1) as role
        from pg_roles r
        join pg_namespace n on n.nspname = 'holdfast'
        cross join lateral aclexplode(n.nspacl) a
        where a.grantee = r.oid
          and r.rolname in ('holdfast_producer', 'holdfast_worker', 'holdfast_viewer', 'holdfast_operator')
      ),
      -- everything that can be granted, with its grantees
      thing (kind, name, id, target, privilege, acl) as (
        select 'function', p.proname, p.oid,
          format('%s %s', case p.prokind when 'p' then 'procedure' else 'function' end, p.oid::regprocedure),
          'execute', p.proacl
        from pg_proc p
        where p.pronamespace = 'holdfast'::regnamespace
          and p.prokind in ('f', 'p')
        union all
        select
          case c.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end, c.relname, c.oid,
          case c.relkind when 'S' then 'sequence ' else 'table ' end || c.oid::regclass,
          case c.relkind when 'S' then 'usage' else 'select' end, c.relacl
        from pg_class c
        where c.relnamespace = 'holdfast'::regnamespace
          and c.relkind in ('r', 'p', 'v', 'S')
        union all
        select 'column', a.attname, a.attrelid, format('table holdfast.job'),
          format('insert (%I)', a.attname), a.attacl
        from pg_attribute a
        where a.attrelid = 'holdfast.job'::regclass
          and a.attnum > 0
          and not a.attisdropped
      ),
      state as (
        select
          t.*, l.rolname,
          exists (
            select from holdfast.role_rights() r where r.kind = t.kind and r.name = t.name
            and r.role = l.role) as wanted,
          array(select lower(a.privilege_type) from aclexplode(t.acl) a where a.grantee = l.oid) as has
        from thing t, let_in l
      )
      select
        case when s.wanted
          then format('grant %s on %s to %I', s.privilege, s.target, s.rolname)
          else format(
            'revoke %s on %s from %I', case s.kind when 'column' then format('all (%I)', s.name)
            else 'all' end, s.target, s.rolname)
        end
      from state s
      where s.wanted and split_part(s.privilege, ' ', 1) <> all(s.has)
        or not s.wanted and cardinality(s.has) > 0
    loop
      execute command;
    end loop;
  end loop;
end
$$;
comment on function holdfast.grant_rights() is
  'Give the roles that were let into this schema the rights of role_rights(), and no others.';

-- Create the roles that the cluster lacks, and let them in. Two databases of one cluster may
-- do this at the same time: the second finds them there.
create or replace function holdfast.create_roles()
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  wanted constant text[] := '{holdfast_producer,holdfast_worker,holdfast_viewer,holdfast_operator}';
  one text;
begin
  foreach one in array wanted loop
    continue when exists (select from pg_roles r where r.rolname = one);
    begin
      execute format('create role %I nologin', one);
    exception
      when duplicate_object or unique_violation then
        null; -- another database was faster
      when insufficient_privilege then
        raise exception using
          errcode = 'insufficient_privilege',
          message = format('there is no role %s, and %s may not create roles', one, current_user),
          hint = format(
            'Let a DBA run: %sThen run holdfast migrate --roles again.',
            (select string_agg(format('create role %I nologin; ', w), '' order by n)
              from unnest(wanted) with ordinality w (w, n)
              where not exists (select from pg_roles r where r.rolname = w)));
    end;
  end loop;
  foreach one in array wanted loop
    if not exists (
      select from pg_namespace n, aclexplode(n.nspacl) a join pg_roles r on r.oid = a.grantee
      where n.nspname = 'holdfast' and r.rolname = one
    ) then
      execute format('grant usage on schema holdfast to %I', one);
    end if;
  end loop;
  perform holdfast.grant_rights();
end
$$;
comment on function holdfast.create_roles() is
  'Create the roles that are missing, and let them into this database.';

-- Every process reads this when it starts, whatever its role.
-- holdfast: role producer worker viewer
create or replace view holdfast.installed as
select m.name, m.kind, m.checksum, m.version, m.applied_at from holdfast.migration m;
comment on view holdfast.installed is 'The SQL files that made this schema; every role may read it.';

-- run_now.sql
-- Make a scheduled job pending now, before its time or the end of its backoff. A job in any other
-- state stays as it is. A job without attempts left dies.
-- holdfast: role operator
create or replace function holdfast.run_now(id uuid)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  found_state text;
begin
  perform holdfast.check_job(run_now.id);
  -- Search by id only. With `state` in the condition, the planner may read the index of scheduled
  -- jobs, which starts with many dead entries.
  select j.state into found_state from holdfast.live j where j.id = run_now.id;
  -- Lock only a scheduled job, so that this call does not wait for the report of a running one.
  if found_state = 'scheduled' then
    select j.state into found_state from holdfast.live j where j.id = run_now.id for update;
  end if;
  if found_state = 'scheduled' then
    perform holdfast.make_pending_now(run_now.id, now_at);
    perform holdfast.note('run now', run_now.id::text);
  end if;
  select v.state into found_state from holdfast.job(run_now.id) v;
  if found_state is null then
    perform holdfast.refuse_job(run_now.id);
  end if;
  return found_state;
end
$$;
comment on function holdfast.run_now(uuid) is
  'Make a scheduled job pending now. Returns the state of the job, which is unchanged if it was not '
  'scheduled.';

-- Make a scheduled job pending, for run_now() and reschedule(). The caller has locked it.
create or replace function holdfast.make_pending_now(id uuid, now_at timestamptz)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  update holdfast.live j set run_at = now_at where j.id = make_pending_now.id;
  perform holdfast.make_pending(array[make_pending_now.id], now_at);
end
$$;
comment on function holdfast.make_pending_now(uuid, timestamptz) is
  'Make a scheduled job due and pending now.';

-- run_schedule.sql
-- Make a job of a schedule at once.
--
-- The times of the schedule continue unchanged, paused or not. Nothing is locked that the times
-- wait for, unless runs must not overlap.
-- holdfast: role operator
create or replace function holdfast.run_schedule(name text)
returns uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known holdfast.schedule := holdfast.seen_schedule(run_schedule.name);
  job_id uuid := holdfast.enqueue_tick(known, null, null);
begin
  if not known.overlap then
    update holdfast.schedule s set last_job = job_id
    where s.name = known.name
      and not exists (select from holdfast.live j where j.id = s.last_job offset 0);
  end if;
  perform holdfast.note('run schedule', known.name, jsonb_build_object('job', job_id));
  return job_id;
end
$$;
comment on function holdfast.run_schedule(text) is
  'Run the job of a schedule now, in addition to its times. Returns the id of the job.';

-- schedule.sql
-- Add, declare, change and remove schedules. fire.sql fires them.

-- Add a schedule, which runs a task at regular times.
-- holdfast: role operator
create or replace function holdfast.add_schedule(
  name text,
  task text,
  cron text default null,
  every interval default null,
  zone text default 'UTC',
  payload jsonb default '{}',
  queue text default 'default',
  priority integer default 100,
  max_attempts integer default null,
  missed text default 'once',
  overlap boolean default true,
  jitter interval default '0',
  declared boolean default false
)
returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  given holdfast.schedule;
  known holdfast.schedule;
begin
  given.name := add_schedule.name;
  given.cron := add_schedule.cron;
  given.every := add_schedule.every;
  given.zone := add_schedule.zone;
  given.task := add_schedule.task;
  given.payload := add_schedule.payload;
  given.queue := add_schedule.queue;
  perform holdfast.check_priority(add_schedule.priority);
  given.priority := add_schedule.priority;
  perform holdfast.check_max_attempts(add_schedule.max_attempts);
  given.max_attempts := add_schedule.max_attempts;
  given.missed := add_schedule.missed;
  given.overlap := add_schedule.overlap;
  given.jitter := add_schedule.jitter;
  given.declared := add_schedule.declared;
  given.created_at := now_at;
  given.skipped := 0;
  perform holdfast.check_schedule(given);
  given.next_at := holdfast.tick_after(given, now_at);
  given.planned_at := now_at;

  loop
    insert into holdfast.schedule as s select (given).* on conflict (name) do nothing;
    if found then
      perform holdfast.note('add schedule', given.name);
      perform holdfast.wake_schedulers(given.queue);
      return given.next_at;
    end if;
    if not given.declared then
      perform holdfast.refuse_value(
        'name', given.name, 'there is a schedule of this name; change it, or remove it first');
    end if;
    select s.* into known from holdfast.schedule s where s.name = given.name for update;
    exit when found; -- otherwise another session has just removed it
  end loop;
  perform holdfast.check_queue(known.queue);
  -- A schedule that an operator has made or changed belongs to the operator.
  return case when known.declared then holdfast.replace_schedule(known, given) else known.next_at end;
end
$$;
comment on function holdfast.add_schedule(
  text, text, text, interval, text, jsonb, text, integer, integer, text, boolean, interval, boolean) is
  'Run a task at regular times from now on, by a cron expression or an interval. Returns its first time. '
  'With declared, for schedules in code, a schedule of this name is replaced unless an operator has made or '
  'changed it.';

-- A worker may call this one only: it declares what its code says.
-- holdfast: role worker operator
create or replace function holdfast.declare_schedule(
  name text,
  task text,
  cron text default null,
  every interval default null,
  zone text default 'UTC',
  payload jsonb default '{}',
  queue text default 'default',
  priority integer default 100,
  max_attempts integer default null,
  missed text default 'once',
  overlap boolean default true,
  jitter interval default '0'
)
returns timestamptz
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.add_schedule(
    declare_schedule.name, declare_schedule.task, declare_schedule.cron, declare_schedule.every,
    declare_schedule.zone, declare_schedule.payload, declare_schedule.queue, declare_schedule.priority,
    declare_schedule.max_attempts,
    declare_schedule.missed, declare_schedule.overlap, declare_schedule.jitter, true)
$$;
comment on function holdfast.declare_schedule(
  text, text, text, interval, text, jsonb, text, integer, integer, text, boolean, interval) is
  'Run a task at regular times, as its code says. Keeps what an operator has made or changed. Returns its '
  'next time.';

-- Values that are left out stay as they are. A paused schedule stays paused. A schedule that
-- code has declared belongs to the operator from now on.
-- holdfast: role operator
create or replace function holdfast.change_schedule(
  name text,
  task text default null,
  cron text default null,
  every interval default null,
  zone text default null,
  payload jsonb default null,
  queue text default null,
  priority integer default null,
  max_attempts integer default null,
  missed text default null,
  overlap boolean default null,
  jitter interval default null
)
returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known holdfast.schedule := holdfast.known_schedule(change_schedule.name);
  given holdfast.schedule := known;
  changes jsonb := jsonb_strip_nulls(jsonb_build_object(
    'task', change_schedule.task, 'cron', change_schedule.cron, 'every', change_schedule.every, 'zone',
    change_schedule.zone,
    'payload', change_schedule.payload is not null or null, 'queue', change_schedule.queue, 'priority',
    change_schedule.priority,
    'max_attempts', change_schedule.max_attempts, 'missed', change_schedule.missed, 'overlap',
    change_schedule.overlap, 'jitter', change_schedule.jitter));
  next_at timestamptz;
begin
  if changes = '{}' then
    perform holdfast.refuse_value(
      'name', change_schedule.name, 'say what to change: cron, every, zone, task, payload ...');
  end if;
  if change_schedule.cron is not null or change_schedule.every is not null then
    given.cron := change_schedule.cron;
    given.every := change_schedule.every;
  end if;
  perform holdfast.check_priority(coalesce(change_schedule.priority, known.priority));
  perform holdfast.check_max_attempts(change_schedule.max_attempts);
  given.task := coalesce(change_schedule.task, known.task);
  given.zone := coalesce(change_schedule.zone, known.zone);
  given.payload := coalesce(change_schedule.payload, known.payload);
  given.queue := coalesce(change_schedule.queue, known.queue);
  given.priority := coalesce(change_schedule.priority, known.priority);
  given.max_attempts := coalesce(change_schedule.max_attempts, known.max_attempts);
  given.missed := coalesce(change_schedule.missed, known.missed);
  given.overlap := coalesce(change_schedule.overlap, known.overlap);
  given.jitter := coalesce(change_schedule.jitter, known.jitter);
  given.declared := false;
  perform holdfast.check_schedule(given);
  next_at := holdfast.replace_schedule(known, given);
  perform holdfast.note('change schedule', known.name, changes); -- without the payload, which may be secret
  return next_at;
end
$$;
comment on function holdfast.change_schedule(
  text, text, text, interval, text, jsonb, text, integer, integer, text, boolean, interval) is
  'Change the given values of a schedule, from its next time on. Returns that time.';

-- A new expression, interval or zone starts from now. Any other change keeps the next tick.
create or replace function holdfast.replace_schedule(known holdfast.schedule, given holdfast.schedule)
returns timestamptz
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  same_times boolean := (known.cron, known.every) is not distinct from (given.cron, given.every)
    and (known.zone = given.zone or given.cron is null); -- an interval is the same in all zones
begin
  given.created_at := case when same_times then known.created_at else now_at end;
  given.next_at := case when same_times then known.next_at else holdfast.tick_after(given, now_at) end;
  given.planned_at := case when same_times then known.planned_at else now_at end;
  update holdfast.schedule s
  set
    cron = given.cron, every = given.every, zone = given.zone, task = given.task, payload = given.payload,
    queue = given.queue, priority = given.priority, max_attempts = given.max_attempts, missed = given.missed,
    overlap = given.overlap, jitter = given.jitter, declared = given.declared, created_at = given.created_at,
    next_at = given.next_at, planned_at = given.planned_at
  where s.name = known.name;
  perform holdfast.wake_schedulers(given.queue);
  return given.next_at;
end
$$;
comment on function holdfast.replace_schedule(holdfast.schedule, holdfast.schedule) is
  'Write the new state of a schedule. Returns its next time.';

create or replace function holdfast.check_schedule(given holdfast.schedule)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.check_name('name', given.name);
  perform holdfast.check_name('task', given.task);
  perform holdfast.check_name('queue', given.queue);
  perform holdfast.check_queue(given.queue);
  if (given.cron is null) = (given.every is null) then
    perform holdfast.refuse_value('cron', given.cron, 'give either cron or every');
  end if;
  if given.every not between interval '1 second' and interval '366 days'
    or extract(microseconds from given.every)::bigint % 1000000 <> 0
    or extract(year from given.every) <> 0 or extract(month from given.every) <> 0 then
    perform holdfast.refuse_value(
      'every', given.every::text,
      'must be whole seconds, from 1 second to 366 days; months differ, so use cron for them');
  end if;
  if given.payload is null then
    perform holdfast.refuse_value('payload', null, 'must be JSON; leave it out for {}');
  end if;
  perform holdfast.check_json('payload', given.payload);
  if given.missed is null or given.missed not in ('skip', 'once', 'all') then
    perform holdfast.refuse_value('missed', given.missed, 'must be skip, once or all');
  end if;
  if given.overlap is null then
    perform holdfast.refuse_value('overlap', null, 'must be true or false');
  end if;
  if given.jitter is null or given.jitter not between interval '0' and interval '1 day' then
    perform holdfast.refuse_value('jitter', given.jitter::text, 'must be between 0 and 1 day');
  end if;
  perform holdfast.check_zone(given.zone);
end
$$;
comment on function holdfast.check_schedule(holdfast.schedule) is 'Refuse a schedule that breaks the rules.';

-- holdfast: role operator
create or replace function holdfast.remove_schedule(name text)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  delete from holdfast.schedule s where s.name = remove_schedule.name
    and ((select holdfast.unrestricted()) or holdfast.in_reach(s.queue));
  if not found then
    return false;
  end if;
  perform holdfast.note('remove schedule', remove_schedule.name);
  return true;
end
$$;
comment on function holdfast.remove_schedule(text) is
  'Remove a schedule and keep its jobs. Returns whether it existed.';

-- Functions that change a schedule lock it here.
create or replace function holdfast.known_schedule(name text)
returns holdfast.schedule
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform from holdfast.schedule s where s.name = known_schedule.name for update;
  return holdfast.seen_schedule(known_schedule.name);
end
$$;
comment on function holdfast.known_schedule(text) is
  'Lock and return a schedule by its name. Refuses a name that does not exist.';

-- Workers that listen on the queue look at the schedules when they are notified. The payload is
-- empty, because no job has come. Other workers see the change within a second.
create or replace function holdfast.wake_schedulers(queue text)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select pg_notify(c, '')
  from unnest(array[holdfast.channel(wake_schedulers.queue), holdfast.channel('*')]) c
  where current_setting('holdfast.notify', true) is distinct from 'off'
    and pg_notification_queue_usage() < 0.5
$$;
comment on function holdfast.wake_schedulers(text) is
  'Wake the workers of a queue so that they look at the schedules again.';

-- schedule_ticks.sql
-- Find the ticks of a schedule: the next one after a time, and the last one before it. Intervals count
-- from the creation of the schedule.
create or replace function holdfast.tick_after(given holdfast.schedule, after timestamptz)
returns timestamptz
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select case
    when given.every is null then holdfast.next_occurrence(given.cron, after, given.zone)
    else given.created_at + make_interval(
      secs => e.seconds * (floor(extract(epoch from after - given.created_at) / e.seconds) + 1))
  end
  from (select extract(epoch from given.every)::double precision as seconds) e
$$;
comment on function holdfast.tick_after(holdfast.schedule, timestamptz) is
  'Return the next time of a schedule after a given time.';

-- A binary search down to one second, from a time before the last tick.
create or replace function holdfast.tick_before(given holdfast.schedule, at timestamptz)
returns timestamptz
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  low timestamptz := given.next_at - interval '1 second'; -- after this one there is a tick
  high timestamptz := at; -- after this one there is none
  middle timestamptz;
begin
  while high - low > interval '1 second' loop
    middle := low + (high - low) / 2;
    if holdfast.tick_after(given, middle) <= at then
      low := middle;
    else
      high := middle;
    end if;
  end loop;
  return holdfast.tick_after(given, low);
end
$$;
comment on function holdfast.tick_before(holdfast.schedule, timestamptz) is
  'Return the last time of a schedule up to a given time, from its next one on.';

-- settings.sql
-- Return the setting that applies: the queue's own, otherwise the default's.

create or replace function holdfast.payload_limit(queue text)
returns integer
language plpgsql stable
as $$
begin
  return coalesce(
    (select q.payload_limit from holdfast.queue q where q.name = payload_limit.queue),
    (select q.payload_limit from holdfast.queue q where q.name = '*'),
    262144);
end
$$;
comment on function holdfast.payload_limit(text) is
  'Return how many bytes of JSON a payload of this queue may have.';

create or replace function holdfast.lane_limit(queue text)
returns integer
language plpgsql stable
as $$
begin
  return coalesce(
    (select q.lane_limit from holdfast.queue q where q.name = lane_limit.queue),
    (select q.lane_limit from holdfast.queue q where q.name = '*'),
    10000);
end
$$;
comment on function holdfast.lane_limit(text) is 'Return how many lanes of fresh jobs this queue may have.';

-- The first that is set wins: the call, the task's policy, the queue, the default.
create or replace function holdfast.max_attempts(task text, queue text)
returns integer
language plpgsql stable
as $$
begin
  return coalesce(
    (select p.max_attempts from holdfast.retry_policy p where p.task = max_attempts.task),
    (select q.max_attempts from holdfast.queue q where q.name = max_attempts.queue),
    (select q.max_attempts from holdfast.queue q where q.name = '*'),
    3);
end
$$;
comment on function holdfast.max_attempts(text, text) is
  'Return how often a job of this task and queue is tried unless its call says otherwise.';

-- The delay is least(base × factor^(attempt − 1), cap) plus up to `jitter` of that, so that a
-- thousand jobs that failed together do not return together.
-- holdfast: role worker viewer
create or replace function holdfast.retry_delay(task text, attempt integer, queue text default 'default')
returns interval
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  with policy as (
    select
      coalesce(p.base, q.retry_base, d.retry_base, interval '1 minute') as base,
      coalesce(p.factor, q.retry_factor, d.retry_factor, 2) as factor,
      coalesce(p.cap, q.retry_cap, d.retry_cap, interval '1 hour') as cap,
      coalesce(p.jitter, q.retry_jitter, d.retry_jitter, 0.1) as jitter
    from (values (1)) one (row)
    left join holdfast.retry_policy p on p.task = retry_delay.task
    left join holdfast.queue q on q.name = retry_delay.queue
    left join holdfast.queue d on d.name = '*'
  )
  select least(
      -- The exponent is bounded so that no attempt number overflows.
      extract(epoch from base)::double precision * power(factor, least(greatest(attempt, 1) - 1, 60)),
      extract(epoch from cap)::double precision)
    * (1 + jitter * random()) * interval '1 second'
  from policy
$$;
comment on function holdfast.retry_delay(text, integer, text) is
  'Return how long a job waits after this failed attempt: exponential backoff with a cap and jitter.';

-- sleep.sql
-- Record that a worker sleeps, or is awake.
--
-- A worker that found nothing calls this, looks once more, and then waits for a notification.
-- The result says whether a transaction that may hold new jobs is open now. Its commit may bring
-- no notification, so the worker should poll soon. The result is also true for a worker that has
-- just fallen asleep, since others see that only after its commit: call again, then look.
--
-- A busy worker can ask for notifications of jobs above a priority only.
-- holdfast: role worker
create or replace function holdfast.sleep(
  worker uuid, asleep boolean default true, above integer default null)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_worker(sleep.worker);
  if sleep.above not between -32768 and 32767 then
    perform holdfast.refuse_value('above', sleep.above::text, 'must be an integer from -32768 to 32767');
  end if;
  update holdfast.worker w
  set asleep = sleep.asleep, above = sleep.above
  where w.id = sleep.worker
    and (w.asleep <> sleep.asleep or w.above is distinct from sleep.above);
  return sleep.asleep and sleep.above is null and (found or exists (
    select
    from pg_locks k
    where k.relation in ('holdfast.job'::regclass, 'holdfast.live'::regclass)
      and k.database = (select d.oid from pg_database d where d.datname = current_database())
      and k.mode = 'RowExclusiveLock'
      and k.pid is distinct from pg_backend_pid()
  ));
end
$$;
comment on function holdfast.sleep(uuid, boolean, integer) is
  'Record that a worker sleeps and wants notifications, or no longer does. With above, it wants only those '
  'of jobs above a priority.';

-- start.sql
-- Record that jobs are running. `seconds` is for how long already, as the worker measured. After
-- its timeout a job is taken away, even if its worker hangs. A job marked `once` is never tried
-- again after this. Return the ids that are no longer held: do not begin those.
--
-- With `skip_locked` the call waits for no other transaction. A job that another one has locked
-- is returned with `locked` true, and nothing is written for it. Every writer of a job's other
-- rows locks the job first, so this one lock shows whether any of them is open.
-- holdfast: role worker
create or replace function holdfast.start(
  ids uuid[],
  leases uuid[],
  seconds double precision[] default null,
  timeouts interval[] default null,
  once boolean[] default null,
  skip_locked boolean default false
)
returns table (start uuid, locked boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  held uuid[];
begin
  perform holdfast.check_reports(ids, leases, null);
  perform holdfast.refuse_doubles(ids);
  if true = any(start.once) and current_setting('synchronous_commit') = 'off' then
    -- If a crash of the server lost such a start, the job would run twice.
    perform set_config('synchronous_commit', 'on', true);
  end if;
  if start.skip_locked then
    select array_agg(r.id) into held
    from (select r.id, r.lease from unnest(ids, leases) r (id, lease) order by r.id offset 0) r
    cross join lateral (
      select from holdfast.live j where j.id = r.id and j.lease = r.lease for update skip locked
    ) j;
  else
    -- A share lock, so that no finish or recovery happens in between.
    select array_agg(r.id) into held
    from (select r.id, r.lease from unnest(ids, leases) r (id, lease) order by r.id offset 0) r
    cross join lateral (select from holdfast.live j where j.id = r.id and j.lease = r.lease for key share) j;
  end if;
  -- Keep an existing row, unless it belongs to an earlier claim or lacks the deadline. The start of
  -- a suspect was recorded by its claim, and a waiting job may have been taken for running; both
  -- have no deadline.
  insert into holdfast.running as x (job_id, lease, started_at, deadline_at, once, changed_at)
  select
    r.id, r.lease, now_at - least(greatest(coalesce(r.seconds, 0), 0), 1e9) * interval '1 second',
    now_at + r.timeout, coalesce(r.once, false), now_at
  from unnest(ids, leases, start.seconds, timeouts, start.once) r (id, lease, seconds, timeout, once)
  where r.id = any(held)
  order by r.id
  on conflict (job_id) do update
    set
      lease = excluded.lease, started_at = excluded.started_at,
      deadline_at = coalesce(excluded.deadline_at, case when x.lease = excluded.lease then x.deadline_at end),
      once = excluded.once or (x.once and x.lease = excluded.lease),
      progress = null, stage = null, message = null, step = null, changed_at = excluded.changed_at,
      published = case when x.lease = excluded.lease then x.published else 0 end
    where x.lease <> excluded.lease
      or excluded.deadline_at is not null
      or excluded.once;
  return query
    select r.id, exists (select from holdfast.live j where j.id = r.id and j.lease = r.lease offset 0)
    from unnest(ids, leases) r (id, lease)
    where r.id <> all(coalesce(held, '{}'));
end
$$;
comment on function holdfast.start(uuid[], uuid[], double precision[], interval[], boolean[], boolean) is
  'Record that claimed jobs are running. Returns the jobs that are no longer held under the lease given, '
  'and with skip_locked also those that another transaction has locked.';

-- state.sql
-- Describe the states, for people and for queries.
-- holdfast: role producer worker viewer
create or replace function holdfast.is_terminal(state text)
returns boolean
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  answer boolean;
begin
  select s.terminal into answer from holdfast.state s where s.name = is_terminal.state;
  if not found then
    raise exception using
      errcode = 'HF008',
      message = format('%L is not a state of a job', is_terminal.state),
      detail = jsonb_build_object('field', 'state', 'value', is_terminal.state),
      hint = 'The states are listed in holdfast.state: '
        || (select string_agg(s.name, ', ') from holdfast.state s) || '.';
  end if;
  return answer;
end
$$;
comment on function holdfast.is_terminal(text) is 'Return whether a state is an end state.';

-- statistics.sql
-- Return for each queue, or each task of each queue, what is there now, and what was done in the
-- last hour and the last day.
--
-- The last hour is sixty minutes and the last day twenty-four hours, each with the one that has
-- just begun.
--
-- The body is long on purpose: it is one query.
-- holdfast: role viewer
create or replace function holdfast.statistics(by text default 'queue', queue text default null)
returns setof holdfast.statistic
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_mergejoin = off
set work_mem = '32MB'
set jit = off
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  first_minute timestamptz := date_trunc('minute', now_at, 'UTC') - interval '59 minutes';
  first_hour timestamptz := date_trunc('hour', now_at, 'UTC') - interval '23 hours';
  by_task boolean := statistics.by = 'task';
  unrestricted constant boolean := holdfast.unrestricted();
  -- Evaluated once for each queue, not for each of its minutes.
  mine constant text[] := case when not unrestricted then array(
    select q.queue from (select distinct s.queue from holdfast.stat s offset 0) q
      where holdfast.in_reach(q.queue)
  ) end;
begin
  if statistics.by is null or statistics.by not in ('queue', 'task') then
    perform holdfast.refuse_value('by', statistics.by, 'must be queue or task');
  end if;
  return query
    with live as materialized (
      select
        c.queue, case when by_task then c.task else '' end as task,
        coalesce(sum(c.jobs) filter (where c.state = 'pending'), 0)::bigint as waiting,
        coalesce(sum(c.jobs) filter (where c.state = 'scheduled'), 0)::bigint as scheduled,
        coalesce(sum(c.jobs) filter (where c.state in ('claimed', 'running')), 0)::bigint as running,
        bool_or(c.estimated) as estimated,
        min(c.since) filter (where c.state = 'pending') as since
      from holdfast.count_live(statistics.queue) c
      group by 1, 2
    ),
    dead as materialized (
      select c.queue, case when by_task then c.task else '' end as task, sum(c.jobs)::bigint as jobs,
        bool_or(c.estimated) as estimated
      from holdfast.count_ended('dead', statistics.queue) c
      group by 1, 2
    ),
    -- Bucket by bucket in one pass: unnesting the histograms would make 52 rows of each. With a
    -- thousand tasks busy in every minute that took 4.5 s; this takes 0.8 s.
    sums as materialized (
      select
        s.span, s.queue, case when by_task then s.task else '' end as task,
        sum(s.completed)::bigint as completed, sum(s.failed)::bigint as failed, sum(s.dead)::bigint as dead,
        sum(s.cancelled)::bigint as cancelled, sum(s.wait_seconds) as wait_seconds,
        sum(s.run_seconds) as run_seconds, sum(s.completed + s.failed) as attempts,
        array[
          sum(s.waits[1]), sum(s.waits[2]), sum(s.waits[3]), sum(s.waits[4]), sum(s.waits[5]),
          sum(s.waits[6]),
          sum(s.waits[7]), sum(s.waits[8]), sum(s.waits[9]), sum(s.waits[10]), sum(s.waits[11]),
          sum(s.waits[12]),
          sum(s.waits[13]), sum(s.waits[14]), sum(s.waits[15]), sum(s.waits[16]), sum(s.waits[17]),
          sum(s.waits[18]),
          sum(s.waits[19]), sum(s.waits[20]), sum(s.waits[21]), sum(s.waits[22]), sum(s.waits[23]),
          sum(s.waits[24]),
          sum(s.waits[25]), sum(s.waits[26]), sum(s.waits[27]), sum(s.waits[28]), sum(s.waits[29]),
          sum(s.waits[30]),
          sum(s.waits[31]), sum(s.waits[32]), sum(s.waits[33]), sum(s.waits[34]), sum(s.waits[35]),
          sum(s.waits[36]),
          sum(s.waits[37]), sum(s.waits[38]), sum(s.waits[39]), sum(s.waits[40]), sum(s.waits[41]),
          sum(s.waits[42]),
          sum(s.waits[43]), sum(s.waits[44]), sum(s.waits[45]), sum(s.waits[46]), sum(s.waits[47]),
          sum(s.waits[48]), sum(s.waits[49]), sum(s.waits[50]), sum(s.waits[51]), sum(s.waits[52])
        ] as waits,
        array[
          sum(s.runs[1]), sum(s.runs[2]), sum(s.runs[3]), sum(s.runs[4]), sum(s.runs[5]), sum(s.runs[6]),
          sum(s.runs[7]),
          sum(s.runs[8]), sum(s.runs[9]), sum(s.runs[10]), sum(s.runs[11]), sum(s.runs[12]), sum(s.runs[13]),
          sum(s.runs[14]), sum(s.runs[15]), sum(s.runs[16]), sum(s.runs[17]), sum(s.runs[18]),
          sum(s.runs[19]),
          sum(s.runs[20]), sum(s.runs[21]), sum(s.runs[22]), sum(s.runs[23]), sum(s.runs[24]),
          sum(s.runs[25]),
          sum(s.runs[26]), sum(s.runs[27]), sum(s.runs[28]), sum(s.runs[29]), sum(s.runs[30]),
          sum(s.runs[31]),
          sum(s.runs[32]), sum(s.runs[33]), sum(s.runs[34]), sum(s.runs[35]), sum(s.runs[36]),
          sum(s.runs[37]),
          sum(s.runs[38]), sum(s.runs[39]), sum(s.runs[40]), sum(s.runs[41]), sum(s.runs[42]),
          sum(s.runs[43]),
          sum(s.runs[44]), sum(s.runs[45]), sum(s.runs[46]), sum(s.runs[47]), sum(s.runs[48]),
          sum(s.runs[49]), sum(s.runs[50]), sum(s.runs[51]), sum(s.runs[52])
        ] as runs
      from holdfast.stat s
      where (
        s.span = 'minute' and s.at between first_minute and now_at or s.span = 'hour'
        and s.at between first_hour and now_at)
        and (statistics.queue is null or s.queue = statistics.queue)
        and (unrestricted or s.queue = any(mine))
      group by 1, 2, 3
    ),
    done as materialized (
      select
        s.span, s.queue, s.task, s.completed, s.failed, s.dead, s.cancelled,
        s.completed / extract(
          epoch from now_at - case s.span when 'hour' then first_hour
          else first_minute end)::double precision as per_second,
        case when s.attempts > 0 then s.failed / s.attempts::double precision end as failures,
        make_interval(
          secs => s.wait_seconds / nullif(
          (select sum(n) from unnest(s.waits) n), 0)::double precision) as wait_avg,
        make_interval(
          secs => s.run_seconds / nullif(
          (select sum(n) from unnest(s.runs) n), 0)::double precision) as run_avg,
        holdfast.percentiles(s.waits, '{0.5,0.95,0.99}') as waits,
        holdfast.percentiles(s.runs, '{0.5,0.95,0.99}') as runs
      from sums s
    ),
    minutes as materialized (
      select n.queue, n.task, array_agg(coalesce(r.completed, 0)::bigint order by m.at) as completed
      from sums n
      cross join generate_series(first_minute, first_minute + interval '59 minutes', interval '1 minute')
        m (at)
      left join (
        select s.at, s.queue, case when by_task then s.task else '' end as task, sum(s.completed) as completed
        from holdfast.stat s
        where s.span = 'minute'
          and s.at between first_minute and now_at
          and (statistics.queue is null or s.queue = statistics.queue)
        group by 1, 2, 3
      ) r on r.at = m.at and r.queue = n.queue and r.task = n.task
      where n.span = 'minute'
      group by 1, 2
    ),
    names as (
      select l.queue, l.task from live l
      union
      select d.queue, d.task from dead d
      union
      select s.queue, s.task from sums s
      union
      select q.name, '' from holdfast.queue q where not by_task and q.name <> '*'
        and (statistics.queue is null or q.name = statistics.queue)
        and (unrestricted or holdfast.in_reach(q.name))
      union
      select l.queue, '' from holdfast.lane l where not by_task
        and (statistics.queue is null or l.queue = statistics.queue)
        and (unrestricted or holdfast.in_reach(l.queue))
    )
    select
      n.queue, nullif(n.task, ''), (select q.paused_at from holdfast.queue q where q.name = n.queue),
      coalesce(l.waiting, 0), coalesce(l.scheduled, 0), coalesce(l.running, 0), coalesce(d.jobs, 0),
      coalesce(l.estimated, false) or coalesce(d.estimated, false), l.since,
      coalesce(h.completed, 0), coalesce(h.failed, 0), coalesce(h.dead, 0), coalesce(h.cancelled, 0),
      coalesce(h.per_second, 0), h.failures,
      h.wait_avg, make_interval(secs => h.waits[1]), make_interval(secs => h.waits[2]),
      make_interval(secs => h.waits[3]),
      h.run_avg, make_interval(secs => h.runs[1]), make_interval(secs => h.runs[2]),
      make_interval(secs => h.runs[3]),
      coalesce(y.completed, 0), coalesce(y.failed, 0), coalesce(y.dead, 0), coalesce(y.cancelled, 0),
      coalesce(y.per_second, 0), y.failures,
      y.wait_avg, make_interval(secs => y.waits[1]), make_interval(secs => y.waits[2]),
      make_interval(secs => y.waits[3]),
      y.run_avg, make_interval(secs => y.runs[1]), make_interval(secs => y.runs[2]),
      make_interval(secs => y.runs[3]), coalesce(m.completed, array_fill(0::bigint, array[60]))
    from names n
    left join live l on l.queue = n.queue and l.task = n.task
    left join dead d on d.queue = n.queue and d.task = n.task
    left join done h on h.span = 'minute' and h.queue = n.queue and h.task = n.task
    left join done y on y.span = 'hour' and y.queue = n.queue and y.task = n.task
    left join minutes m on m.queue = n.queue and m.task = n.task
    order by n.queue, n.task;
end
$$;
comment on function holdfast.statistics(text, text) is
  'Return for each queue, or each task of it, how many jobs wait, run and are dead, and what was done in '
  'the last hour and day: throughput, share of failures, waiting and running times.';

-- holdfast: role viewer
create or replace view holdfast.queue_stats as
select
  s.queue, s.paused_at, s.waiting, s.scheduled, s.running, s.dead, s.estimated, s.waiting_since,
  s.hour_completed, s.hour_failed, s.hour_dead, s.hour_cancelled, s.hour_per_second, s.hour_failures,
  s.hour_wait_avg, s.hour_wait_p50, s.hour_wait_p95, s.hour_wait_p99,
  s.hour_run_avg, s.hour_run_p50, s.hour_run_p95, s.hour_run_p99,
  s.day_completed, s.day_failed, s.day_dead, s.day_cancelled, s.day_per_second, s.day_failures,
  s.day_wait_avg, s.day_wait_p50, s.day_wait_p95, s.day_wait_p99,
  s.day_run_avg, s.day_run_p50, s.day_run_p95, s.day_run_p99, s.minutes
from holdfast.statistics('queue') s;
comment on view holdfast.queue_stats is
  'For each queue: how many jobs wait, run and are dead, and what was done in the last hour and day.';

-- holdfast: role viewer
create or replace view holdfast.task_stats as
select s.* from holdfast.statistics('task') s;
comment on view holdfast.task_stats is
  'For each task of each queue: how many jobs wait, run and are dead, and what was done in the last hour '
  'and day.';

-- step.sql
-- Resumable jobs: steps that run once, and a checkpoint for loops. Both are written under the
-- lease and outlive the attempt. A replay finds them too.

-- Lock a job that is held under this lease and record that it runs, or raise the error that a
-- report would raise.
create or replace function holdfast.check_held(id uuid, lease uuid, what text)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  refused holdfast.refusal;
begin
  if exists (select from holdfast.start(array[check_held.id], array[check_held.lease])) then
    select v.* into refused from holdfast.verdict(check_held.id, check_held.lease, check_held.what) v;
    perform holdfast.refuse_report(refused, check_held.lease);
  end if;
end
$$;
comment on function holdfast.check_held(uuid, uuid, text) is
  'Refuse a call under a lease that no longer holds the job.';

-- If the step has a result already, that result stays and is returned: the first report wins.
-- holdfast: role worker
create or replace function holdfast.keep_step(
  id uuid, lease uuid, name text, result jsonb default null, duration double precision default null)
returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  kept jsonb;
  others integer;
begin
  if keep_step.name is null or length(keep_step.name) not between 1 and 100 then
    perform holdfast.refuse_value('name', keep_step.name, 'a step must have a name of 1 to 100 characters');
  end if;
  if octet_length(keep_step.result::text) > 524288 then
    perform holdfast.refuse_value(
      'result', octet_length(keep_step.result::text) || ' bytes',
      'the result of a step may have 524288 bytes: store it elsewhere and keep where it is');
  end if;
  perform holdfast.check_json('result', keep_step.result);
  perform holdfast.check_held(keep_step.id, keep_step.lease, 'step');
  -- It belongs to an older job whose id was used again.
  delete from holdfast.step s
  where s.job_id = keep_step.id
    and s.job_created_at <> (select j.created_at from holdfast.live j where j.id = keep_step.id);
  select count(*) into others from holdfast.step s where s.job_id = keep_step.id;
  if others >= 1000
    and not exists (select from holdfast.step s where s.job_id = keep_step.id and s.name = keep_step.name)
    then
    perform holdfast.refuse_value(
      'name', keep_step.name, 'a job may have 1000 steps; use a checkpoint for loops');
  end if;
  insert into holdfast.step (
    job_id, job_created_at, name, position, result, attempt, worker_id, finished_at, duration)
  select
    j.id, j.created_at, keep_step.name, others + 1, keep_step.result, j.attempt, j.worker_id, now_at,
    least(greatest(keep_step.duration, 0), 1e9) * interval '1 second'
  from holdfast.live j
  where j.id = keep_step.id
  on conflict (job_id, name) do nothing;
  if found then
    perform holdfast.log_live(
      array[keep_step.id], 'job.step', array[jsonb_build_object('step', keep_step.name)], now_at);
  end if;
  update holdfast.running x set step = null, changed_at = now_at where x.job_id = keep_step.id
    and x.step = keep_step.name;
  select s.result into kept from holdfast.step s where s.job_id = keep_step.id and s.name = keep_step.name;
  return kept;
end
$$;
comment on function holdfast.keep_step(uuid, uuid, text, jsonb, double precision) is
  'Store the result of a finished step under the lease of its job. Returns the stored result, which is the '
  'first one that was reported.';

-- holdfast: role worker
create or replace function holdfast.keep_checkpoint(id uuid, lease uuid, state jsonb)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_checkpoint(keep_checkpoint.state);
  perform holdfast.check_held(keep_checkpoint.id, keep_checkpoint.lease, 'checkpoint');
  perform holdfast.put_checkpoints(array[keep_checkpoint.id], array[keep_checkpoint.state], holdfast.clock());
end
$$;
comment on function holdfast.keep_checkpoint(uuid, uuid, jsonb) is
  'Store the progress of a running job under its lease. Its next attempt continues from there.';

create or replace function holdfast.put_checkpoints(ids uuid[], states jsonb[], now_at timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.checkpoint (job_id, job_created_at, state, changed_at)
  select r.id, j.created_at, r.state, now_at
  from unnest(ids, states) r (id, state)
  cross join lateral (select j.created_at from holdfast.live j where j.id = r.id offset 0) j
  where r.state is not null
  order by r.id
  on conflict (job_id) do update
    set job_created_at = excluded.job_created_at, state = excluded.state, changed_at = excluded.changed_at
$$;
comment on function holdfast.put_checkpoints(uuid[], jsonb[], timestamptz) is
  'Write the checkpoints of held jobs.';

create or replace function holdfast.check_checkpoint(state jsonb)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if jsonb_typeof(state) is distinct from 'object' or octet_length(state::text) > 32768 then
    perform holdfast.refuse_value(
      'state', coalesce(octet_length(state::text) || ' bytes', 'null'),
      'a checkpoint must be an object of at most 32768 bytes');
  end if;
  perform holdfast.check_json('state', state);
end
$$;
comment on function holdfast.check_checkpoint(jsonb) is
  'Refuse a checkpoint that is not an object or is too large.';

-- holdfast: role viewer
create or replace function holdfast.job_steps(id uuid)
returns table (
  name text, result jsonb, attempt integer, worker uuid, finished_at timestamptz, duration interval)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    holdfast.text_as_seen(s.name, j.queue, j.payload, me.in_full),
    holdfast.as_seen(s.result, j.queue, j.payload, me.in_full),
    s.attempt, s.worker_id, s.finished_at, s.duration
  from holdfast.step s
  left join holdfast.found_job(job_steps.id) j on true
  cross join (select holdfast.sees_payloads() as in_full offset 0) me
  where s.job_id = job_steps.id
    and job_steps.id = any(holdfast.jobs_in_reach(array[job_steps.id]))
  order by s.position
$$;
comment on function holdfast.job_steps(uuid) is 'Return the steps that a job has finished, in order.';

-- holdfast: role viewer
create or replace function holdfast.job_checkpoint(id uuid)
returns jsonb
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select nullif(holdfast.as_seen(c.state, j.queue, j.payload, holdfast.sees_payloads()), '"*****"')
  from holdfast.checkpoint c
  left join holdfast.found_job(job_checkpoint.id) j on true
  where c.job_id = job_checkpoint.id
    and job_checkpoint.id = any(holdfast.jobs_in_reach(array[job_checkpoint.id]))
$$;
comment on function holdfast.job_checkpoint(uuid) is
  'Return the last checkpoint of a job; null if it has none.';

-- Return everything in one call, and nothing of an older job with the same id.
-- holdfast: role worker
create or replace function holdfast.memory(id uuid)
returns table (state jsonb, names text[], results text[])
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    (select c.state from holdfast.checkpoint c where c.job_id = j.id and c.job_created_at = j.created_at),
    coalesce(
      (select array_agg(s.name order by s.position) from holdfast.step s where s.job_id = j.id
      and s.job_created_at = j.created_at), '{}'),
    coalesce(
      (select array_agg(s.result::text order by s.position) from holdfast.step s where s.job_id = j.id
      and s.job_created_at = j.created_at), '{}')
  from holdfast.live j
  where j.id = memory.id
$$;
comment on function holdfast.memory(uuid) is
  'Return the checkpoint and the finished steps with which the next attempt of a job begins.';

-- Jobs that start over lose their steps and checkpoints.
create or replace function holdfast.forget_memory(ids uuid[])
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  with steps as (delete from holdfast.step s where s.job_id = any(ids))
  delete from holdfast.checkpoint c where c.job_id = any(ids)
$$;
comment on function holdfast.forget_memory(uuid[]) is 'Delete the steps and checkpoints of jobs.';

-- suspects.sql
-- Decide whether a worker may take a suspect: it runs one at a time until that one is cleared.

create or replace function holdfast.start_suspect(
  worker uuid, lease uuid, lanes integer[], now_at timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.running (job_id, lease, started_at, changed_at)
  select j.id, j.lease, now_at, now_at
  from holdfast.live j
  where j.worker_id = start_suspect.worker
    and j.state = 'claimed'
    and j.lease = start_suspect.lease
    and j.lane_id = any(lanes)
  on conflict (job_id) do update
    set lease = excluded.lease, started_at = excluded.started_at, changed_at = excluded.changed_at,
      deadline_at = null, progress = null, stage = null, message = null, step = null, published = 0
$$;
comment on function holdfast.start_suspect(uuid, uuid, integer[], timestamptz) is
  'Record the start of the suspect that was claimed under this lease.';

-- An uncleared suspect may still kill its worker. A suspect is cleared when it has run clearly
-- longer than at any death so far. Without this, twenty innocent jobs of an hour each would run
-- one after the other.
create or replace function holdfast.has_uncleared_suspect(worker uuid, now_at timestamptz)
returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select
    from holdfast.live j
    join holdfast.lane l on l.id = j.lane_id
    left join lateral (select d.longest from holdfast.death d where d.job_id = j.id offset 0) d on true
    where j.worker_id = has_uncleared_suspect.worker
      and j.state = 'claimed'
      and l.kind = 2
      and now_at - j.claimed_at < holdfast.clearing_time(d.longest)
  )
$$;
comment on function holdfast.has_uncleared_suspect(uuid, timestamptz) is
  'Return whether this worker holds a suspect that has not run long enough to be cleared.';

create or replace function holdfast.clearing_time(longest interval)
returns interval
language sql immutable
as $$
  select greatest(interval '5 seconds', 2 * clearing_time.longest)
$$;
comment on function holdfast.clearing_time(interval) is
  'Return how long a suspect must run to be cleared, given how long it had run at a death.';

-- Two claims of one worker must not both take a suspect, so they wait for each other at the
-- worker's row. The update also records that the worker is alive now. If it dies later,
-- recover() sees that the suspects it holds had been cleared.
create or replace function holdfast.may_take_suspect(worker uuid, now_at timestamptz)
returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if holdfast.has_uncleared_suspect(may_take_suspect.worker, now_at) then
    return false;
  end if;
  update holdfast.worker w
  set heartbeat_at = greatest(w.heartbeat_at, now_at)
  where w.id = may_take_suspect.worker
    and w.lost_at is null
    and w.left_at is null;
  return found and not holdfast.has_uncleared_suspect(may_take_suspect.worker, now_at);
end
$$;
comment on function holdfast.may_take_suspect(uuid, timestamptz) is
  'Return whether a worker may take a suspect now: it may if its last suspect is cleared.';

-- sweep.sql
-- Delete finished jobs, events and dead letters that are past the retention of their queue.
--
-- drop_partitions() drops the partition of a day past the longest retention, which costs almost
-- nothing. For queues with a shorter retention, sweep() deletes rows from the partitions that
-- stay; these rows are neither archived nor exported. If all queues have the same retention,
-- sweep() searches only the default partitions.
--
-- `finished` has no index by time, because it would slow down every finish. So sweep() reads
-- partitions block by block, and only those that may hold expired rows. Two searches do this:
--
--   pass   reads the whole partition. While its rows expire, a pass starts every 1/24 of the
--          retention. Above 16 MB, passes are at least 5 minutes apart. The last pass starts
--          when the whole day has expired
--   tail   reads only new blocks, so even a large partition is cleared soon. Each tail search
--          notes how many blocks the partition has. The next one starts after the shortest
--          retention, when the rows in these blocks can have expired. It reads the blocks up to
--          that number that no search has read yet
--
-- A retention of 0 counts as one minute, and its rows are deleted within about three.

-- Delete expired rows and dead letters for a fraction of a second. Return whether more is due.
--
--   1. Return if another session is sweeping, or within `rest` of the last sweep.
--   2. Return if nothing is due. This is the usual case, and nothing is written.
--   3. Search partitions for about 300 ms, and delete up to 5,000 expired dead letters.
--
-- A worker calls this about every 30 seconds, and again after a short pause if more is due.
-- holdfast: role worker
create or replace function holdfast.sweep(rest interval default null)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
begin
  perform holdfast.check_isolation('sweep');
  if not holdfast.try_duty('sweep')
    or exists (
      select from holdfast.duty d
      where d.name = 'sweep' and now_at between d.looks[1] and d.looks[1] + sweep.rest
    )
  then
    return false;
  end if;
  if not holdfast.sweep_due(now_at) then
    return false;
  end if;
  perform holdfast.sweep_partitions(now_at);
  perform holdfast.forget_dead(now_at);
  insert into holdfast.duty (name, looks)
  values ('sweep', array[now_at])
  on conflict (name) do update set looks = excluded.looks;
  return holdfast.sweep_due(now_at);
end
$$;
comment on function holdfast.sweep(interval) is
  'Delete finished jobs, events and dead letters past the retention of their queue, for a fraction of a '
  'second. Returns whether more is due. Does nothing within `rest` of the last sweep.';

create or replace function holdfast.sweep_due(now_at timestamptz)
returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select exists (select from holdfast.sweeps(now_at) s where s.pass_due or s.tail_due)
    or exists (select from holdfast.dead_past(now_at, 1))
$$;
comment on function holdfast.sweep_due(timestamptz) is 'Return whether a sweep has anything to do.';

-- List the partitions that can hold expired rows, and say whether a pass or a tail search is due.
--
-- The rows of a partition are from `low` up to `high`: the bounds of its day. A default partition
-- has -infinity and infinity. `blocks` is the current length of the partition. `under` is a hash of
-- the retentions and `disposal`: if it changes, a new pass is due.
--
-- The table `swept` remembers the searches of each partition: see sweep_partitions().
create or replace function holdfast.sweeps(now_at timestamptz)
returns table (
  parent text, partition text, low timestamptz, blocks bigint, under text, pass_due boolean, tail_due boolean,
  touched_at timestamptz)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with kept as (
    select
      min(r.span) as shortest,
      max(r.span) as longest,
      array_agg(distinct r.span) as spans,
      encode(sha256(convert_to(
        string_agg(r.queue || ' ' || extract(epoch from r.span), ',' order by r.queue)
          || coalesce((select q.disposal from holdfast.queue q where q.name = '*'), ''),
        'UTF8')), 'hex') as under
    from holdfast.retentions() r
  )
  select p.parent, p.partition, p.low, b.blocks, k.under, d.pass_due, d.tail_due, m.touched_at
  from kept k
  cross join holdfast.partitions() p
  left join holdfast.swept m on m.partition = p.partition
  cross join lateral (select pg_relation_size(p.place) / current_setting('block_size')::bigint as blocks) b
  cross join lateral (
    select
      m.began_at is not null -- a pass has begun
      or exists (
        select
        from unnest(k.spans) s (span)
        -- The rows with the longest retention go with their day. A default partition is not dropped.
        where (s.span < k.longest or p.low = '-infinity')
          and now_at - s.span > p.low -- its first rows can have expired
          and (
            m.passed_at is null -- never searched
            or m.passed_at > now_at -- the clock was set back
            or m.passed_under <> k.under -- the settings have changed
            -- The last pass began before all rows had expired. The next one is due after a while, or
            -- when all rows have expired. 2048 blocks are 16 MB.
            or m.passed_at - s.span < p.high
            and (
              now_at - m.passed_at >= greatest(
                s.span / 24, case when b.blocks > 2048 then interval '5 minutes' else '0' end)
              or now_at - s.span >= p.high
            )
          )
      ) as pass_due,
      m.seen_at <= now_at - k.shortest -- the rows that were there at `seen_at` can have expired
      and (m.tail < m.seen or m.seen < b.blocks) -- some blocks were not read yet
      -- The day ends at `high`, and its last row with the shortest retention expires at
      -- `high + shortest`. After a search that ended an hour later, no further search is due.
      and m.seen_at <= p.high + k.shortest + interval '1 hour' as tail_due
  ) d
  where k.shortest < k.longest or p.low = '-infinity'
$$;
comment on function holdfast.sweeps(timestamptz) is
  'Return the partitions that can hold rows past the retention of their queue, and whether a pass or a tail '
  'search is due.';

-- Do the searches that are due, for about 300 ms, 512 blocks at a time. Start with the partitions that
-- were never searched, and continue with those that were searched longest ago.
--
-- A search may need several calls. Its position is kept in the partition's row of `swept`:
--
--   hand                        the pass reads on from this block
--   began_at, began_under       the start of the current pass, and `under` at that time
--   passed_at, passed_under     the same for the last complete pass
--   tail                        the tail search reads on from this block
--   seen, seen_at               the tail search ends at this block: the length of the partition at
--                               that time
create or replace function holdfast.sweep_partitions(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  stop_at constant timestamptz := clock_timestamp() + interval '300 milliseconds';
  longest constant interval := holdfast.longest_retention();
  due record;
  position holdfast.swept;
  deleted integer := 0;
begin
  delete from holdfast.swept m
    where not exists (select from holdfast.partitions() p where p.partition = m.partition);
  for due in
    select s.* from holdfast.sweeps(now_at) s where s.pass_due or s.tail_due
      order by s.touched_at nulls first, s.low desc
  loop
    exit when clock_timestamp() > stop_at;
    select m.* into position from holdfast.swept m where m.partition = due.partition;
    if not found then
      -- The first pass reads the current blocks, so the tail search begins behind them.
      position := jsonb_populate_record(position, jsonb_build_object(
        'partition', due.partition, 'hand', 0, 'tail', due.blocks, 'seen', due.blocks, 'seen_at', now_at));
    end if;
    if due.tail_due then
      while position.tail < position.seen and clock_timestamp() <= stop_at loop
        deleted := deleted + holdfast.sweep_blocks(
          due.parent, due.partition, position.tail, least(position.tail + 512, position.seen), now_at,
          longest);
        position.tail := least(position.tail + 512, position.seen);
      end loop;
      if position.tail >= position.seen then
        -- This search is complete. Note the current length for the next one, which also reads the last
        -- 64 of these blocks again, because other sessions may still insert there.
        position.tail := greatest(position.seen - 64, 0);
        position.seen := due.blocks;
        position.seen_at := now_at;
      end if;
    end if;
    if due.pass_due then
      if position.began_at is null then
        position.began_at := now_at;
        position.began_under := due.under;
        position.hand := 0;
      end if;
      while position.hand < due.blocks and clock_timestamp() <= stop_at loop
        deleted := deleted + holdfast.sweep_blocks(
          due.parent, due.partition, position.hand, position.hand + 512, now_at, longest);
        position.hand := position.hand + 512;
      end loop;
      if position.hand >= due.blocks then
        position.passed_at := position.began_at;
        position.passed_under := position.began_under;
        position.began_at := null;
      end if;
    end if;
    position.touched_at := clock_timestamp();
    delete from holdfast.swept m where m.partition = due.partition;
    insert into holdfast.swept select (position).*;
  end loop;
  return deleted;
end
$$;
comment on function holdfast.sweep_partitions(timestamptz) is
  'Delete finished jobs and events past the retention of their queue. Returns how many.';

-- Delete the expired rows from `from_block` up to, but not including, `to_block`.
--
-- The partition decides which rows these are:
--
--   a day       rows of queues with less than the longest retention. drop_partitions() removes the
--               other rows with the day
--   a default   rows of all queues. If `disposal` is archive, the function copies rows past the
--   partition   longest retention to the archive. If it is export, queues with the longest
--               retention keep their rows until they are exported
--
-- The events of a live job or a dead letter stay. The errors, steps, checkpoints and event counts of
-- deleted jobs are deleted too.
create or replace function holdfast.sweep_blocks(
  parent text, partition text, from_block bigint, to_block bigint, now_at timestamptz, longest interval)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  time_column constant text := case parent when 'finished' then 'finished_at' else 'at' end;
  is_default constant boolean := partition = parent || '_default';
  disposal constant text := (select q.disposal from holdfast.queue q where q.name = '*');
  -- Queues with the longest retention lose their rows from before this time.
  longest_cutoff constant timestamptz := case
    when not is_default then '-infinity'
    when disposal = 'export' then least(
      now_at - longest,
      coalesce(
        (select e.until from holdfast.exported e where e.partition = sweep_blocks.partition), '-infinity'))
    else now_at - longest
  end;
  -- The queues with a retention of their own, and * for all others; then the cutoff of each.
  queues constant text[] := array(select r.queue from holdfast.retentions() r order by r.queue);
  cutoffs constant timestamptz[] := array(
    select case when r.span < longest then now_at - r.span else longest_cutoff end
    from holdfast.retentions() r
    order by r.queue);
  default_cutoff constant timestamptz := cutoffs[array_position(queues, '*')];
  must_archive boolean := false;
  columns text;
  ids uuid[];
begin
  if is_default and disposal = 'archive' then
    execute format(
      'select exists (select from holdfast.%I o where o.ctid >= $1 and o.ctid < $2 and o.%I < $3)', partition,
      time_column)
    into must_archive
    using format('(%s,0)', from_block)::tid, format('(%s,0)', to_block)::tid, longest_cutoff;
    if must_archive then
      perform holdfast.make_archive(parent);
      -- Name the columns, because those of the archive may be in another order.
      select string_agg(quote_ident(a.attname), ', ' order by a.attnum) into columns
      from pg_attribute a
      where a.attrelid = format('holdfast.%I', partition)::regclass
        and a.attnum > 0
        and not a.attisdropped;
    end if;
  end if;
  -- $1 queues and $2 their cutoffs, $3 the first block, $4 the block after the last one, $5 the cutoff of
  -- all other queues. If the archive is in use, deleted rows from before $6 are copied there.
  execute format(
    'with gone as (
       delete from holdfast.%1$I t
       where t.ctid = any(array(
         select o.ctid
         from holdfast.%1$I o
         left join unnest($1, $2) k (queue, cutoff) on k.queue = o.queue
         where o.ctid >= $3 and o.ctid < $4
           and o.%2$I < coalesce(k.cutoff, $5) %3$s))
       returning t.*
     ) %4$s
     select array_agg(g.%5$I) from gone g',
    partition, time_column,
    case parent when 'event' then
      'and not exists (select from holdfast.live j where j.id = o.job_id offset 0)
       and not exists (select from holdfast.dead_letter d where d.id = o.job_id offset 0)' end,
    case when must_archive then format(
      ', kept as (insert into holdfast_archive.%1$I (%2$s) select %2$s from gone g where g.%3$I < $6)',
      partition, columns, time_column) end,
    case parent when 'finished' then 'id' else 'job_id' end)
  into ids
  using queues, cutoffs, format('(%s,0)', from_block)::tid, format('(%s,0)', to_block)::tid, default_cutoff,
    longest_cutoff;
  if parent = 'finished' then
    perform holdfast.forget_rest(ids);
  end if;
  return coalesce(cardinality(ids), 0);
end
$$;
comment on function holdfast.sweep_blocks(text, text, bigint, bigint, timestamptz, interval) is
  'Delete rows past the retention of their queue from some blocks of a partition. Returns how many.';

-- Delete the errors, steps, checkpoints and event counts of jobs that were just deleted. Skip an id
-- that a newer job uses: a caller may use an id again after 7 days.
create or replace function holdfast.forget_rest(ids uuid[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
  -- Most jobs have none of these rows. So check only the ids that have some: ids_without_job() must
  -- search each partition of `finished` for an id.
  perform holdfast.delete_rest(holdfast.ids_without_job(array(
    select e.job_id from holdfast.attempt_error e where e.job_id = any(ids)
    union
    select s.job_id from holdfast.step s where s.job_id = any(ids)
    union
    select c.job_id from holdfast.checkpoint c where c.job_id = any(ids)
    union
    select c.job_id from holdfast.event_count c where c.job_id = any(ids))));
end
$$;
comment on function holdfast.forget_rest(uuid[]) is
  'Delete errors, steps, checkpoints and event counts of jobs that no longer exist.';

create or replace function holdfast.delete_rest(ids uuid[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
  if cardinality(ids) = 0 then
    return;
  end if;
  delete from holdfast.attempt_error e where e.job_id = any(ids);
  delete from holdfast.step s where s.job_id = any(ids);
  delete from holdfast.checkpoint c where c.job_id = any(ids);
  delete from holdfast.event_count c where c.job_id = any(ids);
end
$$;
comment on function holdfast.delete_rest(uuid[]) is
  'Delete the errors, steps, checkpoints and event counts of these jobs.';

create or replace function holdfast.ids_without_job(ids uuid[])
returns uuid[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
  return array(
    select u.id
    from unnest(ids) u (id)
    where not exists (select from holdfast.live j where j.id = u.id offset 0)
      and not exists (select from holdfast.dead_letter d where d.id = u.id offset 0)
      and not exists (select from holdfast.finished f where f.id = u.id offset 0));
end
$$;
comment on function holdfast.ids_without_job(uuid[]) is
  'Return the ids that no job has: none that is live, dead or finished.';

-- take_back.sql
-- Take held jobs away from their workers; returns how many. The caller has locked them.
-- Without a reason, their workers were lost, and decide_charges() decides about the attempts.
-- With a reason, such as a timeout, each started job is charged.
--
-- A job that was asked to cancel is cancelled. A job that pays with its last attempt is
-- dead. All others go back to the queue as suspects.
--
-- The body is long on purpose: it decides for each kind of job which ones are charged.
create or replace function holdfast.take_back(ids uuid[], now_at timestamptz, reason text)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  -- The jobs that had started: those that pay with their attempt, and those that do not.
  started record;
  charged uuid[];
  spared uuid[];
  -- Sort the jobs by their next state. Those in `waiting` go back to the queue.
  dead uuid[];
  cancelled uuid[];
  waiting uuid[];
begin
  if cardinality(ids) = 0 then
    return 0;
  end if;

  select
    coalesce(array_agg(s.id), '{}') as ids,
    coalesce(array_agg(s.id) filter (where s.pays), '{}') as charged,
    coalesce(array_agg(s.id) filter (where s.ends), '{}') as ended,
    coalesce(array_agg(s.id) filter (where not s.pays), '{}') as spared,
    array_agg(s.deaths) as deaths,
    array_agg(s.ran) as ran
  into started
  from holdfast.decide_charges(ids, now_at, take_back.reason) s;
  charged := started.charged;
  spared := started.spared;

  insert into holdfast.attempt_error (job_id, attempt, failed_at, worker_id, error)
  select j.id, j.attempt, now_at, j.worker_id,
    coalesce(
      take_back.reason,
      format(
        'lost: worker %s (%s) died or was cut off while it ran this job', j.worker_id,
        coalesce(w.name, 'unknown')))
  from holdfast.live j
  left join holdfast.worker w on w.id = j.worker_id
  where j.id = any(charged);
  -- It is not known how long they ran. A job that was asked to cancel does not count as a failure.
  perform holdfast.note_ends(
    'failed', array_agg(j.lane_id),
    array_agg(date_part('epoch', j.claimed_at - greatest(j.run_at, j.created_at))), null, now_at)
  from holdfast.live j
  where j.id = any(charged)
    and j.cancel_requested_at is null
  having count(*) > 0;

  -- Skip locked workers: a worker that is leaving may be waiting for these jobs.
  update holdfast.worker w
  set recovered = w.recovered + n.jobs
  from (
    select j.worker_id, count(*)::integer as jobs from holdfast.live j where j.id = any(ids)
    group by j.worker_id) n
  where w.id = n.worker_id
    and w.id in (
      select s.id from holdfast.worker s
      where s.id in (select j.worker_id from holdfast.live j where j.id = any(ids))
      for update skip locked);

  -- Replace the lease by an unknown one. Reports of the old holder are then refused
  -- as lost, wherever the job goes from here.
  update holdfast.live j
  set
    lease = gen_random_uuid(),
    last_error = case
      when j.id = any(charged)
        then coalesce(take_back.reason, 'lost: its worker died or was cut off while it ran')
      else j.last_error
    end
  where j.id = any(ids);

  cancelled := array(
    select j.id from holdfast.live j where j.id = any(ids) and j.cancel_requested_at is not null);
  dead := array(
    select j.id from holdfast.live j
    where j.id = any(charged) and (j.attempt >= j.max_attempts or j.id = any(started.ended))
      and j.cancel_requested_at is null);
  waiting := array(select i from unnest(ids) i where i <> all(cancelled || dead));
  perform holdfast.end_jobs('cancelled', cancelled, null, now_at);
  perform holdfast.end_jobs('dead', dead, null, now_at);
  if take_back.reason is null then
    insert into holdfast.death as d (job_id, deaths, longest)
    select s.id, s.deaths, s.ran
    from unnest(started.ids, started.deaths, started.ran) s (id, deaths, ran)
    where s.id = any(waiting)
    order by s.id
    on conflict (job_id) do update
      set deaths = excluded.deaths, longest = greatest(d.longest, excluded.longest);
  end if;
  perform holdfast.log_live(
    waiting, 'job.recovered',
    array(
      select jsonb_strip_nulls(jsonb_build_object(
        'worker', j.worker_id, 'started', x.job_id is not null, 'reason', take_back.reason, 'deaths',
        d.deaths, 'progress', x.progress, 'stage', x.stage, 'step', x.step))
      from unnest(waiting) with ordinality i (id, n)
      left join lateral (select j.worker_id from holdfast.live j where j.id = i.id offset 0) j on true
      left join lateral (select x.* from holdfast.running x where x.job_id = i.id offset 0) x on true
      left join lateral (select d.deaths from holdfast.death d where d.job_id = i.id offset 0) d on true
      order by i.n),
    now_at);
  -- A started job whose attempt is refunded may have kept steps or a checkpoint. The number of
  -- its next attempt does not show that, so a header tells the worker to load them.
  update holdfast.live j
  set headers = coalesce(j.headers, '{}') || '{"resumes": true}'
  where j.id = any(spared);
  -- The jobs return as suspects (kind 2). Those that do not pay get their attempt back.
  perform holdfast.return_jobs(
    waiting, null, array(select i from unnest(waiting) i where i <> all(charged)), 2, now_at);
  delete from holdfast.running x where x.job_id = any(ids);
  return cardinality(ids);
end
$$;
comment on function holdfast.take_back(uuid[], timestamptz, text) is
  'Take held jobs away from their workers: back to the queue, to the dead letters, or cancelled.';

-- Decide which started jobs pay with their attempt for the death of their worker, and which
-- of those end. Jobs that had not started are left out: they get their attempt back.
--
-- - A worker holds at most one suspect that is not cleared: claim() sees to that. If it
--   holds one, that job pays.
-- - Otherwise no job pays: any of the jobs may be the culprit. All become suspects.
-- - Deaths are counted per job, because a culprit may be cleared each time before it kills.
--   A job with more deaths than max_attempts pays and ends, unless another suspect pays.
-- - A job that must not run twice (`once`) pays and ends at its first death, and also when it
--   is taken back for a reason.
-- - With a reason, every job pays, and no deaths are counted.
--
-- It is not known when the worker died, only when it was last alive. A suspect counts as cleared if
-- it was cleared by that time. `ran` is the longest time that the job may have run before the death.
create or replace function holdfast.decide_charges(ids uuid[], now_at timestamptz, reason text)
returns table (id uuid, pays boolean, ends boolean, deaths integer, ran interval)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with held as (
    select
      j.id, j.worker_id, j.claimed_at, j.max_attempts, x.job_id is not null as started,
      coalesce(x.once, false) as once, l.kind = 2 as suspect, d.longest, w.lease_time,
      -- Count this death too. A suspect without a count was held during an earlier death, but its
      -- start was not on record.
      1 + coalesce(d.deaths, case when l.kind = 2 then 1 else 0 end) as deaths,
      max(greatest(w.heartbeat_at, j.claimed_at, x.changed_at)) over (partition by j.worker_id) as alive_at
    from holdfast.live j
    join holdfast.lane l on l.id = j.lane_id
    left join holdfast.worker w on w.id = j.worker_id
    left join lateral (
      select x.* from holdfast.running x where x.job_id = j.id and x.lease = j.lease offset 0) x on true
    left join lateral (select d.* from holdfast.death d where d.job_id = j.id offset 0) d on true
    where j.id = any(ids)
  ),
  seen as (
    select h.*, h.suspect and h.started
      and h.alive_at - h.claimed_at < holdfast.clearing_time(h.longest) as uncleared
    from held h
  ),
  judged as (
    select
      s.*,
      s.once or (
        decide_charges.reason is null
        and s.deaths > s.max_attempts
        and (
          s.uncleared
          or not bool_or(s.uncleared) over (partition by s.worker_id)
            -- A suspect that another transaction has locked is judged later, and pays then.
            and not exists (
              select
              from holdfast.live j
              join holdfast.lane l on l.id = j.lane_id
              left join lateral (select d.longest from holdfast.death d where d.job_id = j.id offset 0) d
                on true
              where j.worker_id = s.worker_id
                and j.state = 'claimed'
                and l.kind = 2
                and j.id <> all(ids)
                and s.alive_at - j.claimed_at < holdfast.clearing_time(d.longest))
        )
      ) as ends
    from seen s
  )
  select
    g.id, g.ends or g.uncleared or decide_charges.reason is not null, g.ends, g.deaths,
    -- The worker may have lived for two more heartbeats, each a sixth of the lease time.
    least(now_at, g.alive_at + coalesce(g.lease_time, interval '30 seconds') / 3) - g.claimed_at
  from judged g
  where g.started
$$;
comment on function holdfast.decide_charges(uuid[], timestamptz, text) is
  'Decide which started jobs pay for the death of their worker and which end; with the number of deaths and '
  'how long each job may have run.';

-- tick.sql
-- List the duties and run them. This is the only table of duties: tick() follows it, and a test
-- compares the worker's own table with it.
--
-- Workers call each duty regularly, in a transaction of its own, and return at once if more is
-- due. cron calls tick() once a minute, so promote() handles more jobs at a time there: 20,000
-- in about half a second. upkeep() does what sweep() does, so tick() leaves sweep() out.
-- holdfast: role worker operator
create or replace function holdfast.list_duties()
returns table (name text, every interval, in_tick boolean, purpose text)
language sql immutable security definer
set search_path = pg_catalog, pg_temp
as $$
  values
    ('fire', interval '1 s', true, 'put the jobs of due schedules on their queues'),
    ('promote', interval '1 s', true, 'make due jobs pending'),
    ('recover', interval '1 s', true, 'take back the jobs of lost workers'),
    ('advance', interval '0.25 s', true, 'move the heads of the lanes'),
    ('fold_stats', interval '1 s', true, 'add up the statistics'),
    ('upkeep', interval '60 s', true, 'make and drop partitions, remove orphans, check heads'),
    ('sweep', interval '30 s', false, 'delete what is past the retention of its queue')
$$;
comment on function holdfast.list_duties() is
  'List the background duties: how often a worker does each, and whether tick() does it too.';

-- Run every duty once: for pg_cron, system cron or a person, if no worker runs.
--
-- Each duty runs in a block of its own, so one that fails stops no other. Its error is kept in
-- holdfast.duty.
-- holdfast: role worker operator
create or replace function holdfast.tick()
returns table (duty text, error text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_isolation('tick');
  for duty in select d.name from holdfast.list_duties() d where d.in_tick loop
    error := null;
    begin
      case duty
        when 'fire' then
          -- Once more if it had too much for one call.
          if holdfast.fire() <= interval '0' then
            perform holdfast.fire();
          end if;
        when 'promote' then perform holdfast.promote(20000, also_fire => false);
        when 'recover' then perform holdfast.recover(also_fold => false);
        when 'advance' then perform holdfast.advance();
        when 'fold_stats' then perform holdfast.fold_stats();
        when 'upkeep' then perform holdfast.upkeep();
      end case;
    exception when others then
      error := sqlerrm;
    end;
    perform holdfast.note_duty(duty, error);
    return next;
  end loop;
end
$$;
comment on function holdfast.tick() is 'Run every background duty once. Returns each with its error, if any.';

-- upkeep.sql
-- Do the slow duty: make and drop partitions, forget old ids and tombstones, remove orphans, check
-- heads. Return how many things were done.
--
-- It reads many rows, most of all while a session holds an old snapshot, and many workers call it. So it
-- rests if the last run ended less than `rest` ago, or less than twenty times as long ago as it
-- took, up to a quarter of an hour. The search behind the heads hardly ever finds anything and
-- reads everything done since that snapshot. So it rests a thousand times as long as it took, up
-- to five minutes.
-- holdfast: role worker
create or replace function holdfast.upkeep(rest interval default null)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  done integer;
  part text;
  part_begun_at timestamptz;
begin
  perform holdfast.check_isolation('upkeep');
  if not holdfast.try_duty('upkeep') then
    return 0;
  end if;
  if holdfast.rests('upkeep', upkeep.rest, 20, '15 minutes', now_at) then
    return 0;
  end if;
  perform holdfast.note_cluster();

  done := holdfast.take_back_orphans(now_at);
  done := done + holdfast.end_pending_without_attempts(now_at);
  done := done + holdfast.forget_leftovers(now_at);
  -- A part that fails stops no other, and undoes nothing of the above.
  foreach part in array '{
    sweep,forget_finished,forget_stats,check_heads,settle_lanes,make_partitions,drop_partitions,retire_lanes
  }'::text[] loop
    continue when part = 'check_heads' and holdfast.rests(part, upkeep.rest, 1000, '5 minutes', now_at);
    continue when part = 'retire_lanes' and holdfast.rests(part, upkeep.rest, 100, '15 minutes', now_at);
    begin
      part_begun_at := holdfast.clock();
      done := done + case part
        -- A worker has a duty of its own for sweeping, so this is for cron. Only one sweeps at a time.
        when 'sweep' then case when holdfast.try_duty('sweep')
          then holdfast.sweep_partitions(now_at) + holdfast.forget_dead(now_at) else 0 end
        when 'forget_finished' then holdfast.forget_finished(now_at)
        when 'forget_stats' then holdfast.forget_stats(now_at)
        when 'check_heads' then holdfast.check_heads()
        when 'retire_lanes' then holdfast.retire_lanes(now_at)
        when 'settle_lanes' then holdfast.settle_lanes()
        when 'make_partitions'
          then holdfast.make_partitions(now_at, 'finished') + holdfast.make_partitions(now_at, 'event')
        when 'drop_partitions'
          then holdfast.drop_partitions(now_at, 'finished') + holdfast.drop_partitions(now_at, 'event')
      end;
      if part = 'retire_lanes' then
        perform holdfast.note_look(part, part_begun_at);
      end if;
    exception when others then
      perform holdfast.note_duty('upkeep', format('%s: %s', part, sqlerrm));
    end;
  end loop;
  perform holdfast.note_look('upkeep', now_at);
  perform holdfast.note_done('upkeep', now_at);
  return done;
end
$$;
comment on function holdfast.upkeep(interval) is
  'Make and drop partitions, forget old ids and tombstones, remove orphans, and check the heads. Does '
  'nothing if the last upkeep ended less than a rest ago.';

-- use_id.sql
-- Record an id that a caller supplied. Return true if it is new, and false if it was used for
-- the same task and payload. Raise an error if it was used for another job.
--
-- A second transaction with the same id waits here until the first has ended.
--
-- An id that a tenant may not see is always refused in the same way. So the tenant cannot guess
-- the task or the payload of its job, and cannot take it over.
create or replace function holdfast.use_id(id uuid, task text, payload jsonb, now_at timestamptz, queue text)
returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  -- Half a SHA-256 instead of MD5, which a server in FIPS mode does not have.
  hash uuid := encode(substr(sha256(convert_to(use_id.payload::text, 'UTF8')), 1, 16), 'hex')::uuid;
  used holdfast.used_id;
  restricted constant boolean := not holdfast.unrestricted();
begin
  if restricted and exists (
    select from holdfast.jobs_with_id(use_id.id) j where not holdfast.in_reach(j.queue)
  ) then
    perform holdfast.refuse_id(use_id.id);
  end if;
  loop
    insert into holdfast.used_id (id, task, payload_hash, used_at, queue)
    values (use_id.id, use_id.task, hash, use_id.now_at, use_id.queue)
    on conflict (id) do nothing;
    if found then
      return true;
    end if;
    select u.* into used from holdfast.used_id u where u.id = use_id.id;
    exit when found; -- otherwise the id was forgotten just now
  end loop;
  -- Its job may be past its retention, or have been enqueued while this waited for it.
  if restricted and used.queue is not null and not holdfast.in_reach(used.queue) then
    perform holdfast.refuse_id(use_id.id);
  end if;
  if used.task = use_id.task and used.payload_hash = hash then
    return false;
  end if;
  raise exception using
    errcode = 'HF007',
    message = format(
      'id %s is already used for another %s', use_id.id, case when used.task = use_id.task then 'payload'
      else 'task' end),
    detail = jsonb_build_object(
      'id', use_id.id,
      'field', case when used.task = use_id.task then 'payload' else 'task' end),
    hint = 'Use a new id for a new job; the same id is only for repeating the same call.';
end
$$;
comment on function holdfast.use_id(uuid, text, jsonb, timestamptz, text) is
  'Record an id that a caller supplied. Returns false if the same job has it already.';

create or replace function holdfast.refuse_id(id uuid)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using
    errcode = 'HF007',
    message = format('id %s cannot be used', refuse_id.id),
    detail = jsonb_build_object('id', refuse_id.id, 'field', 'id'),
    hint = 'Use a new id for a new job.';
end
$$;
comment on function holdfast.refuse_id(uuid) is
  'Raise the error for an id that the caller may not use, without a word about its job.';

-- wait.sql
-- Wait for the end of a job without polling for it.
--
-- A waiting session stores a channel for the job, commits, checks whether the job has ended
-- already, and listens. A session that ends a job looks for waiting channels. If its
-- transaction is open while the channel is stored, it cannot see the channel. So the waiting
-- session checks again several times, and then every five seconds.

-- holdfast: role producer operator
create or replace function holdfast.await_jobs(ids uuid[], channel text)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if await_jobs.channel is null or await_jobs.channel !~ '^[a-z0-9_]{1,63}$' then
    perform holdfast.refuse_value(
      'channel', await_jobs.channel, 'must have 1 to 63 characters out of a-z, 0-9 and "_"');
  end if;
  if cardinality(ids) > 10000 then
    perform holdfast.refuse_value(
      'ids', cardinality(ids) || ' ids', 'may be 10000 at most: wait for the others in another call');
  end if;
  -- Skip jobs in queues that the caller may not use.
  insert into holdfast.waiter (job_id, channel, since)
  select distinct i, await_jobs.channel, holdfast.clock()
  from unnest(holdfast.jobs_in_reach(ids)) i
  order by i
  on conflict (job_id, channel) do nothing;
end
$$;
comment on function holdfast.await_jobs(uuid[], text) is
  'Ask for a notification on a channel when these jobs end, up to 10000 jobs in a call. The payload of a '
  'notification is the ids of up to 200 of them, separated by commas.';

-- holdfast: role producer operator
create or replace function holdfast.await_no_more(ids uuid[], channel text)
returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  delete from holdfast.waiter w
  where w.job_id = any(ids)
    and w.channel = await_no_more.channel
$$;
comment on function holdfast.await_no_more(uuid[], text) is
  'Stop notifying a channel about these jobs.';

-- Jobs that have not ended are left out. A job that does not exist any more has a null state.
-- holdfast: role producer viewer
create or replace function holdfast.ends(ids uuid[])
returns table (id uuid, task text, state text, result jsonb, error text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
  select
    i.id, e.task, e.state,
    -- Producers, workers and the owner get the result unmasked. All others get it masked.
    case when me.gets_all then e.result else holdfast.as_seen(e.result, e.queue, e.payload, me.in_full) end,
    holdfast.text_as_seen(e.last_error, e.queue, e.payload, me.in_full)
  from (select distinct i as id from unnest(ids) i) i
  left join lateral (
    select f.task, f.state, f.result, f.last_error, f.finished_at, f.queue, f.payload from holdfast.finished f
      where f.id = i.id
    union all
    select d.task, 'dead', null, d.last_error, d.died_at, d.queue, d.payload from holdfast.dead_letter d
      where d.id = i.id
    order by finished_at desc -- an id may be used again: the latest job counts
    limit 1
  ) e on ((select holdfast.unrestricted()) or holdfast.in_reach(e.queue))
  cross join (
    select
      holdfast.sees_payloads() as in_full,
      holdfast.is_owner(c.role) or holdfast.acts_as(c.role, 'holdfast_producer')
        or holdfast.acts_as(c.role, 'holdfast_worker') as gets_all
    from holdfast.caller() c (role)
    offset 0
  ) me
  where not exists (select from holdfast.live j where j.id = i.id offset 0)
$$;
comment on function holdfast.ends(uuid[]) is
  'Return the state, result and last error of each of these jobs that has ended. The state is null if a job '
  'does not exist.';

-- Notify the channels that wait for these jobs.
create or replace function holdfast.tell_waiters(ids uuid[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if current_setting('holdfast.notify', true) is not distinct from 'off'
    or pg_notification_queue_usage() >= 0.5 then
    return; -- the waiting sessions check by themselves
  end if;
  perform pg_notify(t.channel, t.payload)
  from (
    select n.channel, string_agg(n.id, ',') as payload
    from (
      select w.channel, w.job_id::text as id, (row_number() over (partition by w.channel) - 1) / 200 as part
      from holdfast.waiter w
      where w.job_id = any(ids)
    ) n
    group by n.channel, n.part -- a payload holds 200 ids
  ) t;
end
$$;
comment on function holdfast.tell_waiters(uuid[]) is
  'Notify the sessions that wait for the end of these jobs.';

-- why.sql
-- Explain why a job does not run: the decisive reason first, each with a word for programs, a
-- sentence for people, and a remedy.
--
-- Nothing is counted beyond ten thousand, and everything is read from the heads of the lanes
-- and by ids. So the answer comes at once however many jobs wait. Nothing is locked or written.
-- Errors, payloads and messages are not quoted, since not everybody may see them.
-- holdfast: role viewer
create or replace function holdfast.why(id uuid)
returns table (answer text, explanation text, remedy text, detail jsonb)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  job holdfast.live;
  lane holdfast.lane;
  locked_by xid;
  stopped boolean;
begin
  if why.id is null then
    perform holdfast.refuse_value('id', null, 'must be the id of a job');
  end if;
  if not holdfast.unrestricted() and cardinality(holdfast.jobs_in_reach(array[why.id])) = 0 then
    return query values (
      'unknown', 'There is no job with this id in your queues.', 'Check the id and the database.',
      null::jsonb);
    return;
  end if;
  select j.* into job from holdfast.live j where j.id = why.id;
  if not found then
    return query select e.* from holdfast.why_ended(why.id, now_at) e;
    return;
  end if;
  select l.* into lane from holdfast.lane l where l.id = job.lane_id;
  select j.xmax into locked_by from holdfast.live j where j.id = why.id;
  case job.state
    when 'claimed' then
      return query select w.* from holdfast.why_held(job, lane, now_at) w;
      return query select w.* from holdfast.why_duty('recover', now_at) w
        where not exists (select from holdfast.live_workers(now_at) a where a.id = job.worker_id);
      return query select w.* from holdfast.why_locked(locked_by, now_at) w;
    when 'scheduled' then
      return query select w.* from holdfast.why_duty('promote', now_at) w where job.run_at <= now_at;
      return query select w.* from holdfast.why_scheduled(job, lane, now_at) w;
      return query select w.* from holdfast.why_locked(locked_by, now_at) w;
      return query select w.* from holdfast.why_paused(lane, now_at) w;
      return query select w.* from holdfast.why_unserved(lane, now_at) w;
    else
      return query select w.* from holdfast.why_paused(lane, now_at) w;
      stopped := found;
      return query select w.* from holdfast.why_duty('advance', now_at) w where job.seq < lane.head;
      return query select w.* from holdfast.why_passed_over(job, lane, now_at) w;
      stopped := stopped or found;
      return query select w.* from holdfast.why_locked(locked_by, now_at) w;
      stopped := stopped or found;
      return query select w.* from holdfast.why_unserved(lane, now_at) w;
      if not stopped then -- otherwise it would be called ready
        return query select w.* from holdfast.why_waiting(job, lane, now_at) w;
      end if;
  end case;
  return query
    select
      'schedule',
      format('Schedule %s made it.', s.name),
      'holdfast schedule list shows when it runs next.',
      jsonb_build_object('schedule', s.name)
    from holdfast.schedule s -- since anybody may have written the header
    where s.name = job.headers ->> 'schedule';
end
$$;
comment on function holdfast.why(uuid) is
  'Return why a job does not run, the decisive reason first, with what to do; or how it ended.';

-- Workers that are probably alive: not lost, not gone, with a heartbeat within their lease.
create or replace function holdfast.live_workers(now_at timestamptz)
returns setof holdfast.worker
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select w.*
  from holdfast.worker w
  where w.lost_at is null
    and w.left_at is null
    and w.heartbeat_at + w.lease_time > now_at
$$;
comment on function holdfast.live_workers(timestamptz) is
  'Return the workers that sent a heartbeat within their lease.';

create or replace function holdfast.serves(worker holdfast.worker, queue text, task text)
returns boolean
language sql immutable
as $$
  select (worker.queues is null or serves.queue = any(worker.queues))
    and (worker.tasks is null or serves.task = any(worker.tasks))
$$;
comment on function holdfast.serves(holdfast.worker, text, text) is
  'Return whether a worker takes jobs of this queue and task.';

-- why_blocked.sql
-- Explain why no claim can take a pending job: its queue is paused, it is locked, its head has
-- passed it, or a session blocks a duty.

create or replace function holdfast.why_paused(lane holdfast.lane, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'paused',
    format('Queue %s has been paused since %s, for %s.',
      q.name, holdfast.time_in_words(q.paused_at), holdfast.span_in_words(now_at - q.paused_at)),
    format('holdfast queue resume %s', q.name),
    jsonb_build_object('queue', q.name, 'paused_at', q.paused_at)
  from holdfast.queue q
  where q.name = lane.queue
    and q.paused_at is not null
$$;
comment on function holdfast.why_paused(holdfast.lane, timestamptz) is
  'Return that the queue of a job is paused, if it is.';

-- A job that claims skip or do not reach.
create or replace function holdfast.why_passed_over(job holdfast.live, lane holdfast.lane, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'out_of_attempts',
    format(
      'All %s attempts are used up, because the maximum was lowered while it waited. Claims step over it; '
      'the next upkeep moves it to the dead letters.', job.max_attempts),
    format('Wait for the upkeep, then: holdfast replay %s', job.id),
    jsonb_build_object('attempt', job.attempt, 'max_attempts', job.max_attempts)
  where job.attempt >= job.max_attempts
  union all
  select
    'late',
    format(
      'It stands at place %s, behind the head of its lane at %s: the transaction that made it committed '
      'late. '
      'The next round of duties gives it a new place, within a second while a worker runs.', job.seq,
      lane.head),
    case when l.look_at > now_at - interval '1 minute'
      then 'Wait a moment.'
      else 'holdfast tick: nobody has done the duties'
        || coalesce(' for ' || holdfast.span_in_words(now_at - l.look_at), '') || '.'
    end,
    jsonb_build_object('seq', job.seq, 'head', lane.head)
  from (select (select d.looks[1] from holdfast.duty d where d.name = 'recover') as look_at) l
  where job.seq < lane.head
$$;
comment on function holdfast.why_passed_over(holdfast.live, holdfast.lane, timestamptz) is
  'Return that claims do not reach a job: it has no attempts left, or lies behind a head.';

-- xmax is the number of a transaction that writes or has locked the row, or once did. Only an
-- open transaction still holds the lock on its own number.
create or replace function holdfast.why_locked(locked_by xid, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'locked',
    format('An open transaction is changing it: %s%s. No worker can take it until that ends.',
      coalesce('process ' || k.pid, 'a prepared one'),
      coalesce(' (' || nullif(concat_ws(', ', nullif(a.application_name, ''), a.usename, a.state,
        'open for ' || holdfast.span_in_words(now_at - a.xact_start)), '') || ')', '')),
    case
      when k.pid is null then 'Commit it or roll it back: select * from pg_prepared_xacts;'
      else format('Let it commit. If it hangs: select pg_terminate_backend(%s);', k.pid)
    end,
    jsonb_build_object(
      'pid', k.pid, 'application', a.application_name, 'state', a.state, 'since', a.xact_start)
  from pg_locks k
  left join pg_stat_activity a on a.pid = k.pid
  where k.locktype = 'transactionid'
    and k.transactionid = locked_by
    and k.granted
    and k.pid is distinct from pg_backend_pid()
$$;
comment on function holdfast.why_locked(xid, timestamptz) is
  'Return that an open transaction has locked the row of a job, if one has.';

-- A job waits for a duty.
create or replace function holdfast.why_duty(duty text, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    'duty_held', h.sentence || '.', h.remedy,
    jsonb_build_object(
      'duty', h.duty, 'pid', h.pid, 'application', h.application, 'role', h.role, 'state', h.state,
      'since', h.since)
  from holdfast.duty_holders(now_at) h
  where h.duty = why_duty.duty
$$;
comment on function holdfast.why_duty(text, timestamptz) is
  'Return that a session has held a duty for long, if one has.';

-- why_ended.sql
-- Explain a job that is not live: how it ended, or why nothing is known of it.
create or replace function holdfast.why_ended(id uuid, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  job record;
  used record;
  keep interval := (select max(q.retention) from holdfast.queue q);
  open integer;
  made_at timestamptz;
begin
  select e.* into job
  from (
    select f.state, f.finished_at, f.attempt, f.max_attempts, f.duration, f.worker_id from holdfast.finished f
      where f.id = why_ended.id
    union all
    select 'dead', d.died_at, d.attempt, d.max_attempts, d.duration, d.worker_id from holdfast.dead_letter d
      where d.id = why_ended.id
  ) e
  order by e.finished_at desc
  limit 1;
  if found then
    answer := job.state;
    detail := jsonb_build_object(
      'finished_at', job.finished_at, 'attempt', job.attempt, 'max_attempts', job.max_attempts, 'worker',
      job.worker_id);
    case job.state
      when 'completed' then
        explanation := format('It was completed at %s, %s ago, in attempt %s of %s%s.',
          holdfast.time_in_words(job.finished_at), holdfast.span_in_words(now_at - job.finished_at),
          job.attempt, job.max_attempts, coalesce(' after ' || holdfast.span_in_words(job.duration), ''));
        remedy := format('Nothing. holdfast job %s shows its result.', why_ended.id);
      when 'cancelled' then
        explanation := format('It was cancelled at %s, %s ago.',
          holdfast.time_in_words(job.finished_at), holdfast.span_in_words(now_at - job.finished_at));
        remedy := 'Nothing, or enqueue it again. The audit log says who did it.';
      else
        explanation := format('It is dead since %s, %s ago, after %s of %s attempts.',
          holdfast.time_in_words(job.finished_at), holdfast.span_in_words(now_at - job.finished_at),
          job.attempt, job.max_attempts);
        remedy := format(
          'holdfast job %s shows the errors, holdfast replay %s puts it back on its queue.', why_ended.id,
          why_ended.id);
    end case;
    return next;
    return;
  end if;

  answer := 'unknown';
  select u.used_at, u.task into used from holdfast.used_id u where u.id = why_ended.id;
  open := cardinality(holdfast.writers());
  -- Ids that we make are UUIDs of version 7, and begin with the milliseconds since 1970.
  if substr(why_ended.id::text, 15, 1) = '7' then
    made_at := to_timestamp(
      ('x' || lpad(replace(left(why_ended.id::text, 13), '-', ''), 16, '0'))::bit(64)::bigint / 1000.0);
  end if;
  explanation := concat_ws(' ',
    'There is no job with this id.',
    case when used.used_at is not null then
      format('One was enqueued under it %s ago, for task %s, and has been purged or forgotten since.',
        holdfast.span_in_words(now_at - used.used_at), used.task)
    end,
    case when used.used_at is null and made_at between now_at - interval '100 years'
      and now_at + interval '1 day' then
      format(
        'The id was made at %s, %s ago.', holdfast.time_in_words(made_at),
        holdfast.span_in_words(now_at - made_at))
    end,
    format('Finished jobs are kept for %s at most.', holdfast.span_in_words(keep)),
    'What was enqueued in a transaction is not there before it commits, and never if it rolls back.',
    case when open > 0 then
      format('%s at this moment.',
        case open when 1 then '1 transaction that may enqueue is open'
          else open || ' transactions that may enqueue are open' end)
    end);
  remedy := 'Check the id and the database, and whether the transaction was committed.';
  detail := jsonb_build_object('used_at', used.used_at, 'made_at', made_at, 'open_writers', open,
    'retention_seconds', extract(epoch from keep));
  return next;
end
$$;
comment on function holdfast.why_ended(uuid, timestamptz) is
  'Return how a job ended, or why nothing is known of it.';

-- why_held.sql
-- Explain why a job is held, by which worker, and whether that worker is alive.
--
-- The body is long on purpose: it is a list of causes, in the order in which they are checked.
create or replace function holdfast.why_held(job holdfast.live, lane holdfast.lane, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  worker holdfast.worker;
  run holdfast.running;
  known text;
  silent interval;
  ends_at timestamptz;
  look_at timestamptz := (select d.looks[1] from holdfast.duty d where d.name = 'recover');
begin
  select w.* into worker from holdfast.worker w where w.id = job.worker_id;
  select r.* into run from holdfast.running r where r.job_id = job.id and r.lease = job.lease;
  known := coalesce(nullif(holdfast.worker_in_words(worker), ''), job.worker_id::text);
  silent := now_at - worker.heartbeat_at;
  ends_at := greatest(worker.heartbeat_at, worker.graced_at) + worker.lease_time;
  detail := jsonb_strip_nulls(jsonb_build_object(
    'worker', job.worker_id, 'worker_name', worker.name, 'claimed_at', job.claimed_at, 'started_at',
    run.started_at,
    'heartbeat_at', worker.heartbeat_at, 'lease_ends_at', ends_at, 'deadline_at', run.deadline_at,
    'attempt', job.attempt, 'progress', run.progress, 'at_most_once', case when run.once then true end));

  if worker.id is null or worker.lost_at is not null or worker.left_at is not null then
    answer := 'worker_lost';
    explanation := format('Its worker %s %s. The jobs that it held are being taken back%s.', known,
      case
        when worker.id is null then 'no longer exists'
        when worker.lost_at is not null
          then format('was declared lost %s ago', holdfast.span_in_words(now_at - worker.lost_at))
        else format('left %s ago', holdfast.span_in_words(now_at - worker.left_at))
      end,
      case when run.once then '; this one must not run a second time, so it goes to the dead letters'
        else '' end);
    remedy := 'Wait a moment. If no worker runs: holdfast tick';
    return next;
  elsif ends_at < now_at or silent > worker.lease_time / 2 then
    answer := 'worker_silent';
    explanation := format(
      'It is held by worker %s, which has sent no heartbeat for %s. %s', known,
      holdfast.span_in_words(silent),
      case
        when ends_at > now_at
          then format(
            'If none comes, the first recovery after %s gives the job to others.',
            holdfast.span_in_words(ends_at - now_at))
        else format('Its lease ended %s ago, and %s.', holdfast.span_in_words(now_at - ends_at),
          case
            when look_at is null or look_at < now_at - interval '1 minute'
              then 'nobody does the duties that would take the job back'
            else 'the job is about to be taken back'
          end)
      end);
    remedy := 'Check whether it still runs and reaches the database. holdfast tick takes back lost jobs.';
    return next;
  end if;
  if job.cancel_requested_at is not null then
    answer := 'cancel_requested';
    explanation := format(
      'Its cancellation was requested %s ago. Its worker %s knows, and its handler has not ended yet.',
      holdfast.span_in_words(now_at - job.cancel_requested_at), known);
    remedy := 'A plain function must ask ctx.cancelled itself; isolation="process" makes it one that can be '
              'stopped.';
    return next;
  end if;
  if run.deadline_at < now_at then
    answer := 'timed_out';
    explanation := format(
      'Its timeout passed %s ago, at %s, and worker %s has not ended it. Five seconds after it the job is '
      'taken back.',
      holdfast.span_in_words(now_at - run.deadline_at), holdfast.time_in_words(run.deadline_at), known);
    remedy := 'Wait a moment. If no worker runs: holdfast tick';
    return next;
  end if;
  if run.job_id is not null then
    answer := 'running';
    explanation := format(
      'It runs on worker %s since %s, for %s%s%s%s. The last heartbeat was %s ago.', known,
      holdfast.time_in_words(run.started_at), holdfast.span_in_words(now_at - run.started_at),
      coalesce(', ' || run.progress || ' % done', ''),
      case when run.deadline_at > now_at
        then format(', with a timeout in %s', holdfast.span_in_words(run.deadline_at - now_at)) else '' end,
      case when run.once then ', and must not run a second time' else '' end,
      holdfast.span_in_words(silent));
    remedy := format('holdfast watch %s follows it, holdfast cancel %s calls it off.', job.id, job.id);
  else
    answer := 'held';
    explanation := format(
      'It is held by worker %s since %s, for %s, with %s in all; its handler has not been seen at work for '
      'half a second. '
      'The last heartbeat was %s ago.', known,
      holdfast.time_in_words(job.claimed_at), holdfast.span_in_words(now_at - job.claimed_at),
      holdfast.amount_in_words((
        select count(*) from (
          select from holdfast.live j where j.worker_id = job.worker_id and j.state = 'claimed'
            limit 10000) h), 'job', 10000),
      holdfast.span_in_words(silent));
    remedy := 'Wait: what a worker cannot start within a second it gives back. A consumer of your own must '
              'report or release it.';
  end if;
  return next;
  if lane.kind = 2 then
    answer := 'suspect';
    explanation := 'A worker died while it held this job before, so its worker takes no other such job until '
                   'this one is cleared.';
    remedy := format('If that happens again, its errors say so: holdfast job %s', job.id);
    return next;
  end if;
end
$$;
comment on function holdfast.why_held(holdfast.live, holdfast.lane, timestamptz) is
  'Return who holds a job, since when, and whether that worker seems to be alive.';

-- why_scheduled.sql
-- Explain what a scheduled job waits for.

create or replace function holdfast.why_scheduled(job holdfast.live, lane holdfast.lane, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  most constant integer := 10000;
  look_at timestamptz := (select d.looks[1] from holdfast.duty d where d.name = 'recover');
  due_from timestamptz := (select w.due_from from holdfast.writer_watch w);
  before bigint;
begin
  detail := jsonb_build_object(
    'run_at', job.run_at, 'database_time', now_at, 'attempt', job.attempt, 'max_attempts', job.max_attempts);
  if job.run_at > now_at then
    remedy := format('holdfast run-now %s, if it should not wait.', job.id);
    if job.last_outcome = 'failed' then
      answer := 'retry';
      explanation := format('Attempt %s of %s failed %s ago. It waits for the next one until %s, for %s.',
        job.attempt, job.max_attempts, holdfast.span_in_words(now_at - job.changed_at),
        holdfast.time_in_words(job.run_at), holdfast.span_in_words(job.run_at - now_at));
      remedy := format('holdfast job %s shows the errors. %s', job.id, remedy);
    elsif job.last_outcome = 'snoozed' then
      answer := 'snoozed';
      explanation := format('Its handler snoozed it %s ago. It is due again at %s, in %s.',
        holdfast.span_in_words(now_at - job.changed_at), holdfast.time_in_words(job.run_at),
        holdfast.span_in_words(job.run_at - now_at));
    else
      answer := 'scheduled';
      explanation := format('It is due at %s, in %s; by the clock of the database it is %s now.',
        holdfast.time_in_words(job.run_at), holdfast.span_in_words(job.run_at - now_at),
        holdfast.time_in_words(now_at));
    end if;
    return next;
  else
    answer := 'overdue';
    explanation := format('It has been due since %s, for %s, and was not yet made pending',
      holdfast.time_in_words(job.run_at), holdfast.span_in_words(now_at - job.run_at));
    if look_at is null or look_at < now_at - interval '1 minute' then
      explanation := explanation || format(': nobody does the duties%s.',
        coalesce(', the last time was ' || holdfast.span_in_words(now_at - look_at) || ' ago', ''));
      remedy := 'Start a worker, or let cron call: holdfast tick';
    elsif job.run_at < due_from then
      explanation := explanation || ', because it came after jobs that are due later. The next upkeep finds '
                                    'it, within a minute.';
      remedy := 'Wait a minute, or: holdfast run-now ' || job.id;
    else
      select count(*) into before
      from (
        select
        from holdfast.live j
        where j.state = 'scheduled'
          and j.run_at >= coalesce(due_from, '-infinity')
          and j.run_at < job.run_at
        limit most
      ) b;
      explanation := explanation || case
        when before > 0 then format(': %s fell due before it.', holdfast.amount_in_words(before, 'job', most))
        else '. That is about to happen.'
      end;
      remedy := 'Wait a moment, or: holdfast run-now ' || job.id;
    end if;
    return next;
  end if;
  if job.attempt >= job.max_attempts then
    answer := 'out_of_attempts';
    explanation := format(
      'All %s attempts are used up, because the maximum was lowered. When it falls due, it goes to the dead '
      'letters.',
      job.max_attempts);
    remedy := 'Nothing, or replay it then.';
    return next;
  end if;
end
$$;
comment on function holdfast.why_scheduled(holdfast.live, holdfast.lane, timestamptz) is
  'Return what a scheduled job waits for: its time, its retry, or the duty that makes it pending.';

-- why_unserved.sql
-- Explain that no worker serves a job, and which workers there are.

create or replace function holdfast.why_unserved(lane holdfast.lane, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known record;
  last holdfast.worker;
begin
  select
    count(*) as alive,
    count(*) filter (where holdfast.serves(w, lane.queue, lane.task)) as serving,
    count(*) filter (
      where holdfast.serves(w, lane.queue, lane.task)
      and w.heartbeat_at > now_at - w.lease_time / 2) as heard,
    count(*) filter (where w.queues is null or lane.queue = any(w.queues)) as of_queue,
    max(w.heartbeat_at) as heartbeat_at,
    string_agg(distinct holdfast.worker_in_words(w), ', ') filter (
      where holdfast.serves(w, lane.queue, lane.task)) as names
  into known
  from holdfast.live_workers(now_at) w;

  if known.heard > 0 then
    return;
  elsif known.serving > 0 then
    answer := 'worker_silent';
    explanation := format('The workers that serve it have sent no heartbeat for %s: %s.',
      holdfast.span_in_words(now_at - known.heartbeat_at), known.names);
    remedy := 'Check whether they still run and reach the database.';
    detail := jsonb_build_object('workers', known.serving, 'heartbeat_at', known.heartbeat_at);
  elsif known.alive = 0 then
    select w.* into last from holdfast.worker w order by greatest(w.left_at, w.lost_at, w.heartbeat_at) desc
      limit 1;
    answer := 'no_worker';
    explanation := case
      when last.id is null then 'No worker is alive, and there was none in the last day.'
      else format('No worker is alive. The last one, %s, %s %s ago.', holdfast.worker_in_words(last),
        case when last.left_at is not null then 'left' else 'sent its last heartbeat' end,
        holdfast.span_in_words(now_at - coalesce(last.left_at, last.heartbeat_at)))
    end;
    remedy := 'Start one: holdfast worker app:hf';
    detail := jsonb_build_object('workers', 0, 'last', last.name);
  elsif known.of_queue = 0 then
    answer := 'no_worker_for_queue';
    explanation := format('No worker serves queue %s. %s: %s.', lane.queue,
      case when known.alive = 1 then 'The only one alive serves'
        else format('The %s that are alive serve', known.alive) end,
      (select string_agg(distinct q, ', ') from holdfast.live_workers(now_at) w, unnest(w.queues) q));
    remedy := format('Start one: holdfast worker app:hf --queues %s', lane.queue);
    detail := jsonb_build_object('queue', lane.queue, 'workers', known.alive);
  else
    answer := 'no_worker_for_task';
    explanation := format('No worker of queue %s knows task %s%s.', lane.queue, lane.task, coalesce(
      -- A function that was moved to another module.
      (select format('; one knows %s, which may be what it is called now', min(t))
      from holdfast.live_workers(now_at) w, unnest(w.tasks) t
      where regexp_replace(t, '^.*[.:]', '') = regexp_replace(lane.task, '^.*[.:]', '')
      having count(*) > 0),
      -- A name that was misspelled.
      (select '; the nearest name that one knows is ' || holdfast.nearest(lane.task, array_agg(distinct t))
      from holdfast.live_workers(now_at) w, unnest(w.tasks) t
      where w.queues is null or lane.queue = any(w.queues))));
    remedy := 'Deploy a worker whose code has this task, or cancel the job if the task no longer exists.';
    detail := jsonb_build_object('task', lane.task, 'queue', lane.queue, 'workers', known.of_queue);
  end if;
  return next;
end
$$;
comment on function holdfast.why_unserved(holdfast.lane, timestamptz) is
  'Return that no worker takes jobs of this lane, and which workers there are.';

-- why_waiting.sql
-- Explain why a job that is ready and served still waits: name the jobs before it, and the state
-- of its workers.
--
-- The body is long on purpose: it is a list of causes, in the order in which they are checked.
create or replace function holdfast.why_waiting(job holdfast.live, lane holdfast.lane, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  most constant integer := 10000;
  waits interval := now_at - greatest(job.changed_at, job.run_at, job.created_at);
  servers record;
  ahead record;
  held record;
  deaths integer;
begin
  select
    coalesce(array_agg(w), '{}') as workers,
    count(*) filter (where w.asleep and w.above is null
      and not exists (
        select from holdfast.live j where j.worker_id = w.id and j.state = 'claimed' offset 0)) as idle
  into servers
  from holdfast.live_workers(now_at) w
  where holdfast.serves(w, lane.queue, lane.task);
  if cardinality(servers.workers) = 0 then
    return;
  end if;

  select count(*) as jobs, count(*) filter (where a.higher) as higher into ahead
  from (
    select l.priority > lane.priority as higher
    from holdfast.lane l
    cross join lateral (
      select
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.head
        -- One bound for the index: jobs behind it in its own lane are not read.
        and j.seq < case
          when l.priority > lane.priority or l.kind > lane.kind then 9223372036854775807
          else job.seq
        end
      limit most
    ) j
    where (l.priority > lane.priority or l.priority = lane.priority and l.kind >= lane.kind)
      and exists (select from unnest(servers.workers) w where holdfast.serves(w, l.queue, l.task))
      and not exists (select from holdfast.queue q where q.name = l.queue and q.paused_at is not null)
    limit most
  ) a;
  if ahead.jobs > 0 then
    answer := 'behind';
    explanation := format(
      'It is behind %s at the same or a higher priority than its %s%s. It has waited for %s.',
      holdfast.amount_in_words(ahead.jobs, 'job', most), lane.priority,
      case when ahead.higher > 0 then format(' (%s at a higher one)', ahead.higher) else '' end,
      holdfast.span_in_words(waits));
    remedy := 'Add workers, or enqueue urgent jobs with a higher priority.';
    detail := jsonb_build_object('ahead', ahead.jobs, 'at_least', ahead.jobs >= most, 'higher', ahead.higher);
    return next;
  end if;

  if lane.kind = 2 then
    deaths := coalesce((select d.deaths from holdfast.death d where d.job_id = job.id), 0);
    answer := 'suspect';
    explanation := format(
      'A worker died while it held this job%s. A worker runs one such job at a time and takes the next '
      'when the last has ended, or has run clearly longer than at any death. So if the worker dies again, '
      'only the job that caused it is charged.',
      case when deaths > 0 then format(', which was running then; that has happened %s',
        case deaths when 1 then 'once' else deaths || ' times' end) else '' end);
    remedy := 'Wait. If workers keep dying, its errors say so: holdfast job ' || job.id;
    detail := jsonb_build_object('attempt', job.attempt, 'max_attempts', job.max_attempts, 'deaths', deaths);
    return next;
  end if;

  select count(*) as jobs, count(distinct j.worker_id) as workers, min(j.claimed_at) as since into held
  from unnest(servers.workers) w
  cross join lateral (
    select j.worker_id, j.claimed_at from holdfast.live j where j.worker_id = w.id and j.state = 'claimed'
      limit most
  ) j;
  detail := jsonb_build_object(
    'workers', cardinality(servers.workers), 'idle', servers.idle, 'held', held.jobs, 'oldest_since',
    held.since);
  if held.workers = cardinality(servers.workers) then
    answer := 'workers_full';
    explanation := format('%s it, and all are at work: they hold %s, the oldest since %s, for %s.',
      case held.workers when 1 then '1 worker serves' else held.workers || ' workers serve' end,
      holdfast.amount_in_words(held.jobs, 'job'), holdfast.time_in_words(held.since),
      holdfast.span_in_words(now_at - held.since));
    remedy := 'Add workers, or raise --concurrency. holdfast jobs --running shows what takes so long.';
    return next;
  elsif ahead.jobs = 0 and lane.kind <> 2 and waits < interval '5 seconds' then
    answer := 'ready';
    explanation := format('Nothing holds it back: it has been ready for %s, and %s it.',
      holdfast.span_in_words(waits),
      case cardinality(servers.workers) when 1 then '1 worker serves'
        else cardinality(servers.workers) || ' workers serve' end);
    remedy := 'Ask again in a moment.';
    return next;
  elsif ahead.jobs = 0 and lane.kind <> 2 then
    answer := 'not_taken';
    explanation := format('%s it%s, and none has taken it for %s.',
      case cardinality(servers.workers) when 1 then '1 worker serves'
        else cardinality(servers.workers) || ' workers serve' end,
      case when servers.idle > 0 then format(', %s asleep with nothing to do', servers.idle) else '' end,
      holdfast.span_in_words(waits));
    remedy := 'A worker that misses a notification finds the job at its next poll (after 1 s by default). '
      'If it does not, read its log and run: holdfast doctor';
    return next;
  end if;
end
$$;
comment on function holdfast.why_waiting(holdfast.live, holdfast.lane, timestamptz) is
  'Return the jobs before a ready job, and the state of the workers that serve it.';

-- words.sql
-- Write durations, times, numbers and names as people read them, for why(), doctor() and health().

create or replace function holdfast.span_in_words(span interval)
returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
  select case
    when s.seconds is null then null
    when s.seconds < 1 then round(s.seconds * 1000) || ' ms'
    when s.seconds < 60 then round(s.seconds) || ' s'
    when s.seconds < 3600
      then concat_ws(' ', div(s.seconds, 60) || ' min', nullif(div(mod(s.seconds, 60), 1), 0) || ' s')
    when s.seconds < 86400
      then concat_ws(' ', div(s.seconds, 3600) || ' h', nullif(div(mod(s.seconds, 3600), 60), 0) || ' min')
    else concat_ws(' ', div(s.seconds, 86400) || ' d', nullif(div(mod(s.seconds, 86400), 3600), 0) || ' h')
  end
  from (select abs(extract(epoch from span)) as seconds) s
$$;
comment on function holdfast.span_in_words(interval) is
  'Return a duration in its two largest units: 4 min 10 s.';

-- For health(), which counts in seconds: it rounds down and never shows milliseconds.
create or replace function holdfast.seconds_in_words(duration interval)
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select case
    when s.seconds < 60 then format('%s s', s.seconds)
    when s.seconds < 3600
      then format('%s min', s.seconds / 60) || coalesce(' ' || nullif(s.seconds % 60, 0) || ' s', '')
    when s.seconds < 86400
      then format('%s h', s.seconds / 3600) || coalesce(' ' || nullif(s.seconds % 3600 / 60, 0) || ' min', '')
    else format('%s d', s.seconds / 86400) || coalesce(' ' || nullif(s.seconds % 86400 / 3600, 0) || ' h', '')
  end
  from (select greatest(floor(extract(epoch from duration)), 0)::bigint as seconds) s
  where duration is not null
$$;
comment on function holdfast.seconds_in_words(interval) is
  'Return a duration in whole seconds, in its two largest units: 14 min 3 s.';

create or replace function holdfast.time_in_words(at timestamptz)
returns text
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
as $$
  select to_char(time_in_words.at, 'YYYY-MM-DD HH24:MI:SS TZ')
$$;
comment on function holdfast.time_in_words(timestamptz) is
  'Return a time to the second, in the time zone of the session.';

create or replace function holdfast.amount_in_words(amount bigint, noun text, most bigint default null)
returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
  select concat(
    case when amount >= most then 'at least ' end,
    ltrim(to_char(amount, '999G999G999G999G990')), ' ', noun,
    case when amount <> 1 then 's' end)
$$;
comment on function holdfast.amount_in_words(bigint, text, bigint) is
  'Return a number of things, or a lower bound if no more were counted: at least 10,000 jobs.';

create or replace function holdfast.worker_in_words(worker holdfast.worker)
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select concat(
    worker.name,
    case when worker.host is not null or worker.pid is not null then
      ' (' || concat_ws(', ', 'host ' || worker.host, 'pid ' || worker.pid) || ')'
    end)
$$;
comment on function holdfast.worker_in_words(holdfast.worker) is
  'Describe a worker by its name, host and process: web-1 (host ship, pid 42).';

-- writers.sql
-- Return the open transactions that may have taken a place. The names of prepared ones begin
-- with 'prepared'.
create or replace function holdfast.writers()
returns text[]
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(
    array_agg(distinct coalesce(k.virtualtransaction || ' ' || k.pid, 'prepared ' || k.virtualtransaction)),
    '{}')
  from pg_locks k
  where k.locktype = 'relation'
    and k.relation in ('holdfast.job'::regclass, 'holdfast.live'::regclass)
    and k.database = (select d.oid from pg_database d where d.datname = current_database())
    and k.mode = 'RowExclusiveLock'
    and k.pid is distinct from pg_backend_pid()
$$;
comment on function holdfast.writers() is
  'Return the open transactions that may have taken a place in a lane; the names of prepared ones begin '
  'with "prepared".';

-- enqueue.sql
-- holdfast: after replace
-- Put one job on a queue, in the caller's own transaction.
--
-- If the caller supplies an id, the same call twice within 7 days is one job. The same id with
-- another task or payload is refused.
--
-- `max_attempts` belongs to this call and wins over everything. `declared_attempts` comes from
-- the code of the task: a policy that an operator has set wins over it.
--
-- The body is long on purpose: a single enqueue takes 70 µs, and each function that it calls
-- adds 5 to 10.
-- holdfast: role producer
create or replace function holdfast.enqueue(
  task text,
  payload jsonb default '{}',
  queue text default 'default',
  priority integer default 100,
  run_at timestamptz default null,
  delay interval default null,
  max_attempts integer default null,
  id uuid default null,
  headers jsonb default null,
  declared_attempts integer default null
)
returns uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  due_at timestamptz;
  job_id uuid := coalesce(enqueue.id, holdfast.new_id());
  said constant text := enqueue.payload::text;
  attempts integer := enqueue.max_attempts;
  asleep boolean;
  guarded boolean;
begin
  if enqueue.run_at is not null or enqueue.delay is not null then
    due_at := holdfast.due_time(enqueue.run_at, enqueue.delay, now_at);
  end if;
  if enqueue.max_attempts is not null then
    perform holdfast.check_max_attempts(enqueue.max_attempts);
  elsif enqueue.declared_attempts is not null and not holdfast.has_operator_policy(enqueue.task) then
    perform holdfast.check_max_attempts(enqueue.declared_attempts);
    attempts := enqueue.declared_attempts;
  end if;
  if enqueue.payload is null then
    perform holdfast.refuse_value('payload', null, 'must be JSON; leave it out for {}');
  end if;
  if enqueue.id is not null then
    perform holdfast.check_name('task', enqueue.task);
    if not holdfast.use_id(enqueue.id, enqueue.task, enqueue.payload, now_at, enqueue.queue) then
      return enqueue.id;
    end if;
  end if;
  if enqueue.headers is not null and not holdfast.are_headers(enqueue.headers) then
    perform holdfast.refuse_headers(enqueue.headers);
  end if;
  -- A shorter payload is never too large or unreadable.
  if octet_length(said) >= 300 then
    if octet_length(said) > 1024 and octet_length(said) > holdfast.payload_limit(enqueue.queue) then
      perform holdfast.refuse_payload(job_id, enqueue.payload, holdfast.payload_limit(enqueue.queue));
    end if;
    if not holdfast.is_readable(enqueue.payload, said) then
      perform holdfast.check_json('payload', enqueue.payload);
    end if;
  end if;
  -- All look-ups and the insert are one statement, since each further statement costs tens of
  -- microseconds. There is a second reason: the statement has its lock on `live` before it reads
  -- which workers sleep. So a worker that falls asleep meanwhile sees either the lock or the
  -- notification.
  for look in 1..3 loop
    insert into holdfast.live (id, lane_id, task, payload, headers, max_attempts, run_at, created_at)
    select
      job_id, l.id, enqueue.task, enqueue.payload, enqueue.headers, coalesce(attempts, l.max_attempts),
      due_at, now_at
    from holdfast.lane l
    where l.queue = enqueue.queue
      and l.task = enqueue.task
      and l.priority = enqueue.priority
      and l.kind = 0
      and not exists (select from holdfast.retired_lane r where r.lane_id = l.id)
      and (attempts is not null or l.policies_seen = (select w.changes from holdfast.policy_watch w))
    limit 1
    -- If any worker sleeps, look below whether it sleeps for this queue and task. Looking
    -- here would cost every enqueue 10 µs.
    returning
      exists (
        select from holdfast.worker w where w.asleep and (w.above is null or w.above < enqueue.priority)
      ),
      exists (select from holdfast.access)
    into asleep, guarded;
    exit when found;
    -- This is the first job of its lane, or the lane does not know the latest policies. The lane found here
    -- may
    -- be retired before the next look. Then a new lane is made, which no session can retire.
    perform holdfast.lane(enqueue.queue, enqueue.priority, enqueue.task);
    attempts := coalesce(attempts, holdfast.max_attempts(enqueue.task, enqueue.queue));
  end loop;
  if asleep is null then
    raise exception using
      errcode = 'triggered_action_exception',
      message = 'the job was not stored: a trigger on holdfast.job or holdfast.live has left it out',
      hint = 'Remove that trigger.';
  end if;
  if guarded then
    perform holdfast.check_queue(enqueue.queue);
  end if;
  if asleep or not holdfast.sees_sleepers() then
    perform holdfast.wake(enqueue.queue, s.of_queue, s.of_all)
    from holdfast.sleepers(enqueue.queue, enqueue.task, enqueue.priority) s
    where s.of_queue or s.of_all or not holdfast.sees_sleepers();
  end if;
  return job_id;
end
$$;
comment on function holdfast.enqueue(
  text, jsonb, text, integer, timestamptz, interval, integer, uuid, jsonb, integer) is
  'Put one job on a queue; it exists if and only if the calling transaction commits. Returns its id.';
select holdfast.replace_function(
  -- without declared_attempts
  'holdfast.enqueue(text, jsonb, text, integer, timestamptz, interval, integer, uuid, jsonb)',
  'holdfast.enqueue(text, jsonb, text, integer, timestamptz, interval, integer, uuid, jsonb, integer)');

-- Put many jobs on their queues in one call, all or none. Every array is as long as `tasks`, or
-- null for the default. An element may be null too.
--
-- The body is long on purpose: it is one statement behind the checks of its arguments.
-- holdfast: role producer
create or replace function holdfast.enqueue_many(
  tasks text[],
  payloads jsonb[] default null,
  queues text[] default null,
  priorities integer[] default null,
  run_ats timestamptz[] default null,
  delays interval[] default null,
  max_attempts integer[] default null,
  ids uuid[] default null,
  headers jsonb[] default null,
  declared_attempts integer[] default null
)
returns setof uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  amount integer := cardinality(tasks);
  new_ids uuid[];
begin
  if amount is null then
    perform holdfast.refuse_value('tasks', null, 'must be an array of task names');
  end if;
  if amount = 0 then
    return;
  end if;
  if not (
    coalesce(cardinality(payloads), amount) = amount
    and coalesce(cardinality(queues), amount) = amount
    and coalesce(cardinality(priorities), amount) = amount
    and coalesce(cardinality(run_ats), amount) = amount
    and coalesce(cardinality(delays), amount) = amount
    and coalesce(cardinality(enqueue_many.max_attempts), amount) = amount
    and coalesce(cardinality(ids), amount) = amount
    and coalesce(cardinality(enqueue_many.headers), amount) = amount
    and coalesce(cardinality(enqueue_many.declared_attempts), amount) = amount
  ) then
    perform holdfast.refuse_value('tasks', amount::text, 'every array must be as long as tasks, or null');
  end if;

  perform holdfast.check_max_attempts(m)
  from unnest(enqueue_many.max_attempts || enqueue_many.declared_attempts) m
  where m not between 1 and 32767;

  with given as materialized (
    select
      u.n,
      u.task,
      coalesce(u.payload, '{}') as payload,
      coalesce(u.queue, 'default') as queue,
      coalesce(u.priority, 100) as priority,
      u.headers,
      u.max_attempts,
      u.declared_attempts,
      u.id as given_id,
      coalesce(u.id, holdfast.new_id()) as id,
      case when u.run_at is not null or u.delay is not null
        then holdfast.due_time(u.run_at, u.delay, now_at) end as due_at
    from unnest(
      tasks, payloads, queues, priorities, run_ats, delays, enqueue_many.max_attempts, ids,
      enqueue_many.headers, enqueue_many.declared_attempts
    ) with ordinality u (
      task, payload, queue, priority, run_at, delay, max_attempts, id, headers, declared_attempts, n)
  ),
  -- Once per distinct queue, priority and task, not once per job.
  placed as materialized (
    select
      g.queue, g.priority, g.task,
      holdfast.lane(g.queue, g.priority, g.task) as lane_id,
      holdfast.max_attempts(g.task, g.queue) as max_attempts,
      g.declares and holdfast.has_operator_policy(g.task) as operated
    from (
      select queue, priority, task, bool_or(declared_attempts is not null) as declares
      from given
      group by queue, priority, task
    ) g
  ),
  -- In the order of ids, so that two callers with the same ids do not deadlock. Materialized, so
  -- that the planner does not call use_id() below the sort. After all of `placed`, which checks
  -- the names.
  sorted as materialized (
    select g.n, g.given_id, g.task, g.payload, g.queue
    from given g
    where g.given_id is not null
      and (select count(*) > 0 from placed)
    order by g.given_id, g.n
  ),
  fresh as materialized (
    select s.n
    from sorted s
    where holdfast.use_id(s.given_id, s.task, s.payload, now_at, s.queue)
  ),
  inserted as (
    insert into holdfast.job (id, lane_id, task, payload, headers, max_attempts, run_at, created_at)
    select
      g.id, p.lane_id, g.task, g.payload, g.headers,
      coalesce(g.max_attempts, case when not p.operated then g.declared_attempts end, p.max_attempts),
      g.due_at, now_at
    from given g
    join placed p on p.queue = g.queue and p.priority = g.priority and p.task = g.task
    where g.given_id is null or g.n in (select f.n from fresh f)
    order by g.n
  )
  select array_agg(g.id order by g.n) into new_ids from given g;

  return query select unnest(new_ids);
end
$$;
comment on function holdfast.enqueue_many(
  text[], jsonb[], text[], integer[], timestamptz[], interval[], integer[], uuid[], jsonb[], integer[]) is
  'Put many jobs on their queues in one call, all or none. Returns their ids in the order given.';
select holdfast.replace_function(
  -- without declared_attempts
  'holdfast.enqueue_many(text[], jsonb[], text[], integer[], timestamptz[], interval[], integer[], uuid[], '
  'jsonb[])',
  'holdfast.enqueue_many(text[], jsonb[], text[], integer[], timestamptz[], interval[], integer[], uuid[], '
  'jsonb[], integer[])');

-- promote.sql
-- holdfast: after replace
-- Make due jobs pending: delayed jobs at the end of their lane, retried and snoozed jobs in
-- the returned lane, so that a retry does not wait behind a million others.
--
-- The index is read from the mark `promote_from`. Before it lie the entries of all jobs that were
-- promoted since the oldest snapshot that any session holds: see advance.sql.
--
-- One call promotes at most `amount` jobs, so that a flood of due jobs does not take the
-- server from others. The result is an interval and not a time, since the caller's clock may
-- be wrong; zero or less means that more jobs are due now. Due jobs that another session has
-- locked or is promoting are looked at again a little later.
--
-- Workers of 0.2 call promote(amount) and expect it to fire schedules. `also_fire` can go in
-- 0.5, two releases later.
-- holdfast: role worker
create or replace function holdfast.promote(amount integer default 2000, also_fire boolean default true)
returns interval
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  due_from timestamptz := (select w.promote_from from holdfast.writer_watch w);
  due uuid[];
  more boolean;
  next_tick timestamptz;
  next_at timestamptz;
begin
  perform holdfast.check_isolation('promote');
  if promote.amount is null or promote.amount not between 1 and 100000 then
    perform holdfast.refuse_value('amount', promote.amount::text, 'must be between 1 and 100000');
  end if;
  if promote.also_fire then
    next_tick := holdfast.next_tick(now_at);
  end if;
  if next_tick <= now_at then
    begin
      next_tick := now_at + holdfast.fire();
    exception when others then
      next_tick := now_at + interval '1 second'; -- an error in schedules must not stop jobs
      perform holdfast.note_duty('fire', sqlerrm);
    end;
  end if;
  -- A session that does not get the lock leaves the work to the session that has it.
  if holdfast.try_duty('promote') then
    select array_agg(d.id order by d.run_at, d.seq)
    into due
    from (
      select j.id, j.run_at, j.seq
      from holdfast.live j
      where j.state = 'scheduled'
        and j.run_at >= coalesce(due_from, '-infinity')
        and j.run_at <= now_at
      order by j.run_at
      limit promote.amount
      for update skip locked
    ) d;
    if due is not null then
      perform holdfast.make_pending(due, now_at);
    end if;
    more := cardinality(due) = promote.amount;
    if holdfast.is_old((select d.done_at from holdfast.duty d where d.name = 'promote'), now_at) then
      perform holdfast.note_done('promote', now_at);
    end if;
  end if;
  select j.run_at into next_at
  from holdfast.live j
  where j.state = 'scheduled'
    and j.run_at >= coalesce(due_from, '-infinity')
  order by j.run_at
  limit 1;
  return least(
    case when next_at <= now_at and not coalesce(more, false) then interval '100 milliseconds'
      else next_at - now_at end,
    next_tick - now_at);
end
$$;
comment on function holdfast.promote(integer, boolean) is
  'Make due jobs pending. Returns how long it is until the next one is due. With also_fire, which workers '
  'of 0.2 rely on, fire due schedules first, as fire() does.';
select holdfast.replace_function('holdfast.promote(integer)', 'holdfast.promote(integer, boolean)');

-- Make scheduled jobs pending, in the order given. The caller has locked them. A job that has no
-- attempts left, because the maximum was lowered, dies instead.
create or replace function holdfast.make_pending(ids uuid[], now_at timestamptz)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  lanes integer[];
begin
  if (select bool_or(j.attempt >= j.max_attempts) from holdfast.live j where j.id = any(ids)) then
    perform holdfast.end_jobs_without_attempts(ids, now_at);
  end if;
  perform holdfast.check_places(ids);
  with moved as (
    update holdfast.live j
    set
      state = 'pending',
      lane_id = o.new_lane,
      seq = o.new_seq,
      changed_at = now_at
    from (
      -- Call nextval() on the sorted rows. A join at this level could change their order.
      select d.row_id, d.new_lane, nextval('holdfast.job_seq') as new_seq
      from (
        select j.row_id, s.new_lane
        from unnest(ids) with ordinality i (id, n)
        cross join lateral (
          select j.ctid as row_id, j.lane_id, j.attempt from holdfast.live j where j.id = i.id offset 0
        ) j
        join (
          select k.lane_id, k.again,
            holdfast.lane_of_kind(k.lane_id, case when k.again then 1 else 0 end) as new_lane
          from (
            select distinct j.lane_id, j.attempt > 0 as again from holdfast.live j where j.id = any(ids)) k
        ) s on s.lane_id = j.lane_id and s.again = (j.attempt > 0)
        order by i.n
      ) d
    ) o
    where j.ctid = o.row_id
    returning j.lane_id
  )
  select array_agg(distinct m.lane_id) into lanes from moved m;
  perform holdfast.wake_lanes(lanes);
end
$$;
comment on function holdfast.make_pending(uuid[], timestamptz) is
  'Make scheduled jobs pending, in the order given.';

create or replace function holdfast.end_jobs_without_attempts(ids uuid[], now_at timestamptz)
returns bigint
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.end_jobs(
    'dead',
    array_agg(j.id),
    array_agg(coalesce(j.last_error, format('all %s attempts are used up', j.max_attempts))),
    end_jobs_without_attempts.now_at)
  from holdfast.live j
  where j.id = any(ids)
    and j.attempt >= j.max_attempts
  having count(*) > 0
$$;
comment on function holdfast.end_jobs_without_attempts(uuid[], timestamptz) is
  'Move those of these live jobs that have no attempts left to the dead letters.';

-- recover.sql
-- holdfast: after replace
-- Take back the jobs of workers that are not provably alive; returns how many.
--
-- A worker is lost when it has sent no heartbeat for its lease time *while recover()
-- was looking*. After an outage no worker is lost, because a 40 s outage would otherwise
-- declare every live worker dead. A worker gets a whole lease time from now if the last look
-- lies in the future, or is longer ago than usual by half the worker's lease time.
--
-- The usual interval is the shorter of the last two between looks, so cron may also look once a
-- minute. An outage within such a long interval goes unnoticed, so a worker must also have been
-- silent for two intervals.
--
-- A timeout given by hand replaces the lease time, and there is no such grace.
--
-- take_back() decides which jobs pay for the death of a worker.
--
-- Workers of 0.2 call recover() and expect it to fold statistics. `also_fold` can go in 0.5,
-- two releases later.
--
-- Lock order: rows of `worker`, then of `live`. Locked jobs are skipped: a
-- report on them is under way, and the next look comes soon.
-- holdfast: role worker operator
create or replace function holdfast.recover(timeout interval default null, also_fold boolean default true)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  begun constant timestamptz := clock_timestamp();
  heard_before timestamptz;
  total integer;
begin
  perform holdfast.check_isolation('recover');
  if recover.timeout < interval '0' then
    perform holdfast.refuse_value('timeout', recover.timeout::text, 'must not be negative');
  end if;
  if recover.timeout is not null then
    perform holdfast.await_duty('recover');
    now_at := holdfast.clock();
    update holdfast.worker w
    set lost_at = now_at, asleep = false
    where w.lost_at is null
      and w.left_at is null
      and w.heartbeat_at + recover.timeout < now_at;
  elsif holdfast.try_duty('recover') then
    -- Note a crash of the server soon, so that the next crash is counted separately.
    perform holdfast.note_cluster();
    heard_before := holdfast.look_at_workers(now_at);
    update holdfast.worker w
    set lost_at = now_at, asleep = false
    where w.id in (
      select s.id
      from holdfast.worker s
      where s.lost_at is null
        and s.left_at is null
        and greatest(s.heartbeat_at, s.graced_at) + s.lease_time < now_at
        and s.heartbeat_at < heard_before
      -- A locked worker is sending a heartbeat.
      for update skip locked);
  else
    return 0;
  end if;

  -- By hand, take back everything. As a duty, stop after a second and continue at the next look.
  total := holdfast.look_after_gone(
    now_at, case when recover.timeout is null then begun + interval '1 second' else 'infinity' end);
  -- A worker ends handlers that run too long. If it hangs, its heartbeats may continue, so
  -- the deadline is enforced here, a little later.
  total := total + holdfast.take_back(
    array(
      select j.id
      from holdfast.running x
      cross join lateral (
        select j.id from holdfast.live j where j.id = x.job_id and j.lease = x.lease for update skip locked
      ) j
      where x.deadline_at < now_at - interval '5 seconds'
      limit 5000),
    now_at,
    'timed out: it ran longer than its timeout, and its worker did not stop it');
  -- If jobs were taken back, do not fold statistics: other sessions wait for the commit.
  if recover.also_fold and recover.timeout is null and total = 0 then
    begin
      perform holdfast.fold_stats(false);
    exception when others then
      perform holdfast.note_duty('fold_stats', sqlerrm);
    end;
  end if;
  return total;
end
$$;
comment on function holdfast.recover(interval, boolean) is
  'Take back the jobs of workers that were silent for their lease time, or for a timeout given by hand. '
  'Returns how many. With also_fold, which workers of 0.2 rely on, fold statistics too, as fold_stats() '
  'does.';
select holdfast.replace_function('holdfast.recover(interval)', 'holdfast.recover(interval, boolean)');

-- Record a look at the workers. Give a new lease time to those whose silence may come from an
-- outage, in which no look took place either. Returns the time of the look before the last: a
-- worker with a later heartbeat is alive.
create or replace function holdfast.look_at_workers(now_at timestamptz)
returns timestamptz
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  looks timestamptz[];
  usual interval;
begin
  select d.looks into looks from holdfast.duty d where d.name = 'recover';
  usual := coalesce(least(looks[1] - looks[2], looks[2] - looks[3]), interval '0');
  -- If the clock was set back, a heartbeat may lie in the future. A dead worker would count as
  -- alive until then.
  update holdfast.worker w
  set graced_at = now_at, heartbeat_at = least(w.heartbeat_at, now_at)
  where w.id in (
    select s.id
    from holdfast.worker s
    where s.lost_at is null
      and s.left_at is null
      -- Only if the gap since the last look is too long for the lease time of this worker.
      and (looks[1] is null or looks[1] > now_at or now_at - looks[1] > usual + s.lease_time / 2)
    -- A locked worker is alive. Skip it: a claim may stay open for long and would block every look.
    for update skip locked);
  insert into holdfast.duty (name, looks)
  values ('recover', array[now_at])
  on conflict (name) do update
    set looks = (excluded.looks || duty.looks)[1:3];
  return looks[2];
end
$$;
comment on function holdfast.look_at_workers(timestamptz) is
  'Record a look at the workers, and give a new lease time to workers whose silence may come from an outage. '
  'Returns the time of the look before the last.';

-- Take back the jobs that lost or departed workers hold; returns how many. Stop at the time
-- `until`; the next look continues.
--
-- A claim that was under way when its worker was declared lost, or left, may commit later.
-- Looking at every gone worker each time would be slow: while somebody holds an old
-- snapshot, a look walks over all jobs that the worker ever held. But a claim locks `live`
-- before it checks its worker. So once the end of a worker is committed, only the writers
-- open at that time may still bring it jobs. They are noted in `awaits`. Another look is
-- due when one of them has ended, and the last look when all of them have. A transaction
-- that is prepared gets another name, and one more at a restart, so all prepared ones are
-- awaited.
create or replace function holdfast.look_after_gone(now_at timestamptz, until timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  gone uuid[];
  on_record uuid[];
  writers text[];
  looked_at uuid[];
  held record;
  locked uuid[];
  stepped_over uuid[] := '{}';
  unsettled uuid[] := '{}';
  total integer := 0;
begin
  -- Read the gone workers first and the writers second: only this order proves that no other
  -- writer can bring them jobs. An end that this transaction has written is not yet on record
  -- for others.
  select array_agg(w.id), array_agg(w.id) filter (where age(w.xmin) > 0) into gone, on_record
  from holdfast.worker w
  where (w.lost_at is not null or w.left_at is not null)
    and w.awaits is distinct from '{}';
  if gone is null then
    return 0;
  end if;
  writers := holdfast.writers();
  -- A worker that left has given its jobs back itself.
  looked_at := array(
    select w.id from holdfast.worker w
    where w.id = any(gone)
      and case when w.awaits is null then w.left_at is null or writers = '{}'
        else not w.awaits <@ writers end);
  loop
    select coalesce(array_agg(j.id), '{}') as ids, array_agg(j.lease) as leases,
      array_agg(j.worker_id) as workers into held
    from (
      select j.id, j.lease, j.worker_id from holdfast.live j
      where j.state = 'claimed'
        and j.worker_id = any(looked_at)
        and j.id <> all(stepped_over)
      limit 5000
    ) j;
    -- Lock by id: a search by worker would again walk over all jobs that it ever held.
    locked := array(
      select j.id
      from unnest(held.ids, held.leases) h (id, lease)
      cross join lateral (
        select j.id from holdfast.live j where j.id = h.id and j.lease = h.lease for update skip locked
      ) j);
    total := total + holdfast.take_back(locked, now_at, null);
    select stepped_over || array_agg(h.id), unsettled || array_agg(h.worker) into stepped_over, unsettled
    from unnest(held.ids, held.workers) h (id, worker)
    where h.id <> all(locked);
    exit when cardinality(held.ids) < 5000;
    if clock_timestamp() > until then
      return total;
    end if;
  end loop;
  -- Locked workers are skipped here too; there is another look.
  update holdfast.worker w
  set awaits =
    array(select o from unnest(writers) o where w.awaits is null or o = any(w.awaits) or o like 'prepared %')
    -- A name that no writer has: it counts as ended, so another look is due in any case.
    || case when w.id = any(looked_at) then '{}' else '{its end}'::text[] end
  where w.id in (
    select g.id from holdfast.worker g
    where g.id = any(on_record)
      and case when g.id = any(looked_at) then g.id <> all(unsettled) else g.awaits is null end
    for update skip locked);
  return total;
end
$$;
comment on function holdfast.look_after_gone(timestamptz, timestamptz) is
  'Take back the jobs that lost or departed workers hold, including those of claims that were under way. '
  'Returns how many.';

-- jobs.sql
-- holdfast: after mask, reach
-- Finished and dead jobs with one set of columns.
create or replace view holdfast.ended_job as
select
  f.id,
  f.queue,
  f.task,
  f.payload,
  f.priority::integer as priority,
  f.state,
  f.attempt,
  f.max_attempts,
  coalesce(f.run_at, f.created_at) as run_at,
  f.created_at,
  f.claimed_at,
  f.started_at,
  f.finished_at,
  f.finished_at as changed_at,
  f.duration,
  f.worker_id as worker,
  w.name as worker_name,
  null::uuid as lease,
  case when f.state = 'completed' then 100 end as progress,
  null::text as stage,
  null::text as message,
  f.result,
  f.last_error,
  null::timestamptz as cancel_requested_at,
  f.headers,
  null::text as step,
  null::interval as time_left,
  coalesce(c.events, 0) as events
from holdfast.finished f
left join holdfast.worker w on w.id = f.worker_id
left join holdfast.event_count c on c.job_id = f.id
union all
select
  d.id, d.queue, d.task, d.payload, d.priority::integer, 'dead', d.attempt, d.max_attempts,
  coalesce(d.run_at, d.created_at), d.created_at, d.claimed_at, d.started_at, d.died_at, d.died_at,
  d.duration, d.worker_id, w.name, null, null, null, null, null, d.last_error, null, d.headers,
  null, null, coalesce(c.events, 0)
from holdfast.dead_letter d
left join holdfast.worker w on w.id = d.worker_id
left join holdfast.event_count c on c.job_id = d.id;

comment on view holdfast.ended_job is 'Every ended job with all its columns, for the owner.';

-- All jobs, live, finished and dead, with one set of columns, for our functions: it shows
-- everything. People query holdfast.jobs, below.
--
-- Each state has its own branch with the state as a constant, so that the planner leaves out
-- what a query does not need: `where state = 'running'` reads the index of held jobs and not the
-- backlog.
create or replace view holdfast.every_job as
select
  j.id,
  l.queue,
  j.task,
  j.payload,
  l.priority::integer as priority,
  'pending' as state,
  j.attempt,
  j.max_attempts,
  coalesce(j.run_at, j.created_at) as run_at,
  j.created_at,
  j.claimed_at,
  null::timestamptz as started_at,
  null::timestamptz as finished_at,
  greatest(j.changed_at, j.created_at) as changed_at,
  null::interval as duration,
  null::uuid as worker,
  null::text as worker_name,
  null::uuid as lease,
  null::integer as progress,
  null::text as stage,
  null::text as message,
  null::jsonb as result,
  j.last_error,
  j.cancel_requested_at,
  j.headers,
  null::text as step,
  null::interval as time_left,
  coalesce(c.events, 0) as events
from holdfast.live j
join holdfast.lane l on l.id = j.lane_id
left join holdfast.event_count c on c.job_id = j.id
where j.state = 'pending'
union all
select
  j.id, l.queue, j.task, j.payload, l.priority::integer, 'scheduled', j.attempt, j.max_attempts, j.run_at,
  j.created_at,
  j.claimed_at, null, null, greatest(j.changed_at, j.created_at), null, null, null, null, null, null, null,
  null, j.last_error, j.cancel_requested_at, j.headers, null, null, coalesce(c.events, 0)
from holdfast.live j
join holdfast.lane l on l.id = j.lane_id
left join holdfast.event_count c on c.job_id = j.id
where j.state = 'scheduled'
union all
select
  j.id, l.queue, j.task, j.payload, l.priority::integer, case when r.job_id is null then 'claimed'
    else 'running' end,
  j.attempt, j.max_attempts, coalesce(j.run_at, j.created_at), j.created_at, j.claimed_at, r.started_at, null,
  greatest(j.changed_at, r.changed_at, j.created_at), null, j.worker_id, w.name, j.lease, r.progress::integer,
  r.stage, r.message, null, j.last_error, j.cancel_requested_at, j.headers, r.step,
  -- The estimate if the job continues at its speed so far. It is not a function: a reader of a view
  -- needs the rights on its functions.
  case when r.progress between 1 and 100 then
    greatest((r.changed_at - r.started_at) * (100 - r.progress) / r.progress, interval '0')
  end,
  coalesce(c.events, 0)
from holdfast.live j
join holdfast.lane l on l.id = j.lane_id
left join holdfast.running r on r.job_id = j.id and r.lease = j.lease
left join holdfast.worker w on w.id = j.worker_id
left join holdfast.event_count c on c.job_id = j.id
where j.state = 'claimed'
union all
select e.* from holdfast.ended_job e;

comment on view holdfast.every_job is 'Every job with all its columns, for the owner.';

-- Return live jobs by their ids, with the columns of every_job. The view would leave the choice
-- to the planner. It reads all pending jobs if it takes the table for empty, because the table
-- was empty when it was last vacuumed; and likewise for the tables beside it.
create or replace function holdfast.live_jobs(ids uuid[])
returns setof holdfast.every_job
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
begin
  return query
    select
      j.id, l.queue, j.task, j.payload, l.priority::integer, case when r.job_id is null then j.state
        else 'running' end,
      j.attempt, j.max_attempts, coalesce(j.run_at, j.created_at), j.created_at, j.claimed_at, r.started_at,
      null::timestamptz,
      greatest(j.changed_at, r.changed_at, j.created_at), null::interval, j.worker_id, w.name, j.lease,
      r.progress::integer,
      r.stage, r.message, null::jsonb, j.last_error, j.cancel_requested_at, j.headers, r.step,
      case when r.progress between 1 and 100 then
        greatest((r.changed_at - r.started_at) * (100 - r.progress) / r.progress, interval '0')
      end,
      coalesce(c.events, 0)
    from unnest(ids) i
    cross join lateral (select j.* from holdfast.live j where j.id = i offset 0) j
    join holdfast.lane l on l.id = j.lane_id
    -- Only a held job has a lease and a worker.
    left join lateral (
      select r.* from holdfast.running r where r.job_id = j.id and r.lease = j.lease offset 0) r on true
    left join holdfast.worker w on w.id = j.worker_id
    left join lateral (select c.events from holdfast.event_count c where c.job_id = j.id offset 0) c on true;
end
$$;
comment on function holdfast.live_jobs(uuid[]) is
  'Return those of these jobs that are live, with all their columns.';

-- Every job as the caller may see it: the jobs of the caller's queues, with payloads as they may
-- be shown. security_barrier, so that a condition of the caller's does not see rows before they
-- are filtered. The collation is that of the columns before they were masked, since a view
-- cannot change it.
-- holdfast: role viewer
create or replace view holdfast.jobs with (security_barrier) as
select
  j.id,
  j.queue,
  j.task,
  holdfast.as_seen(j.payload, j.queue, j.payload, (select holdfast.sees_payloads())) as payload,
  j.priority,
  j.state,
  j.attempt,
  j.max_attempts,
  j.run_at,
  j.created_at,
  j.claimed_at,
  j.started_at,
  j.finished_at,
  j.changed_at,
  j.duration,
  j.worker,
  j.worker_name,
  j.lease,
  j.progress,
  holdfast.text_as_seen(
    j.stage, j.queue, j.payload, (select holdfast.sees_payloads())) collate "default" as stage,
  holdfast.text_as_seen(
    j.message, j.queue, j.payload, (select holdfast.sees_payloads())) collate "default" as message,
  holdfast.as_seen(j.result, j.queue, j.payload, (select holdfast.sees_payloads())) as result,
  holdfast.text_as_seen(
    j.last_error, j.queue, j.payload, (select holdfast.sees_payloads())) collate "default" as last_error,
  j.cancel_requested_at,
  nullif(
    holdfast.as_seen(j.headers, j.queue, j.payload, (select holdfast.sees_payloads())), '"*****"') as headers,
  holdfast.text_as_seen(
    j.step, j.queue, j.payload, (select holdfast.sees_payloads())) collate "default" as step,
  j.time_left,
  j.events
from holdfast.every_job j
where (select holdfast.unrestricted()) or j.queue = any((select holdfast.queues_in_reach())::text[]);
comment on view holdfast.jobs is
  'Every live, finished and dead job that the caller may see, with one set of columns and a readable state. '
  'Secrets and redacted keys are masked.';

-- Convert a row of the one view to a row of the other, for functions that read the first and
-- mask only what they return.
create or replace function holdfast.job_as_seen(given holdfast.every_job)
returns holdfast.jobs
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  in_full constant boolean := holdfast.sees_payloads();
  seen holdfast.jobs := given;
begin
  seen.payload := holdfast.as_seen(given.payload, given.queue, given.payload, in_full);
  seen.headers := nullif(holdfast.as_seen(given.headers, given.queue, given.payload, in_full), '"*****"');
  seen.result := holdfast.as_seen(given.result, given.queue, given.payload, in_full);
  seen.last_error := holdfast.text_as_seen(given.last_error, given.queue, given.payload, in_full);
  seen.stage := holdfast.text_as_seen(given.stage, given.queue, given.payload, in_full);
  seen.message := holdfast.text_as_seen(given.message, given.queue, given.payload, in_full);
  seen.step := holdfast.text_as_seen(given.step, given.queue, given.payload, in_full);
  return seen;
end
$$;
comment on function holdfast.job_as_seen(holdfast.every_job) is 'Return a job as the caller may see it.';

-- job.sql
-- holdfast: after jobs
-- Return one job, and the errors of its attempts, as the caller may see them.

-- holdfast: role producer viewer
create or replace function holdfast.job(id uuid)
returns setof holdfast.jobs
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
  select holdfast.job_as_seen(j::holdfast.every_job)
  from (
    select l.* from holdfast.live_jobs(array[job.id]) l
    union all
    select e.* from holdfast.ended_job e where e.id = job.id
  ) j
  where (select holdfast.unrestricted()) or holdfast.in_reach(j.queue)
  order by j.created_at desc
  limit 1
$$;
comment on function holdfast.job(uuid) is 'Return one job by its id.';

-- One job with the errors of its attempts, for people.
-- holdfast: role viewer
create or replace function holdfast.job_errors(id uuid)
returns table (attempt integer, failed_at timestamptz, worker uuid, error text, traceback text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    e.attempt, e.failed_at, e.worker_id,
    holdfast.text_as_seen(e.error, j.queue, j.payload, s.in_full),
    -- An error quotes values that the handler had.
    case when s.in_full or (holdfast.redaction(j.queue)).visible then
      holdfast.text_as_seen(e.traceback, j.queue, j.payload, s.in_full)
    end
  from holdfast.attempt_error e
  left join holdfast.found_job(job_errors.id) j on true
  cross join (select holdfast.sees_payloads() as in_full offset 0) s
  where e.job_id = job_errors.id
    and job_errors.id = any(holdfast.jobs_in_reach(array[job_errors.id]))
  order by e.failed_at
$$;
comment on function holdfast.job_errors(uuid) is 'Return the error of each attempt of a job, oldest first.';

-- list_dead.sql
-- holdfast: after jobs
-- List dead letters. A null filter matches everything. `error` matches a part of the last error, in
-- upper or lower case.

-- holdfast: role viewer
create or replace function holdfast.list_dead(
  queue text default null,
  task text default null,
  error text default null,
  died_after timestamptz default null,
  died_before timestamptz default null,
  amount integer default 50
)
returns setof holdfast.jobs
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.job_as_seen(j::holdfast.every_job)
  from (
    select j.*
    from holdfast.ended_job j
    where j.state = 'dead'
      and ((select holdfast.unrestricted()) or j.queue = any((select holdfast.queues_in_reach())::text[]))
      and (list_dead.queue is null or j.queue = list_dead.queue)
      and (list_dead.task is null or j.task = list_dead.task)
      -- Match only what the caller sees. Otherwise a caller could find masked text by trying filters.
      and (
        list_dead.error is null
        or strpos(lower(j.last_error), lower(list_dead.error)) > 0
          and strpos(
            lower(holdfast.text_as_seen(j.last_error, j.queue, j.payload, (select holdfast.sees_payloads()))),
            lower(list_dead.error)) > 0
      )
      and (list_dead.died_after is null or j.finished_at >= list_dead.died_after)
      and (list_dead.died_before is null or j.finished_at < list_dead.died_before)
    order by j.finished_at desc, j.id
    limit list_dead.amount
  ) j
$$;
comment on function holdfast.list_dead(text, text, text, timestamptz, timestamptz, integer) is
  'Return dead jobs by queue, task, a part of the last error and time of death, the latest first.';

-- list_jobs.sql
-- holdfast: after jobs
-- List the jobs that match, the last changed first. A null matches everything.
--
-- Only rows that are shown are sorted: each state is read in an order that is close to that of
-- the last change, and no further than needed.
--
--   pending     by the place in the lane, the last first: jobs get places when they become pending
--   scheduled   the 100,000 that fall due first
--   held        all of them
--   dead        by the time of death
--   finished    the end of each day's table, where the last ones were written: at most 40 MB of it
--
-- So the list is complete, except with very many scheduled jobs, and for finished jobs that are
-- both rare and old.
--
-- The body is long on purpose: it reads each state in its own way.
-- holdfast: role viewer
create or replace function holdfast.list_jobs(
  queue text default null, task text default null, state text default null, amount integer default 50)
returns setof holdfast.jobs
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  most bigint := coalesce(list_jobs.amount, 2147483647);
  unrestricted constant boolean := holdfast.unrestricted();
  lanes integer[] := array(
    select l.id from holdfast.lane l
    where (list_jobs.queue is null or l.queue = list_jobs.queue)
      and (list_jobs.task is null or l.task = list_jobs.task)
      and (unrestricted or holdfast.in_reach(l.queue)));
  every constant boolean := list_jobs.queue is null and list_jobs.task is null and unrestricted;
  waiting uuid[] := '{}';
  later uuid[] := '{}';
  held uuid[] := '{}';
  dead uuid[] := '{}';
  ended uuid[] := '{}';
  ended_from timestamptz;
begin
  if list_jobs.state is null or list_jobs.state = 'pending' then
    waiting := array(
      select j.id
      from unnest(lanes) n
      cross join lateral (select l.id, l.safe_head from holdfast.lane l where l.id = n offset 0) l
      cross join lateral (
        select j.id, j.seq
        from holdfast.live j
        where j.lane_id = l.id
          and j.state = 'pending'
          and j.seq >= l.safe_head
        order by j.seq desc
        limit most
      ) j
      order by j.seq desc
      limit most);
  end if;
  if list_jobs.state is null or list_jobs.state = 'scheduled' then
    later := array(
      select d.id
      from (
        select j.id, j.lane_id, greatest(j.changed_at, j.created_at) as changed_at
        from holdfast.live j
        where j.state = 'scheduled'
          and j.run_at >= coalesce((select w.due_from from holdfast.writer_watch w), '-infinity')
        order by j.run_at
        limit 100000
      ) d
      where every or d.lane_id = any(lanes)
      order by d.changed_at desc
      limit most);
  end if;
  if list_jobs.state is null or list_jobs.state in ('claimed', 'running') then
    held := array(
      select h.id
      from (
        select j.id, j.lane_id, greatest(j.changed_at, r.changed_at) as changed_at,
          r.job_id is not null as runs
        from holdfast.live j
        left join lateral (
          select r.job_id, r.changed_at from holdfast.running r where r.job_id = j.id
          and r.lease = j.lease offset 0) r on true
        where j.state = 'claimed'
        offset 0
      ) h
      where (every or h.lane_id = any(lanes))
        and (list_jobs.state is null or h.runs = (list_jobs.state = 'running'))
      order by h.changed_at desc
      limit most);
  end if;
  if list_jobs.state is null or list_jobs.state = 'dead' then
    dead := array(
      select d.id
      from holdfast.dead_letter d
      where (list_jobs.queue is null or d.queue = list_jobs.queue)
        and (list_jobs.task is null or d.task = list_jobs.task)
        and (unrestricted or d.queue = any((select holdfast.queues_in_reach())::text[]))
      order by d.died_at desc
      limit most);
  end if;
  if list_jobs.state is null or list_jobs.state in ('completed', 'cancelled') then
    select array_agg(n.id), min(n.finished_at) into ended, ended_from
    from holdfast.last_finished(list_jobs.queue, list_jobs.task, list_jobs.state, most) n;
  end if;
  return query
    select s.*
    from (
      select j.* from holdfast.live_jobs(waiting || later || held) j
      union all
      select j.* from holdfast.ended_job j where j.state = 'dead' and j.id = any(dead)
      union all
      select j.*
      from holdfast.ended_job j
      where j.state in ('completed', 'cancelled')
        and (list_jobs.state is null or j.state = list_jobs.state)
        and j.id = any(ended)
        and j.finished_at >= ended_from
      order by changed_at desc
      limit most
    ) a
    cross join lateral holdfast.job_as_seen(a::holdfast.every_job) s -- of those that are left in the end
    order by a.changed_at desc;
end
$$;
comment on function holdfast.list_jobs(text, text, text, integer) is
  'List jobs by queue, task and state, the last changed first. Reads the 100,000 scheduled jobs that are '
  'due first, and the latest finished ones.';

-- Return the matching finished jobs, the latest first. Rows are only ever appended to a day's
-- table, so the latest lie at its end, and no index is needed.
create or replace function holdfast.last_finished(queue text, task text, state text, amount bigint)
returns table (id uuid, finished_at timestamptz)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = on
set jit = off
as $$
#variable_conflict use_column
declare
  stride constant bigint := 500;
  most_pages bigint := 5000;
  part record;
  page bigint;
  found_ids uuid[] := '{}';
  found_at timestamptz[] := '{}';
  missing bigint;
  more record;
  everything constant boolean := holdfast.unrestricted();
  mine constant text[] := case when not everything then holdfast.queues_in_reach() end;
begin
  <<days>>
  for part in
    -- Rows of days without a table, such as the first day, are in the default partition, which is read too.
    select p.place as name, pg_relation_size(p.place) / current_setting('block_size')::integer as pages,
      p.low = '-infinity' as aside
    from holdfast.partitions() p
    where p.parent = 'finished'
    order by aside desc, p.partition desc
  loop
    page := part.pages;
    missing := case when part.aside or missing is null then amount else missing end;
    while page > 0 loop
      exit days when most_pages <= 0 and amount <= 100000;
      execute format(
        'select array_agg(f.id) as ids, array_agg(f.finished_at) as times from %s f '
        'where f.ctid >= $1 and f.ctid < $2 and ($3 is null or f.queue = $3) and ($4 is null or f.task = $4) '
        'and ($5 is null or f.state = $5) and ($6 or f.queue = any($7))',
        part.name)
      into more
      using format('(%s,0)', greatest(page - stride, 0))::tid, format('(%s,0)', page)::tid,
        last_finished.queue, last_finished.task, last_finished.state, everything, mine;
      found_ids := found_ids || coalesce(more.ids, '{}');
      found_at := found_at || coalesce(more.times, '{}');
      page := page - stride;
      most_pages := most_pages - stride;
      missing := missing - coalesce(cardinality(more.ids), 0);
      exit when part.aside and missing <= 0;
      exit days when missing <= 0;
    end loop;
    missing := case when not part.aside then missing end;
  end loop;
  return query
    select f.id, f.at from unnest(found_ids, found_at) f (id, at) order by f.at desc limit amount;
end
$$;
comment on function holdfast.last_finished(text, text, text, bigint) is
  'Return the matching finished jobs among the last that were written.';

insert into holdfast.migration (name, kind, checksum, version) values
  ('0015_live', 'migration', 'db166dabfad44ea4ddaee9f4b982a60055b157cdf933d219b296246a7a14dd49', '0.3.0'),
  ('0016_duties', 'migration', '85c43335dee5012c72b42ae9c2c0c7c717e5f78692fc09c584f0b6ea334470bf', '0.3.0'),
  ('0017_planned', 'migration', '476c648d52b43387a692ead72ec7727c8931bcb29981add1156a159373c51927', '0.3.0'),
  ('0018_deaths', 'migration', '76e2fbc25b715910a7820b2f18ffdaa32f0bfa341fb5f457dfd6f82ecc75da58', '0.3.0'),
  ('0019_lockers', 'migration', '329632ec6f2792b4ce33e15aa7852c44aa5990d437d39436c3783a239ece9048', '0.3.0'),
  ('0020_clusters', 'migration', '8eb0deeab2fa0a811ba255175e2bdf684de1c86854d6197a00c146f1b67b6ae1', '0.3.0'),
  ('0021_id_queue', 'migration', 'f8c25048b6b4a2dadac54e06587fb269bafdbd854a5f9accdb88228d953503b3', '0.3.0'),
  ('0022_lanes', 'migration', 'aaa21d180aab8a8601b574337e5b3a39f33c27b11abe041c988125addfbc9ad9', '0.3.0'),
  ('0023_lane_limit', 'migration', 'd66a0d1501fe7845f5104c6925c6ce577e4bb933e0779d1308b979022b1e283f', '0.3.0'),
  ('0024_crash_watch', 'migration', '586893d72cff493a6f87e89b6e9201110d65de87966b51462acd04e2f32ce2ef', '0.3.0'),
  ('0025_earlier_signatures', 'migration', 'e0cfc30cf350ffa2a846a09f38dd0834d94283d1fa1d18ba8f2a0075b9a57930', '0.3.0'),
  ('0026_known_queues', 'migration', '4aacb334d183f8fd0cd89184482a0d062291597f23c9d420a4b56bd674668c6a', '0.3.0'),
  ('advance', 'function', '92f6f3f298d8bee8d034880f8b23b9c481ec9b260e02ed15b040efe7ca0f4987', '0.3.0'),
  ('audit', 'function', '4b976e43be0a2e33619286203b3d51eacae555194540177da31cb6e4a0930ead', '0.3.0'),
  ('cancel', 'function', 'b37d2374fee5fbb4b6cac365e1880917ece01e43e549d12087c0e7b9a569c73c', '0.3.0'),
  ('check', 'function', '9fd6eacee83a671684e3aa828a1676e125b02731317bc6d1a2580ee656f710c2', '0.3.0'),
  ('check_heads', 'function', '53f51009c029b4ac1c147247a1f5de3305b84b7b6d70443b3db42172fed70dc5', '0.3.0'),
  ('check_inserted', 'function', 'c997af85b4fb74db8a86a3e68066f7ebb87e89cbb764994b617be60e680f3704', '0.3.0'),
  ('check_reports', 'function', 'c9ad615ae96eeeb3ec707e24b65a394aaf6edb14e311462894f938f66a91dfd4', '0.3.0'),
  ('claim', 'function', '4edee454f94fbc384bac3f3e68151613673f1372039df74ad50c2ab8230f6577', '0.3.0'),
  ('claim_by_level', 'function', '575c8fbffac1c62b3d05edd23b8c0b57102932cd8dabddc5ff3eed649289c4a2', '0.3.0'),
  ('clock', 'function', '9e34ebcca4ae54a4386be02197bc740be42e6809d5f687fad29bba5b9a516384', '0.3.0'),
  ('cluster', 'function', '7b7be2053dd6a5a85b42b8a98d379af8051e27e66d214452a5390d6f4a71bbfc', '0.3.0'),
  ('configure', 'function', '66ba3ecd2c9708584337626c5e8cb8bbd4d0462d8f674cbc4ac525881e076b7c', '0.3.0'),
  ('count', 'function', '060e06c1884ae2fd75879d0374f5bb44fd7a1df6d01b02d8d8e3792ab36542b5', '0.3.0'),
  ('cron', 'function', '2be94ad351a1a151aab5ebe3d1b0f62f38298a881c43df327af369d009905e78', '0.3.0'),
  ('cron_fields', 'function', 'd17ff054ff11b373d86c4fd3b3456d726ee388af60488a5c18168f96fe96365a', '0.3.0'),
  ('cron_words', 'function', 'b78351844591a4bd72f0f7e6d25468dba198be96cd79b315d790f99a481ef51e', '0.3.0'),
  ('dead_filter', 'function', 'd810178b02b0e224fd38b55ffbae49dcc353ab672a5d3599c93c6ae7539b8145', '0.3.0'),
  ('disown', 'function', '241660980e5caba8271c564a7dc16e7afdca9254b151100b40da0996d3e607cb', '0.3.0'),
  ('doctor', 'function', 'bdcdf42a393bb7c611c9a71012af7939cacdc13b74ec72725cf89575252dcf66', '0.3.0'),
  ('doctor_duties', 'function', '7cf27afff7dc4a3812f684fe7837c439f469f1abff25d14043ef214696526fbe', '0.3.0'),
  ('doctor_rights', 'function', '4a55a330ff97dd2b113c431bc367d26add1e92ec689d62015853aaf972b7cf68', '0.3.0'),
  ('doctor_server', 'function', 'd37cb3541c34a8da157952e2a4af3ceba50859095972f73e33823f29edda6916', '0.3.0'),
  ('doctor_sessions', 'function', 'ee7bd744f403ea94cc8b9e9e9e17d10b12675a3bc9911dee2761abc9bf83a9a9', '0.3.0'),
  ('doctor_tables', 'function', 'df4f6fefdb44b102c0bf2acf60aa0652d8a4563f1521ab0893a111bee839c445', '0.3.0'),
  ('doctor_work', 'function', '55a3cf49c14e4f28953dd89ec4aaac6e6bdba7774c449eb0ab8a8ae0eb1fcc08', '0.3.0'),
  ('drop_partitions', 'function', 'bd9096f8c84ac7d06f98ede52fc086817220574673da6f511366ece9a01261cf', '0.3.0'),
  ('due_from', 'function', '377b4cdac41043cc73d823299fc4579cf0e252a12bd4cf00b861115d242813ef', '0.3.0'),
  ('duty', 'function', '8ad210c82f5a7703138c5ca3906ff4a317b27e3d0ad65e780b560890dbe66f84', '0.3.0'),
  ('end_jobs', 'function', 'eb5daaad00d78c20f7cc2a26e0c8e730cc923dac69bb3adefefadc795ef46444', '0.3.0'),
  ('replace', 'function', 'dca2b7274d2161acebeeb0f118138fb921b43e75b9e2960798e03958fe09c262', '0.3.0'),
  ('export', 'function', '55282b895dec5435fde8c03a44c8fbc35d26ab3b5e87f53991f77d1c1e11b877', '0.3.0'),
  ('finish', 'function', '3a574d54b7a10bef9559241be825b41411c793725f6013f814391b3ef4e3d91c', '0.3.0'),
  ('fire', 'function', 'dbba9d213a1b2afc6c5ced0d8112ed4b1f130b291625e1d235484efa4ce57d12', '0.3.0'),
  ('fitting', 'function', '1b8055ef0e6de5549b5fec37448f77b765afcbdd7e840a70c017fa5652bd3b97', '0.3.0'),
  ('fold_stats', 'function', '5201076a1ad995eba262b890837243417ec941a48b63f16f0321b6bc8051c614', '0.3.0'),
  ('forget_dead', 'function', '824d4dc94553ca08e5b8388ebbe24c5f941e331d9544ed061c7540a0710adca1', '0.3.0'),
  ('forget_finished', 'function', '1208de94508b9ab6e9518f5097aafe4aa097c46b8402128cb1ee399103fb4c0c', '0.3.0'),
  ('forget_leftovers', 'function', 'e22e344b7ed01971ef97899c77486e4adf413c76ca46edc7c355381ea4241e8c', '0.3.0'),
  ('gauges', 'function', '24d8d4afcceef08c2a337b8e88be184e10cdc0b8f12e80332712796e0330df5d', '0.3.0'),
  ('give_back', 'function', '88757335b8f5cb0f53026887e7acc785c5417164391a062ed9a54d5ddd13edaa', '0.3.0'),
  ('give_up', 'function', 'cdf7cdb86546f50a89754ee485794dcd44a103b0e508deb7ed3ce4395857e951', '0.3.0'),
  ('grants', 'function', '4bbde7966cd1f7f14f1cdcd09bcc4e66f82835e0d5252220eaf8527e2a77f203', '0.3.0'),
  ('guard', 'function', 'ee456b06774d0094f6a1ce0f72bc806c9c981dc2087859bc578b0c6f4305ea72', '0.3.0'),
  ('health', 'function', 'facf655b34413ffa5fe406b92b097d0b3cc40d82f5860b153e98c32d3607dd9d', '0.3.0'),
  ('heartbeat', 'function', '15dca4dc727b8e4418ed0c310ff02ff31fb6f6e86d33d438a299e6a817340e96', '0.3.0'),
  ('histogram', 'function', '0ee0c125dcf6063717ec0d28c1b45f504401e83a25224a3ea4c79928d5d10b1e', '0.3.0'),
  ('mask', 'function', 'ce66540b4266f57a34ce613c081be34dd70229ecbe8edd9d83f995fd6e487c61', '0.3.0'),
  ('reach', 'function', '168903c484ed075ca78d576ff45bbca50c72d1a1c7ee94803e0cb518a4adbf91', '0.3.0'),
  ('known_settings', 'function', '4e63a5870ff64dc2bf2ab55439424ab3f6cc52268fe9ff1a972779e68fd9abb2', '0.3.0'),
  ('lane', 'function', '964eb88b8716101bf0f62c695dad350c2bcbceedbd3f250388ccb0e12e4173bc', '0.3.0'),
  ('lane_attempts', 'function', '913898fee4cce8b45c881af4ec514ce88ab6b62c16715311c6611c84ba615139', '0.3.0'),
  ('lanes_at_work', 'function', '6459430c722cefc118ab0d52c40eaf15938049d1117104502ddacca125916c7b', '0.3.0'),
  ('leave', 'function', '7f328a37406dd76199158d57c5aa442f964b5c72bcdb07f423f7400811621c72', '0.3.0'),
  ('list_queues', 'function', 'd9a9af3906c45dc04b9d1beea01f197b22cce8a0c5c389ece02a59f3647d6788', '0.3.0'),
  ('list_schedules', 'function', '16af8a68bd8a5740e4b14aa4e05ce9320a9e75fac1d79f00406c46c060dfce21', '0.3.0'),
  ('list_settings', 'function', '2aec2f6ddb9814558edd0a25a9aaefca90b541723a692f2eb436e406cdeb7b85', '0.3.0'),
  ('list_workers', 'function', 'c3cab845f667ba3332cd13ca475f78c76b2993d4c84d600f037faf2bd07e7180', '0.3.0'),
  ('lockers', 'function', '28de85c288cd6c2249c37cc427928ab12a5152d58df972dc1ce7fabea387f50a', '0.3.0'),
  ('log_events', 'function', '9017e71a6f33aad2acb3c4187799f084e5fe628fe0006f74a49ac998283d6b6c', '0.3.0'),
  ('make_partitions', 'function', 'abab9675adffb7fbd8e82baf5132c9399772541b59db8f20f2c82d160bf484f0', '0.3.0'),
  ('move_heads', 'function', 'd71fda26b4df326b446dd3d433234bea4846541893aff42044053e7ea9834ba7', '0.3.0'),
  ('nearest', 'function', '1f738642ca0a9fb827e4e3a39f593d33087a8544aca5e936e3fed605b340cb0c', '0.3.0'),
  ('not_held', 'function', 'a78143c477e0dbe50f1bc809d059ed581996b3599deca2fe5b19fc8c5f4e98da', '0.3.0'),
  ('notify', 'function', 'fcaf3710d4512a5adec9441f4bb1cb7bbb0f0331d560a8203a2c24ce8851bfde', '0.3.0'),
  ('orphans', 'function', '1a231d8f4573b11852c05e695a3fcf6152d58a8fc8e0ff2eca4347b1aed5aa3e', '0.3.0'),
  ('partitions', 'function', '494d5991b080ac781c0ec47cc6e359db92bacd133deb8ac6c6fc1035c444e045', '0.3.0'),
  ('pause', 'function', '18e5495159c9c78e65bb686e3b2f55ca09eb7b6f9efbe104a47c6647ab129d61', '0.3.0'),
  ('pause_schedule', 'function', '8810c965c48a7393a82ae5de82977850946ba8189e44197d17dd7fd189e84e9b', '0.3.0'),
  ('progress', 'function', '0d5faa3ae716eff0bba2cd815295c70a0973012ecafd9889336010d1b7e3f32c', '0.3.0'),
  ('publish', 'function', 'd8af08b6bbad99f103d37b437ce29609a3011374822f9d8b981fd639bd1ab530', '0.3.0'),
  ('purge', 'function', '07106b31a397bed86d74576dac41c23307d6b15c30bbf41a7e18ab227c6c6325', '0.3.0'),
  ('read_events', 'function', 'ec1624e9871180384c0425e0b993e9ab4a307b0973c14f17b6d4cc9fe19a56f0', '0.3.0'),
  ('refuse_delete', 'function', '36bd770bb682b27ef3dee9f96b33a7d2480aa4eb44e500edc2b94cf2675c6455', '0.3.0'),
  ('refuse_transition', 'function', '53e6b7864ef5b44fd07f69154ee3788f8eec21fee4a501bcd72510bf1eaaeb58', '0.3.0'),
  ('register', 'function', '63d70cfeb06a3d1bf320be14d46e38aea3cd0f04e9205825a33e14d34eba8d85', '0.3.0'),
  ('replay', 'function', '86541f9955edb44d8550618b20cfef6e6fec971d7e85c8764d31d0f48b492576', '0.3.0'),
  ('report', 'function', '7a4be6ae9908f9401e32ee54baefbf90d998aec3e1c1da6913546b4d2917d646', '0.3.0'),
  ('reschedule', 'function', 'e5da4eec7f4af9743fcab50eec66b4a94d27629f1e67c2934307d917e7b04943', '0.3.0'),
  ('retention', 'function', '30cc7b108e2e28b3e7e05b248635a3a26c4c979e16e185897f9c3c08647b87bf', '0.3.0'),
  ('retire', 'function', 'd4361d3093672b19eb853ed4ea26759ae1d80651f40b59aa71ab6c4b645cdd92', '0.3.0'),
  ('retry_policy', 'function', '90be86f31feedffaf951a2aa04548e8afb8ec5f1c1f3087d07994e408e73b4d7', '0.3.0'),
  ('rights', 'function', '02ca9af4de80902166e93b0f94e6acfc8d1c5867860862f5c3e1dec737cbdbc1', '0.3.0'),
  ('roles', 'function', 'b664f227dfb82181e5b5c550706fa17f1186749114725ca4674df7f6c61261d8', '0.3.0'),
  ('run_now', 'function', 'ceb78ff28e5eeabab73da6ffe3531a26568cb580f1bbc431dac3e55be0ab6799', '0.3.0'),
  ('run_schedule', 'function', 'abe04200bcd26b0f8e1efc22154a3f2d51e5fbb4c3f7d0b7c402a1b8002b2242', '0.3.0'),
  ('schedule', 'function', '300144324c1454a3a0914d2f904be8ecdda7e1d74a96b82134a70472775d514d', '0.3.0'),
  ('schedule_ticks', 'function', '8d0d853b3f9a9cdc83ac742be3c333c73ba2ac486b8c3ce9308319ab7d281c89', '0.3.0'),
  ('settings', 'function', '739883d38c9f2006f6dbd576f59ee6fffe70dcfe89935669ec8578ea5550a336', '0.3.0'),
  ('sleep', 'function', 'dc37e0d07cea0dfe232c04af9066d009688ee9c2229a2e22c02c13136d4abac0', '0.3.0'),
  ('start', 'function', 'cc33136353db0df08cde0537eba7413f350ab6b870a18b96d33847a3604f360e', '0.3.0'),
  ('state', 'function', 'db98e8e1a03a00f556dd574fb89b7c2354a0b52f7c98eed3414f2a9a12ff0e1b', '0.3.0'),
  ('statistics', 'function', 'ab715b5041b957e6309cf55ac4ee4d4da167eecb8bcdfcd277ea0619a5815657', '0.3.0'),
  ('step', 'function', '6f87293adc006d18e5182077723d2e51a8639867c3313d76dfd3579a20a87e0f', '0.3.0'),
  ('suspects', 'function', 'e485664c59694cd507e09920184d843cd248fc02e871126b98673b4d8f81b704', '0.3.0'),
  ('sweep', 'function', '4dcd522b9febe3f3eb012de53cf1062c54a68ebc63bcc1a4dc22b70a2b097b8b', '0.3.0'),
  ('take_back', 'function', '1980dc5c5c3b8c59b28cb1a9dcfc64b49f2463eb873e8872c59d83b8f3916c8a', '0.3.0'),
  ('tick', 'function', '3fd0f26c18e2b2f0119f8830037d8a92b3aae692539c0e07e638df0c1803cf35', '0.3.0'),
  ('upkeep', 'function', 'ca67b10c343d745a3bdc37702c0d26d87e5b77dc29da0b1301140d999b9c6436', '0.3.0'),
  ('use_id', 'function', '6ec0ae5ae0607c284631e618f813d75fd98bd1a3694fbcfafc595d6d0662cc99', '0.3.0'),
  ('wait', 'function', '23f83dbb345dd83e05aa8ba0fb875e494142421618873142efb0419fa5073e2a', '0.3.0'),
  ('why', 'function', '9c2f73766dbfdddf03e5b62029f8bb1f1d351792c4c14bdec8a1df4986e7abe3', '0.3.0'),
  ('why_blocked', 'function', 'd9cbdff5965fdc7202cf330caf61852009c1c90bcf3227eeaa819fcc45934a2b', '0.3.0'),
  ('why_ended', 'function', '0daf04650e309d917433da761cc03a0f648dd961652e2c278ade0bb953979953', '0.3.0'),
  ('why_held', 'function', '74c0becd4e12bf226e931f9807fb0f85ede9780c93801dcc22d4c9ac6f04dc99', '0.3.0'),
  ('why_scheduled', 'function', '37d78834dff467ab12e5b234c752ae1fc9ba0d0afb9d0d920967177371b2b232', '0.3.0'),
  ('why_unserved', 'function', '09a63d22541d06b1d1d236ded49088e5e975eff2f4beaed9a9884424edb34e9e', '0.3.0'),
  ('why_waiting', 'function', '118fd4d4866910350b1a337999c4e88bf4d4655283d7064f5a5cb6e19ba124bf', '0.3.0'),
  ('words', 'function', 'c23f00fb238db40f1e4cf0c1fd43b12c571605de14125e258178fd602a3dc512', '0.3.0'),
  ('writers', 'function', '8635615c8b404f28298d09adc0f8797e64da82b8fcd26a9561bdd4923fcda236', '0.3.0'),
  ('enqueue', 'function', '86caa542f4f83836c5be73ff959d7111872613411d8183fb9d9cf7f2ac0841d9', '0.3.0'),
  ('promote', 'function', '5dd7c7ecd1b8905c38f447017ee1a23096033e9f783963077d325aa36c0f0b8a', '0.3.0'),
  ('recover', 'function', '31704c2a9006cdd278d2c87cef1fef5e0aa1957cfcd83e325d289029a11caac0', '0.3.0'),
  ('jobs', 'function', '80ba9f27fd0846ca7fa508cec8e43707dbec9d07fdb8315385c81dbb84b733bd', '0.3.0'),
  ('job', 'function', '94a141c0ec02ca21b49c7268d9e2d9950e002d26e9f34da667484b9d9b51005f', '0.3.0'),
  ('list_dead', 'function', '1f2c899ee67d288bda9ca930e8b2a12ecbeccdf0c781360c1f1dd94bd42a7842', '0.3.0'),
  ('list_jobs', 'function', '6219fea11446497290b46a89063999d9a92fc1ac032e00a801494bbaab3b1f7e', '0.3.0')
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
delete from holdfast.migration
where kind = 'function'
  and name <> all ('{advance,audit,cancel,check,check_heads,check_inserted,check_reports,claim,claim_by_level,clock,cluster,configure,count,cron,cron_fields,cron_words,dead_filter,disown,doctor,doctor_duties,doctor_rights,doctor_server,doctor_sessions,doctor_tables,doctor_work,drop_partitions,due_from,duty,end_jobs,replace,export,finish,fire,fitting,fold_stats,forget_dead,forget_finished,forget_leftovers,gauges,give_back,give_up,grants,guard,health,heartbeat,histogram,mask,reach,known_settings,lane,lane_attempts,lanes_at_work,leave,list_queues,list_schedules,list_settings,list_workers,lockers,log_events,make_partitions,move_heads,nearest,not_held,notify,orphans,partitions,pause,pause_schedule,progress,publish,purge,read_events,refuse_delete,refuse_transition,register,replay,report,reschedule,retention,retire,retry_policy,rights,roles,run_now,run_schedule,schedule,schedule_ticks,settings,sleep,start,state,statistics,step,suspects,sweep,take_back,tick,upkeep,use_id,wait,why,why_blocked,why_ended,why_held,why_scheduled,why_unserved,why_waiting,words,writers,enqueue,promote,recover,jobs,job,list_dead,list_jobs}');
revoke all on all routines in schema holdfast from public;
select holdfast.grant_rights();
commit;
