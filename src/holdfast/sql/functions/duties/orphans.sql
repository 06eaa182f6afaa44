-- Find live jobs that no claim and no other duty takes: parts of upkeep().

-- Take back the jobs of an unknown worker, or of one that left a day ago: no report will come.
--
-- recover() has taken back all others. The search goes between the known workers, because with
-- an old snapshot it would walk over all that these have held. It does not run beside recover(),
-- which writes to the same workers.
create or replace function holdfast.take_back_orphans(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  orphans uuid[];
begin
  if not holdfast.try_duty('recover') then
    return 0;
  end if;
  orphans := array(
    select j.id
    from (
      select
        coalesce(lag(w.id) over (order by w.id), '00000000-0000-0000-0000-000000000000') as after,
        w.id as before
      from (select w.id from holdfast.worker w union all select 'ffffffff-ffff-ffff-ffff-ffffffffffff') w
    ) w
    cross join lateral (
      select j.id from holdfast.live j
      where j.state = 'claimed'
        and j.worker_id > w.after
        and j.worker_id < w.before
        and j.claimed_at < now_at - interval '30 seconds'
      limit 50000
      for update skip locked
    ) j
    limit 50000);
  orphans := orphans || array(
    select j.id
    from holdfast.worker w
    cross join lateral (
      select j.id from holdfast.live j where j.state = 'claimed' and j.worker_id = w.id
        limit 50000 for update skip locked
    ) j
    where greatest(w.lost_at, w.left_at) < now_at - interval '1 day'
    limit 50000);
  return holdfast.take_back(orphans, now_at, null);
end
$$;
comment on function holdfast.take_back_orphans(timestamptz) is
  'Take back the jobs that are held by an unknown worker, or by one that left a day ago. Returns how many.';

-- End pending jobs without attempts left, because the maximum was lowered: claims skip them.
--
-- Only jobs that were tried before can be in this state, so only lanes of returned and suspect
-- jobs are read.
create or replace function holdfast.end_pending_without_attempts(now_at timestamptz)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  spent uuid[];
begin
  spent := array(
    select j.id
    from holdfast.lane l
    cross join lateral (
      select j.id
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.safe_head
        and j.attempt >= j.max_attempts
      limit 1000
      for update skip locked
    ) j
    where l.kind <> 0);
  if spent = '{}' then
    return 0;
  end if;
  return coalesce(holdfast.end_jobs_without_attempts(spent, now_at), 0);
end
$$;
comment on function holdfast.end_pending_without_attempts(timestamptz) is
  'Move pending jobs that have no attempts left to the dead letters. Returns how many.';
