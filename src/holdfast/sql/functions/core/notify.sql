-- holdfast: after lanes_at_work
-- Wake workers. NOTIFY takes a database-wide lock at commit. So it is sent only if a live
-- worker sleeps that serves the queue and task (in READ COMMITTED; otherwise always), and
-- never while the notification queue is half full. It is a hint: polling finds the jobs that it misses.

-- Return the channel of a queue: `holdfast_` and its name, or the beginning of its SHA-256 if
-- that would be longer than the 63 bytes of a channel. A consumer that serves every queue listens
-- on holdfast.channel('*'). A worker with a channel of its own listens there and on holdfast.channel('+').
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
  'name of a queue, or empty if only the time of a schedule or of a job has changed.';

-- Workers that sleep and want to be woken, except those that are silent for their lease time
-- but not yet declared lost.
create or replace view holdfast.sleeper as
select w.id, w.queues, w.tasks, w.above, w.channel, w.lease_time, w.heartbeat_at
from holdfast.worker w
where w.asleep
  and w.lost_at is null
  and w.left_at is null
  and w.heartbeat_at + w.lease_time > holdfast.clock();
comment on view holdfast.sleeper is
  'Live workers that want to be notified: sleeping ones of all jobs, busy ones of jobs above a priority.';

-- An older snapshot shows the workers that slept when it began. Then all workers are woken.
create or replace function holdfast.sees_sleepers()
returns boolean
language sql stable
as $$
  select current_setting('transaction_isolation') = 'read committed'
$$;
comment on function holdfast.sees_sleepers() is
  'Return whether this transaction sees which workers sleep now.';

-- Wake workers that wait for jobs of a task: one more than there are jobs, and at least two. The order is
-- random, so that one job does not wake a whole fleet for nothing. Busy workers come after idle ones. Workers
-- without a heartbeat for a quarter of their lease time come last, because they may be dead. If all that were
-- woken are dead, wake_missed() finds the job within seconds. A worker without a free slot passes the wake-up
-- on: see pass_on().
--
-- Workers without a channel of their own are woken together, on the channels of queues.
--
-- No jobs means that a job was scheduled for later. A worker with a channel of its own then gets an empty
-- payload: it need not claim, but look when the next job is due.
--
-- `set holdfast.notify = off` keeps a session silent for two-phase transactions, because PREPARE
-- refuses a transaction with a NOTIFY.
create or replace function holdfast.wake(queue text, task text, priority integer, jobs bigint)
returns void
language plpgsql volatile
as $$
declare
  chosen record;
  woken bigint := 0;
begin
  if current_setting('holdfast.notify', true) = 'off' or pg_notification_queue_usage() >= 0.5 then
    return;
  end if;
  if not holdfast.sees_sleepers() then
    perform pg_notify(
      holdfast.channel(c.name), case when c.name = '+' and wake.jobs = 0 then '' else wake.queue end)
    from unnest(array[wake.queue, '*', '+']) c (name);
    return;
  end if;
  -- A plain scan and a sort: every job that comes alone waits for this. Workers without a channel of their
  -- own come first, and do not count.
  for chosen in
    select s.channel, s.queues is null as of_all
    from holdfast.sleeper s
    where (s.queues is null or wake.queue = any(s.queues))
      and (s.tasks is null or wake.task = any(s.tasks))
      and (s.above is null or wake.priority > s.above)
    order by
      s.channel is not null,
      s.heartbeat_at < holdfast.clock() - s.lease_time / 4,
      s.above is not null,
      random()
  loop
    if chosen.channel is null then -- PostgreSQL sends the same notification once
      perform pg_notify(holdfast.channel(case when chosen.of_all then '*' else wake.queue end), wake.queue);
    else
      exit when woken > greatest(wake.jobs, 1);
      woken := woken + 1;
      perform pg_notify(chosen.channel, case when wake.jobs = 0 then '' else wake.queue end);
    end if;
  end loop;
end
$$;
comment on function holdfast.wake(text, text, integer, bigint) is
  'Notify workers that sleep for jobs of this queue, task and priority: one more than there are jobs.';

-- If no worker sleeps, no lane is looked at.
create or replace function holdfast.wake_lanes(lanes integer[], jobs bigint)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.wake(l.queue, l.task, l.priority, wake_lanes.jobs)
  from holdfast.lane l
  where l.id = any(lanes)
    and (exists (select from holdfast.worker w where w.asleep) or not holdfast.sees_sleepers())
$$;
comment on function holdfast.wake_lanes(integer[], bigint) is
  'Notify workers that sleep for these lanes: for each lane one more than there are jobs.';

-- A notification may reach nobody: the worker has died, or the session that enqueued sends none. So
-- do_duties() looks for lanes with jobs that a sleeping worker serves. A woken worker that cannot have
-- these jobs falls asleep again. It claims from all its lanes, so ten lanes are enough for workers that serve
-- the same: 10,000 lanes with jobs would take 1.4 s.
create or replace function holdfast.wake_missed()
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
  select holdfast.wake_lanes(array_agg(distinct l.id), 1)
  from (
    -- Apart, because lanes_at_work() is not inlined if an argument is volatile.
    select s.queues, coalesce(s.tasks, holdfast.tasks_of(s.queues)) as tasks
    from (select distinct s.queues, s.tasks from holdfast.sleeper s where s.above is null) s
    offset 0
  ) s
  cross join lateral (select l.id from holdfast.lanes_at_work(s.queues, s.tasks, null) l limit 10) l
  having count(*) > 0
$$;
comment on function holdfast.wake_missed() is
  'Wake workers that sleep although there is work for them.';

-- A worker that was woken but has no free slot wakes others instead. It must have called sleep() with `above`
-- before, so that it is not chosen itself.
-- holdfast: role worker
create or replace function holdfast.pass_on(worker uuid)
returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
  select holdfast.wake_lanes(array_agg(l.id), 1)
  from (
    select w.queues, coalesce(w.tasks, holdfast.tasks_of(w.queues)) as tasks
    from holdfast.worker w
    where w.id = pass_on.worker
    offset 0
  ) w
  cross join lateral (select l.id from holdfast.lanes_at_work(w.queues, w.tasks, null) l limit 100) l
  having count(*) > 0
$$;
comment on function holdfast.pass_on(uuid) is
  'Wake other workers for the jobs that a woken worker has no free slot for.';
