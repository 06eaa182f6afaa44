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
  late_jobs bigint;
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
  select array_agg(distinct late.lane_id), count(*) into lanes, late_jobs from late;
  if lanes is not null then
    perform holdfast.wake_lanes(lanes, late_jobs);
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
