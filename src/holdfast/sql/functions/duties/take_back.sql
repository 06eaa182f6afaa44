-- Take held jobs away from their workers; returns how many. The caller has locked them.
-- Without a reason, their workers were lost, and decide_charges() decides about the attempts.
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
  from holdfast.decide_charges(ids, now_at, take_back.reason) s;
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
  -- It is not known how long they ran. A job that was asked to cancel does not count as a failure.
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
        d.deaths, 'progress', x.progress, 'stage', x.stage, 'step', x.step))
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
  -- The jobs return as suspects (kind 2). Those that do not pay get their attempt back.
  perform holdfast.return_jobs(
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
-- It is not known when the worker died, only when it was last alive. A suspect counts as cleared if
-- it was cleared by that time. `ran` is the longest time that the job may have run before the death.
create or replace function holdfast.decide_charges(ids uuid[], now_at timestamptz, reason text)
returns table (id uuid, pays boolean, ends boolean, deaths integer, ran interval)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with held as (
    select
      j.id, j.worker_id, j.claimed_at, j.max_attempts, x.job_id is not null as started,
      coalesce(x.once, false) as once, l.kind = 2 as suspect, d.longest, w.lease_time,
      -- Count this death too. A suspect without a count was held during an earlier death, but its
      -- start was not on record.
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
        decide_charges.reason is null
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
    g.id, g.ends or g.uncleared or decide_charges.reason is not null, g.ends, g.deaths,
    -- The worker may have lived for two more heartbeats, each a sixth of the lease time.
    least(now_at, g.alive_at + coalesce(g.lease_time, interval '30 seconds') / 3) - g.claimed_at
  from judged g
  where g.started
$$;
comment on function holdfast.decide_charges(uuid[], timestamptz, text) is
  'Decide which started jobs pay for the death of their worker and which end; with the number of deaths and '
  'how long each job may have run.';
