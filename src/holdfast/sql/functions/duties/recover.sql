-- holdfast: after replace
-- Take back the jobs of workers that are not provably alive; returns how many.
--
-- A worker is lost when it has sent no heartbeat for its lease time *while recover()
-- was looking*. After an outage no worker is lost, because a 40 s outage would otherwise
-- declare every live worker dead. A worker gets a whole lease from now if the last look
-- lies in the future, or is longer ago than usual by half the worker's lease.
--
-- The usual interval is the shorter of the last two, so cron may also look once a
-- minute. An outage can hide in intervals as long as that, so a worker must also have
-- been silent for two of them.
--
-- With a timeout given by hand there is no such grace: the caller knows.
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
    -- Soon after a crash, so that another crash does not count as the same one.
    perform holdfast.note_cluster();
    heard_before := holdfast.look(now_at);
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
  'Returns how '
  'many. With also_fold, which workers of 0.2 rely on, fold statistics too, as fold_stats() does.';
select holdfast.replace_function('holdfast.recover(interval)', 'holdfast.recover(interval, boolean)');

-- Note a look at the workers. Give a new lease to those whose silence may only mean that
-- no look took place. Returns the time of the look before the last: workers heard of since are
-- alive.
create or replace function holdfast.look(now_at timestamptz)
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
      -- Only workers that this gap between looks would condemn.
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
comment on function holdfast.look(timestamptz) is
  'Record a look at the workers, and give a new lease to workers whose silence may only mean that nobody '
  'looked. Returns the time of the look before the last.';

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
  'Take back the jobs that lost or departed workers hold, also those of claims that were under way. Returns'
  ' how many.';

-- Take held jobs away from their workers; returns how many. The caller has locked them.
-- Without a reason, their workers were lost, and who_pays() decides about the attempts.
-- With a reason, such as a timeout, each started job is charged.
--
-- A job that was asked to cancel is cancelled. A job that pays with its last attempt is
-- dead. All others go back to the queue as suspects.
--
-- The body is long on purpose: it decides for each kind of job which ones are charged.
create or replace function holdfast.take_back(ids uuid[], now_at timestamptz, reason text)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  -- The jobs that had started: those that pay with their attempt, and those that do not.
  started record;
  charged uuid[];
  spared uuid[];
  -- Sort the jobs by their next state. Those in `waiting` go back to the queue.
  dead uuid[];
  cancelled uuid[];
  waiting uuid[];
begin
  if cardinality(ids) = 0 then
    return 0;
  end if;

  select
    coalesce(array_agg(s.id), '{}') as ids,
    coalesce(array_agg(s.id) filter (where s.pays), '{}') as charged,
    coalesce(array_agg(s.id) filter (where s.ends), '{}') as ended,
    coalesce(array_agg(s.id) filter (where not s.pays), '{}') as spared,
    array_agg(s.deaths) as deaths,
    array_agg(s.ran) as ran
  into started
  from holdfast.who_pays(ids, now_at, take_back.reason) s;
  charged := started.charged;
  spared := started.spared;

  insert into holdfast.attempt_error (job_id, attempt, failed_at, worker_id, error)
  select j.id, j.attempt, now_at, j.worker_id,
    coalesce(
      take_back.reason,
      format(
        'lost: worker %s (%s) died or was cut off while it ran this job', j.worker_id,
        coalesce(w.name, 'unknown')))
  from holdfast.live j
  left join holdfast.worker w on w.id = j.worker_id
  where j.id = any(charged);
  -- How long they ran is not known. Jobs that were asked to cancel are no failures.
  perform holdfast.note_ends(
    'failed', array_agg(j.lane_id),
    array_agg(date_part('epoch', j.claimed_at - greatest(j.run_at, j.created_at))), null, now_at)
  from holdfast.live j
  where j.id = any(charged)
    and j.cancel_requested_at is null
  having count(*) > 0;

  -- Skip locked workers: a worker that is leaving may be waiting for these jobs.
  update holdfast.worker w
  set recovered = w.recovered + n.jobs
  from (
    select j.worker_id, count(*)::integer as jobs from holdfast.live j where j.id = any(ids)
    group by j.worker_id) n
  where w.id = n.worker_id
    and w.id in (
      select s.id from holdfast.worker s
      where s.id in (select j.worker_id from holdfast.live j where j.id = any(ids))
      for update skip locked);

  -- Replace the lease by an unknown one. Reports of the old holder are then refused
  -- as lost, wherever the job goes from here.
  update holdfast.live j
  set
    lease = gen_random_uuid(),
    last_error = case
      when j.id = any(charged)
        then coalesce(take_back.reason, 'lost: its worker died or was cut off while it ran')
      else j.last_error
    end
  where j.id = any(ids);

  cancelled := array(
    select j.id from holdfast.live j where j.id = any(ids) and j.cancel_requested_at is not null);
  dead := array(
    select j.id from holdfast.live j
    where j.id = any(charged) and (j.attempt >= j.max_attempts or j.id = any(started.ended))
      and j.cancel_requested_at is null);
  waiting := array(select i from unnest(ids) i where i <> all(cancelled || dead));
  perform holdfast.end_jobs('cancelled', cancelled, null, now_at);
  perform holdfast.end_jobs('dead', dead, null, now_at);
  if take_back.reason is null then
    insert into holdfast.death as d (job_id, deaths, longest)
    select s.id, s.deaths, s.ran
    from unnest(started.ids, started.deaths, started.ran) s (id, deaths, ran)
    where s.id = any(waiting)
    order by s.id
    on conflict (job_id) do update
      set deaths = excluded.deaths, longest = greatest(d.longest, excluded.longest);
  end if;
  perform holdfast.log_live(
    waiting, 'job.recovered',
    array(
      select jsonb_strip_nulls(jsonb_build_object(
        'worker', j.worker_id, 'started', x.job_id is not null, 'reason', take_back.reason, 'deaths',
          d.deaths,
        'progress', x.progress, 'stage', x.stage, 'step', x.step))
      from unnest(waiting) with ordinality i (id, n)
      left join lateral (select j.worker_id from holdfast.live j where j.id = i.id offset 0) j on true
      left join lateral (select x.* from holdfast.running x where x.job_id = i.id offset 0) x on true
      left join lateral (select d.deaths from holdfast.death d where d.job_id = i.id offset 0) d on true
      order by i.n),
    now_at);
  -- A started job whose attempt is refunded may have kept steps or a checkpoint. The number of
  -- its next attempt does not show that, so a header tells the worker to load them.
  update holdfast.live j
  set headers = coalesce(j.headers, '{}') || '{"resumes": true}'
  where j.id = any(spared);
  -- As suspects (kind 2). All that do not pay get their attempt back.
  perform holdfast.put_back(
    waiting, null, array(select i from unnest(waiting) i where i <> all(charged)), 2, now_at);
  delete from holdfast.running x where x.job_id = any(ids);
  return cardinality(ids);
