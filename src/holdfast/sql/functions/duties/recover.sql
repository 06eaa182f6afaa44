-- holdfast: after replace
-- Take back the jobs of workers that are not provably alive; returns how many.
--
-- A worker is lost when it has sent no heartbeat for its lease time *while recover()
-- was looking*. After an outage no worker is lost, because a 40 s outage would otherwise
-- declare every live worker dead. A worker gets a whole lease time from now if the last look
-- lies in the future, or is longer ago than usual by half the worker's lease time.
--
-- The usual interval is the shorter of the last two between looks, so cron may also look once a
-- minute. An outage within such a long interval goes unnoticed, so a worker must also have been
-- silent for two intervals.
--
-- A timeout given by hand replaces the lease time, and there is no such grace.
--
-- take_back() decides which jobs pay for the death of a worker.
--
-- Workers of 0.2 call recover() and expect it to fold statistics. `also_fold` can go in 0.5,
-- two releases later.
--
-- Lock order: rows of `worker`, then of `live`. Locked jobs are skipped: a
-- report on them is under way, and the next look comes soon.
-- holdfast: role worker operator
create or replace function holdfast.recover(timeout interval default null, also_fold boolean default true)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  begun constant timestamptz := clock_timestamp();
  heard_before timestamptz;
  total integer;
begin
  perform holdfast.check_isolation('recover');
  if recover.timeout < interval '0' then
    perform holdfast.refuse_value('timeout', recover.timeout::text, 'must not be negative');
  end if;
  if recover.timeout is not null then
    perform holdfast.await_duty('recover');
    now_at := holdfast.clock();
    update holdfast.worker w
    set lost_at = now_at, asleep = false
    where w.lost_at is null
      and w.left_at is null
      and w.heartbeat_at + recover.timeout < now_at;
  elsif holdfast.try_duty('recover') then
    -- Note a crash of the server soon, so that the next crash is counted separately.
    perform holdfast.note_cluster();
    heard_before := holdfast.look_at_workers(now_at);
    update holdfast.worker w
    set lost_at = now_at, asleep = false
    where w.id in (
      select s.id
      from holdfast.worker s
      where s.lost_at is null
        and s.left_at is null
        and greatest(s.heartbeat_at, s.graced_at) + s.lease_time < now_at
        and s.heartbeat_at < heard_before
      -- A locked worker is sending a heartbeat.
      for update skip locked);
  else
    return 0;
  end if;

  -- By hand, take back everything. As a duty, stop after a second and continue at the next look.
  total := holdfast.look_after_gone(
    now_at, case when recover.timeout is null then begun + interval '1 second' else 'infinity' end);
  -- A worker ends handlers that run too long. If it hangs, its heartbeats may continue, so
  -- the deadline is enforced here, a little later.
  total := total + holdfast.take_back(
    array(
      select j.id
      from holdfast.running x
      cross join lateral (
        select j.id from holdfast.live j where j.id = x.job_id and j.lease = x.lease for update skip locked
      ) j
      where x.deadline_at < now_at - interval '5 seconds'
      limit 5000),
    now_at,
    'timed out: it ran longer than its timeout, and its worker did not stop it');
  -- If jobs were taken back, do not fold statistics: other sessions wait for the commit.
  if recover.also_fold and recover.timeout is null and total = 0 then
    begin
      perform holdfast.fold_stats(false);
    exception when others then
      perform holdfast.note_duty('fold_stats', sqlerrm);
    end;
  end if;
  return total;
end
$$;
comment on function holdfast.recover(interval, boolean) is
  'Take back the jobs of workers that were silent for their lease time, or for a timeout given by hand. '
  'Returns how many. With also_fold, which workers of 0.2 rely on, fold statistics too, as fold_stats() '
  'does.';
select holdfast.replace_function('holdfast.recover(interval)', 'holdfast.recover(interval, boolean)');

-- Record a look at the workers. Give a new lease time to those whose silence may come from an
-- outage, in which no look took place either. Returns the time of the look before the last: a
-- worker with a later heartbeat is alive.
create or replace function holdfast.look_at_workers(now_at timestamptz)
returns timestamptz
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  looks timestamptz[];
  usual interval;
