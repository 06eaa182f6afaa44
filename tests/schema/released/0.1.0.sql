-- Holdfast 0.1.0, for psql --set ON_ERROR_STOP=1
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
  ('bootstrap', 'migration', '32c51989c66fecd39b8d07703136403491052bbfe91c06d6426dbeb27726bf5a', '0.1.0')
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
  ('0001_jobs', 'migration', '3332d36ab5673df1083e12b633f7ad8a2704e2f12a51362779abf3dd6b2601a8', '0.1.0')
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

-- advance.sql
-- Move the heads of the lanes forward: the reason why claiming never slows down.
--
-- Every queue that claims from the beginning of its index walks over the entries
-- of jobs done since the oldest snapshot that anyone holds: 39,000 jobs/s fell to
-- 6,700 after 600,000 jobs under one open report. A claim here reads from
-- lane.head on, and the head moves past what is done.
--
-- A head may lag, but it must never pass a job that is or will be pending. A
-- transaction may take a place (a seq) early and commit late:
--
--      inserter A   takes 100 ........................... commits
--      inserter B      takes 101, commits
--      claim              takes 101; is the first pending job now 102? No: 100 is to come.
--
-- So the *safe* head only moves up to a proven place:
--
--   1. Take S = nextval(job_seq).
--   2. Note who holds RowExclusiveLock on `job` at this moment. Every inserter
--      holds it before it takes a place and until it ends, so whoever took one
--      below S is either among them or has ended.
--   3. Once all of those have ended, nothing at or below S can still appear:
--      head = least(first pending place from the old head on, S + 1).
--
-- A prepared transaction holds its lock without a process, and changes its name
-- at a restart: while there is one, nothing is proven.
--
-- A transaction that enqueued and stays open for minutes would hold all heads
-- back. When a safe head lags by more than 10,000 places, claims read from the
-- first pending place instead, and each run of this duty looks between the two
-- for jobs that came late and gives them a new place.
--
-- A sequence that stands below a place it has reached before was reset, restored
-- or replicated: new jobs would stand behind the heads. Then everything starts over.
--
-- Claims commit without waiting for the disk; a head moved past a claim is
-- written later in the same log, so a crash that loses the claim loses the move.
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
  s bigint;
  holders text[];
  proof holdfast.head_proof;
  proven bigint;
  moved integer;
begin
  perform holdfast.check_isolation('advance');
  if not pg_try_advisory_xact_lock(holdfast.duty_lock('advance')) then
    return 0;
  end if;

  -- The place first, then who holds the lock: in this order, or it proves nothing.
  s := nextval('holdfast.job_seq');
  holders := holdfast.writers();
  select p.* into proof from holdfast.head_proof p;
  if s <= proof.top or s < (select max(l.head) from holdfast.lane l) then
    perform holdfast.repair_sequence();
    return 0;
  end if;

  if holders = '{}' then
    proven := s;
    -- Noted only now and then, so that an idle database stays idle.
    if proof.seq is not null or proof.top is null or s > proof.top + 100 then
      perform holdfast.note_proof(null, null, s);
    end if;
  elsif holders is not null then
    if not proof.holders && holders then
      proven := proof.seq;
    end if;
    if proven is not null or proof.seq is null then
      perform holdfast.note_proof(s, holders, s);
    end if;
  end if;

  if proven is null then
    return holdfast.advance_eagerly(s);
  end if;
  update holdfast.lane l
  set head = n.head, safe_head = n.head
  from (
    select l.id, least(coalesce(f.seq, proven + 1), proven + 1) as head
    from holdfast.lane l
    left join lateral (
      select j.seq
      from holdfast.job j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.safe_head
      order by j.seq
      limit 1
    ) f on true
  ) n
  where l.id = n.id
    -- A move of a few places is not worth a new version of the row.
    and (n.head > l.safe_head + 500 or n.head < l.head);
  get diagnostics moved = row_count;
  return moved;
end
$$;
comment on function holdfast.advance() is 'Move the heads of the lanes past what is done; returns how many moved.';

create or replace function holdfast.note_proof(seq bigint, holders text[], top bigint)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.head_proof (seq, holders, taken_at, top)
  values (note_proof.seq, note_proof.holders, holdfast.clock(), note_proof.top)
  on conflict (only_row) do update
    set seq = excluded.seq, holders = excluded.holders, taken_at = excluded.taken_at, top = excluded.top
$$;
comment on function holdfast.note_proof(bigint, text[], bigint) is 'Keep the proof under way, or none, and how far the sequence has come.';

-- The transactions that may have taken a place and not yet ended, or null if
-- one of them is prepared.
create or replace function holdfast.writers()
returns text[]
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select case
    when coalesce(bool_or(k.pid is null), false) then null
    else coalesce(array_agg(k.virtualtransaction || ' ' || k.pid) filter (where k.pid <> pg_backend_pid()), '{}')
  end
  from pg_locks k
  where k.locktype = 'relation'
    and k.relation = 'holdfast.job'::regclass
    and k.database = (select d.oid from pg_database d where d.datname = current_database())
    and k.mode = 'RowExclusiveLock'
$$;
comment on function holdfast.writers() is 'The open transactions that may have taken a place in a lane; null if one of them is prepared.';

-- While a proof is held up by a long transaction: late jobs between the safe
-- head and the head get a new place, and lanes that lag get an eager head.
create or replace function holdfast.advance_eagerly(s bigint)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  moved integer;
begin
  update holdfast.job j
  set seq = o.new_seq
  from (
    select late.id, nextval('holdfast.job_seq') as new_seq
    from (
      select j.id
      from holdfast.lane l
      cross join lateral (
        select j.id, j.seq
        from holdfast.job j
        where j.lane_id = l.id
          and j.state = 'pending'
          and j.seq >= l.safe_head
          and j.seq < l.head
        order by j.seq
        limit 5000
        for update skip locked
      ) j
      where l.head > l.safe_head
      order by j.seq
    ) late
  ) o
  where j.id = o.id;

  update holdfast.lane l
  set head = n.head
  from (
    select l.id, coalesce(f.seq, s) as head
    from holdfast.lane l
    left join lateral (
      select j.seq
      from holdfast.job j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.head
      order by j.seq
      limit 1
    ) f on true
  ) n
  where l.id = n.id
    and n.head > l.safe_head + 10000
    and n.head > l.head + 500;
  get diagnostics moved = row_count;
  return moved;
end
$$;
comment on function holdfast.advance_eagerly(bigint) is 'Let claims read past what a long transaction holds back, and bring in what comes late.';

-- The sequence stands below a place it has reached before: it was reset,
-- restored or replicated. Heads start over, and the sequence moves above
-- everything, with room for places that open transactions took before.
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
    (select max(j.seq) from holdfast.job j),
    (select max(p.top) from holdfast.head_proof p),
    nextval('holdfast.job_seq'))
  into reached;
  perform setval('holdfast.job_seq', reached + 10000);
  perform holdfast.note_proof(null, null, reached);
  update holdfast.lane set head = 0, safe_head = 0 where head <> 0 or safe_head <> 0;
  perform holdfast.note('repair', 'job_seq', jsonb_build_object('reached', reached));
end
$$;
comment on function holdfast.repair_sequence() is 'Set the heads back and the sequence forward after the sequence was reset.';

-- Whatever stands behind a head is found once a minute, and the head goes back to it.
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
  repaired integer;
