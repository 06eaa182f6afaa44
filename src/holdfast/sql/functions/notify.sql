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

-- Wake the sleepers for jobs of a task. `set holdfast.notify = off` keeps a
-- session silent, for two-phase transactions: PREPARE refuses after NOTIFY.
create or replace function holdfast.wake(queue text, task text)
returns void
language plpgsql volatile
as $$
declare
  every_queue boolean;
begin
  for every_queue in
    select distinct w.queues is null
    from holdfast.worker w
    where w.asleep
      and w.lost_at is null
      and w.left_at is null
      -- Not for one that was killed in its sleep and is not yet declared lost.
      and w.heartbeat_at + w.lease_time > holdfast.clock()
      and (w.queues is null or wake.queue = any(w.queues))
      and (w.tasks is null or wake.task = any(w.tasks))
  loop
    if current_setting('holdfast.notify', true) is distinct from 'off' and pg_notification_queue_usage() < 0.5 then
      perform pg_notify(holdfast.channel(case when every_queue then '*' else wake.queue end), wake.queue);
    end if;
  end loop;
end
$$;
comment on function holdfast.wake(text, text) is 'Notify the live sleepers that serve this queue and task.';

drop function if exists holdfast.wake(integer[]); -- as it was called in 0.1

create or replace function holdfast.wake_lanes(lanes integer[])
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.wake(l.queue, l.task)
  from (select distinct l.queue, l.task from holdfast.lane l where l.id = any(lanes)) l
$$;
comment on function holdfast.wake_lanes(integer[]) is 'Notify the live sleepers that serve these lanes.';
