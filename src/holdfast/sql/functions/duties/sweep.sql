-- Delete finished jobs, events and dead letters that are past the retention of their queue.
--
-- drop_partitions() drops the partition of a day past the longest retention, which costs almost
-- nothing. For queues with a shorter retention, sweep() deletes rows from the partitions that
-- stay; these rows are neither archived nor exported. If all queues have the same retention,
-- sweep() searches only the default partitions.
--
-- `finished` has no index by time, because it would slow down every finish. So sweep() reads
-- partitions block by block, and only those that may hold expired rows. Two searches do this:
--
--   pass   reads the whole partition. While its rows expire, a pass starts every 1/24 of the
--          retention. Above 16 MB, passes are at least 5 minutes apart. The last pass starts
--          when the whole day has expired
--   tail   reads only new blocks, so even a large partition is cleared soon. Each tail search
--          notes how many blocks the partition has. The next one starts after the shortest
--          retention, when the rows in these blocks can have expired. It reads the blocks up to
--          that number that no search has read yet
--
-- A retention of 0 counts as one minute, and its rows are deleted within about three.

-- Delete expired rows and dead letters for a fraction of a second. Return whether more is due.
--
--   1. Return if another session is sweeping, or within `rest` of the last sweep.
--   2. Return if nothing is due. This is the usual case, and nothing is written.
--   3. Search partitions for about 300 ms, and delete up to 5,000 expired dead letters.
--
-- A worker calls this about every 30 seconds, and again after a short pause if more is due.
-- holdfast: role worker
create or replace function holdfast.sweep(rest interval default null)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
begin
  perform holdfast.check_isolation('sweep');
  if not holdfast.try_duty('sweep')
    or exists (
      select from holdfast.duty d
      where d.name = 'sweep' and now_at between d.looks[1] and d.looks[1] + sweep.rest
    )
  then
    return false;
  end if;
  if not holdfast.sweep_due(now_at) then
    return false;
  end if;
  perform holdfast.sweep_partitions(now_at);
  perform holdfast.forget_dead(now_at);
  insert into holdfast.duty (name, looks)
  values ('sweep', array[now_at])
  on conflict (name) do update set looks = excluded.looks;
  return holdfast.sweep_due(now_at);
end
$$;
comment on function holdfast.sweep(interval) is
  'Delete finished jobs, events and dead letters past the retention of their queue, for a fraction of a '
  'second. Returns whether more is due. Does nothing within `rest` of the last sweep.';

create or replace function holdfast.sweep_due(now_at timestamptz)
returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select exists (select from holdfast.sweeps(now_at) s where s.pass_due or s.tail_due)
    or exists (select from holdfast.dead_past(now_at, 1))
$$;
comment on function holdfast.sweep_due(timestamptz) is 'Return whether a sweep has anything to do.';

-- List the partitions that can hold expired rows, and say whether a pass or a tail search is due.
--
-- The rows of a partition are from `low` up to `high`: the bounds of its day. A default partition
-- has -infinity and infinity. `blocks` is the current length of the partition. `under` is a hash of
-- the retentions and `disposal`: if it changes, a new pass is due.
--
-- The table `swept` remembers the searches of each partition: see sweep_partitions().
create or replace function holdfast.sweeps(now_at timestamptz)
returns table (
  parent text, partition text, low timestamptz, blocks bigint, under text, pass_due boolean, tail_due boolean,
  touched_at timestamptz)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  with kept as (
    select
      min(r.span) as shortest,
      max(r.span) as longest,
      array_agg(distinct r.span) as spans,
      encode(sha256(convert_to(
        string_agg(r.queue || ' ' || extract(epoch from r.span), ',' order by r.queue)
          || coalesce((select q.disposal from holdfast.queue q where q.name = '*'), ''),
        'UTF8')), 'hex') as under
    from holdfast.retentions() r
  )
  select p.parent, p.partition, p.low, b.blocks, k.under, d.pass_due, d.tail_due, m.touched_at
  from kept k
  cross join holdfast.partitions() p
  left join holdfast.swept m on m.partition = p.partition
  cross join lateral (select pg_relation_size(p.place) / current_setting('block_size')::bigint as blocks) b
  cross join lateral (
    select
      m.began_at is not null -- a pass has begun
      or exists (
        select
        from unnest(k.spans) s (span)
        -- The rows with the longest retention go with their day. A default partition is not dropped.
        where (s.span < k.longest or p.low = '-infinity')
          and now_at - s.span > p.low -- its first rows can have expired
          and (
            m.passed_at is null -- never searched
            or m.passed_at > now_at -- the clock was set back
            or m.passed_under <> k.under -- the settings have changed
            -- The last pass began before all rows had expired. The next one is due after a while, or
            -- when all rows have expired. 2048 blocks are 16 MB.
            or m.passed_at - s.span < p.high
            and (
              now_at - m.passed_at >= greatest(
                s.span / 24, case when b.blocks > 2048 then interval '5 minutes' else '0' end)
              or now_at - s.span >= p.high
            )
          )
      ) as pass_due,
      m.seen_at <= now_at - k.shortest -- the rows that were there at `seen_at` can have expired
      and (m.tail < m.seen or m.seen < b.blocks) -- some blocks were not read yet
      -- The day ends at `high`, and its last row with the shortest retention expires at
      -- `high + shortest`. After a search that ended an hour later, no further search is due.
      and m.seen_at <= p.high + k.shortest + interval '1 hour' as tail_due
  ) d
  where k.shortest < k.longest or p.low = '-infinity'
