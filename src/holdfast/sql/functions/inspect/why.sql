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
