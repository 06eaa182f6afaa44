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
