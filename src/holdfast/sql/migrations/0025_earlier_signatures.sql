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