begin
  perform holdfast.check_isolation('check_heads');
  -- Not while the heads move.
  perform pg_advisory_xact_lock(holdfast.duty_lock('advance'));
  with behind as (
    select l.id, f.seq
    from holdfast.lane l
    cross join lateral (
      select j.seq
      from holdfast.job j
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
  )
  insert into holdfast.audit (at, who, action, target, detail)
  select holdfast.clock(), session_user, 'repair', 'lane ' || m.id, jsonb_build_object('head', m.head)
  from moved m;
  get diagnostics repaired = row_count;
  return repaired;
end
$$;
comment on function holdfast.check_heads() is 'Find jobs behind the head of their lane and move the head back; returns how many lanes were repaired.';

-- check.sql
-- The rules for what callers hand in. Each answers with nothing, or raises an
-- error that names the field, the limit and what to do.

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
comment on function holdfast.check_name(text, text) is 'Refuse a queue, task or other name that breaks the rules.';

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
comment on function holdfast.refuse_value(text, text, text) is 'Raise the error for a value outside its limits.';

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
comment on function holdfast.check_max_attempts(integer) is 'Refuse a number of attempts outside its range; null means the default.';

-- When a job is due: null for at once. A time far in the past is only late;
-- one more than a century ahead is a mistake, often milliseconds read as seconds.
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
comment on function holdfast.due_time(timestamptz, interval, timestamptz) is 'The time at which a job is due, checked; null for at once.';

-- The size is that of the JSON text as claims hand it out. What is stored says
-- little about it: 1e100000 takes 16 bytes there and 100,001 as text.
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
comment on function holdfast.refuse_payload(uuid, jsonb, integer) is 'Raise the error for a payload whose JSON text is over the limit.';

-- Claims and duties read what others committed a moment ago: under an older
-- snapshot a head could pass a job, so they refuse to run there.
create or replace function holdfast.check_isolation(verb text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using
      errcode = 'HF009',
      message = format('holdfast.%s cannot run in a %s transaction', verb, current_setting('transaction_isolation')),
      detail = jsonb_build_object('level', current_setting('transaction_isolation')),
      hint = 'Call it in a transaction of its own at READ COMMITTED.';
  end if;
end
$$;
comment on function holdfast.check_isolation(text) is 'Refuse any isolation level but read committed.';

-- claim.sql
-- Hand up to `amount` pending jobs to one worker, most urgent first.
--
-- Rows that another worker is claiming are stepped over, so claims never wait
-- for each other. The lease is what the worker must show to report on them; the
-- caller makes it, so that after a lost reply it can ask claimed(lease).
--
-- Each lane is read from its head, never from the beginning of the index: see
-- advance.sql. Higher priority goes first; within a priority suspects, then
-- returned jobs, then fresh ones in the order of their arrival. A claim has one
-- suspect at most, which comes last. It is bounded in bytes of payload too, but
-- never below one job. The plans are pinned, because a never-analyzed table or an
-- eager JIT costs 4 to 40 times.
create or replace function holdfast.claim(
  worker uuid default null,
  lease uuid default null,
  queues text[] default null,
  tasks text[] default null,
  amount integer default 10
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
  now_at timestamptz := holdfast.clock();
  consumer uuid := coalesce(claim.worker, gen_random_uuid());
  new_lease uuid := coalesce(claim.lease, gen_random_uuid());
  remaining integer := claim.amount;
  room bigint := 16 * 1024 * 1024;
  lanes record;
  picked record;
  shares integer[];
begin
  perform holdfast.check_isolation('claim');
  if claim.amount is null or claim.amount not between 1 and 10000 then
    perform holdfast.refuse_value('amount', claim.amount::text, 'must be between 1 and 10000');
  end if;
  perform holdfast.attend(consumer, now_at, claim.queues, claim.tasks);

  <<lanes>>
  for lanes in
    select
      l.priority, l.kind, count(*)::integer as amount,
      array_agg(l.id order by l.id) as ids, array_agg(l.head order by l.id) as heads
    from holdfast.lane l
    cross join lateral (
      select
      from holdfast.job j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.head
      order by j.seq
      limit 1
    ) first
    where (claim.queues is null or l.queue = any(claim.queues))
      and (claim.tasks is null or l.task = any(claim.tasks))
      and not exists (select from holdfast.queue q where q.name = l.queue and q.paused_at is not null)
    group by l.priority, l.kind
    order by l.priority desc, l.kind desc
  loop
    -- How many to take from each lane.
    if lanes.kind = 2 then
      continue when holdfast.has_fresh_suspect(consumer, now_at);
      shares := array_fill(1, array[lanes.amount]);
    elsif lanes.amount = 1 then
      shares := array[remaining];
    else
      -- As many as it has among the next `remaining` jobs, by seq.
      select array_agg(coalesce(cut.share, 0)::integer order by l.n) into shares
      from unnest(lanes.ids) with ordinality l (id, n)
      left join (
        select ahead.lane_id, count(*) as share
        from (
          select l.id as lane_id, j.seq
          from unnest(lanes.ids, lanes.heads) l (id, head)
          cross join lateral (
            select j.seq
            from holdfast.job j
            where j.lane_id = l.id
              and j.state = 'pending'
              and j.seq >= l.head
            order by j.seq
            limit remaining
          ) j
          order by j.seq
          limit remaining
        ) ahead
        group by ahead.lane_id
      ) cut on cut.lane_id = l.id;
    end if;

    for look in 1..2 loop
      -- Lock them, and note where they lie: the rows stay there until we write.
      with locked as materialized (
        select j.place, j.seq, j.bytes
        from unnest(lanes.ids, lanes.heads, shares) l (id, head, share)
        cross join lateral (
          select j.ctid as place, j.seq, pg_column_size(j.payload) as bytes
          from holdfast.job j
          where j.lane_id = l.id
            and j.state = 'pending'
            and j.seq >= l.head
            and j.attempt < j.max_attempts
          order by j.seq
          limit l.share
          for update skip locked
        ) j
      ),
      counted as (
        select
          k.place,
          row_number() over by_seq as n,
          sum(k.bytes) over by_seq as bytes
        from locked k
        window by_seq as (order by k.seq rows unbounded preceding)
      )
      select
        array_agg(c.place) as places,
        count(*) as amount,
        max(c.bytes) as bytes,
        (select count(*) from locked) as found
      into picked
      from counted c
      where c.n <= case lanes.kind when 2 then 1 else remaining end
        and (c.bytes <= room or (c.n = 1 and remaining = claim.amount));

      if picked.amount > 0 then
        return query
          with taken as (
            update holdfast.job j
            set
              state = 'claimed',
              worker_id = consumer,
              lease = new_lease,
              attempt = j.attempt + 1,
              claimed_at = now_at,
              changed_at = now_at
            where j.ctid = any(picked.places)
            returning j.*
          )
          select
            t.id, t.task, t.payload, t.attempt, t.lease, t.max_attempts, l.queue, l.priority::integer,
            lanes.kind = 2, t.worker_id, t.created_at, t.headers
          from taken t
          join holdfast.lane l on l.id = t.lane_id
          order by t.seq;
      end if;
      remaining := remaining - picked.amount;
      room := room - coalesce(picked.bytes, 0);

      if lanes.kind = 2 and picked.amount > 0 then
        -- One suspect at a time, and nothing after it. Its start is on record
        -- before its handler can run, so that only the culprit pays if the
        -- worker dies again.
        perform holdfast.start_suspect(consumer, new_lease, lanes.ids, now_at);
        exit lanes;
      end if;
      exit lanes when remaining = 0;
      exit lanes when picked.found > picked.amount; -- enough bytes
      -- There were enough, but others have locked them or their attempts are
      -- used up: look further once, before anything less urgent is taken.
      exit when lanes.amount = 1 or (select sum(s) from unnest(shares) s) < remaining + picked.amount;
      shares := array_fill(remaining, array[lanes.amount]);
    end loop;
  end loop;
end
$$;
comment on function holdfast.claim(uuid, uuid, text[], text[], integer) is
  'Hand up to amount pending jobs to one worker, most urgent first, under one lease. A missing worker id or lease is made up.';

create or replace function holdfast.start_suspect(worker uuid, lease uuid, lanes integer[], now_at timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.running (job_id, lease, started_at, changed_at)
  select j.id, j.lease, now_at, now_at
  from holdfast.job j
  where j.worker_id = start_suspect.worker
    and j.state = 'claimed'
    and j.lease = start_suspect.lease
    and j.lane_id = any(lanes)
  on conflict (job_id) do update
    set lease = excluded.lease, started_at = excluded.started_at, changed_at = excluded.changed_at,
      deadline_at = null, progress = null, stage = null, message = null
$$;
comment on function holdfast.start_suspect(uuid, uuid, integer[], timestamptz) is 'Record the start of the suspect that was claimed under this lease.';

-- What a claim took, for a caller whose reply was lost on the way.
create or replace function holdfast.claimed(worker uuid, lease uuid)
returns setof holdfast.claimed_job
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    j.id, j.task, j.payload, j.attempt, j.lease, j.max_attempts, l.queue, l.priority::integer,
    l.kind = 2, j.worker_id, j.created_at, j.headers
  from holdfast.job j
  join holdfast.lane l on l.id = j.lane_id
  where j.worker_id = claimed.worker
    and j.state = 'claimed'
    and j.lease = claimed.lease
  order by l.priority desc, l.kind desc, j.seq
$$;
comment on function holdfast.claimed(uuid, uuid) is 'The jobs that this worker holds under this lease: ask after a claim whose reply was lost.';

-- Whether a worker has taken a suspect so lately that it may still be the
-- death of it. One that has lived for 5 seconds lets the next one start, so
-- that long innocent jobs do not run one by one for hours.
create or replace function holdfast.has_fresh_suspect(worker uuid, now_at timestamptz)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select
    from holdfast.job j
    join holdfast.lane l on l.id = j.lane_id
    where j.worker_id = has_fresh_suspect.worker
      and j.state = 'claimed'
      and l.kind = 2
      and j.claimed_at > now_at - interval '5 seconds'
  )
$$;
comment on function holdfast.has_fresh_suspect(uuid, timestamptz) is 'Whether this worker took a suspect in the last 5 seconds and still holds it.';

-- clock.sql
-- The only clock: every time that Holdfast writes or compares comes from here,
-- so a worker's own clock may be wrong without effect. A test database replaces
-- this function to move time; no runtime role can.
create or replace function holdfast.clock()
returns timestamptz
language sql volatile parallel safe
as 'select clock_timestamp()';

comment on function holdfast.clock() is 'The time by which everything is judged: the database''s own.';
comment on function holdfast.new_id() is 'A new job id: a UUID of version 7, so ids sort by the time they were made.';

-- enqueue.sql
-- Put one job on a queue, in the caller's own transaction.
--
-- With an id of the caller's, the same call twice within 7 days is one job; the
-- same id with another task or payload is refused.
create or replace function holdfast.enqueue(
  task text,
  payload jsonb default '{}',
  queue text default 'default',
  priority integer default 100,
  run_at timestamptz default null,
  delay interval default null,
  max_attempts integer default null,
  id uuid default null,
  headers jsonb default null
)
returns uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  due_at timestamptz := holdfast.due_time(enqueue.run_at, enqueue.delay, now_at);
  job_id uuid := coalesce(enqueue.id, holdfast.new_id());
begin
  perform holdfast.check_max_attempts(enqueue.max_attempts);
  if enqueue.payload is null then
    perform holdfast.refuse_value('payload', null, 'must be JSON; leave it out for {}');
  end if;
  if enqueue.id is not null then
    perform holdfast.check_name('task', enqueue.task);
    if not holdfast.use_id(enqueue.id, enqueue.task, enqueue.payload, now_at) then
      return enqueue.id;
    end if;
  end if;
  insert into holdfast.job (id, lane_id, task, payload, headers, max_attempts, run_at, created_at)
  values (
    job_id,
    holdfast.lane(enqueue.queue, enqueue.priority, enqueue.task),
    enqueue.task,
    enqueue.payload,
    enqueue.headers,
    coalesce(enqueue.max_attempts, holdfast.max_attempts(enqueue.task, enqueue.queue)),
    due_at,
    now_at
  );
  return job_id;
end
$$;
comment on function holdfast.enqueue(text, jsonb, text, integer, timestamptz, interval, integer, uuid, jsonb) is
  'Put one job on a queue; it exists if and only if the calling transaction commits. Returns its id.';

-- Put many jobs on their queues in one call: every array is as long as `tasks`,
-- or null for the default; an element may be null too. All of them or none.
create or replace function holdfast.enqueue_many(
  tasks text[],
  payloads jsonb[] default null,
  queues text[] default null,
  priorities integer[] default null,
  run_ats timestamptz[] default null,
  delays interval[] default null,
  max_attempts integer[] default null,
  ids uuid[] default null,
  headers jsonb[] default null
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
  ) then
    perform holdfast.refuse_value('tasks', amount::text, 'every array must be as long as tasks, or null');
  end if;

  perform holdfast.check_max_attempts(m)
  from unnest(enqueue_many.max_attempts) m
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
      u.id as given_id,
      coalesce(u.id, holdfast.new_id()) as id,
      case when u.run_at is not null or u.delay is not null then holdfast.due_time(u.run_at, u.delay, now_at) end as due_at
    from unnest(
      tasks, payloads, queues, priorities, run_ats, delays, enqueue_many.max_attempts, ids, enqueue_many.headers
    ) with ordinality u (task, payload, queue, priority, run_at, delay, max_attempts, id, headers, n)
  ),
  -- Once per distinct queue, priority and task, not once per job.
  placed as materialized (
    select
      g.queue, g.priority, g.task,
      holdfast.lane(g.queue, g.priority, g.task) as lane_id,
      holdfast.max_attempts(g.task, g.queue) as max_attempts
    from (select distinct queue, priority, task from given) g
  ),
  -- In the order of ids, so that two callers with the same ids do not deadlock;
  -- materialized, or the planner would call use_id below the sort; and after
  -- `placed`, all of it, which checks the names.
  sorted as materialized (
    select g.n, g.given_id, g.task, g.payload
    from given g
    where g.given_id is not null
      and (select count(*) > 0 from placed)
    order by g.given_id, g.n
  ),
  fresh as materialized (
    select s.n
    from sorted s
    where holdfast.use_id(s.given_id, s.task, s.payload, now_at)
  ),
  inserted as (
    insert into holdfast.job (id, lane_id, task, payload, headers, max_attempts, run_at, created_at)
    select
      g.id, p.lane_id, g.task, g.payload, g.headers,
      coalesce(g.max_attempts, p.max_attempts), g.due_at, now_at
    from given g
    join placed p on p.queue = g.queue and p.priority = g.priority and p.task = g.task
    where g.given_id is null or g.n in (select f.n from fresh f)
    order by g.n
  )
  select array_agg(g.id order by g.n) into new_ids from given g;

  return query select unnest(new_ids);
end
$$;
comment on function holdfast.enqueue_many(text[], jsonb[], text[], integer[], timestamptz[], interval[], integer[], uuid[], jsonb[]) is
  'Put many jobs on their queues in one call, all or none. Returns their ids in the order given.';

-- Note an id that a caller supplied. True if it is new; false if it was used
-- for the very same task and payload; an error if for another.
--
-- A second transaction with the same id waits here until the first has ended.
create or replace function holdfast.use_id(id uuid, task text, payload jsonb, now_at timestamptz)
returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  -- Half a SHA-256, not MD5: a server in FIPS mode has none.
  hash uuid := encode(substr(sha256(convert_to(use_id.payload::text, 'UTF8')), 1, 16), 'hex')::uuid;
  used holdfast.used_id;
begin
  loop
    insert into holdfast.used_id (id, task, payload_hash, used_at)
    values (use_id.id, use_id.task, hash, use_id.now_at)
    on conflict (id) do nothing;
    if found then
      return true;
    end if;
    select u.* into used from holdfast.used_id u where u.id = use_id.id;
    exit when found; -- else the id was forgotten just now
  end loop;
  if used.task = use_id.task and used.payload_hash = hash then
    return false;
  end if;
  raise exception using
    errcode = 'HF007',
    message = format('id %s is already used for another %s', use_id.id, case when used.task = use_id.task then 'payload' else 'task' end),
    detail = jsonb_build_object(
      'id', use_id.id,
      'field', case when used.task = use_id.task then 'payload' else 'task' end),
    hint = 'Use a new id for a new job; the same id is only for repeating the same call.';
end
$$;
comment on function holdfast.use_id(uuid, text, jsonb, timestamptz) is 'Note an id that a caller supplied; false if the same job has it already.';

-- finish.sql
-- Report what became of many jobs in one statement.
--
-- Outcomes: completed (with a result), cancelled, failed (retried by the
-- policy, or after `delays`, or not at all where `retries` is false), snoozed
-- (back after `delays`, no attempt used up), released (never started: back at
-- once, the attempt refunded), interrupted (cut off: back at once, counted).
-- Arrays are as long as `ids`, or null; outcomes default to completed.
--
-- A report counts only under the lease of the current claim. Returned are the
-- refused ones, each with its SQLSTATE; a report that is only repeated, because
-- the reply to the first was lost, counts as accepted.
--
-- Lock order: rows of `job` by id, then everything that hangs on them.
create or replace function holdfast.finish(
  ids uuid[],
  leases uuid[],
  outcomes text[] default null,
  results jsonb[] default null,
  errors text[] default null,
  tracebacks text[] default null,
  retries boolean[] default null,
  delays interval[] default null,
  durations double precision[] default null
)
returns setof holdfast.refusal
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  accepted bigint := 0;
  returned bigint;
  mixed boolean := false;
begin
  perform holdfast.check_reports(ids, leases, outcomes);

  if outcomes is not null then
    mixed := outcomes && '{failed,snoozed,released,interrupted}';
    if mixed then
      -- One lock on everything first: the two statements below would each be in
      -- order, but not together.
      perform from holdfast.job j where j.id = any(ids) order by j.id for update;
    end if;
  end if;

  perform holdfast.door(true);
  with report as materialized (
    select r.id, r.lease, coalesce(r.outcome, 'completed') as outcome, r.result, r.error, r.duration
    from unnest(ids, leases, outcomes, results, errors, durations) r (id, lease, outcome, result, error, duration)
    where r.outcome is null or r.outcome in ('completed', 'cancelled')
  ),
  held as materialized (
    select j.id, r.outcome, r.result, r.error, r.duration, x.started_at
    from report r
    join holdfast.job j on j.id = r.id
    left join holdfast.running x on x.job_id = j.id and x.lease = j.lease
    -- Only a claimed job has a lease. To ask for the state as well would lure the
    -- planner to the index of held jobs, all of it for each report: 60,000
    -- finishes/s fell to 1,500.
    where j.lease = r.lease
    order by j.id
    for update of j
  ),
  gone as (
    delete from holdfast.job j
    using held h
    where j.id = h.id
    returning j.*, h.outcome, h.result, h.error, h.duration as seconds, h.started_at
  ),
  -- Not from an older snapshot: a progress that came in meanwhile would break
  -- the transaction of a handler that finishes its job in its own. What stays
  -- behind is swept by upkeep.
  stopped as (
    delete from holdfast.running x
    using held h
    where x.job_id = h.id
      and h.started_at is not null
      and current_setting('transaction_isolation') = 'read committed'
  ),
  kept as (
    insert into holdfast.finished (
      id, queue, priority, task, payload, headers, state, attempt, max_attempts, worker_id, lease, result, last_error,
      run_at, created_at, claimed_at, started_at, finished_at, duration
    )
    select
      g.id, l.queue, l.priority, g.task, g.payload, g.headers, g.outcome, g.attempt, g.max_attempts, g.worker_id, g.lease,
      g.result, coalesce(g.error, g.last_error), g.run_at, g.created_at, g.claimed_at,
      t.started_at, now_at, now_at - t.started_at
    from gone g
    join holdfast.lane l on l.id = g.lane_id
    cross join lateral (
      -- Never before the claim, nor after now: the worker's measure is its own.
      select greatest(
        coalesce(g.started_at, now_at - least(greatest(g.seconds, 0), 1e9) * interval '1 second', g.claimed_at),
        g.claimed_at)
    ) t (started_at)
  )
  select count(*) into accepted from gone;
  perform holdfast.door(false);

  if mixed then
    returned := holdfast.give_back(ids, leases, outcomes, errors, tracebacks, retries, delays, now_at);
    accepted := accepted + returned;
  end if;

  if accepted < cardinality(ids) then
    return query
      select v.id, v.sqlstate, v.message, v.state, v.lease
      from unnest(ids, leases, outcomes) r (id, lease, outcome)
      cross join lateral holdfast.verdict(r.id, r.lease, coalesce(r.outcome, 'completed')) v
      where v.sqlstate is not null;
  end if;
end
$$;
comment on function holdfast.finish(uuid[], uuid[], text[], jsonb[], text[], text[], boolean[], interval[], double precision[]) is
  'Report what became of many jobs, each under the lease of its claim. Returns those that were refused, and why.';

create or replace function holdfast.check_reports(ids uuid[], leases uuid[], outcomes text[])
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  odd text;
begin
  if cardinality(ids) is distinct from cardinality(leases) or cardinality(ids) <> coalesce(cardinality(outcomes), cardinality(ids)) then
    perform holdfast.refuse_value('leases', cardinality(leases)::text, 'ids, leases and outcomes must be of one length');
  end if;
  if cardinality(ids) > 1 and (select count(distinct i) from unnest(ids) i) < cardinality(ids) then
    perform holdfast.refuse_value('ids', cardinality(ids)::text, 'a job may be reported only once in a call');
  end if;
  if not coalesce(array_remove(outcomes, null) <@ '{completed,cancelled,failed,snoozed,released,interrupted}', true) then
    select o into odd from unnest(outcomes) o
    where o <> all('{completed,cancelled,failed,snoozed,released,interrupted}') limit 1;
    perform holdfast.refuse_value(
      'outcomes', odd, 'must be one of completed, cancelled, failed, snoozed, released, interrupted');
  end if;
end
$$;
comment on function holdfast.check_reports(uuid[], uuid[], text[]) is 'Refuse reports that cannot be read.';

-- The part of finish() for jobs that do not end well: each goes to where its
-- outcome, its attempts and a wish to cancel send it.
create or replace function holdfast.give_back(
  ids uuid[],
  leases uuid[],
  outcomes text[],
  errors text[],
  tracebacks text[],
  retries boolean[],
  delays interval[],
  now_at timestamptz
)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  job_ids uuid[];
  verbs text[];
  errs text[];
  tracks text[];
  waits interval[];
begin
  select
    array_agg(j.id),
    array_agg(
      case
        when r.outcome in ('failed', 'interrupted') and (r.retry is false or j.attempt >= j.max_attempts)
          and j.cancel_requested_at is null then 'dead'
        when j.cancel_requested_at is not null then 'cancelled'
        else r.outcome
      end),
    array_agg(
      case r.outcome
        when 'interrupted' then coalesce(r.error, 'interrupted: its worker was stopped')
        when 'failed' then coalesce(r.error, 'failed')
      end),
    array_agg(r.traceback),
    array_agg(case when r.outcome = 'failed' then coalesce(r.delay, holdfast.retry_delay(j.task, j.attempt, l.queue)) else r.delay end)
  into job_ids, verbs, errs, tracks, waits
  from unnest(ids, leases, outcomes, errors, tracebacks, retries, delays) r (id, lease, outcome, error, traceback, retry, delay)
  join holdfast.job j on j.id = r.id
  join holdfast.lane l on l.id = j.lane_id
  where r.outcome in ('failed', 'snoozed', 'released', 'interrupted')
    and j.lease = r.lease;
  if job_ids is null then
    return 0;
  end if;

  insert into holdfast.attempt_error (job_id, attempt, failed_at, worker_id, error, traceback)
  select j.id, j.attempt, now_at, j.worker_id, left(r.error, 10000), left(r.traceback, 20000)
  from unnest(job_ids, errs, tracks) r (id, error, traceback)
  join holdfast.job j on j.id = r.id
  where r.error is not null;

  perform holdfast.bury(
    array(select r.id from unnest(job_ids, verbs) r (id, verb) where r.verb = 'dead'),
    array(select r.error from unnest(job_ids, verbs, errs) r (id, verb, error) where r.verb = 'dead'),
    now_at);
  perform holdfast.call_off(array(select r.id from unnest(job_ids, verbs) r (id, verb) where r.verb = 'cancelled'), now_at);
  perform holdfast.put_back(
    array(select r.id from unnest(job_ids, verbs) r (id, verb) where r.verb in ('released', 'interrupted')),
    array(select r.error from unnest(job_ids, verbs, errs) r (id, verb, error) where r.verb in ('released', 'interrupted')),
    array(select r.id from unnest(job_ids, verbs) r (id, verb) where r.verb = 'released'),
    1, now_at);

  update holdfast.job j
  set
    state = 'scheduled',
    run_at = now_at + least(greatest(coalesce(r.wait, interval '0'), interval '0'), interval '100 years'),
    -- A snooze is not an attempt; the cap keeps an endless snoozer finite.
    max_attempts = case when r.verb = 'snoozed' then least(j.max_attempts + 1, 32767) else j.max_attempts end,
    last_error = coalesce(left(r.error, 10000), j.last_error),
    last_lease = j.lease,
    last_outcome = r.verb,
    lease = null,
    worker_id = null,
    changed_at = now_at
  from unnest(job_ids, verbs, errs, waits) r (id, verb, error, wait)
  where j.id = r.id
    and r.verb in ('failed', 'snoozed');

  delete from holdfast.running x where x.job_id = any(job_ids);
  return cardinality(job_ids);
end
$$;
comment on function holdfast.give_back(uuid[], uuid[], text[], text[], text[], boolean[], interval[], timestamptz) is
  'Send failed, snoozed, released and interrupted jobs to where they belong; returns how many were accepted.';

-- Move held jobs back into a lane of `kind` beside their own, to new places in
-- their old order. Those in `refunded` get the attempt of this claim back.
create or replace function holdfast.put_back(ids uuid[], errors text[], refunded uuid[], kind integer, now_at timestamptz)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if cardinality(ids) = 0 then
    return;
  end if;
  update holdfast.job j
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
    -- Places are given out above the sort; a join there would mix them up.
    select b.id, b.error, b.new_lane, nextval('holdfast.job_seq') as new_seq
    from (
      select i.id, i.error, s.new_lane
      from unnest(ids, errors) i (id, error)
      join holdfast.job j on j.id = i.id
      join (
        select d.lane_id, holdfast.sibling(d.lane_id, put_back.kind) as new_lane
        from (select distinct j.lane_id from holdfast.job j where j.id = any(ids)) d
      ) s on s.lane_id = j.lane_id
      order by j.seq
    ) b
  ) o
  where j.id = o.id;
  perform holdfast.wake(array(select distinct j.lane_id from holdfast.job j where j.id = any(ids)));
end
$$;
comment on function holdfast.put_back(uuid[], text[], uuid[], integer, timestamptz) is 'Make held jobs pending again, ahead of fresh ones and in their old order.';

-- Move live jobs to the dead letters. An older letter under the same id, which
-- a caller may use again after 7 days, gives way.
create or replace function holdfast.bury(ids uuid[], errors text[], now_at timestamptz)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  buried bigint;
begin
  if cardinality(ids) = 0 then
    return 0;
  end if;
  perform holdfast.door(true);
  with gone as (
    delete from holdfast.job j where j.id = any(ids) returning j.*
  )
  insert into holdfast.dead_letter (
    id, queue, priority, task, payload, headers, attempt, max_attempts, worker_id, lease, last_error,
    run_at, created_at, claimed_at, started_at, died_at, duration
  )
  select
    g.id, l.queue, l.priority, g.task, g.payload, g.headers, g.attempt, g.max_attempts, g.worker_id, coalesce(g.lease, g.last_lease),
    coalesce(left(e.error, 10000), g.last_error), g.run_at, g.created_at, g.claimed_at, x.started_at, now_at, now_at - x.started_at
  from gone g
  join holdfast.lane l on l.id = g.lane_id
  left join unnest(ids, errors) e (id, error) on e.id = g.id
  left join holdfast.running x on x.job_id = g.id
  on conflict (id) do update set
    (queue, priority, task, payload, headers, attempt, max_attempts, worker_id, lease, last_error,
      run_at, created_at, claimed_at, started_at, died_at, duration)
    = (excluded.queue, excluded.priority, excluded.task, excluded.payload, excluded.headers, excluded.attempt,
      excluded.max_attempts, excluded.worker_id, excluded.lease, excluded.last_error,
      excluded.run_at, excluded.created_at, excluded.claimed_at, excluded.started_at, excluded.died_at, excluded.duration);
  get diagnostics buried = row_count;
  perform holdfast.door(false);
  delete from holdfast.running x where x.job_id = any(ids);
  return buried;
end
$$;
comment on function holdfast.bury(uuid[], text[], timestamptz) is 'Move live jobs to the dead letters.';

-- Move live jobs to the finished ones as cancelled.
create or replace function holdfast.call_off(ids uuid[], now_at timestamptz)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  cancelled bigint;
begin
  if cardinality(ids) = 0 then
    return 0;
  end if;
  perform holdfast.door(true);
  with gone as (
    delete from holdfast.job j where j.id = any(ids) returning j.*
  )
  insert into holdfast.finished (
    id, queue, priority, task, payload, headers, state, attempt, max_attempts, worker_id, lease, last_error,
    run_at, created_at, claimed_at, started_at, finished_at, duration
  )
  select
    g.id, l.queue, l.priority, g.task, g.payload, g.headers, 'cancelled', g.attempt, g.max_attempts, g.worker_id,
    coalesce(g.lease, g.last_lease), g.last_error, g.run_at, g.created_at, g.claimed_at, x.started_at, now_at, now_at - x.started_at
  from gone g
  join holdfast.lane l on l.id = g.lane_id
  left join holdfast.running x on x.job_id = g.id;
  get diagnostics cancelled = row_count;
  perform holdfast.door(false);
  delete from holdfast.running x where x.job_id = any(ids);
  return cancelled;
end
$$;
comment on function holdfast.call_off(uuid[], timestamptz) is 'Move live jobs to the finished ones as cancelled.';

-- notify.sql
-- Waking up. NOTIFY takes a database-wide lock at commit, so it is sent only
-- when a live worker sleeps that serves the queue and task, and never when the
-- notification queue fills up. It is a hint: the poll finds what it misses.

-- The channel of a queue: its name behind `holdfast_`, or the beginning of its
-- SHA-256 where that would be longer than the 63 bytes a channel may have. A
-- consumer of every queue listens on holdfast.channel('*').
create or replace function holdfast.channel(queue text)
returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
  select case
    when length(queue) <= 54 then 'holdfast_' || queue
    else 'holdfast_' || left(encode(sha256(queue::bytea), 'hex'), 32)
  end
$$;
comment on function holdfast.channel(text) is
  'The channel to LISTEN on for a queue, or for all of them (*); the payload of a notification is the name of the queue.';

-- Wake the sleepers for jobs in these lanes. `set holdfast.notify = off` keeps
-- a session silent, for two-phase transactions: PREPARE refuses after NOTIFY.
create or replace function holdfast.wake(lanes integer[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  now_at timestamptz := holdfast.clock();
  sleeping record;
begin
  if current_setting('holdfast.notify', true) = 'off' then
    return;
  end if;
  for sleeping in
    select distinct l.queue, w.queues is null as every_queue
    from holdfast.lane l
    join holdfast.worker w
      on w.asleep
      and w.lost_at is null
      and w.left_at is null
      -- Not for one that was killed in its sleep and is not yet declared lost.
      and w.heartbeat_at + w.lease_time > now_at
      and (w.queues is null or l.queue = any(w.queues))
      and (w.tasks is null or l.task = any(w.tasks))
    where l.id = any(lanes)
  loop
    if pg_notification_queue_usage() < 0.5 then
      perform pg_notify(holdfast.channel(case when sleeping.every_queue then '*' else sleeping.queue end), sleeping.queue);
    end if;
  end loop;
end
$$;
comment on function holdfast.wake(integer[]) is 'Notify the queues of these lanes that have a live sleeper.';

-- jobs.sql
-- All jobs, live, finished and dead, with one set of columns: what people query.
--
-- Each state stands apart and is written as a constant, so that the planner leaves
-- out what a query does not ask for: `where state = 'running'` reads the index of
-- held jobs and not the backlog.
create or replace view holdfast.jobs as
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
  j.headers
from holdfast.job j
join holdfast.lane l on l.id = j.lane_id
where j.state = 'pending'
union all
select
  j.id, l.queue, j.task, j.payload, l.priority::integer, 'scheduled', j.attempt, j.max_attempts, j.run_at, j.created_at,
  j.claimed_at, null, null, greatest(j.changed_at, j.created_at), null, null, null, null, null, null, null, null,
  j.last_error, j.cancel_requested_at, j.headers
from holdfast.job j
join holdfast.lane l on l.id = j.lane_id
where j.state = 'scheduled'
union all
select
  j.id, l.queue, j.task, j.payload, l.priority::integer, case when r.job_id is null then 'claimed' else 'running' end,
  j.attempt, j.max_attempts, coalesce(j.run_at, j.created_at), j.created_at, j.claimed_at, r.started_at, null,
  greatest(j.changed_at, r.changed_at, j.created_at), null, j.worker_id, w.name, j.lease, r.progress::integer, r.stage,
  r.message, null, j.last_error, j.cancel_requested_at, j.headers
from holdfast.job j
join holdfast.lane l on l.id = j.lane_id
left join holdfast.running r on r.job_id = j.id and r.lease = j.lease
left join holdfast.worker w on w.id = j.worker_id
where j.state = 'claimed'
union all
select
  f.id, f.queue, f.task, f.payload, f.priority::integer, f.state, f.attempt, f.max_attempts,
  coalesce(f.run_at, f.created_at), f.created_at, f.claimed_at, f.started_at, f.finished_at, f.finished_at, f.duration,
  f.worker_id, w.name, null, case when f.state = 'completed' then 100 end, null, null, f.result, f.last_error, null, f.headers
from holdfast.finished f
left join holdfast.worker w on w.id = f.worker_id
union all
select
  d.id, d.queue, d.task, d.payload, d.priority::integer, 'dead', d.attempt, d.max_attempts,
  coalesce(d.run_at, d.created_at), d.created_at, d.claimed_at, d.started_at, d.died_at, d.died_at, d.duration,
  d.worker_id, w.name, null, null, null, null, null, d.last_error, null, d.headers
from holdfast.dead_letter d
left join holdfast.worker w on w.id = d.worker_id;

comment on view holdfast.jobs is 'Every job, live, finished and dead, with one set of columns and a readable state.';

-- One job with the errors of its attempts, for a person who looks at it.
create or replace function holdfast.job_errors(id uuid)
returns table (attempt integer, failed_at timestamptz, worker uuid, error text, traceback text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select e.attempt, e.failed_at, e.worker_id, e.error, e.traceback
  from holdfast.attempt_error e
  where e.job_id = job_errors.id
  order by e.failed_at
$$;
comment on function holdfast.job_errors(uuid) is 'What went wrong in each attempt of a job, oldest first.';

create or replace function holdfast.job(id uuid)
returns setof holdfast.jobs
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select j.* from holdfast.jobs j where j.id = job.id order by j.created_at desc limit 1
$$;
comment on function holdfast.job(uuid) is 'One job by its id.';

-- The jobs that match, newest first; a null matches everything.
create or replace function holdfast.list_jobs(queue text default null, task text default null, state text default null, amount integer default 50)
returns setof holdfast.jobs
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select j.*
  from holdfast.jobs j
  where (list_jobs.queue is null or j.queue = list_jobs.queue)
    and (list_jobs.task is null or j.task = list_jobs.task)
    and (list_jobs.state is null or j.state = list_jobs.state)
  order by j.changed_at desc
  limit list_jobs.amount
$$;
comment on function holdfast.list_jobs(text, text, text, integer) is 'Jobs by queue, task and state, those that changed last first.';

-- How many jobs there are per queue and state, and since when the oldest waits.
create or replace function holdfast.stats()
returns table (queue text, state text, jobs bigint, oldest_at timestamptz, paused boolean)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    j.queue, j.state, count(*), min(j.created_at),
    exists (select from holdfast.queue q where q.name = j.queue and q.paused_at is not null)
  from holdfast.jobs j
  group by j.queue, j.state
  order by j.queue, j.state
$$;
comment on function holdfast.stats() is 'Per queue and state: how many jobs, when the oldest was made, and whether the queue is paused.';

create or replace function holdfast.list_workers()
returns table (id uuid, name text, host text, pid integer, queues text[], tasks text[], status text, holds bigint,
  started_at timestamptz, heartbeat_at timestamptz, recovered integer)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    w.id, w.name, w.host, w.pid, w.queues, w.tasks,
    case
      when w.lost_at is not null then 'lost'
      when w.left_at is not null then 'left'
      when exists (select from holdfast.job j where j.worker_id = w.id and j.state = 'claimed') then 'busy'
      else 'idle'
    end,
    (select count(*) from holdfast.job j where j.worker_id = w.id and j.state = 'claimed'),
    w.started_at, w.heartbeat_at, w.recovered
  from holdfast.worker w
  order by w.started_at desc
$$;
comment on function holdfast.list_workers() is 'The workers of the last day, what they serve and hold, and when they were last heard of.';

-- lane.sql
-- Find the lane of a queue, priority, task and kind, or make it.
--
-- There is no unique key and no lock: when two open transactions are both the
-- first to use a lane, each makes a row and both are served. Lanes are few and
-- are never removed while a job could still name them.
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
  order by l.id
  limit 1;
  if found then
    return found_id;
  end if;
  perform holdfast.check_name('queue', lane.queue);
  perform holdfast.check_name('task', lane.task);
  perform holdfast.check_priority(lane.priority);
  insert into holdfast.lane (queue, priority, task, kind)
  values (lane.queue, lane.priority, lane.task, lane.kind)
  returning id into found_id;
  return found_id;
end
$$;
comment on function holdfast.lane(text, integer, text, integer) is
  'The lane of a queue, priority and task, made if it is new: what a bulk COPY into holdfast.job names in lane_id.';

-- The lane of the same queue, priority and task but of another kind.
create or replace function holdfast.sibling(lane_id integer, kind integer)
returns integer
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.lane(l.queue, l.priority, l.task, sibling.kind)
  from holdfast.lane l
  where l.id = sibling.lane_id
$$;
comment on function holdfast.sibling(integer, integer) is 'The fresh, returned or suspect lane beside a lane.';

-- operate.sql
-- What an operator does to jobs and queues. Each is written to the audit log.

create or replace function holdfast.note(action text, target text, detail jsonb default null)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.audit (at, who, action, target, detail)
  values (holdfast.clock(), session_user, note.action, note.target, note.detail)
$$;
comment on function holdfast.note(text, text, jsonb) is 'Write a line to the audit log.';

-- Call a job off. One that nobody has claimed is cancelled at once; a claimed
-- one is marked, and is cancelled if it fails, is given back or is lost, while a
-- completion that comes first wins. Returns the state, or 'requested'.
create or replace function holdfast.cancel(id uuid)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  known text;
begin
  select j.state into known from holdfast.job j where j.id = cancel.id for update;
  if known in ('scheduled', 'pending') then
    perform holdfast.call_off(array[cancel.id], now_at);
    perform holdfast.note('cancel', cancel.id::text);
    return 'cancelled';
  elsif known = 'claimed' then
    update holdfast.job j
    set cancel_requested_at = coalesce(j.cancel_requested_at, now_at)
    where j.id = cancel.id;
    perform holdfast.note('cancel', cancel.id::text, '{"requested": true}');
    return 'requested';
  end if;
  select v.state into known from holdfast.verdict(cancel.id, null, 'cancel') v;
  if known is null then
    perform holdfast.refuse_job(cancel.id);
  end if;
  return known;
end
$$;
comment on function holdfast.cancel(uuid) is
  'Call a job off: returns cancelled, requested (a worker holds it), or the end state that it had already.';

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
    hint = 'Check the id; jobs are kept for the retention time after they finish.';
end
$$;
comment on function holdfast.refuse_job(uuid) is 'Raise the error for an id that no job has.';

-- Do not wait for the time or the backoff: a scheduled job becomes pending now.
create or replace function holdfast.run_now(id uuid)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  known text;
begin
  perform from holdfast.job j where j.id = run_now.id and j.state = 'scheduled' for update;
  if found then
    perform holdfast.make_pending(array[run_now.id], now_at);
    perform holdfast.note('run now', run_now.id::text);
  end if;
  select v.state into known from holdfast.job(run_now.id) v;
  if known is null then
    perform holdfast.refuse_job(run_now.id);
  end if;
  return known;
end
$$;
comment on function holdfast.run_now(uuid) is 'Make a scheduled job pending at once; returns the state that it has then.';

-- A paused queue takes jobs in but hands none out; what runs goes on.
create or replace function holdfast.pause(queue text)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.check_name('queue', pause.queue);
  insert into holdfast.queue (name, paused_at)
  values (pause.queue, holdfast.clock())
  on conflict (name) do update set paused_at = coalesce(queue.paused_at, excluded.paused_at);
  perform holdfast.note('pause', pause.queue);
end
$$;
comment on function holdfast.pause(text) is 'Stop handing out the jobs of a queue; those that run go on.';

create or replace function holdfast.resume(queue text)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.check_name('queue', resume.queue);
  update holdfast.queue q set paused_at = null where q.name = resume.queue;
  perform holdfast.note('resume', resume.queue);
  perform holdfast.wake(array(select l.id from holdfast.lane l where l.queue = resume.queue));
end
$$;
comment on function holdfast.resume(text) is 'Hand out the jobs of a paused queue again.';

-- policy.sql
-- How a task is retried, changed at run time; what is null is left to the queue
-- and the defaults. A policy that is declared in code gives way to one that an
-- operator has set.
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
begin
  perform holdfast.check_name('task', set_retry_policy.task);
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
  insert into holdfast.retry_policy as p (task, max_attempts, base, factor, cap, jitter, declared)
  values (
    set_retry_policy.task, set_retry_policy.max_attempts, set_retry_policy.base, set_retry_policy.factor,
    set_retry_policy.cap, set_retry_policy.jitter, set_retry_policy.declared
  )
  on conflict (task) do update
    set
      max_attempts = excluded.max_attempts, base = excluded.base, factor = excluded.factor,
      cap = excluded.cap, jitter = excluded.jitter, declared = excluded.declared
    where p.declared or not excluded.declared;
  if not set_retry_policy.declared then
    perform holdfast.note('set retry policy', set_retry_policy.task);
  end if;
end
$$;
comment on function holdfast.set_retry_policy(text, integer, interval, double precision, interval, double precision, boolean) is
  'Say how a task is retried from now on; with declared, only where no operator has said otherwise.';

-- progress.sql
-- What a running job tells about itself. It goes to `running`, never to the
-- job's row, and only under the lease of the current claim.

-- Write down that jobs are being worked on: `seconds` is how long already, by
-- the worker's own measure. Returns the ids that are no longer held.
create or replace function holdfast.start(ids uuid[], leases uuid[], seconds double precision[] default null)
returns setof uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  held uuid[];
begin
  perform holdfast.check_reports(ids, leases, null);
  -- A share lock, so that no finish or recovery slips in between.
  select array_agg(h.id) into held
  from (
    select j.id
    from unnest(ids, leases) r (id, lease)
    join holdfast.job j on j.id = r.id
    where j.lease = r.lease
    order by j.id
    for key share of j
  ) h;
  insert into holdfast.running (job_id, lease, started_at, changed_at)
  select r.id, r.lease, now_at - least(greatest(coalesce(r.seconds, 0), 0), 1e9) * interval '1 second', now_at
  from unnest(ids, leases, start.seconds) r (id, lease, seconds)
  where r.id = any(held)
  order by r.id
  on conflict (job_id) do update
    set lease = excluded.lease, started_at = excluded.started_at, changed_at = excluded.changed_at,
      deadline_at = null, progress = null, stage = null, message = null
    where running.lease <> excluded.lease;
  return query select r.id from unnest(ids) r (id) where r.id <> all(coalesce(held, '{}'));
end
$$;
comment on function holdfast.start(uuid[], uuid[], double precision[]) is
  'Write down that claimed jobs are being worked on; returns those that are no longer held under the lease shown.';

create or replace function holdfast.progress(id uuid, lease uuid, percent integer default null, stage text default null, message text default null)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  refused holdfast.refusal;
begin
  if progress.percent not between 0 and 100 then
    perform holdfast.refuse_value('percent', progress.percent::text, 'must be between 0 and 100');
  end if;
  if length(progress.stage) > 100 then
    perform holdfast.refuse_value('stage', progress.stage, 'must have at most 100 characters');
  end if;
  if exists (select from holdfast.start(array[progress.id], array[progress.lease])) then
    select v.* into refused from holdfast.verdict(progress.id, progress.lease, 'progress') v;
    perform holdfast.refuse_report(refused, progress.lease);
  end if;
  update holdfast.running x
  set
    progress = coalesce(progress.percent, x.progress),
    stage = coalesce(progress.stage, x.stage),
    message = coalesce(left(progress.message, 1000), x.message),
    changed_at = now_at
  where x.job_id = progress.id
    and x.lease = progress.lease;
end
$$;
comment on function holdfast.progress(uuid, uuid, integer, text, text) is
  'Say how far a running job is: percent, stage and message; what is null stays as it was.';

-- The same for many jobs, as a worker flushes it. Returns the ids no longer held.
create or replace function holdfast.progress_many(ids uuid[], leases uuid[], percents integer[], stages text[], messages text[])
returns setof uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  gone uuid[];
begin
  gone := array(select holdfast.start(ids, leases));
  update holdfast.running x
  set
    progress = coalesce(r.percent, x.progress),
    stage = coalesce(left(r.stage, 100), x.stage),
    message = coalesce(left(r.message, 1000), x.message),
    changed_at = now_at
  from unnest(ids, leases, percents, stages, messages) r (id, lease, percent, stage, message)
  where x.job_id = r.id
    and x.lease = r.lease;
  return query select unnest(gone);
end
$$;
comment on function holdfast.progress_many(uuid[], uuid[], integer[], text[], text[]) is
  'Say how far many running jobs are; returns those that are no longer held.';

-- promote.sql
-- Make due jobs pending: delayed ones at the end of their lane, retried and
-- snoozed ones in the returned lane, so that a retry does not queue up behind a
-- million others. Bounded in rows, so that a flood of due jobs is let in bit by
-- bit. Returns how long it is until the next one is due (the caller's clock may be
-- wrong, so not when); nothing or less means that more are waiting already.
create or replace function holdfast.promote(amount integer default 2000)
returns interval
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  due uuid[];
  next_at timestamptz;
begin
  perform holdfast.check_isolation('promote');
  if promote.amount is null or promote.amount not between 1 and 100000 then
    perform holdfast.refuse_value('amount', promote.amount::text, 'must be between 1 and 100000');
  end if;
  -- Who does not get the lock leaves the work to the one who has it.
  if pg_try_advisory_xact_lock(holdfast.duty_lock('promote')) then
    select array_agg(d.id order by d.run_at, d.seq)
    into due
    from (
      select j.id, j.run_at, j.seq
      from holdfast.job j
      where j.state = 'scheduled'
        and j.run_at <= now_at
      order by j.run_at
      limit promote.amount
      for update skip locked
    ) d;
    if due is not null then
      perform holdfast.make_pending(due, now_at);
    end if;
  end if;
  select j.run_at into next_at
  from holdfast.job j
  where j.state = 'scheduled'
  order by j.run_at
  limit 1;
  return next_at - now_at;
end
$$;
comment on function holdfast.promote(integer) is 'Make due jobs pending; returns how long it is until the next one is due.';

-- Scheduled jobs, locked by the caller, become pending in the order given; one
-- whose attempts are used up (the maximum may have been lowered) dies instead.
create or replace function holdfast.make_pending(ids uuid[], now_at timestamptz)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.bury_spent(ids, now_at);
  update holdfast.job j
  set
    state = 'pending',
    lane_id = o.new_lane,
    seq = o.new_seq,
    changed_at = now_at
  from (
    -- Places are given out above the sort; a join there would mix them up.
    select d.id, d.new_lane, nextval('holdfast.job_seq') as new_seq
    from (
      select i.id, s.new_lane
      from unnest(ids) with ordinality i (id, n)
      join holdfast.job j on j.id = i.id
      join (
        select k.lane_id, k.again, holdfast.sibling(k.lane_id, case when k.again then 1 else 0 end) as new_lane
        from (select distinct j.lane_id, j.attempt > 0 as again from holdfast.job j where j.id = any(ids)) k
      ) s on s.lane_id = j.lane_id and s.again = (j.attempt > 0)
      order by i.n
    ) d
  ) o
  where j.id = o.id;
  perform holdfast.wake(array(select distinct j.lane_id from holdfast.job j where j.id = any(ids)));
end
$$;
comment on function holdfast.make_pending(uuid[], timestamptz) is 'Make scheduled jobs pending, in the order given.';

create or replace function holdfast.bury_spent(ids uuid[], now_at timestamptz)
returns bigint
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.bury(
    array_agg(j.id),
    array_agg(coalesce(j.last_error, format('all %s attempts are used up', j.max_attempts))),
    bury_spent.now_at)
  from holdfast.job j
  where j.id = any(ids)
    and j.attempt >= j.max_attempts
  having count(*) > 0
$$;
comment on function holdfast.bury_spent(uuid[], timestamptz) is 'Move those of these live jobs whose attempts are used up to the dead letters.';

create or replace function holdfast.duty_lock(duty text)
returns bigint
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select hashtextextended('holdfast.' || duty, 0)
$$;
comment on function holdfast.duty_lock(text) is 'The advisory lock under which a duty runs once at a time.';

-- queues.sql
-- The queues that hold live jobs or are paused or have settings of their own.
create or replace function holdfast.list_queues()
returns table (name text, paused_at timestamptz, scheduled bigint, pending bigint, held bigint, oldest_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select
    n.name,
    max(q.paused_at),
    count(j.id) filter (where j.state = 'scheduled'),
    count(j.id) filter (where j.state = 'pending'),
    count(j.id) filter (where j.state = 'claimed'),
    min(j.created_at) filter (where j.state = 'pending')
  from (
    select q.name from holdfast.queue q where q.name <> '*'
    union
    select l.queue from holdfast.lane l
  ) n (name)
  left join holdfast.queue q on q.name = n.name
  left join holdfast.lane l on l.queue = n.name
  left join holdfast.job j on j.lane_id = l.id
  group by n.name
  order by n.name
$$;
comment on function holdfast.list_queues() is
  'Every queue that was used or has settings: since when it is paused, how many jobs are due later, wait and are held, and when the oldest that waits was made.';

-- recover.sql
-- Take back the jobs of workers that are not provably alive; returns how many.
--
-- A worker is lost when it has sent no heartbeat for its lease time *while
-- somebody listened*. After an outage nobody is judged: when the time since the
-- last look is longer than usual by half a worker's lease, or lies in the future,
-- the worker gets a whole lease from now to be heard of again. Otherwise a 40 s
-- outage would declare every live worker dead.
--
-- Usual is the shorter of the last two intervals, so looks may as well come from
-- cron once a minute. An outage hides in intervals as long as that: a worker must
-- have been silent for two of them.
--
-- With a timeout given by hand there is no such grace: the caller knows.
--
-- Who pays for a death: attempts count at claim, but jobs with no recorded start
-- get theirs back. All become suspects, and a suspect's start is recorded as it
-- is claimed; where a suspect had started, only suspects are charged.
--
-- Lock order: rows of `worker`, then of `job`. Jobs that are locked are stepped
-- over: they are just being reported on, and the next look comes soon.
create or replace function holdfast.recover(timeout interval default null)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  heard_before timestamptz;
  dead_workers uuid[];
  total integer := 0;
  taken integer;
begin
  perform holdfast.check_isolation('recover');
  if recover.timeout < interval '0' then
    perform holdfast.refuse_value('timeout', recover.timeout::text, 'must not be negative');
  end if;
  if recover.timeout is not null then
    perform pg_advisory_xact_lock(holdfast.duty_lock('recover'));
    now_at := holdfast.clock();
    update holdfast.worker w
    set lost_at = now_at, asleep = false
    where w.lost_at is null
      and w.left_at is null
      and w.heartbeat_at + recover.timeout < now_at;
  elsif pg_try_advisory_xact_lock(holdfast.duty_lock('recover')) then
    heard_before := holdfast.look(now_at);
    update holdfast.worker w
    set lost_at = now_at, asleep = false
    where w.id in (
      select s.id
      from holdfast.worker s
      where s.lost_at is null
        and s.left_at is null
        and greatest(s.heartbeat_at, s.graced_at) + s.lease_time < now_at
        and s.heartbeat_at < heard_before
      -- Who is locked is just being heard of.
      for update skip locked);
  else
    return 0;
  end if;

  -- A claim that was under way when its worker was declared lost, or departed,
  -- may commit a moment later: the fresh tombstones are looked at again.
  select array_agg(w.id) into dead_workers
  from holdfast.worker w
  where greatest(w.lost_at, w.left_at) > now_at - interval '5 minutes';
  loop
    exit when dead_workers is null;
    taken := holdfast.take_back(
      array(
        select j.id from holdfast.job j
        where j.state = 'claimed'
          and j.worker_id = any(dead_workers)
        limit 5000
        for update skip locked),
      now_at);
    total := total + taken;
    -- Bit by bit as a duty, all of them by hand.
    exit when taken = 0 or recover.timeout is null;
  end loop;
  return total;
end
$$;
comment on function holdfast.recover(interval) is
  'Take back the jobs of workers not heard of for their lease time, or for the timeout given by hand; returns how many.';

-- Note a look at the workers, and give those a new lease that nobody could hear.
-- Returns the time of the look before the last: who was heard of since is alive.
create or replace function holdfast.look(now_at timestamptz)
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
  update holdfast.worker w
  set graced_at = now_at
  where w.lost_at is null
    and w.left_at is null
    -- Only who would be judged by this silence.
    and (looks[1] is null or looks[1] > now_at or now_at - looks[1] > usual + w.lease_time / 2);
  insert into holdfast.duty (name, looks)
  values ('recover', array[now_at])
  on conflict (name) do update
    set looks = (excluded.looks || duty.looks)[1:3];
  return looks[2];
end
$$;
comment on function holdfast.look(timestamptz) is 'Note a look at the workers and forgive them a silence that nobody could hear; returns the time of the look before the last.';

-- Take these held jobs, locked by the caller, away from their workers.
create or replace function holdfast.take_back(ids uuid[], now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  charged uuid[];
  dead uuid[];
  cancelled uuid[];
  waiting uuid[];
begin
  if cardinality(ids) = 0 then
    return 0;
  end if;

  with held as (
    select j.id, j.worker_id, l.kind = 2 as suspect, x.job_id is not null as started
    from holdfast.job j
    join holdfast.lane l on l.id = j.lane_id
    left join holdfast.running x on x.job_id = j.id and x.lease = j.lease
    where j.id = any(ids)
  ),
  judged as (
    select h.*, bool_or(h.suspect and h.started) over (partition by h.worker_id) as suspect_at_work
    from held h
  )
  select coalesce(array_agg(g.id), '{}') into charged
  from judged g
  where g.started
    and (g.suspect or not g.suspect_at_work);

  insert into holdfast.attempt_error (job_id, attempt, failed_at, worker_id, error)
  select j.id, j.attempt, now_at, j.worker_id,
    format('lost: worker %s (%s) died or was cut off while it ran this job', j.worker_id, coalesce(w.name, 'unknown'))
  from holdfast.job j
  left join holdfast.worker w on w.id = j.worker_id
  where j.id = any(charged);

  update holdfast.worker w
  set recovered = w.recovered + n.jobs
  from (select j.worker_id, count(*)::integer as jobs from holdfast.job j where j.id = any(ids) group by j.worker_id) n
  where w.id = n.worker_id;

  -- The lease is replaced by one that nobody knows, so whatever the old holder
  -- still reports is refused as lost, wherever the job goes from here.
  update holdfast.job j
  set
    lease = gen_random_uuid(),
    last_error = case when j.id = any(charged) then 'lost: its worker died or was cut off while it ran' else j.last_error end
  where j.id = any(ids);

  cancelled := array(select j.id from holdfast.job j where j.id = any(ids) and j.cancel_requested_at is not null);
  dead := array(
    select j.id from holdfast.job j
    where j.id = any(charged) and j.attempt >= j.max_attempts and j.cancel_requested_at is null);
  waiting := array(select i from unnest(ids) i where i <> all(cancelled || dead));
  perform holdfast.call_off(cancelled, now_at);
  perform holdfast.bury(dead, null, now_at);
  perform holdfast.put_back(waiting, null, array(select i from unnest(waiting) i where i <> all(charged)), 2, now_at);
  delete from holdfast.running x where x.job_id = any(ids);
  return cardinality(ids);
end
$$;
comment on function holdfast.take_back(uuid[], timestamptz) is 'Take held jobs away from their workers: back to the queue, to the dead letters, or cancelled.';

-- report.sql
-- One job, one report: the wrappers around finish() that a person or another
-- language calls. Each raises if its report is refused.

-- Why a report is refused; a null sqlstate where it is a mere repetition.
--
-- HF002 no such job. HF001 the lease was lost: another claim holds the job or
-- has finished it, or it was taken away and waits again. HF003 nobody holds it:
-- it was never handed out, or this very lease has already reported otherwise.
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
  select j.state, j.claimed_at, j.lease as current_lease, j.last_lease as past_lease, j.last_outcome into known
  from holdfast.job j where j.id = verdict.id;
  if not found then
    select f.state, f.claimed_at, null::uuid as current_lease, f.lease as past_lease, null as last_outcome into known
    from holdfast.finished f where f.id = verdict.id
    order by f.finished_at desc limit 1;
  end if;
  if not found then
    select 'dead' as state, d.claimed_at, null::uuid as current_lease, d.lease as past_lease, null as last_outcome into known
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
    return query select verdict.id, 'HF003', format('job %s is %s: nobody holds it', verdict.id, known.state), known.state, null::uuid;
  else
    return query select verdict.id, 'HF001',
      format('the lease %s on job %s is lost: the job is %s%s', verdict.lease, verdict.id, known.state,
        ' under lease ' || known.current_lease),
      known.state, known.current_lease;
  end if;
end
$$;
comment on function holdfast.verdict(uuid, uuid, text) is 'Why a report under this lease is refused; no sqlstate where it is accepted.';

create or replace function holdfast.refuse_report(refused holdfast.refusal, shown uuid)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using
    errcode = refused.sqlstate,
    message = refused.message,
    detail = jsonb_build_object('id', refused.id, 'shown', shown, 'current', refused.lease, 'state', refused.state),
    hint = case refused.sqlstate
      when 'HF001' then 'Stop working on it: nothing was changed by this report, and another worker has the job or will have it.'
      when 'HF002' then 'Check the id; jobs are kept for the retention time after they finish.'
      else 'Claim the job before reporting on it.'
    end;
end
$$;
comment on function holdfast.refuse_report(holdfast.refusal, uuid) is 'Raise the error for a refused report.';

create or replace function holdfast.complete(id uuid, lease uuid, result jsonb default null)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  refused holdfast.refusal;
begin
  select f.* into refused
  from holdfast.finish(array[complete.id], array[complete.lease], results => array[complete.result]) f;
  if found then
    perform holdfast.refuse_report(refused, complete.lease);
  end if;
end
$$;
comment on function holdfast.complete(uuid, uuid, jsonb) is 'Report a job as done, with its result, under the lease of its claim.';

create or replace function holdfast.fail(
  id uuid, lease uuid, error text, retry boolean default true, retry_in interval default null, traceback text default null)
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
  'Report a job as failed: it is retried by its policy, or after retry_in, or never if retry is false.';

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
  select f.* into refused
  from holdfast.finish(array[snooze.id], array[snooze.lease], '{snoozed}', delays => array[snooze.delay]) f;
  if found then
    perform holdfast.refuse_report(refused, snooze.lease);
  end if;
end
$$;
comment on function holdfast.snooze(uuid, uuid, interval) is 'Put a job off for a while; this does not use up an attempt.';

create or replace function holdfast.release(id uuid, lease uuid)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  refused holdfast.refusal;
begin
  select f.* into refused from holdfast.finish(array[release.id], array[release.lease], '{released}') f;
  if found then
    perform holdfast.refuse_report(refused, release.lease);
  end if;
end
$$;
comment on function holdfast.release(uuid, uuid) is 'Give a claimed job back unstarted, with its attempt refunded.';

-- settings.sql
-- The setting that applies: the queue's own, else the default's.
create or replace function holdfast.payload_limit(queue text)
returns integer
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(
    (select q.payload_limit from holdfast.queue q where q.name = payload_limit.queue),
    (select q.payload_limit from holdfast.queue q where q.name = '*'),
    262144)
$$;
comment on function holdfast.payload_limit(text) is 'How many bytes of JSON a payload of this queue may have.';

-- First found wins: the call, the task's policy, the queue, the default.
create or replace function holdfast.max_attempts(task text, queue text)
returns integer
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(
    (select p.max_attempts from holdfast.retry_policy p where p.task = max_attempts.task),
    (select q.max_attempts from holdfast.queue q where q.name = max_attempts.queue),
    (select q.max_attempts from holdfast.queue q where q.name = '*'),
    3)
$$;
comment on function holdfast.max_attempts(text, text) is 'How often a job of this task and queue is tried unless its call says otherwise.';

-- least(base × factor^(attempt − 1), cap), and up to `jitter` of that on top,
-- so that a thousand jobs that failed together do not come back together.
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
comment on function holdfast.retry_delay(text, integer, text) is 'How long a job waits after this failed attempt: exponential backoff with a cap and jitter.';

-- state.sql
-- What a state means, for people and for queries.
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
comment on function holdfast.is_terminal(text) is 'Whether a job in this state has come to its end.';

-- tick.sql
-- Every duty once: for pg_cron, system cron or a person, where no worker runs.
--
-- Each duty stands in a block of its own, so one that fails stops no other; its
-- error is kept in holdfast.duty. Workers call the duties one by one instead,
-- each in a transaction of its own.
create or replace function holdfast.tick()
returns table (duty text, error text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_isolation('tick');
  foreach duty in array '{promote,recover,advance,upkeep}'::text[] loop
    error := null;
    begin
      case duty
        when 'promote' then perform holdfast.promote();
        when 'recover' then perform holdfast.recover();
        when 'advance' then perform holdfast.advance();
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
comment on function holdfast.tick() is 'Run every background duty once; returns each with its error, if any.';

create or replace function holdfast.note_duty(duty text, error text)
returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.duty (name, error, error_at)
  select note_duty.duty, note_duty.error, holdfast.clock()
  where note_duty.error is not null
  on conflict (name) do update set error = excluded.error, error_at = excluded.error_at
$$;
comment on function holdfast.note_duty(text, text) is 'Keep the error of a duty that failed.';

-- upkeep.sql
-- The slow duty: partitions made ahead and dropped behind, old ids and
-- tombstones forgotten, orphans swept, heads checked. Returns how many things
-- were done.
create or replace function holdfast.upkeep()
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  done integer := 0;
  amount integer;
  orphans uuid[];
begin
  perform holdfast.check_isolation('upkeep');
  if not pg_try_advisory_xact_lock(holdfast.duty_lock('upkeep')) then
    return 0;
  end if;

  -- Held by a worker that has no row any more, or has long been lost: nobody
  -- will ever report. Not beside recover, which writes to the same workers.
  if pg_try_advisory_xact_lock(holdfast.duty_lock('recover')) then
    orphans := array(
      select j.id from holdfast.job j
      where j.state = 'claimed'
        and not exists (select from holdfast.worker w where w.id = j.worker_id and w.lost_at is null and w.left_at is null)
        and j.claimed_at < now_at - interval '30 seconds'
      limit 5000
      for update skip locked);
    done := done + holdfast.take_back(orphans, now_at);
  end if;

  -- Waiting, but out of attempts because the maximum was lowered: claims step
  -- over these. Only jobs that were tried before can be such, so only lanes of
  -- returned and suspect jobs are looked at.
  orphans := array(
    select j.id
    from holdfast.lane l
    cross join lateral (
      select j.id
      from holdfast.job j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.safe_head
        and j.attempt >= j.max_attempts
      limit 1000
      for update skip locked
    ) j
    where l.kind <> 0);
  if cardinality(orphans) > 0 then
    done := done + coalesce(holdfast.bury_spent(orphans, now_at), 0);
  end if;

  -- An id stays known for 7 days, and as long as its job lives.
  delete from holdfast.used_id u
  where u.id in (
    select o.id from holdfast.used_id o
    where o.used_at < now_at - interval '7 days'
      and not exists (select from holdfast.job j where j.id = o.id)
    limit 50000);
  get diagnostics amount = row_count;
  done := done + amount;

  -- Errors go with the jobs they belong to.
  delete from holdfast.attempt_error e
  where e.ctid = any(array(
    select o.ctid from holdfast.attempt_error o
    where o.failed_at < now_at - (select max(q.retention) from holdfast.queue q) - interval '1 day'
      and not exists (select from holdfast.job j where j.id = o.job_id)
      and not exists (select from holdfast.dead_letter d where d.id = o.job_id)
    limit 10000));
  get diagnostics amount = row_count;
  done := done + amount;

  delete from holdfast.worker w
  where greatest(w.lost_at, w.left_at) < now_at - interval '1 day'
    and not exists (select from holdfast.job j where j.worker_id = w.id and j.state = 'claimed');
  get diagnostics amount = row_count;
  done := done + amount;

  -- Left behind by a handler that finished its job in a transaction of its own.
  delete from holdfast.running r
  where r.changed_at < now_at - interval '1 minute'
    and not exists (select from holdfast.job j where j.id = r.job_id and j.lease = r.lease);
  get diagnostics amount = row_count;
  done := done + amount;

  done := done + holdfast.forget_finished(now_at);
  done := done + holdfast.check_heads();
  done := done + holdfast.make_partitions(now_at);
  done := done + holdfast.drop_partitions(now_at);
  return done;
end
$$;
comment on function holdfast.upkeep() is 'Make partitions ahead, drop old ones, forget old ids and tombstones, sweep orphans, check the heads.';

-- What no dropped partition takes along: finished jobs of a day that had none,
-- and the errors of jobs that are no more. Bounded in rows.
create or replace function holdfast.forget_finished(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  oldest timestamptz;
  finished integer;
  failures integer;
begin
  select now_at - max(q.retention) into oldest from holdfast.queue q;
  delete from holdfast.finished_default f
  where f.ctid = any(array(
    select d.ctid from holdfast.finished_default d where d.finished_at < oldest limit 10000));
  get diagnostics finished = row_count;
  delete from holdfast.attempt_error a
  where a.ctid = any(array(
    select e.ctid
    from holdfast.attempt_error e
    where e.failed_at < oldest
      and not exists (select from holdfast.job j where j.id = e.job_id)
      and not exists (select from holdfast.dead_letter d where d.id = e.job_id)
    limit 10000));
  get diagnostics failures = row_count;
  return finished + failures;
end
$$;
comment on function holdfast.forget_finished(timestamptz) is
  'Delete finished jobs outside the daily partitions, and errors of jobs that are no more, past the longest retention.';

-- A partition of `finished` for each of the next 7 days. Each is made as a table
-- of its own and then attached, with a short lock_timeout: a report that reads
-- the table would otherwise make the attach wait, and every finish behind it.
-- Never for today: a finish on its way to the default partition waits for the
-- attach, and would then be refused there (23514) because its day has moved out.
create or replace function holdfast.make_partitions(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
set timezone = 'UTC'
as $$
declare
  today date := (now_at at time zone 'UTC')::date;
  day date;
  name text;
  made integer := 0;
begin
  for day in select generate_series(today + 1, today + 7, interval '1 day')::date loop
    name := 'finished_' || to_char(day, 'YYYYMMDD');
    continue when to_regclass('holdfast.' || name) is not null;
    -- Jobs of that day already lie in the default partition: leave them there.
    continue when exists (
      select from holdfast.finished_default d where d.finished_at >= day::timestamptz and d.finished_at < (day + 1)::timestamptz);
    begin
      execute format('create table holdfast.%I (like holdfast.finished including defaults including constraints)', name);
      execute format(
        'alter table holdfast.finished attach partition holdfast.%I for values from (%L) to (%L)',
        name, day::timestamptz, (day + 1)::timestamptz);
      made := made + 1;
    exception when lock_not_available then
      exit; -- somebody reads the table; the next round tries again
    end;
  end loop;
  return made;
end
$$;
comment on function holdfast.make_partitions(timestamptz) is 'Make the daily partitions of finished jobs for the next week.';

-- Partitions whose last day is past the longest retention are dropped whole.
create or replace function holdfast.drop_partitions(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
as $$
declare
  keep interval;
  old text;
  dropped integer := 0;
begin
  select max(q.retention) into keep from holdfast.queue q;
  for old in
    select c.relname
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'holdfast.finished'::regclass
      and c.relname ~ '^finished_[0-9]{8}$'
      and to_date(right(c.relname, 8), 'YYYYMMDD') + 1 < (now_at - keep) at time zone 'UTC'
    order by c.relname
  loop
    begin
      execute format('drop table holdfast.%I', old);
      dropped := dropped + 1;
    exception when lock_not_available then
      exit; -- somebody reads the table; the next round tries again
    end;
  end loop;
  return dropped;
end
$$;
comment on function holdfast.drop_partitions(timestamptz) is 'Drop the partitions of finished jobs that are past the longest retention.';

-- worker.sql
-- Consumers come, prove that they live, sleep, and leave.
--
-- A registration is a random id per life of a process; the name is a label. One
-- that was declared lost can never be revived: the process registers anew.

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
  if register.lease_time is null or register.lease_time not between interval '1 second' and interval '1 day' then
    perform holdfast.refuse_value('lease_time', register.lease_time::text, 'must be between 1 second and 1 day');
  end if;
  insert into holdfast.worker (id, name, host, pid, version, queues, tasks, lease_time, started_at, heartbeat_at)
  values (
    new_worker, coalesce(left(register.name, 200), 'worker-' || left(new_worker::text, 8)), register.host, register.pid,
    register.version, register.queues, register.tasks, register.lease_time, now_at, now_at
  );
  return new_worker;
end
$$;
comment on function holdfast.register(text, text[], text[], interval, text, integer, text) is
  'Register a consumer for one life of its process; the id it returns names it from then on.';

-- Called by claim: an unknown consumer is registered with the default lease
-- time, a known one is taken as alive, a lost one is refused.
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
    values (attend.worker, 'consumer-' || left(attend.worker::text, 8), attend.queues, attend.tasks, now_at, now_at)
    on conflict (id) do nothing;
  elsif known.lost_at is not null or known.left_at is not null then
    perform holdfast.refuse_worker(attend.worker);
  elsif known.heartbeat_at < now_at - known.lease_time / 3 then
    update holdfast.worker w
    set heartbeat_at = now_at
    where w.id = attend.worker
      and w.lost_at is null
      and w.left_at is null;
  end if;
end
$$;
comment on function holdfast.attend(uuid, timestamptz, text[], text[]) is 'Note that a consumer claims: register it if unknown, refuse it if lost.';

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
comment on function holdfast.check_worker(uuid) is 'Refuse a worker that is lost, gone or unknown.';

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
        format('worker %s was declared lost at %s, after no heartbeat since %s', refuse_worker.worker, known.lost_at, known.heartbeat_at)
      when known.left_at is not null then format('worker %s left at %s', refuse_worker.worker, known.left_at)
      else format('worker %s is not registered', refuse_worker.worker)
    end,
    detail = jsonb_build_object('worker', refuse_worker.worker),
    hint = 'Register anew with holdfast.register(); what the old registration held is being run by others.';
end
$$;
comment on function holdfast.refuse_worker(uuid) is 'Raise the error for a worker that is lost, gone or unknown.';

-- One heartbeat per worker, not per job: however long a job runs, its lease
-- lives as long as its worker does. It touches only the worker's row.
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
comment on function holdfast.heartbeat(uuid) is 'Say that a worker lives; refused once it was declared lost. Returns the database''s time.';

-- A worker that found nothing says so, looks once more, and then waits for a
-- notification. The answer tells whether a transaction that may hold new jobs
-- is open at this moment: its commit may bring no notification, so poll soon.
create or replace function holdfast.sleep(worker uuid, asleep boolean default true)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_worker(sleep.worker);
  update holdfast.worker w
  set asleep = sleep.asleep
  where w.id = sleep.worker
    and w.asleep <> sleep.asleep;
  return sleep.asleep and exists (
    select
    from pg_locks k
    where k.relation = 'holdfast.job'::regclass
      and k.database = (select d.oid from pg_database d where d.datname = current_database())
      and k.mode = 'RowExclusiveLock'
      and k.pid is distinct from pg_backend_pid()
  );
end
$$;
comment on function holdfast.sleep(uuid, boolean) is
  'Say that a worker sleeps and wants to be notified (or no longer does); true if a transaction that may hold new jobs is open.';

-- Leave in good order: what is still held goes back, unstarted jobs uncharged.
-- To leave twice is no mistake: the reply to the first time may have been lost.
create or replace function holdfast.leave(worker uuid)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  held_ids uuid[];
  held_leases uuid[];
  outcomes text[];
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
  select array_agg(j.id), array_agg(j.lease), array_agg(case when r.job_id is null then 'released' else 'interrupted' end)
  into held_ids, held_leases, outcomes
  from holdfast.job j
  left join holdfast.running r on r.job_id = j.id and r.lease = j.lease
  where j.worker_id = leave.worker
    and j.state = 'claimed';
  if held_ids is null then
    return 0;
  end if;
  perform holdfast.finish(held_ids, held_leases, outcomes);
  return cardinality(held_ids);
end
$$;
comment on function holdfast.leave(uuid) is 'Sign a worker off and give back what it still holds; returns how many jobs that were.';

-- Give back the jobs that the database holds in a worker's name but that the
-- worker does not know: the replies to their claims were lost for good.
--
-- `before` is a time that an earlier heartbeat returned. A claim sent before it
-- is either among the leases in flight or long known, so nothing that is still
-- on its way is taken for lost.
create or replace function holdfast.disown(worker uuid, held uuid[], in_flight uuid[], before timestamptz)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  unknown_ids uuid[];
  unknown_leases uuid[];
begin
  perform holdfast.check_worker(disown.worker);
  select array_agg(j.id), array_agg(j.lease) into unknown_ids, unknown_leases
  from holdfast.job j
  where j.worker_id = disown.worker
    and j.state = 'claimed'
    and j.claimed_at < disown.before
    and j.id <> all(disown.held)
    and j.lease <> all(disown.in_flight);
  if unknown_ids is null then
    return 0;
  end if;
  perform holdfast.finish(unknown_ids, unknown_leases, array_fill('released'::text, array[cardinality(unknown_ids)]));
  return cardinality(unknown_ids);
end
$$;
comment on function holdfast.disown(uuid, uuid[], uuid[], timestamptz) is
  'Give back, uncharged, what is held in a worker''s name but unknown to it; returns how many jobs that were.';

-- guard.sql
-- holdfast: after notify
-- The database itself refuses what must never happen to a job, whoever asks:
-- an illegal change of state, a place in a lane that a head may have passed, a
-- row that vanishes other than through our functions.

create or replace function holdfast.refuse_change()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op in ('DELETE', 'TRUNCATE') then
    raise exception using
      errcode = 'HF010',
      message = 'jobs do not leave holdfast.job by hand',
      detail = jsonb_build_object('id', case when tg_op = 'DELETE' then old.id end),
      hint = 'Use holdfast.cancel(id) or a worker''s report.';
  end if;
  if old.state = new.state or (select new.state = any(s.successors) from holdfast.state s where s.name = old.state) then
    raise exception using
      errcode = 'HF010',
      message = case when old.id <> new.id
        then format('job %s cannot become job %s', old.id, new.id)
        else format('job %s would stand at place %s, not behind its old place %s', old.id, new.seq, old.seq)
      end,
      detail = jsonb_build_object('id', old.id, 'from_state', old.state, 'to_state', new.state),
      hint = 'A job keeps its id; one that becomes pending or changes lane needs a new nextval(''holdfast.job_seq'').';
  end if;
  raise exception using
    errcode = 'HF010',
    message = format('job %s cannot go from %s to %s', old.id, old.state, new.state),
    detail = jsonb_build_object('id', old.id, 'from_state', old.state, 'to_state', new.state),
    hint = 'The legal changes are in holdfast.state.';
end
$$;
comment on function holdfast.refuse_change() is 'Raise the error for a change that the guard on holdfast.job does not allow.';

-- The legal path is judged by the WHEN clause alone and calls no function; the
-- clause is generated from the reference table.
do $$
declare
  legal text;
begin
  select string_agg(format('(%L, %L)', s.name, next), ', ') into legal
  from holdfast.state s, unnest(s.successors) next;
  execute format($trigger$
    create or replace trigger job_guard
    before update of id, state, lane_id, seq on holdfast.job
    for each row when (
      (old.state <> new.state and (old.state::text, new.state::text) not in (%s))
      or (new.state = 'pending' and (old.state <> 'pending' or old.lane_id <> new.lane_id) and new.seq <= old.seq)
      or new.seq < old.seq
      or old.id <> new.id
    )
    execute function holdfast.refuse_change()
  $trigger$, legal);
end
$$;

-- Our functions open the door around the statement that moves jobs out.
-- (A SET clause on the functions would do, but only a superuser may write one
-- for a setting of our own.)
create or replace function holdfast.door(is_open boolean)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform set_config('holdfast.door', case when is_open then 'open' else '' end, true);
end
$$;
comment on function holdfast.door(boolean) is 'Let the next statement move jobs out of holdfast.job, or no longer.';

create or replace trigger job_leaves_by_the_door
before delete on holdfast.job
for each row when (current_setting('holdfast.door', true) is distinct from 'open')
execute function holdfast.refuse_change();

create or replace trigger job_is_not_truncated
before truncate on holdfast.job
for each statement execute function holdfast.refuse_change();

-- A new job is pending, or scheduled if it is due later; nothing else may be
-- said at its birth, whatever the path it comes by.
create or replace function holdfast.birth()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  now_at timestamptz;
begin
  if new.state <> 'pending' or new.attempt <> 0 or new.lease is not null or new.worker_id is not null
    or new.last_lease is not null or new.claimed_at is not null or new.cancel_requested_at is not null
  then
    raise exception using
      errcode = 'HF010',
      message = format('job %s cannot begin as %s', new.id, case new.state when 'pending' then 'one that was claimed before' else new.state end),
      detail = jsonb_build_object('id', new.id, 'from_state', null, 'to_state', new.state),
      hint = 'Leave out state, attempt, worker and lease: a new job is pending, or scheduled by its run_at.';
  end if;
  if new.run_at is not null then
    now_at := holdfast.clock();
    if holdfast.due_time(new.run_at, null, now_at) > now_at then
      new.state := 'scheduled';
    end if;
  end if;
  return new;
end
$$;
comment on function holdfast.birth() is 'Make a job that is due later scheduled, and refuse one that begins otherwise.';

create or replace trigger job_birth
before insert on holdfast.job
for each row when (
  new.run_at is not null
  or new.state <> 'pending'
  or new.attempt <> 0
  or new.lease is not null
  or new.worker_id is not null
  or new.last_lease is not null
  or new.claimed_at is not null
  or new.cancel_requested_at is not null
)
execute function holdfast.birth();

-- What every insert is held to, also a bulk COPY that calls no function of ours.
create or replace function holdfast.arrival()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  wrong record;
begin
  -- The limit of each lane once; materialized, or it would be asked for with every job.
  with place as materialized (
    select l.id, l.task, holdfast.payload_limit(l.queue) as payload_limit
    from holdfast.lane l
    where l.kind = 0
      and l.id in (select i.lane_id from inserted i)
  )
  select i.id, i.payload, p.id as lane_id, p.payload_limit into wrong
  from inserted i
  left join place p on p.id = i.lane_id and p.task = i.task
  where p.id is null
    or octet_length(i.payload::text) > p.payload_limit
  limit 1;
  if found and wrong.lane_id is null then
    raise exception using
      errcode = 'HF008',
      message = format('job %s names a lane that is not a lane of its task', wrong.id),
      detail = jsonb_build_object('field', 'lane_id', 'value', null),
      hint = 'Take lane_id from holdfast.lane(queue, priority, task).';
  elsif found then
    perform holdfast.refuse_payload(wrong.id, wrong.payload, wrong.payload_limit);
  end if;
  perform holdfast.wake(array(select distinct i.lane_id from inserted i));
  return null;
end
$$;
comment on function holdfast.arrival() is 'Check the lanes and payloads of new jobs, and wake who sleeps for them.';

create or replace trigger job_arrival
after insert on holdfast.job
referencing new table as inserted
for each statement execute function holdfast.arrival();

insert into holdfast.migration (name, kind, checksum, version) values
  ('advance', 'function', '3fda4fb332747eb59b009d95fe304af4024c08a3b26b57ec722c57de1253eb5e', '0.1.0'),
  ('check', 'function', 'a838295aa4a6cfed5d8436e9678cc6d20b1dbd2339dadff61a7123a115aae8bb', '0.1.0'),
  ('claim', 'function', '5c72ef09fbb8f3ff5848f197883b778733d3b3deda0d9451bb354f33b237fcd0', '0.1.0'),
  ('clock', 'function', 'bf4f96d8b364df185db856fc89baf02a57c41841aa412ba7a04a6380069d363d', '0.1.0'),
  ('enqueue', 'function', '59c171d0945b77001dac961c54dbbc3b8ba88430b6985496284575c2d7a3d3cc', '0.1.0'),
  ('finish', 'function', '0f505a8eecc8c18a9004653896d44861307f9e28cae5f8b3beafb2d5400ae371', '0.1.0'),
  ('notify', 'function', 'c9ae15ba8e4ed713a551b9f7d23b02e6eb6a30c609cce6c0f1bb37c27e8b27b3', '0.1.0'),
  ('jobs', 'function', 'd93e45beec0f3dd0a232ddcbab78ce8258cd68575d0958cc5f2298e430eac076', '0.1.0'),
  ('lane', 'function', '1f31f98f107c9a2738b3b2dd036e991590659560593aaecfaad821cfe92f49f3', '0.1.0'),
  ('operate', 'function', 'acd33f32b2777f342ff6282ff4982b0d83cc88de32f9b6ddf3631e07cd6d8ee5', '0.1.0'),
  ('policy', 'function', 'cf6dcd57588d11412fa9e723d1772b9fe75895bc08a32886d0a1f259d0165cea', '0.1.0'),
  ('progress', 'function', 'c0bf8df0e3552a68ab4b0911691dd7bf151b00576e04cac6e789a5b51dd4bd14', '0.1.0'),
  ('promote', 'function', '601dda1a887fcee64be8df0a9af95c2556915490f53c383ec41ecd0a62990f1b', '0.1.0'),
  ('queues', 'function', '2e97c88777940b08e25695df56bfa91da9514ede3753cabfdfa3e2f337f0dcf8', '0.1.0'),
  ('recover', 'function', 'f1e5a601330133353b71996d195bb0e05496f83e1b769964924ba7907da9d43c', '0.1.0'),
  ('report', 'function', '8d7cc32749e024a773df96c95c20f1e87b1d7959b67ec8899b8fc8960095dc0f', '0.1.0'),
  ('settings', 'function', '78c25c44d53a15b02791ccb35dff10dc64daac20b181a7151e1e781321335c11', '0.1.0'),
  ('state', 'function', 'a4cbf0fbb53ba7b8250fdc84ea1e39a966c4486a6f48a7afa5db5c3fdc3475a7', '0.1.0'),
  ('tick', 'function', 'cd83a0427b9bb0d5919724820fbaf21e739b3b9ddd93fbd13a7fd1f5dfa12725', '0.1.0'),
  ('upkeep', 'function', '4c75f1f5bd1f930aef82e9a30423d0b66df416dd6fc56580b36c07da88f89367', '0.1.0'),
  ('worker', 'function', '410b00dcd829a1420f8f6898f30924dd4351dddc904e8d564a54fbdbfc3b989b', '0.1.0'),
  ('guard', 'function', 'c1f0bf5fc80805f3b39a5424a09ab855f6cf1440306dafd7ac0d605984a852db', '0.1.0')
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
delete from holdfast.migration
where kind = 'function'
  and name <> all ('{advance,check,claim,clock,enqueue,finish,notify,jobs,lane,operate,policy,progress,promote,queues,recover,report,settings,state,tick,upkeep,worker,guard}');
revoke all on all routines in schema holdfast from public;
commit;
