-- Decide whether a worker may take a suspect: it runs one at a time until that one is cleared.

create or replace function holdfast.start_suspect(
  worker uuid, lease uuid, lanes integer[], now_at timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.running (job_id, lease, started_at, changed_at)
  select j.id, j.lease, now_at, now_at
  from holdfast.live j
  where j.worker_id = start_suspect.worker
    and j.state = 'claimed'
    and j.lease = start_suspect.lease
    and j.lane_id = any(lanes)
  on conflict (job_id) do update
    set lease = excluded.lease, started_at = excluded.started_at, changed_at = excluded.changed_at,
      deadline_at = null, progress = null, stage = null, message = null, step = null, published = 0
$$;
comment on function holdfast.start_suspect(uuid, uuid, integer[], timestamptz) is
  'Record the start of the suspect that was claimed under this lease.';

-- An uncleared suspect may still kill its worker. A suspect is cleared when it has run clearly
-- longer than at any death so far. Without this, twenty innocent jobs of an hour each would run
-- one after the other.
create or replace function holdfast.has_uncleared_suspect(worker uuid, now_at timestamptz)
returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select
    from holdfast.live j
    join holdfast.lane l on l.id = j.lane_id
    left join lateral (select d.longest from holdfast.death d where d.job_id = j.id offset 0) d on true
    where j.worker_id = has_uncleared_suspect.worker
      and j.state = 'claimed'
      and l.kind = 2
      and now_at - j.claimed_at < holdfast.clearing_time(d.longest)
  )
$$;
comment on function holdfast.has_uncleared_suspect(uuid, timestamptz) is
  'Return whether this worker holds a suspect that has not run long enough to be cleared.';

create or replace function holdfast.clearing_time(longest interval)
returns interval
language sql immutable
as $$
  select greatest(interval '5 seconds', 2 * clearing_time.longest)
$$;
comment on function holdfast.clearing_time(interval) is
  'Return how long a suspect must run to be cleared, given how long it had run at a death.';

-- Two claims of one worker must not both take a suspect, so they wait for each other at the
-- worker's row. The update also records that the worker is alive now. If it dies later,
-- recover() sees that the suspects it holds had been cleared.
create or replace function holdfast.may_take_suspect(worker uuid, now_at timestamptz)
returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if holdfast.has_uncleared_suspect(may_take_suspect.worker, now_at) then
    return false;
  end if;
  update holdfast.worker w
  set heartbeat_at = greatest(w.heartbeat_at, now_at)
  where w.id = may_take_suspect.worker
    and w.lost_at is null
    and w.left_at is null;
  return found and not holdfast.has_uncleared_suspect(may_take_suspect.worker, now_at);
end
$$;
comment on function holdfast.may_take_suspect(uuid, timestamptz) is
  'Return whether a worker may take a suspect now: it may if its last suspect is cleared.';
