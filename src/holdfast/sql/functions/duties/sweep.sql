-- Delete finished jobs and events that are past the retention of their queue.
--
-- A day past the longest retention is dropped as a whole (drop_partitions.sql), which costs
-- nothing. For queues with a shorter retention, rows are deleted from partitions that stay.
-- `finished` has no index by time, since every finish would pay for it. So partitions are
-- searched block by block, a little at a time, and only if they may hold expired rows:
--
--   pass   once through the whole partition: one when a queue's retention has passed for the
--          whole day, and a few while it passes. Every 24th part of the retention; for a large
--          partition every 5 minutes at most
--   tail   where a table grows at its end, the rows of one retention ago have expired by now. So
--          a queue that keeps nothing is cleared within three minutes, however large the
--          partition is
--
-- With one retention for all queues only the default partitions are searched.

-- Search partitions for expired rows, and delete expired dead letters. A worker calls this, and
-- returns at once if there is more.
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
  -- The usual case: nothing is written.
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
  'second. Returns whether there is more. Does nothing if the last sweep was less than a rest ago.';

create or replace function holdfast.sweep_due(now_at timestamptz)
returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select exists (select from holdfast.sweeps(now_at) s where s.pass_due or s.tail_due)
    or exists (select from holdfast.dead_past(now_at, 1))
$$;
comment on function holdfast.sweep_due(timestamptz) is 'Return whether a sweep has anything to do.';

-- The partitions to search now.
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
      m.began_at is not null
      or exists (
        select
        from unnest(k.spans) s (span)
        where (s.span < k.longest or p.low = '-infinity')
          and now_at - s.span > p.low
          and (
            m.passed_at is null
            or m.passed_at > now_at
            or m.passed_under <> k.under
            or m.passed_at - s.span < p.high
            and (
              now_at - m.passed_at >= greatest(
                s.span / 24, case when b.blocks > 2048 then interval '5 minutes' else '0' end)
              or now_at - s.span >= p.high
            )
          )
      ) as pass_due,
      m.seen_at <= now_at - k.shortest and (m.tail < m.seen or m.seen < b.blocks) as tail_due
  ) d
  where k.shortest < k.longest or p.low = '-infinity'
$$;
comment on function holdfast.sweeps(timestamptz) is
  'Return which partitions may hold rows past the retention of their queue, and what is to be done.';

