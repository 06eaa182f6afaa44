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