end
$$;
comment on function holdfast.take_back(uuid[], timestamptz, text) is
  'Take held jobs away from their workers: back to the queue, to the dead letters, or cancelled.';

-- Decide which started jobs pay with their attempt for the death of their worker, and which
-- of those end. Jobs that had not started are left out: they get their attempt back.
--
-- - A worker holds at most one suspect that is not cleared: claim() sees to that. If it
--   holds one, that job pays.
-- - Otherwise no job pays: any of the jobs may be the culprit. All become suspects.
-- - Deaths are counted per job, because a culprit may be cleared each time before it kills.
--   A job with more deaths than max_attempts pays and ends, unless another suspect pays.
-- - A job that must not run twice (`once`) pays and ends at its first death, and also when it
--   is taken back for a reason.
-- - With a reason, every job pays, and no deaths are counted.
--
-- When the worker died is not known, only when it was last alive. A suspect is cleared if it
-- was so by then. `ran` is the longest time that the job may have run before the death.
create or replace function holdfast.who_pays(ids uuid[], now_at timestamptz, reason text)
returns table (id uuid, pays boolean, ends boolean, deaths integer, ran interval)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with held as (
    select
      j.id, j.worker_id, j.claimed_at, j.max_attempts, x.job_id is not null as started,
        coalesce(x.once, false) as once,
      l.kind = 2 as suspect, d.longest, w.lease_time,
      -- This death is one more. A suspect without a count has been through one: it was held
      -- then, but its start was not on record.
      1 + coalesce(d.deaths, case when l.kind = 2 then 1 else 0 end) as deaths,
      max(greatest(w.heartbeat_at, j.claimed_at, x.changed_at)) over (partition by j.worker_id) as alive_at
    from holdfast.live j
    join holdfast.lane l on l.id = j.lane_id
    left join holdfast.worker w on w.id = j.worker_id
    left join lateral (
      select x.* from holdfast.running x where x.job_id = j.id and x.lease = j.lease offset 0) x on true
    left join lateral (select d.* from holdfast.death d where d.job_id = j.id offset 0) d on true
    where j.id = any(ids)
  ),
  seen as (
    select h.*, h.suspect and h.started
      and h.alive_at - h.claimed_at < holdfast.clearing_time(h.longest) as uncleared
    from held h
  ),
  judged as (
    select
      s.*,
      s.once or (
        who_pays.reason is null
        and s.deaths > s.max_attempts
        and (
          s.uncleared
          or not bool_or(s.uncleared) over (partition by s.worker_id)
            -- A suspect that another transaction has locked is judged later, and pays then.
            and not exists (
              select
              from holdfast.live j
              join holdfast.lane l on l.id = j.lane_id
              left join lateral (select d.longest from holdfast.death d where d.job_id = j.id offset 0) d
                on true
              where j.worker_id = s.worker_id
                and j.state = 'claimed'
                and l.kind = 2
                and j.id <> all(ids)
                and s.alive_at - j.claimed_at < holdfast.clearing_time(d.longest))
        )
      ) as ends
    from seen s
  )
  select
    g.id, g.ends or g.uncleared or who_pays.reason is not null, g.ends, g.deaths,
    -- The worker may have lived for two more heartbeats, each a sixth of the lease time.
    least(now_at, g.alive_at + coalesce(g.lease_time, interval '30 seconds') / 3) - g.claimed_at
  from judged g
  where g.started
$$;
comment on function holdfast.who_pays(uuid[], timestamptz, text) is
  'Decide which started jobs pay for the death of their worker and which end; with the number of deaths and'
  ' how long each job may have run.';
