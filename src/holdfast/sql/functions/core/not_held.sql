-- Return which of a worker's jobs were taken away from it.
-- holdfast: role worker
create or replace function holdfast.not_held(ids uuid[], leases uuid[])
returns setof uuid
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
  select r.id
  from unnest(not_held.ids, not_held.leases) r (id, lease)
  where not exists (select from holdfast.live j where j.id = r.id and j.lease = r.lease offset 0)
$$;
comment on function holdfast.not_held(uuid[], uuid[]) is
  'Return which of these jobs are no longer held under the leases given.';
