-- The slow duty: make and drop partitions, forget old ids and tombstones, remove orphans, check
-- heads. Return how many things were done.
--
-- It reads many rows, most of all while a session holds an old snapshot, and many workers call it. So it
-- rests if the last run ended less than `rest` ago, or less than twenty times as long ago as it
-- took, up to a quarter of an hour. The search behind the heads hardly ever finds anything and
-- reads everything done since that snapshot. So it rests a thousand times as long as it took, up
-- to five minutes.
--
-- The body is long on purpose: it is a list of parts that have nothing in common.
-- holdfast: role worker
create or replace function holdfast.upkeep(rest interval default null)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  done integer := 0;
  amount integer;
  orphans uuid[];
  part text;
  part_begun_at timestamptz;
begin
  perform holdfast.check_isolation('upkeep');
  if not holdfast.try_duty('upkeep') then
    return 0;
  end if;
  if holdfast.rests('upkeep', upkeep.rest, 20, '15 minutes', now_at) then
    return 0;
  end if;
  perform holdfast.note_cluster();

  -- Jobs held by an unknown worker, or by one that left a day ago: no report will come.
  -- recover() has taken back all others. The search goes between the known workers, because with
  -- an old snapshot it would walk over all that these have held. It does not run beside recover(),
  -- which writes to the same workers.
  if holdfast.try_duty('recover') then
    orphans := array(
      select j.id
      from (
        select
          coalesce(lag(w.id) over (order by w.id), '00000000-0000-0000-0000-000000000000') as after,
          w.id as before
        from (select w.id from holdfast.worker w union all select 'ffffffff-ffff-ffff-ffff-ffffffffffff') w
      ) w
      cross join lateral (
        select j.id from holdfast.live j
        where j.state = 'claimed'
          and j.worker_id > w.after
          and j.worker_id < w.before
          and j.claimed_at < now_at - interval '30 seconds'
        limit 50000
        for update skip locked
      ) j
      limit 50000);
    orphans := orphans || array(
      select j.id
      from holdfast.worker w
      cross join lateral (
        select j.id from holdfast.live j where j.state = 'claimed' and j.worker_id = w.id
          limit 50000 for update skip locked
      ) j
      where greatest(w.lost_at, w.left_at) < now_at - interval '1 day'
      limit 50000);
    done := done + holdfast.take_back(orphans, now_at, null);
  end if;

  -- Pending jobs without attempts, because the maximum was lowered: claims skip them. Only jobs
  -- that were tried before can be in this state, so only lanes of returned and suspect jobs are
  -- read.
  orphans := array(
    select j.id
    from holdfast.lane l
    cross join lateral (
      select j.id
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq >= l.safe_head
        and j.attempt >= j.max_attempts
      limit 1000
      for update skip locked
    ) j
    where l.kind <> 0);
  if cardinality(orphans) > 0 then
    done := done + coalesce(holdfast.end_jobs_without_attempts(orphans, now_at), 0);
  end if;

  -- An id stays known for 7 days, and as long as its job lives.
  delete from holdfast.used_id u
  where u.id in (
    select o.id from holdfast.used_id o
    where o.used_at < now_at - interval '7 days'
      and not exists (select from holdfast.live j where j.id = o.id offset 0)
    limit 50000);
  get diagnostics amount = row_count;
  done := done + amount;

  delete from holdfast.worker w
  where greatest(w.lost_at, w.left_at) < now_at - interval '1 day'
    and not exists (select from holdfast.live j where j.worker_id = w.id and j.state = 'claimed' offset 0);
  get diagnostics amount = row_count;
  done := done + amount;

  -- A handler that finished its job in its own transaction may have left these behind.
  delete from holdfast.running r
  where r.changed_at < now_at - interval '1 minute'
    and not exists (select from holdfast.live j where j.id = r.job_id and j.lease = r.lease offset 0);
  get diagnostics amount = row_count;
  done := done + amount;

  delete from holdfast.cancellation c
  where not exists (select from holdfast.live j where j.id = c.job_id and j.lease = c.lease offset 0);
  get diagnostics amount = row_count;
  done := done + amount;

  delete from holdfast.death d
  where not exists (select from holdfast.live j where j.id = d.job_id offset 0);
  get diagnostics amount = row_count;
  done := done + amount;

  delete from holdfast.schedule_tick t
  where t.ctid = any(array(
    select o.ctid from holdfast.schedule_tick o where o.tick < now_at - interval '30 days' limit 50000));
  get diagnostics amount = row_count;
  done := done + amount;

  -- A part that fails stops no other, and undoes nothing of the above.
  foreach part in array '{
    sweep,forget_finished,forget_stats,check_heads,settle_lanes,make_partitions,drop_partitions,retire_lanes
  }'::text[] loop
    continue when part = 'check_heads' and holdfast.rests(part, upkeep.rest, 1000, '5 minutes', now_at);
    continue when part = 'retire_lanes' and holdfast.rests(part, upkeep.rest, 100, '15 minutes', now_at);
    begin
      part_begun_at := holdfast.clock();
      done := done + case part
        -- A worker has a duty of its own for sweeping, so this is for cron. Only one sweeps at a time.
        when 'sweep' then case when holdfast.try_duty('sweep')
          then holdfast.sweep_partitions(now_at) + holdfast.forget_dead(now_at) else 0 end
        when 'forget_finished' then holdfast.forget_finished(now_at)
        when 'forget_stats' then holdfast.forget_stats(now_at)
        when 'check_heads' then holdfast.check_heads()
        when 'retire_lanes' then holdfast.retire_lanes(now_at)
        when 'settle_lanes' then holdfast.settle_lanes()
        when 'make_partitions'
          then holdfast.make_partitions(now_at, 'finished') + holdfast.make_partitions(now_at, 'event')
        when 'drop_partitions'
          then holdfast.drop_partitions(now_at, 'finished') + holdfast.drop_partitions(now_at, 'event')
      end;
      if part = 'retire_lanes' then
        perform holdfast.note_look(part, part_begun_at);
      end if;
    exception when others then
      perform holdfast.note_duty('upkeep', format('%s: %s', part, sqlerrm));
    end;
  end loop;
  perform holdfast.note_look('upkeep', now_at);
  perform holdfast.note_done('upkeep', now_at);
  return done;
end
$$;
comment on function holdfast.upkeep(interval) is
  'Make and drop partitions, forget old ids and tombstones, remove orphans, and check the heads. Does '
  'nothing if the last upkeep ended less than a rest ago.';