$$;
comment on function holdfast.sweeps(timestamptz) is
  'Return the partitions that can hold rows past the retention of their queue, and whether a pass or a tail '
  'search is due.';

-- Do the searches that are due, for about 300 ms, 512 blocks at a time. Start with the partitions that
-- were never searched, and continue with those that were searched longest ago.
--
-- A search may need several calls. Its position is kept in the partition's row of `swept`:
--
--   hand                        the pass reads on from this block
--   began_at, began_under       the start of the current pass, and `under` at that time
--   passed_at, passed_under     the same for the last complete pass
--   tail                        the tail search reads on from this block
--   seen, seen_at               the tail search ends at this block: the length of the partition at
--                               that time
create or replace function holdfast.sweep_partitions(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  stop_at constant timestamptz := clock_timestamp() + interval '300 milliseconds';
  longest constant interval := holdfast.longest_retention();
  due record;
  position holdfast.swept;
  deleted integer := 0;
begin
  delete from holdfast.swept m
    where not exists (select from holdfast.partitions() p where p.partition = m.partition);
  for due in
    select s.* from holdfast.sweeps(now_at) s where s.pass_due or s.tail_due
      order by s.touched_at nulls first, s.low desc
  loop
    exit when clock_timestamp() > stop_at;
    select m.* into position from holdfast.swept m where m.partition = due.partition;
    if not found then
      -- The first pass reads the current blocks, so the tail search begins behind them.
      position := jsonb_populate_record(position, jsonb_build_object(
        'partition', due.partition, 'hand', 0, 'tail', due.blocks, 'seen', due.blocks, 'seen_at', now_at));
    end if;
    if due.tail_due then
      while position.tail < position.seen and clock_timestamp() <= stop_at loop
        deleted := deleted + holdfast.sweep_blocks(
          due.parent, due.partition, position.tail, least(position.tail + 512, position.seen), now_at,
          longest);
        position.tail := least(position.tail + 512, position.seen);
      end loop;
      if position.tail >= position.seen then
        -- This search is complete. Note the current length for the next one, which also reads the last
        -- 64 of these blocks again, because other sessions may still insert there.
        position.tail := greatest(position.seen - 64, 0);
        position.seen := due.blocks;
        position.seen_at := now_at;
      end if;
    end if;
    if due.pass_due then
      if position.began_at is null then
        position.began_at := now_at;
        position.began_under := due.under;
        position.hand := 0;
      end if;
      while position.hand < due.blocks and clock_timestamp() <= stop_at loop
        deleted := deleted + holdfast.sweep_blocks(
          due.parent, due.partition, position.hand, position.hand + 512, now_at, longest);
        position.hand := position.hand + 512;
      end loop;
      if position.hand >= due.blocks then
        position.passed_at := position.began_at;
        position.passed_under := position.began_under;
        position.began_at := null;
      end if;
    end if;
    position.touched_at := clock_timestamp();
    delete from holdfast.swept m where m.partition = due.partition;
    insert into holdfast.swept select (position).*;
  end loop;
  return deleted;
end
$$;
comment on function holdfast.sweep_partitions(timestamptz) is
  'Delete finished jobs and events past the retention of their queue. Returns how many.';

-- Delete the expired rows from `from_block` up to, but not including, `to_block`.
--
-- The partition decides which rows these are:
--
--   a day       rows of queues with less than the longest retention. drop_partitions() removes the
--               other rows with the day
--   a default   rows of all queues. If `disposal` is archive, the function copies rows past the
--   partition   longest retention to the archive. If it is export, queues with the longest
--               retention keep their rows until they are exported
--
-- The events of a live job or a dead letter stay. The errors, steps, checkpoints and event counts of
-- deleted jobs are deleted too.
create or replace function holdfast.sweep_blocks(
  parent text, partition text, from_block bigint, to_block bigint, now_at timestamptz, longest interval)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  time_column constant text := case parent when 'finished' then 'finished_at' else 'at' end;
  is_default constant boolean := partition = parent || '_default';
  disposal constant text := (select q.disposal from holdfast.queue q where q.name = '*');
  -- Queues with the longest retention lose their rows from before this time.
  longest_cutoff constant timestamptz := case
    when not is_default then '-infinity'
    when disposal = 'export' then least(
      now_at - longest,
      coalesce(
        (select e.until from holdfast.exported e where e.partition = sweep_blocks.partition), '-infinity'))
    else now_at - longest
  end;
  -- The queues with a retention of their own, and * for all others; then the cutoff of each.
  queues constant text[] := array(select r.queue from holdfast.retentions() r order by r.queue);
  cutoffs constant timestamptz[] := array(
    select case when r.span < longest then now_at - r.span else longest_cutoff end
    from holdfast.retentions() r
    order by r.queue);
  default_cutoff constant timestamptz := cutoffs[array_position(queues, '*')];
  must_archive boolean := false;
  columns text;
  ids uuid[];
begin
  if is_default and disposal = 'archive' then
    execute format(
      'select exists (select from holdfast.%I o where o.ctid >= $1 and o.ctid < $2 and o.%I < $3)', partition,
      time_column)
    into must_archive
    using format('(%s,0)', from_block)::tid, format('(%s,0)', to_block)::tid, longest_cutoff;
    if must_archive then
      perform holdfast.make_archive(parent);
      -- Name the columns, because those of the archive may be in another order.
      select string_agg(quote_ident(a.attname), ', ' order by a.attnum) into columns
      from pg_attribute a
      where a.attrelid = format('holdfast.%I', partition)::regclass
        and a.attnum > 0
        and not a.attisdropped;
    end if;
  end if;
  -- $1 queues and $2 their cutoffs, $3 the first block, $4 the block after the last one, $5 the cutoff of
  -- all other queues. If the archive is in use, deleted rows from before $6 are copied there.
  execute format(
    'with gone as (
       delete from holdfast.%1$I t
       where t.ctid = any(array(
         select o.ctid
         from holdfast.%1$I o
         left join unnest($1, $2) k (queue, cutoff) on k.queue = o.queue
         where o.ctid >= $3 and o.ctid < $4
           and o.%2$I < coalesce(k.cutoff, $5) %3$s))
       returning t.*
     ) %4$s
     select array_agg(g.%5$I) from gone g',
    partition, time_column,
    case parent when 'event' then
      'and not exists (select from holdfast.live j where j.id = o.job_id offset 0)
       and not exists (select from holdfast.dead_letter d where d.id = o.job_id offset 0)' end,
    case when must_archive then format(
      ', kept as (insert into holdfast_archive.%1$I (%2$s) select %2$s from gone g where g.%3$I < $6)',
      partition, columns, time_column) end,
    case parent when 'finished' then 'id' else 'job_id' end)
  into ids
  using queues, cutoffs, format('(%s,0)', from_block)::tid, format('(%s,0)', to_block)::tid, default_cutoff,
    longest_cutoff;
  if parent = 'finished' then
    perform holdfast.forget_rest(ids);
  end if;
  return coalesce(cardinality(ids), 0);
