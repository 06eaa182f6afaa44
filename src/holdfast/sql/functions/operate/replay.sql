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
  perform holdfast.wake_lanes(lanes, cardinality(revived));
  return cardinality(revived);
end
$$;
comment on function holdfast.replay_dead(uuid[], timestamptz, boolean) is
  'Put dead letters back on their queues. Returns how many.';
