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
    done := done + coalesce(holdfast.bury_spent(orphans, now_at), 0);
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

-- Return whether a duty rests: for the rest that it is given, and for a multiple of the time that
-- it took, up to a maximum. Without a rest, as by hand, it does not rest.
create or replace function holdfast.rests(
  duty text, rest interval, times integer, most interval, now_at timestamptz)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select
    from holdfast.duty d
    where d.name = rests.duty
      and now_at between d.looks[1]
        and d.looks[1] + greatest(rests.rest, least(times * (d.looks[1] - d.looks[2]), most))
      and rests.rest is not null)
$$;
comment on function holdfast.rests(text, interval, integer, interval, timestamptz) is
  'Return whether a duty ended so recently that it should rest: for a given time, and for a multiple of the'
  ' time that it took.';

create or replace function holdfast.note_look(duty text, begun_at timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.duty (name, looks)
  values (note_look.duty, array[holdfast.clock(), begun_at])
  on conflict (name) do update set looks = excluded.looks
$$;
comment on function holdfast.note_look(text, timestamptz) is
  'Record when a duty began, and that it has ended.';

-- Delete, past the longest retention, what no dropped partition removes: errors, steps,
-- checkpoints and event counts of jobs that no longer exist, and waiters that were not heard from
-- again. Bounded in rows.
create or replace function holdfast.forget_finished(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  oldest timestamptz;
  waiters integer;
begin
  oldest := now_at - holdfast.longest_retention();
  delete from holdfast.waiter w
  where w.since < now_at - interval '1 minute'
    and (
      w.since < now_at - interval '7 days'
      or not exists (select from holdfast.live j where j.id = w.job_id offset 0));
  get diagnostics waiters = row_count;
  return waiters
    + holdfast.forget_old('attempt_error', 'failed_at', oldest, '{live,dead_letter}')
    + holdfast.forget_old('step', 'finished_at', oldest, '{live,dead_letter}')
    + holdfast.forget_old('checkpoint', 'changed_at', oldest, '{live,dead_letter}')
    + holdfast.forget_old('event_count', 'last_at', oldest, '{live,dead_letter}');
end
$$;
comment on function holdfast.forget_finished(timestamptz) is
  'Delete, past the longest retention, what is left of jobs that no longer exist, and waiters that are '
  'gone.';

-- Delete up to 10,000 old rows of a table, except those of jobs in one of the other tables. The
-- time is checked again in the delete, since a row may have a newer version by then.
create or replace function holdfast.forget_old(
  from_table text, time_column text, oldest timestamptz, unless_in text[])
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  others text := (
    select string_agg(
      format(' and not exists (select from holdfast.%I x where x.id = o.job_id offset 0)', u), '')
    from unnest(unless_in) u);
  forgotten integer;
begin
  execute format(
    'delete from holdfast.%1$I t where t.%2$I < $1 and t.ctid = any(array('
    'select o.ctid from holdfast.%1$I o where o.%2$I < $1%3$s limit 10000))',
    from_table, time_column, others)
  using oldest;
  get diagnostics forgotten = row_count;
  return forgotten;
end
$$;
comment on function holdfast.forget_old(text, text, timestamptz, text[]) is
  'Delete old rows of a table whose job is in none of the other tables given. Returns how many.';

-- Make a partition of `finished`, or of `event`, for each of the next 7 days. Each is made as a
-- separate table and then attached, with a short lock_timeout: a report that reads the table
-- would otherwise make the attach wait, and every finish behind it. Never for today: a finish on
-- its way to the default partition would wait for the attach, and then be refused (23514),
-- because its day has a partition now.
create or replace function holdfast.make_partitions(now_at timestamptz, parent text)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
set timezone = 'UTC'
as $$
declare
  time_column constant text := case parent when 'finished' then 'finished_at' else 'at' end;
  today date := (now_at at time zone 'UTC')::date;
  day date;
  name text;
  taken boolean;
  made integer := 0;
begin
  for day in select generate_series(today + 1, today + 7, interval '1 day')::date loop
    name := parent || to_char(day, '_YYYYMMDD');
    continue when to_regclass('holdfast.' || name) is not null;
    -- Rows of that day are already in the default partition. Leave them there.
    execute format(
      'select exists (select from holdfast.%I d where d.%I >= %L and d.%I < %L)',
      parent || '_default', time_column, day::timestamptz, time_column, (day + 1)::timestamptz) into taken;
    continue when taken;
    begin
      -- Autovacuum need not read them because rows come in: see migration 0014.
      execute format(
        'create table holdfast.%I (like holdfast.%I including defaults including constraints)
          with (vacuum_truncate = off, autovacuum_vacuum_insert_threshold = -1)',
        name, parent);
      -- rows can be deleted even if all tables are published
      execute format('alter table holdfast.%I replica identity full', name);
      execute format(
        'alter table holdfast.%I attach partition holdfast.%I for values from (%L) to (%L)',
        parent, name, day::timestamptz, (day + 1)::timestamptz);
      made := made + 1;
    exception when lock_not_available then
      exit; -- the table is in use; the next round tries again
    end;
  end loop;
  return made;
end
$$;
comment on function holdfast.make_partitions(timestamptz, text) is
  'Create the daily partitions of finished jobs, or of events, for the next week.';
