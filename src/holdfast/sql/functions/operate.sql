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

-- Call jobs off. One that nobody has claimed is cancelled at once; a claimed one
-- is marked, and its worker is told: it is cancelled if it fails, is given back or
-- is lost, while a completion that comes first wins. Answers for each id with
-- `cancelled`, `requested`, the end state that it had already, or null if there
-- is no such job.
--
-- Lock order: rows of `job` by id. Whoever decides holds the row, so cancel and
-- complete have one winner.
create or replace function holdfast.cancel_many(ids uuid[])
returns table (id uuid, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  waiting uuid[];
  held uuid[];
begin
  perform from holdfast.job j where j.id = any(ids) order by j.id for update;
  select
    coalesce(array_agg(j.id) filter (where j.state <> 'claimed'), '{}'),
    coalesce(array_agg(j.id) filter (where j.state = 'claimed'), '{}')
  into waiting, held
  from holdfast.job j
  where j.id = any(ids);
  perform holdfast.call_off(waiting, now_at);
  update holdfast.job j
  set cancel_requested_at = coalesce(j.cancel_requested_at, now_at)
  where j.id = any(held);
  insert into holdfast.cancellation (job_id, lease, worker_id, requested_at)
  select j.id, j.lease, j.worker_id, now_at
  from holdfast.job j
  where j.id = any(held)
  on conflict (job_id) do update set lease = excluded.lease, worker_id = excluded.worker_id;
  return query
    select
      i.id,
      case
        when i.id = any(waiting) then 'cancelled'
        when i.id = any(held) then 'requested'
        else (select v.state from holdfast.verdict(i.id, null, 'cancel') v)
      end
    from (select distinct unnest(ids) as id) i
    order by i.id;
  if cardinality(ids) = 1 then
    perform holdfast.note('cancel', i::text, case when i = any(held) then '{"requested": true}'::jsonb end)
    from unnest(waiting || held) i;
  elsif cardinality(waiting || held) > 0 then
    perform holdfast.note(
      'cancel many', 'jobs', jsonb_build_object('cancelled', cardinality(waiting), 'requested', cardinality(held)));
  end if;
end
$$;
comment on function holdfast.cancel_many(uuid[]) is
  'Call jobs off: cancelled, requested (a worker holds it), the end state that it had already, or null for no such job.';

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
  'Call a job off: returns cancelled, requested (a worker holds it), or the end state that it had already.';

-- Call off what waits or runs in a queue, or of a task, or both. In batches by
-- `amount`, so that no transaction holds a million rows: call it until it is 0.
create or replace function holdfast.cancel_matching(
  queue text default null,
  task text default null,
  state text default null,
  amount integer default 10000
)
returns table (cancelled bigint, requested bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  ids uuid[];
begin
  if cancel_matching.queue is null and cancel_matching.task is null then
    perform holdfast.refuse_value('queue', null, 'name a queue, a task or both: nobody cancels everything by accident');
  end if;
  if cancel_matching.state not in ('scheduled', 'pending', 'claimed') then
    perform holdfast.refuse_value('state', cancel_matching.state, 'must be scheduled, pending or claimed');
  end if;
  perform holdfast.check_amount(cancel_matching.amount);
  ids := array(
    select j.id
    from holdfast.lane l
    join holdfast.job j on j.lane_id = l.id
    where (cancel_matching.queue is null or l.queue = cancel_matching.queue)
      and (cancel_matching.task is null or l.task = cancel_matching.task)
      and (cancel_matching.state is null or j.state = cancel_matching.state)
      and j.cancel_requested_at is null
    limit cancel_matching.amount);
  return query
    select count(*) filter (where c.answer = 'cancelled'), count(*) filter (where c.answer = 'requested')
    from holdfast.cancel_many(ids) c;
end
$$;
comment on function holdfast.cancel_matching(text, text, text, integer) is
  'Call off the live jobs of a queue or a task, up to amount; returns how many were cancelled and for how many it was requested.';

-- What a worker has to hear: the jobs that it holds and that somebody called off.
create or replace function holdfast.cancels(worker uuid)
returns table (id uuid, lease uuid)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select c.job_id, c.lease
  from holdfast.cancellation c
  join holdfast.job j on j.id = c.job_id and j.lease = c.lease
  where c.worker_id = cancels.worker
$$;
comment on function holdfast.cancels(uuid) is 'The jobs that this worker holds and that somebody called off.';

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
  perform holdfast.wake_lanes(array(select l.id from holdfast.lane l where l.queue = resume.queue));
end
$$;
comment on function holdfast.resume(text) is 'Hand out the jobs of a paused queue again.';
