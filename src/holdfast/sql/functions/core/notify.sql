-- Wake workers. NOTIFY takes a database-wide lock at commit. So it is sent only if a live
-- worker sleeps that serves the queue and task, and never while the notification queue fills
-- up. It is a hint: polling finds the jobs that it misses.

-- Return the channel of a queue: `holdfast_` and its name, or the beginning of its SHA-256 if
-- that would be longer than the 63 bytes of a channel. A worker that serves every queue listens
-- on holdfast.channel('*').
-- holdfast: role worker
create or replace function holdfast.channel(queue text)
returns text
language sql immutable parallel safe
as $$
  select case
    when length(queue) <= 54 then 'holdfast_' || queue
    else 'holdfast_' || left(encode(sha256(queue::bytea), 'hex'), 32)
  end
$$;
comment on function holdfast.channel(text) is
  'Return the channel to LISTEN on for a queue, or for all queues (*). The payload of a notification is the '
  'name of a queue, or empty if a schedule has changed.';

-- Workers that sleep and want to be woken, except those that are silent for their lease time
-- but not yet declared lost.
create or replace view holdfast.sleeper as
select w.id, w.queues, w.tasks, w.above
from holdfast.worker w
where w.asleep
  and w.lost_at is null
  and w.left_at is null
  and w.heartbeat_at + w.lease_time > holdfast.clock();
comment on view holdfast.sleeper is
  'Live workers that want to be notified: sleeping ones of all jobs, busy ones of jobs above a priority.';

-- Return whether workers that serve this queue, or all queues, sleep for jobs of a task. There
-- is no SET clause, so that PostgreSQL inlines the function.
create or replace function holdfast.sleepers(queue text, task text, priority integer)
returns table (of_queue boolean, of_all boolean)
language sql stable
as $$
  select bool_or(s.queues is not null), bool_or(s.queues is null)
  from holdfast.sleeper s
  where (s.queues is null or sleepers.queue = any(s.queues))
    and (s.tasks is null or sleepers.task = any(s.tasks))
    and (s.above is null or sleepers.priority > s.above)
$$;
comment on function holdfast.sleepers(text, text, integer) is
  'Return whether workers sleep for jobs of this queue, task and priority: workers that serve the queue, '
  'and workers that serve all queues.';

-- An older snapshot shows the workers that slept when it began. Then all workers are woken.
create or replace function holdfast.sees_sleepers()
returns boolean
language sql stable
as $$
  select current_setting('transaction_isolation') = 'read committed'
$$;
comment on function holdfast.sees_sleepers() is
  'Return whether this transaction sees which workers sleep now.';

-- Wake the workers that sleep for jobs of a task: those of its queue, those of every queue, or
-- both. `set holdfast.notify = off` keeps a session silent for two-phase transactions, because
-- PREPARE refuses a transaction with a NOTIFY.
create or replace function holdfast.wake(queue text, of_queue boolean, of_all boolean)
returns void
language plpgsql volatile
as $$
begin
  if current_setting('holdfast.notify', true) is distinct from 'off' and pg_notification_queue_usage() < 0.5
    then
    if of_queue or not holdfast.sees_sleepers() then
      perform pg_notify(holdfast.channel(wake.queue), wake.queue);
    end if;
    if of_all or not holdfast.sees_sleepers() then
      perform pg_notify(holdfast.channel('*'), wake.queue);
    end if;
  end if;
end
$$;
comment on function holdfast.wake(text, boolean, boolean) is
  'Notify the workers that sleep for this queue, and those that sleep for all queues.';

create or replace function holdfast.wake_lanes(lanes integer[])
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.wake(l.queue, bool_or(s.of_queue), bool_or(s.of_all))
  from holdfast.lane l
  cross join lateral holdfast.sleepers(l.queue, l.task, l.priority) s
  where l.id = any(lanes)
    and (s.of_queue or s.of_all or not holdfast.sees_sleepers())
  group by l.queue
$$;
comment on function holdfast.wake_lanes(integer[]) is 'Notify the live workers that sleep for these lanes.';
