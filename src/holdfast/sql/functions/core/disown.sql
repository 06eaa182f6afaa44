-- Give back the jobs that a worker holds in the database but does not know, because the replies
-- to their claims were lost.
--
-- `before` is a time that an earlier heartbeat returned. A claim sent before it is either among
-- the leases in flight or long known, so no reply that is still on its way is taken for lost.
-- Jobs that another transaction has locked are left for the next call.
-- holdfast: role worker
create or replace function holdfast.disown(worker uuid, held uuid[], in_flight uuid[], before timestamptz)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  unknown_ids uuid[];
  unknown_leases uuid[];
  refused bigint;
begin
  perform holdfast.check_worker(disown.worker);
  select array_agg(j.id), array_agg(j.lease) into unknown_ids, unknown_leases
  from holdfast.live j
  where j.worker_id = disown.worker
    and j.state = 'claimed'
    and j.claimed_at < disown.before
    and j.id <> all(disown.held)
    and j.lease <> all(disown.in_flight);
  if unknown_ids is null then
    return 0;
  end if;
  select count(*) into refused
  from holdfast.finish(
    unknown_ids, unknown_leases, array_fill('released'::text, array[cardinality(unknown_ids)]),
    skip_locked => true);
  return cardinality(unknown_ids) - refused;
end
$$;
comment on function holdfast.disown(uuid, uuid[], uuid[], timestamptz) is
  'Give back, without a charge, the jobs that a worker holds but does not know. Returns how many.';
