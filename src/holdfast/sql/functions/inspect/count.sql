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
