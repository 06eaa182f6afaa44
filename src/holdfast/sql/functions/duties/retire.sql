-- Remove empty lanes in which no attempt has ended for about ten minutes.
--
-- A lane is empty if it has no live job, and no row of `stat_delta` names it. Such a row would
-- otherwise lose its queue and task.
--
-- A lane may be removed only when no transaction can still put a job into it. An open
-- transaction may have looked the lane up, or may hold a snapshot that shows it, and insert
-- later. So retire_lanes() works in rounds of four steps, and each step is a transaction of its
-- own. The row of `lane_watch` holds the current step:
--
--   1. Mark empty lanes as retired (`lane_watch` has no row yet). After the commit, lane() and
--      enqueue() make a new lane instead of using a retired one. Claims still visit it.
--   2. Note the open transactions (step = 2). After the commit, a trigger refuses inserts by
--      hand into a retired lane. Only the noted transactions may still insert there, because
--      they may have looked the lane up before it was marked.
--   3. Note the open transactions again (step = 3). Some began after the first note but before
--      its commit. They may not see that note, so they may insert too.
--   4. When all of these have ended, delete each marked lane that is still empty. The other
--      ones are ordinary lanes again.
--
-- The next round marks lanes only after this. A mark is the number of the transaction that marked
-- the lane.
create or replace function holdfast.retire_lanes(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  me constant bigint := pg_current_xact_id()::text::bigint;
  watch holdfast.lane_watch;
  newest_mark bigint;
begin
  select w.* into watch from holdfast.lane_watch w;
  -- Each note needs a transaction of its own, because others do not see it before its commit.
  if watch.noted = me then
    return 0;
  end if;
  if watch.step is null then
    select max(r.mark) into newest_mark from holdfast.retired_lane r;
    if newest_mark is null then -- step 1
      perform holdfast.mark_lanes(me, now_at);
    else -- step 2
      insert into holdfast.lane_watch (step, mark, open, noted)
      values (2, newest_mark, holdfast.open_transactions(), me);
    end if;
  elsif watch.step = 2 then -- step 3
    update holdfast.lane_watch set step = 3, open = holdfast.open_transactions(), noted = me;
  else -- step 4
    watch.open := holdfast.still_open(watch.open);
    if watch.open = '{}' then
      delete from holdfast.lane_watch;
      return holdfast.remove_lanes(watch.mark);
    end if;
    update holdfast.lane_watch w set open = watch.open where w.open <> watch.open;
  end if;
  return 0;
end
$$;
comment on function holdfast.retire_lanes(timestamptz) is
  'Take one step towards removing empty lanes in which no attempt has ended for ten minutes. Returns how '
  'many were removed.';

-- List the lanes of scheduled and held jobs, and those that stat_delta names. No index finds these
-- rows by lane, so one query reads them all, instead of one query per lane. Pending jobs are
-- missing here: an index finds them by lane. Held jobs have the state `claimed`, even while they run.
create or replace view holdfast.lane_in_use as
select j.lane_id from holdfast.live j where j.state = 'scheduled'
union
select j.lane_id from holdfast.live j where j.state = 'claimed'
union
select unnest(d.lanes) from holdfast.stat_delta d;
comment on view holdfast.lane_in_use is
  'Return the lanes of scheduled jobs, held jobs and counts that are not yet folded.';

create or replace function holdfast.mark_lanes(me bigint, now_at timestamptz)
returns void
language sql volatile
as $$
  insert into holdfast.retired_lane (lane_id, mark)
  select l.id, mark_lanes.me
  from holdfast.lane l
  where not exists (select from holdfast.retired_lane r where r.lane_id = l.id offset 0)
    and not exists (
      select from holdfast.lane_activity a where a.lane_id = l.id
        and a.at >= now_at - interval '10 minutes' offset 0)
    -- Read from the safe head: before it are no pending jobs, but perhaps many dead index entries.
    and not exists (
      select from holdfast.live j
      where j.lane_id = l.id and j.state = 'pending' and j.seq >= l.safe_head
      offset 0)
    and not exists (select from holdfast.lane_in_use u where u.lane_id = l.id)
  limit 20000
$$;
comment on function holdfast.mark_lanes(bigint, timestamptz) is
  'Mark empty lanes in which no attempt has ended for ten minutes.';

-- Delete the marked lanes that are empty, and forget all marks.
--
-- One statement looks for jobs in all states, so it sees a job in exactly one state. With
-- several statements, a job could change its state between them, and each would miss it. This
-- statement does not rely on the safe head.
--
-- `known_queue` keeps the names of the queues for queues_in_reach().
create or replace function holdfast.remove_lanes(mark bigint)
returns integer
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  removed integer;
begin
  with gone as (
    delete from holdfast.lane l
    where l.id = any(array(
      select o.id
      from holdfast.retired_lane r
      join holdfast.lane o on o.id = r.lane_id
      where r.mark <= remove_lanes.mark
        and not exists (select from holdfast.live j where j.lane_id = o.id and j.state = 'pending' offset 0)
        and not exists (select from holdfast.lane_in_use u where u.lane_id = o.id)
      for update of o skip locked))
    returning l.id, l.queue
  ),
  known as (
    insert into holdfast.known_queue (name, seen_at)
    select distinct g.queue, holdfast.clock() from gone g
    on conflict (name) do update set seen_at = excluded.seen_at
  ),
  forgotten as (
    delete from holdfast.lane_activity a using gone g where a.lane_id = g.id
  )
  select count(*) into removed from gone;
  delete from holdfast.retired_lane r where r.mark <= remove_lanes.mark;
  return removed;
end
$$;
comment on function holdfast.remove_lanes(bigint) is
  'Remove retired lanes that are empty, and make the others ordinary lanes again.';

-- Return the names of the open transactions. Every transaction locks its own virtual id from begin
-- to end, even if it writes nothing, and any role can see that lock. So its name is this id. A
-- prepared transaction has no such lock, and its name is `prepared` with its transaction number.
create or replace function holdfast.open_transactions()
returns text[]
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(array_agg(k.virtualtransaction), '{}') || holdfast.prepared_transactions()
  from pg_locks k
  left join pg_stat_activity a on a.pid = k.pid
  where k.locktype = 'virtualxid'
    and k.mode = 'ExclusiveLock'
    and k.pid <> pg_backend_pid()
    -- Leave out sessions of other databases and autovacuum, which has no user: they insert no jobs
    -- here. Keep a transaction whose database is unknown.
    and (a.datname is null or (a.datname = current_database() and a.usesysid is not null))
$$;
comment on function holdfast.open_transactions() is
  'Return the open transactions of this database, except this one.';

create or replace function holdfast.prepared_transactions()
returns text[]
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(array_agg('prepared ' || p.transaction), '{}')
  from pg_prepared_xacts p
  where p.database = current_database()
$$;
comment on function holdfast.prepared_transactions() is 'Return the prepared transactions of this database.';

-- Return which of the noted transactions may still be open.
--
-- Preparing a transaction changes its name. So if a noted name is gone, the transaction has ended,
-- or it is now one of the prepared ones. Nothing tells which one, so all of these then count as
-- still open.
create or replace function holdfast.still_open(noted text[])
returns text[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  unprepared text[] := array(select n from unnest(noted) n where n not like 'prepared %');
  prepared text[] := holdfast.prepared_transactions();
  open constant text[] := holdfast.open_transactions();
  still text[] := array(select n from unnest(unprepared) n where n = any(open));
begin
  -- A name is gone. Read the prepared transactions again, because this one may be prepared by now.
  if cardinality(still) < cardinality(unprepared) then
    return still || holdfast.prepared_transactions();
  end if;
  return still || array(select n from unnest(noted) n where n like 'prepared %' and n = any(prepared));
end
$$;
comment on function holdfast.still_open(text[]) is
  'Return which of these transactions are still open, or may have been prepared since.';

-- Return whether the current transaction may insert jobs into a lane by hand. It may not if the
-- lane is retired, its mark is covered by `lane_watch`, and the transaction is not noted there.
create or replace function holdfast.takes_jobs(lane_id integer)
returns boolean
language sql stable
as $$
  select not exists (
    select
    from holdfast.retired_lane r
    join holdfast.lane_watch w on w.mark >= r.mark
    where r.lane_id = takes_jobs.lane_id
      and not exists (
        select
        from pg_locks k
        where k.locktype = 'virtualxid'
          and k.mode = 'ExclusiveLock'
          and k.pid = pg_backend_pid()
          and k.virtualtransaction = any(w.open)))
$$;
comment on function holdfast.takes_jobs(integer) is
  'Return whether this transaction may insert jobs into a lane by hand. It may unless the lane was retired '
  'before the transaction can have looked it up.';
