-- holdfast: after jobs, replace
-- Dead letters: jobs without attempts left, or that somebody gave up. They are listed, replayed
-- or purged. Replays and purges are written to the audit log.
--
-- A null filter matches everything. `error` matches a part of the last error, in upper or lower
-- case.

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

-- The caller has locked the letters. The id, payload, headers, priority and creation time stay
-- the same. Attempts and deaths start again at 0, and the earlier errors stay. So do the
-- finished steps and the checkpoint, from which the job continues unless it starts over: the
-- header `resumes` tells the worker to load them in a first attempt. A letter whose id a live
-- job has is left alone.
create or replace function holdfast.revive(ids uuid[], now_at timestamptz, start_over boolean)
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
comment on function holdfast.revive(uuid[], timestamptz, boolean) is
  'Put dead letters back on their queues. Returns how many.';

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
  if not found or holdfast.revive(array[replay.id], holdfast.clock(), replay.start_over) = 0 then
    perform holdfast.refuse_unless_dead(replay.id, 'replayed', 'pending');
  end if;
  perform holdfast.note('replay', replay.id::text);
  return 'pending';
end
$$;
comment on function holdfast.replay(uuid, boolean) is
  'Put a dead job back on its queue, with attempts from 0. Its id, payload, errors and finished steps stay;'
  ' the steps go if it starts over. Returns pending.';

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
  replayed := holdfast.revive(
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
