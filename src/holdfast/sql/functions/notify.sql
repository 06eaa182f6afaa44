-- Waking up. NOTIFY takes a database-wide lock at commit, so it is sent only
-- when a live worker sleeps that serves the queue and task, and never when the
-- notification queue fills up. It is a hint: the poll finds what it misses.

-- The channel of a queue: its name behind `holdfast_`, or the beginning of its
-- SHA-256 where that would be longer than the 63 bytes a channel may have. A
-- consumer of every queue listens on holdfast.channel('*').
create or replace function holdfast.channel(queue text)
returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
  select case
    when length(queue) <= 54 then 'holdfast_' || queue
    else 'holdfast_' || left(encode(sha256(queue::bytea), 'hex'), 32)
  end
$$;
comment on function holdfast.channel(text) is
  'The channel to LISTEN on for a queue, or for all of them (*); the payload of a notification is the name of the queue.';

-- Wake the sleepers for jobs in these lanes. `set holdfast.notify = off` keeps
-- a session silent, for two-phase transactions: PREPARE refuses after NOTIFY.
create or replace function holdfast.wake(lanes integer[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  now_at timestamptz := holdfast.clock();
  sleeping record;
begin
  if current_setting('holdfast.notify', true) = 'off' then
    return;
  end if;
  for sleeping in
    select distinct l.queue, w.queues is null as every_queue
    from holdfast.lane l
    join holdfast.worker w
      on w.asleep
      and w.lost_at is null
      and w.left_at is null
      -- Not for one that was killed in its sleep and is not yet declared lost.
      and w.heartbeat_at + w.lease_time > now_at
      and (w.queues is null or l.queue = any(w.queues))
      and (w.tasks is null or l.task = any(w.tasks))
    where l.id = any(lanes)
  loop
    if pg_notification_queue_usage() < 0.5 then
      perform pg_notify(holdfast.channel(case when sleeping.every_queue then '*' else sleeping.queue end), sleeping.queue);
    end if;
  end loop;
end
$$;
comment on function holdfast.wake(integer[]) is 'Notify the queues of these lanes that have a live sleeper.';
