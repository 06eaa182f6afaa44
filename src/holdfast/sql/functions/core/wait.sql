-- Wait for the end of a job without polling for it.
--
-- A waiting session stores a channel for the job, commits, checks whether the job has ended
-- already, and listens. A session that ends a job looks for waiting channels. If its
-- transaction is open while the channel is stored, it cannot see the channel. So the waiting
-- session checks again several times, and then every five seconds.

-- holdfast: role producer operator
create or replace function holdfast.await_jobs(ids uuid[], channel text)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if await_jobs.channel is null or await_jobs.channel !~ '^[a-z0-9_]{1,63}$' then
    perform holdfast.refuse_value(
      'channel', await_jobs.channel, 'must have 1 to 63 characters out of a-z, 0-9 and "_"');
  end if;
  if cardinality(ids) > 10000 then
    perform holdfast.refuse_value(
      'ids', cardinality(ids) || ' ids', 'may be 10000 at most: wait for the others in another call');
  end if;
  -- Skip jobs in queues that the caller may not use.
  insert into holdfast.waiter (job_id, channel, since)
  select distinct i, await_jobs.channel, holdfast.clock()
  from unnest(holdfast.jobs_in_reach(ids)) i
  order by i
  on conflict (job_id, channel) do nothing;
end
$$;
comment on function holdfast.await_jobs(uuid[], text) is
  'Ask for a notification on a channel when these jobs end, up to 10000 jobs in a call. The payload of a '
  'notification is the ids of up to 200 of them, separated by commas.';

-- holdfast: role producer operator
create or replace function holdfast.await_no_more(ids uuid[], channel text)
returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  delete from holdfast.waiter w
  where w.job_id = any(ids)
    and w.channel = await_no_more.channel
$$;
comment on function holdfast.await_no_more(uuid[], text) is
  'Stop notifying a channel about these jobs.';

-- Jobs that have not ended are left out. A job that does not exist any more has a null state.
-- holdfast: role producer viewer
create or replace function holdfast.ends(ids uuid[])
returns table (id uuid, task text, state text, result jsonb, error text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
  select
    i.id, e.task, e.state,
    -- Producers, workers and the owner get the result unmasked. All others get it masked.
    case when me.gets_all then e.result else holdfast.as_seen(e.result, e.queue, e.payload, me.in_full) end,
    holdfast.text_as_seen(e.last_error, e.queue, e.payload, me.in_full)
  from (select distinct i as id from unnest(ids) i) i
  left join lateral (
    select f.task, f.state, f.result, f.last_error, f.finished_at, f.queue, f.payload from holdfast.finished f
      where f.id = i.id
    union all
    select d.task, 'dead', null, d.last_error, d.died_at, d.queue, d.payload from holdfast.dead_letter d
      where d.id = i.id
    order by finished_at desc -- an id may be used again: the latest job counts
    limit 1
  ) e on ((select holdfast.unrestricted()) or holdfast.in_reach(e.queue))
  cross join (
    select
      holdfast.sees_payloads() as in_full,
      holdfast.is_owner(c.role) or holdfast.acts_as(c.role, 'holdfast_producer')
        or holdfast.acts_as(c.role, 'holdfast_worker') as gets_all
    from holdfast.caller() c (role)
    offset 0
  ) me
  where not exists (select from holdfast.live j where j.id = i.id offset 0)
$$;
comment on function holdfast.ends(uuid[]) is
  'Return the state, result and last error of each of these jobs that has ended. The state is null if a job '
  'does not exist.';

-- Notify the channels that wait for these jobs.
create or replace function holdfast.tell_waiters(ids uuid[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if current_setting('holdfast.notify', true) is not distinct from 'off'
    or pg_notification_queue_usage() >= 0.5 then
    return; -- the waiting sessions check by themselves
  end if;
  perform pg_notify(t.channel, t.payload)
  from (
    select n.channel, string_agg(n.id, ',') as payload
    from (
      select w.channel, w.job_id::text as id, (row_number() over (partition by w.channel) - 1) / 200 as part
      from holdfast.waiter w
      where w.job_id = any(ids)
    ) n
    group by n.channel, n.part -- a payload holds 200 ids
  ) t;
end
$$;
comment on function holdfast.tell_waiters(uuid[]) is
  'Notify the sessions that wait for the end of these jobs.';
