-- Deregister a worker. The jobs that it still holds go back, unstarted ones without a charge.
--
-- Leaving twice is no error, since the reply to the first call may have been lost. If another
-- transaction has locked a job, recover() takes it back later.
-- holdfast: role worker
create or replace function holdfast.leave(worker uuid)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  held_ids uuid[];
  held_leases uuid[];
  outcomes text[];
  refused bigint;
begin
  update holdfast.worker w
  set left_at = holdfast.clock(), asleep = false
  where w.id = leave.worker
    and w.left_at is null
    and w.lost_at is null;
  if not found then
    perform from holdfast.worker w where w.id = leave.worker and w.lost_at is null;
    if not found then
      perform holdfast.refuse_worker(leave.worker);
    end if;
  end if;
  -- No plain join: if the planner takes `live` for empty, as after a vacuum beside an old snapshot,
  -- it would read all ids in the order of the join.
  select array_agg(j.id), array_agg(j.lease),
    array_agg(case when r.started then 'interrupted' else 'released' end)
  into held_ids, held_leases, outcomes
  from (
    select j.id, j.lease from holdfast.live j where j.worker_id = leave.worker
      and j.state = 'claimed' offset 0
  ) j
  left join lateral (
    select true as started from holdfast.running r where r.job_id = j.id and r.lease = j.lease offset 0
  ) r on true;
  if held_ids is null then
    return 0;
  end if;
  select count(*) into refused from holdfast.finish(held_ids, held_leases, outcomes, skip_locked => true);
  return cardinality(held_ids) - refused;
end
$$;
comment on function holdfast.leave(uuid) is
  'Deregister a worker and give back the jobs that it holds. Returns how many.';