begin
  select d.looks into looks from holdfast.duty d where d.name = 'recover';
  usual := coalesce(least(looks[1] - looks[2], looks[2] - looks[3]), interval '0');
  -- If the clock was set back, a heartbeat may lie in the future. A dead worker would count as
  -- alive until then.
  update holdfast.worker w
  set graced_at = now_at, heartbeat_at = least(w.heartbeat_at, now_at)
  where w.id in (
    select s.id
    from holdfast.worker s
    where s.lost_at is null
      and s.left_at is null
      -- Only if the gap since the last look is too long for the lease time of this worker.
      and (looks[1] is null or looks[1] > now_at or now_at - looks[1] > usual + s.lease_time / 2)
    -- A locked worker is alive. Skip it: a claim may stay open for long and would block every look.
    for update skip locked);
  insert into holdfast.duty (name, looks)
  values ('recover', array[now_at])
  on conflict (name) do update
    set looks = (excluded.looks || duty.looks)[1:3];
  return looks[2];
end
$$;
comment on function holdfast.look_at_workers(timestamptz) is
  'Record a look at the workers, and give a new lease time to workers whose silence may come from an outage. '
  'Returns the time of the look before the last.';

-- Take back the jobs that lost or departed workers hold; returns how many. Stop at the time
-- `until`; the next look continues.
--
-- A claim that was under way when its worker was declared lost, or left, may commit later.
-- Looking at every gone worker each time would be slow: while somebody holds an old
-- snapshot, a look walks over all jobs that the worker ever held. But a claim locks `live`
-- before it checks its worker. So once the end of a worker is committed, only the writers
-- open at that time may still bring it jobs. They are noted in `awaits`. Another look is
-- due when one of them has ended, and the last look when all of them have. A transaction
-- that is prepared gets another name, and one more at a restart, so all prepared ones are
-- awaited.
create or replace function holdfast.look_after_gone(now_at timestamptz, until timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  gone uuid[];
  on_record uuid[];
  writers text[];
  looked_at uuid[];
  held record;
  locked uuid[];
  stepped_over uuid[] := '{}';
  unsettled uuid[] := '{}';
  total integer := 0;
begin
  -- Read the gone workers first and the writers second: only this order proves that no other
  -- writer can bring them jobs. An end that this transaction has written is not yet on record
  -- for others.
  select array_agg(w.id), array_agg(w.id) filter (where age(w.xmin) > 0) into gone, on_record
  from holdfast.worker w
  where (w.lost_at is not null or w.left_at is not null)
    and w.awaits is distinct from '{}';
  if gone is null then
    return 0;
  end if;
  writers := holdfast.writers();
  -- A worker that left has given its jobs back itself.
  looked_at := array(
    select w.id from holdfast.worker w
    where w.id = any(gone)
      and case when w.awaits is null then w.left_at is null or writers = '{}'
        else not w.awaits <@ writers end);
  loop
    select coalesce(array_agg(j.id), '{}') as ids, array_agg(j.lease) as leases,
      array_agg(j.worker_id) as workers into held
    from (
      select j.id, j.lease, j.worker_id from holdfast.live j
      where j.state = 'claimed'
        and j.worker_id = any(looked_at)
        and j.id <> all(stepped_over)
      limit 5000
    ) j;
    -- Lock by id: a search by worker would again walk over all jobs that it ever held.
    locked := array(
      select j.id
      from unnest(held.ids, held.leases) h (id, lease)
      cross join lateral (
        select j.id from holdfast.live j where j.id = h.id and j.lease = h.lease for update skip locked
      ) j);
    total := total + holdfast.take_back(locked, now_at, null);
    select stepped_over || array_agg(h.id), unsettled || array_agg(h.worker) into stepped_over, unsettled
    from unnest(held.ids, held.workers) h (id, worker)
    where h.id <> all(locked);
    exit when cardinality(held.ids) < 5000;
    if clock_timestamp() > until then
      return total;
    end if;
  end loop;
  -- Locked workers are skipped here too; there is another look.
  update holdfast.worker w
  set awaits =
    array(select o from unnest(writers) o where w.awaits is null or o = any(w.awaits) or o like 'prepared %')
    -- A name that no writer has: it counts as ended, so another look is due in any case.
    || case when w.id = any(looked_at) then '{}' else '{its end}'::text[] end
  where w.id in (
    select g.id from holdfast.worker g
    where g.id = any(on_record)
      and case when g.id = any(looked_at) then g.id <> all(unsettled) else g.awaits is null end
    for update skip locked);
  return total;
end
$$;
comment on function holdfast.look_after_gone(timestamptz, timestamptz) is
  'Take back the jobs that lost or departed workers hold, including those of claims that were under way. '
  'Returns how many.';