-- Search for about a third of a second, 512 blocks at a time, beginning with the partitions that
-- were searched longest ago.
create or replace function holdfast.sweep_partitions(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  enough_at constant timestamptz := clock_timestamp() + interval '300 milliseconds';
  longest constant interval := holdfast.longest_retention();
  due record;
  mark holdfast.swept;
  done integer := 0;
begin
  delete from holdfast.swept m
    where not exists (select from holdfast.partitions() p where p.partition = m.partition);
  for due in
    select s.* from holdfast.sweeps(now_at) s where s.pass_due or s.tail_due
      order by s.touched_at nulls first, s.low desc
  loop
    exit when clock_timestamp() > enough_at;
    select m.* into mark from holdfast.swept m where m.partition = due.partition;
    if not found then
      mark := jsonb_populate_record(mark, jsonb_build_object(
        'partition', due.partition, 'hand', 0, 'tail', due.blocks, 'seen', due.blocks, 'seen_at', now_at));
    end if;
    if due.tail_due then
      while mark.tail < mark.seen and clock_timestamp() <= enough_at loop
        done := done + holdfast.sweep_blocks(
          due.parent, due.partition, mark.tail, least(mark.tail + 512, mark.seen), now_at, longest);
        mark.tail := least(mark.tail + 512, mark.seen);
      end loop;
      if mark.tail >= mark.seen then
        -- Sessions that write at the same time may fill some of the last blocks later.
        mark.tail := greatest(mark.seen - 64, 0);
        mark.seen := due.blocks;
        mark.seen_at := now_at;
      end if;
    end if;
    if due.pass_due then
      if mark.began_at is null then
        mark.began_at := now_at;
        mark.began_under := due.under;
        mark.hand := 0;
      end if;
      while mark.hand < due.blocks and clock_timestamp() <= enough_at loop
        done := done + holdfast.sweep_blocks(
          due.parent, due.partition, mark.hand, mark.hand + 512, now_at, longest);
        mark.hand := mark.hand + 512;
      end loop;
      if mark.hand >= due.blocks then
        mark.passed_at := mark.began_at;
        mark.passed_under := mark.began_under;
        mark.began_at := null;
      end if;
    end if;
    mark.touched_at := clock_timestamp();
    delete from holdfast.swept m where m.partition = due.partition;
    insert into holdfast.swept select (mark).*;
  end loop;
  return done;
end
$$;
comment on function holdfast.sweep_partitions(timestamptz) is
  'Delete finished jobs and events past the retention of their queue. Returns how many.';

-- Of a day, delete rows of queues with less than the longest retention: the others go with the
-- day. Of a default partition, delete all expired rows, archived or exported first if disposal
-- says so. Events stay with a live job or a dead letter.
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
  past constant timestamptz := case
    when not is_default then '-infinity'
    when disposal = 'export' then least(
      now_at - longest,
      coalesce(
        (select e.until from holdfast.exported e where e.partition = sweep_blocks.partition), '-infinity'))
    else now_at - longest
  end;
  queues constant text[] := array(select r.queue from holdfast.retentions() r order by r.queue);
  pasts constant timestamptz[] := array(
    select case when r.span < longest then now_at - r.span else past end from holdfast.retentions() r
      order by r.queue);
  others constant timestamptz := pasts[array_position(queues, '*')];
  archives boolean := false;
  columns text;
  ids uuid[];
begin
  if is_default and disposal = 'archive' then
    execute format(
      'select exists (select from holdfast.%I o where o.ctid >= $1 and o.ctid < $2 and o.%I < $3)', partition,
      time_column)
    into archives
    using format('(%s,0)', from_block)::tid, format('(%s,0)', to_block)::tid, past;
    if archives then
      perform holdfast.make_archive(parent);
      -- By name, since the columns of the archive may be in another order.
      select string_agg(quote_ident(a.attname), ', ' order by a.attnum) into columns
      from pg_attribute a
      where a.attrelid = format('holdfast.%I', partition)::regclass
        and a.attnum > 0
        and not a.attisdropped;
    end if;
  end if;
  execute format(
    'with gone as (
       delete from holdfast.%1$I t
       where t.ctid = any(array(
         select o.ctid
         from holdfast.%1$I o
         left join unnest($1, $2) k (queue, past) on k.queue = o.queue
         where o.ctid >= $3 and o.ctid < $4
           and o.%2$I < coalesce(k.past, $5) %3$s))
       returning t.*
     ) %4$s
     select array_agg(g.%5$I) from gone g',
    partition, time_column,
    case parent when 'event' then
      'and not exists (select from holdfast.live j where j.id = o.job_id offset 0)
       and not exists (select from holdfast.dead_letter d where d.id = o.job_id offset 0)' end,
    case when archives then format(
      ', kept as (insert into holdfast_archive.%1$I (%2$s) select %2$s from gone g where g.%3$I < $6)',
      partition, columns, time_column) end,
    case parent when 'finished' then 'id' else 'job_id' end)
  into ids
  using queues, pasts, format('(%s,0)', from_block)::tid, format('(%s,0)', to_block)::tid, others, past;
  if parent = 'finished' then
    perform holdfast.forget_rest(ids);
  end if;
  return coalesce(cardinality(ids), 0);
end
$$;
comment on function holdfast.sweep_blocks(text, text, bigint, bigint, timestamptz, interval) is
  'Delete rows past the retention of their queue from some blocks of a partition. Returns how many.';

-- Delete what is kept in other tables for jobs that are gone. An id may have been used again since.
create or replace function holdfast.forget_rest(ids uuid[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  gone constant uuid[] := array(
    select i.id
    from unnest(ids) i (id)
    where not exists (select from holdfast.live j where j.id = i.id offset 0)
      and not exists (select from holdfast.dead_letter d where d.id = i.id offset 0));
begin
  if cardinality(gone) = 0 then
    return;
  end if;
  delete from holdfast.attempt_error e where e.job_id = any(gone);
  delete from holdfast.step s where s.job_id = any(gone);
  delete from holdfast.checkpoint c where c.job_id = any(gone);
  delete from holdfast.event_count c where c.job_id = any(gone);
end
$$;
comment on function holdfast.forget_rest(uuid[]) is
  'Delete errors, steps, checkpoints and event counts of jobs that no longer exist.';