end
$$;
comment on function holdfast.sweep_blocks(text, text, bigint, bigint, timestamptz, interval) is
  'Delete rows past the retention of their queue from some blocks of a partition. Returns how many.';

-- Delete the errors, steps, checkpoints and event counts of jobs that were just deleted. Skip an id
-- that a newer job uses: a caller may use an id again after 7 days.
create or replace function holdfast.forget_rest(ids uuid[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
  -- Most jobs have none of these rows. So check only the ids that have some: ids_without_job() must
  -- search each partition of `finished` for an id.
  perform holdfast.delete_rest(holdfast.ids_without_job(array(
    select e.job_id from holdfast.attempt_error e where e.job_id = any(ids)
    union
    select s.job_id from holdfast.step s where s.job_id = any(ids)
    union
    select c.job_id from holdfast.checkpoint c where c.job_id = any(ids)
    union
    select c.job_id from holdfast.event_count c where c.job_id = any(ids))));
end
$$;
comment on function holdfast.forget_rest(uuid[]) is
  'Delete errors, steps, checkpoints and event counts of jobs that no longer exist.';

create or replace function holdfast.delete_rest(ids uuid[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
  if cardinality(ids) = 0 then
    return;
  end if;
  delete from holdfast.attempt_error e where e.job_id = any(ids);
  delete from holdfast.step s where s.job_id = any(ids);
  delete from holdfast.checkpoint c where c.job_id = any(ids);
  delete from holdfast.event_count c where c.job_id = any(ids);
end
$$;
comment on function holdfast.delete_rest(uuid[]) is
  'Delete the errors, steps, checkpoints and event counts of these jobs.';

create or replace function holdfast.ids_without_job(ids uuid[])
returns uuid[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
  return array(
    select u.id
    from unnest(ids) u (id)
    where not exists (select from holdfast.live j where j.id = u.id offset 0)
      and not exists (select from holdfast.dead_letter d where d.id = u.id offset 0)
      and not exists (select from holdfast.finished f where f.id = u.id offset 0));
end
$$;
comment on function holdfast.ids_without_job(uuid[]) is
  'Return the ids that no job has: none that is live, dead or finished.';
