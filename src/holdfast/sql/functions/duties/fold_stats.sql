-- Count what was done: finish() and others append to stat_delta, and fold_stats() adds it up in stat.
--
-- A batch of reports costs one more row and waits for nobody. About every two seconds,
-- do_duties() adds the latest rows to those of their minute and their hour. upkeep() finds rows
-- that a long transaction committed late, about once a minute: each search for them walks over
-- all that was deleted since the oldest snapshot that anyone holds.

-- Add up what was appended, for up to a second; the next call continues. Return how many rows of
-- stat_delta were added up.
-- holdfast: role worker
create or replace function holdfast.fold_stats(all_of_them boolean default true)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  begun constant timestamptz := clock_timestamp();
  oldest constant timestamptz := case when all_of_them then '-infinity'
    else holdfast.clock() - interval '1 minute' end;
  row_ids tid[];
  total integer := 0;
begin
  perform holdfast.check_isolation('fold_stats');
  if not holdfast.try_duty('fold_stats') then
    return 0;
  end if;
  loop
    row_ids := array(select d.ctid from holdfast.stat_delta d where d.at >= oldest order by d.at limit 1000);
    exit when row_ids = '{}';
    with gone as (
      delete from holdfast.stat_delta d where d.ctid = any(row_ids) returning d.*
    ),
    grouped as materialized (
      select
        date_trunc('minute', g.at, 'UTC') as at, g.outcome, u.lane, u.bucket,
        sum(u.jobs) as jobs, sum(u.waited) as waited, sum(u.ran) as ran
      from gone g
      cross join lateral unnest(g.lanes, g.buckets, g.jobs, g.wait_seconds, g.run_seconds)
        u (lane, bucket, jobs, waited, ran)
      group by 1, 2, 3, 4
    ),
    -- Look up each lane once.
    lanes as materialized (
      select n.lane, l.queue, l.task
      from (select distinct g.lane from grouped g) n
      cross join lateral (select l.queue, l.task from holdfast.lane l where l.id = n.lane offset 0) l
    ),
    -- The lane must not be removed when it is empty for a moment.
    noted as (
      insert into holdfast.lane_activity (lane_id, at)
      select n.lane, holdfast.clock()
      from lanes n
      where not exists (
        select from holdfast.lane_activity a where a.lane_id = n.lane
          and a.at >= holdfast.clock() - interval '5 minutes' offset 0)
      on conflict (lane_id) do update set at = excluded.at
    )
    insert into holdfast.stat (
      span, at, queue, task, completed, failed, dead, cancelled, wait_seconds, run_seconds, waits, runs
    )
    select
      s.span, date_trunc(s.span, g.at, 'UTC'), l.queue, l.task,
      coalesce(sum(g.jobs) filter (where g.outcome = 'completed'), 0),
      coalesce(sum(g.jobs) filter (where g.outcome = 'failed'), 0),
      coalesce(sum(g.jobs) filter (where g.outcome = 'dead'), 0),
      coalesce(sum(g.jobs) filter (where g.outcome = 'cancelled'), 0),
      sum(g.waited), sum(g.ran),
      holdfast.histogram(array_agg(g.bucket / 64), array_agg(g.jobs)),
      holdfast.histogram(array_agg(g.bucket % 64), array_agg(g.jobs))
    from grouped g
    join lanes l on l.lane = g.lane
    cross join (values ('minute'), ('hour')) s (span)
    group by 1, 2, 3, 4
    on conflict (span, at, queue, task) do update set
      completed = stat.completed + excluded.completed,
      failed = stat.failed + excluded.failed,
      dead = stat.dead + excluded.dead,
      cancelled = stat.cancelled + excluded.cancelled,
      wait_seconds = stat.wait_seconds + excluded.wait_seconds,
      run_seconds = stat.run_seconds + excluded.run_seconds,
      waits = holdfast.add_counts(stat.waits, excluded.waits),
      runs = holdfast.add_counts(stat.runs, excluded.runs);
    total := total + cardinality(row_ids);
    exit when cardinality(row_ids) < 1000 or clock_timestamp() > begun + interval '1 second';
  end loop;
  return total;
end
$$;
comment on function holdfast.fold_stats(boolean) is
  'Add up the reports since the last fold into the statistics of their minute and hour. With all_of_them '
  'false, only those of the last minute.';

-- For calls that end a few jobs. finish() does the same with the rows that it has.
create or replace function holdfast.note_ends(
  outcome text, lanes integer[], waits double precision[], runs double precision[], now_at timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.stat_delta (at, outcome, lanes, buckets, jobs, wait_seconds, run_seconds)
  select now_at, note_ends.outcome, array_agg(g.lane), array_agg(g.bucket), array_agg(g.jobs),
    array_agg(g.waited), array_agg(g.ran)
  from (
    select
      e.lane, holdfast.stat_bucket(e.waited, e.ran) as bucket, count(*) as jobs,
      coalesce(sum(greatest(e.waited, 0)), 0) as waited, coalesce(sum(greatest(e.ran, 0)), 0) as ran
    from unnest(lanes, waits, runs) e (lane, waited, ran)
    group by 1, 2
  ) g
  having count(*) > 0
$$;
comment on function holdfast.note_ends(
  text, integer[], double precision[], double precision[], timestamptz) is
  'Add attempts that ended to the statistics, with how long they waited and ran.';

-- Minutes are kept for two hours, hours for eight days.
create or replace function holdfast.forget_stats(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  forgotten integer;
begin
  perform holdfast.fold_stats();
  delete from holdfast.stat s
  where s.span = 'minute' and s.at < now_at - interval '2 hours'
    or s.span = 'hour' and s.at < now_at - interval '8 days';
  get diagnostics forgotten = row_count;
  return forgotten;
end
$$;
comment on function holdfast.forget_stats(timestamptz) is
  'Fold all statistics, then delete those of old minutes and hours.';
