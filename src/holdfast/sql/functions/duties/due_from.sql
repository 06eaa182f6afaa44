-- Return the time before which no scheduled job is due: the time of the first scheduled job,
-- at most a second ago. The search begins at the last such time, or at the time from which jobs may have
-- come late. The second is for writers that read the clock before they took the lock.
create or replace function holdfast.due_from(due_from timestamptz, late_at timestamptz, now_at timestamptz)
returns timestamptz
language plpgsql volatile
as $$
declare
  looked_from timestamptz := coalesce(least(due_from.due_from, late_at - interval '1 second'), '-infinity');
begin
  return least(
    (select min(j.run_at) from holdfast.live j where j.state = 'scheduled' and j.run_at >= looked_from),
    now_at - interval '1 second');
end
$$;
comment on function holdfast.due_from(timestamptz, timestamptz, timestamptz) is
  'Return a time before which no scheduled job is due, from the last such time and the time from which jobs '
  'may have come late.';

-- Return the time from which promote() reads. It is like due_from(), but passes jobs that a
-- locker below `old_xid` holds.
create or replace function holdfast.promote_from(
  promote_from timestamptz, late_at timestamptz, now_at timestamptz, old_xid xid8)
returns timestamptz
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  looked_from timestamptz := coalesce(
    least(promote_from.promote_from, late_at - interval '1 second'), '-infinity');
  until timestamptz := now_at - interval '1 second';
  next_xid xid8 := pg_snapshot_xmax(pg_current_snapshot());
  first record;
  next_at timestamptz;
  are_few boolean;
begin
  select j.run_at, holdfast.is_open(holdfast.long_xid(j.xmax, next_xid), old_xid) as is_locked
  into first
  from holdfast.live j
  where j.state = 'scheduled'
    and j.run_at >= looked_from
    and j.run_at < until
  order by j.run_at
  limit 1;
  if first.is_locked is distinct from true then
    return coalesce(first.run_at, until);
  end if;
  next_at := coalesce(
    (
      select j.run_at
      from holdfast.live j
      where j.state = 'scheduled'
        and j.run_at >= first.run_at
        and j.run_at < until
        and not holdfast.is_open(holdfast.long_xid(j.xmax, next_xid), old_xid)
      order by j.run_at
      limit 1
    ),
    until);
  with locked as materialized (
    select holdfast.long_xid(j.xmax, next_xid) as xid, min(j.run_at) as run_at
    from (
      select j.xmax, j.run_at
      from holdfast.live j
      where j.state = 'scheduled'
        and j.run_at >= first.run_at
        and j.run_at < next_at
    ) j
    group by 1
  ),
  few as (
    select (select count(*) from locked) + (select count(*) from holdfast.locker) <= 1000 as are_few
  ),
  noted as (
    insert into holdfast.locker (xid, run_at)
    select k.xid, k.run_at from locked k, few where few.are_few
    on conflict (xid) do update set run_at = least(locker.run_at, excluded.run_at)
  )
  select few.are_few into are_few from few;
  return case when are_few then next_at else first.run_at end;
end
$$;
comment on function holdfast.promote_from(timestamptz, timestamptz, timestamptz, xid8) is
  'Return the time from which promote() reads, from the last such time and the time from which jobs may '
  'have come late.';
