-- Delete what ended jobs and workers have left behind: ids, names of queues, rows of attempts,
-- tombstones of workers. Also delete old ticks of schedules.
create or replace function holdfast.forget_leftovers(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  forgotten integer := 0;
  amount integer;
begin
  -- An id stays known for 7 days, and as long as its job lives.
  delete from holdfast.used_id u
  where u.id in (
    select o.id from holdfast.used_id o
    where o.used_at < now_at - interval '7 days'
      and not exists (select from holdfast.live j where j.id = o.id offset 0)
    limit 50000);
  get diagnostics amount = row_count;
  forgotten := forgotten + amount;

  delete from holdfast.known_queue k
  where k.seen_at < now_at - holdfast.longest_retention()
    and not exists (select from holdfast.dead_letter d where d.queue = k.name offset 0);
  get diagnostics amount = row_count;
  forgotten := forgotten + amount;

  delete from holdfast.worker w
  where greatest(w.lost_at, w.left_at) < now_at - interval '1 day'
    and not exists (select from holdfast.live j where j.worker_id = w.id and j.state = 'claimed' offset 0);
  get diagnostics amount = row_count;
  forgotten := forgotten + amount;

  -- A handler that finished its job in its own transaction may have left these behind.
  delete from holdfast.running r
  where r.changed_at < now_at - interval '1 minute'
    and not exists (select from holdfast.live j where j.id = r.job_id and j.lease = r.lease offset 0);
  get diagnostics amount = row_count;
  forgotten := forgotten + amount;

  delete from holdfast.cancellation c
  where not exists (select from holdfast.live j where j.id = c.job_id and j.lease = c.lease offset 0);
  get diagnostics amount = row_count;
  forgotten := forgotten + amount;

  delete from holdfast.death d
  where not exists (select from holdfast.live j where j.id = d.job_id offset 0);
  get diagnostics amount = row_count;
  forgotten := forgotten + amount;

  delete from holdfast.schedule_tick t
  where t.ctid = any(array(
    select o.ctid from holdfast.schedule_tick o where o.tick < now_at - interval '30 days' limit 50000));
  get diagnostics amount = row_count;
  forgotten := forgotten + amount;
  return forgotten;
end
$$;
comment on function holdfast.forget_leftovers(timestamptz) is
  'Delete old ids, the tombstones of workers, old ticks, and rows of jobs that are no longer live. Returns '
  'how many.';
