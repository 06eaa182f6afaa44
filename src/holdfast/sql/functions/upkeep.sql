-- The slow duty: partitions made ahead and dropped behind, old ids and
-- tombstones forgotten, orphans swept, heads checked. Returns how many things
-- were done.
--
-- It looks through much, above all while somebody holds an old snapshot, and a fleet
-- calls it all the time: so not if the last one ended less than `rest` ago, nor
-- less than twenty times as long ago as it took, up to a quarter of an hour.
drop function if exists holdfast.upkeep(); -- without a rest
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
  last timestamptz[];
  done integer := 0;
  amount integer;
  orphans uuid[];
  part text;
begin
  perform holdfast.check_isolation('upkeep');
  if not pg_try_advisory_xact_lock(holdfast.duty_lock('upkeep')) then
    return 0;
  end if;
  select d.looks into last from holdfast.duty d where d.name = 'upkeep';
  if now_at between last[1] and last[1] + greatest(upkeep.rest, least(20 * (last[1] - last[2]), interval '15 minutes')) and upkeep.rest is not null then
    return 0;
  end if;

  -- Held by a worker that has no row any more, or has long been lost: nobody
  -- will ever report. Not beside recover, which writes to the same workers.
  if pg_try_advisory_xact_lock(holdfast.duty_lock('recover')) then
    orphans := array(
      select j.id from holdfast.job j
      where j.state = 'claimed'
        and not exists (select from holdfast.worker w where w.id = j.worker_id and w.lost_at is null and w.left_at is null)
        and j.claimed_at < now_at - interval '30 seconds'
      limit 50000
      for update skip locked);
    done := done + holdfast.take_back(orphans, now_at);
  end if;

  -- Waiting, but out of attempts because the maximum was lowered: claims step
  -- over these. Only jobs that were tried before can be such, so only lanes of
  -- returned and suspect jobs are looked at.
  orphans := array(
    select j.id
    from holdfast.lane l
    cross join lateral (
      select j.id
      from holdfast.job j
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
      and not exists (select from holdfast.job j where j.id = o.id offset 0)
    limit 50000);
  get diagnostics amount = row_count;
  done := done + amount;

  delete from holdfast.worker w
  where greatest(w.lost_at, w.left_at) < now_at - interval '1 day'
    and not exists (select from holdfast.job j where j.worker_id = w.id and j.state = 'claimed' offset 0);
  get diagnostics amount = row_count;
  done := done + amount;

  -- Left behind by a handler that finished its job in a transaction of its own.
  delete from holdfast.running r
  where r.changed_at < now_at - interval '1 minute'
    and not exists (select from holdfast.job j where j.id = r.job_id and j.lease = r.lease offset 0);
  get diagnostics amount = row_count;
  done := done + amount;

  delete from holdfast.cancellation c
  where not exists (select from holdfast.job j where j.id = c.job_id and j.lease = c.lease offset 0);
  get diagnostics amount = row_count;
  done := done + amount;

  delete from holdfast.schedule_tick t
  where t.ctid = any(array(
    select o.ctid from holdfast.schedule_tick o where o.tick < now_at - interval '30 days' limit 50000));
  get diagnostics amount = row_count;
  done := done + amount;

  -- One that fails stops no other, and undoes nothing of the above.
  foreach part in array '{forget_finished,check_heads,make_partitions,drop_partitions}'::text[] loop
    begin
      done := done + case part
        when 'forget_finished' then holdfast.forget_finished(now_at)
        when 'check_heads' then holdfast.check_heads()
        when 'make_partitions' then holdfast.make_partitions(now_at)
        when 'drop_partitions' then holdfast.drop_partitions(now_at)
      end;
    exception when others then
      raise warning 'holdfast.%: %', part, sqlerrm;
      perform holdfast.note_duty('upkeep', format('%s: %s', part, sqlerrm));
    end;
  end loop;
  insert into holdfast.duty (name, looks)
  values ('upkeep', array[holdfast.clock(), now_at])
  on conflict (name) do update set looks = excluded.looks;
  return done;
end
$$;
comment on function holdfast.upkeep(interval) is
  'Make partitions ahead, drop old ones, forget old ids and tombstones, sweep orphans, check the heads; not if the last one ended less than a rest ago.';

-- What no dropped partition takes along: finished jobs of a day that had none,
-- and the errors of jobs that are no more. Bounded in rows.
create or replace function holdfast.forget_finished(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  oldest timestamptz;
  finished integer;
  failures integer;
begin
  select now_at - max(q.retention) into oldest from holdfast.queue q;
  delete from holdfast.finished_default f
  where f.ctid = any(array(
    select d.ctid from holdfast.finished_default d where d.finished_at < oldest limit 10000));
  get diagnostics finished = row_count;
  delete from holdfast.attempt_error a
  where a.ctid = any(array(
    select e.ctid
    from holdfast.attempt_error e
    where e.failed_at < oldest
      and not exists (select from holdfast.job j where j.id = e.job_id offset 0)
      and not exists (select from holdfast.dead_letter d where d.id = e.job_id)
    limit 10000));
  get diagnostics failures = row_count;
  return finished + failures;
end
$$;
comment on function holdfast.forget_finished(timestamptz) is
  'Delete finished jobs outside the daily partitions, and errors of jobs that are no more, past the longest retention.';

-- A partition of `finished` for each of the next 7 days. Each is made as a table
-- of its own and then attached, with a short lock_timeout: a report that reads
-- the table would otherwise make the attach wait, and every finish behind it.
-- Never for today: a finish on its way to the default partition waits for the
-- attach, and would then be refused there (23514) because its day has moved out.
create or replace function holdfast.make_partitions(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
set timezone = 'UTC'
as $$
declare
  today date := (now_at at time zone 'UTC')::date;
  day date;
  name text;
  made integer := 0;
begin
  for day in select generate_series(today + 1, today + 7, interval '1 day')::date loop
    name := 'finished_' || to_char(day, 'YYYYMMDD');
    continue when to_regclass('holdfast.' || name) is not null;
    -- Jobs of that day already lie in the default partition: leave them there.
    continue when exists (
      select from holdfast.finished_default d where d.finished_at >= day::timestamptz and d.finished_at < (day + 1)::timestamptz);
    begin
      execute format('create table holdfast.%I (like holdfast.finished including defaults including constraints)', name);
      execute format(
        'alter table holdfast.finished attach partition holdfast.%I for values from (%L) to (%L)',
        name, day::timestamptz, (day + 1)::timestamptz);
      made := made + 1;
    exception when lock_not_available then
      exit; -- somebody reads the table; the next round tries again
    end;
  end loop;
  return made;
end
$$;
comment on function holdfast.make_partitions(timestamptz) is 'Make the daily partitions of finished jobs for the next week.';

-- Partitions whose last day is past the longest retention are dropped whole.
create or replace function holdfast.drop_partitions(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
as $$
declare
  keep interval;
  old text;
  dropped integer := 0;
begin
  select max(q.retention) into keep from holdfast.queue q;
  for old in
    select c.relname
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'holdfast.finished'::regclass
      and c.relname ~ '^finished_[0-9]{8}$'
      and to_date(right(c.relname, 8), 'YYYYMMDD') + 1 < (now_at - keep) at time zone 'UTC'
    order by c.relname
  loop
    begin
      execute format('drop table holdfast.%I', old);
      dropped := dropped + 1;
    exception when lock_not_available then
      exit; -- somebody reads the table; the next round tries again
    end;
  end loop;
  return dropped;
end
$$;
comment on function holdfast.drop_partitions(timestamptz) is 'Drop the partitions of finished jobs that are past the longest retention.';
