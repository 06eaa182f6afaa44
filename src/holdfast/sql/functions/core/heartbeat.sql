-- Record that a worker is alive.
--
-- There is one heartbeat per worker, not per job. So the lease of a job lasts as long as its
-- worker lives, however long the job runs. Only the worker's row is written.
-- holdfast: role worker
create or replace function holdfast.heartbeat(worker uuid)
returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  now_at timestamptz := holdfast.clock();
begin
  update holdfast.worker w
  set heartbeat_at = now_at
  where w.id = heartbeat.worker
    and w.lost_at is null
    and w.left_at is null;
  if not found then
    perform holdfast.refuse_worker(heartbeat.worker);
  end if;
  return now_at;
end
$$;
comment on function holdfast.heartbeat(uuid) is
  'Record that a worker is alive. Refuses a worker that was declared lost. Returns the time of the '
  'database.';
