-- holdfast: after duty
-- Remove lanes that have been empty for ten minutes.
--
-- A lane may go only when no transaction can still put a job into it. Some transaction
-- may have looked the lane up, or hold a snapshot in which it is there, and insert later.
-- So a lane goes in steps, one at each upkeep:
--
--   1. Mark it as retired. From the commit on, lane() and enqueue() give nobody this
--      lane: they make a new one. Claims visit it as before.
--   2. Note which transactions are open. From that commit on, a trigger refuses inserts by
--      hand into a retired lane, except by these transactions, which may have looked the
--      lane up before it was marked.
--   3. Note again which are open. Whoever was let in by the trigger, or found the lane
--      before it was marked, is among them or has ended.
--   4. When all of these have ended, delete the lane if it is still empty. Otherwise it is
--      an ordinary lane again.
--
-- "Empty" means that no live job names it, and no row of stat_delta, which would lose its
-- queue and task.
create or replace function holdfast.retire_lanes(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  me constant bigint := pg_current_xact_id()::text::bigint;
  watch holdfast.lane_watch;
  marked bigint;
begin
  -- Not in the transaction that noted who is open: nobody else sees its note yet.
  select w.* into watch from holdfast.lane_watch w;
  if watch.noted = me then
    return 0;
  end if;
  if watch.step = 2 then
    update holdfast.lane_watch set step = 3, open = holdfast.open_transactions(), noted = me;
  elsif watch.step = 3 then
    watch.open := holdfast.still_open(watch.open);
    if watch.open = '{}' then
      delete from holdfast.lane_watch;
      return holdfast.remove_lanes(watch.mark);
    end if;
    update holdfast.lane_watch w set open = watch.open where w.open <> watch.open;
  else
    select max(r.mark) into marked from holdfast.retired_lane r;
    if marked is not null then
      insert into holdfast.lane_watch (step, mark, open, noted)
      values (2, marked, holdfast.open_transactions(), me);
    else
      perform holdfast.mark_lanes(me, now_at);
    end if;
  end if;
  return 0;
end
$$;
comment on function holdfast.retire_lanes(timestamptz) is
  'Take one step towards the removal of lanes that have been empty for ten minutes; returns how many were removed.';

-- The lanes that are named by what no index finds by lane: scheduled and held jobs, and
-- what the statistics have yet to add up.
create or replace view holdfast.lane_in_use as
select j.lane_id from holdfast.live j where j.state = 'scheduled'
union
select j.lane_id from holdfast.live j where j.state = 'claimed'
union
select unnest(d.lanes) from holdfast.stat_delta d;
comment on view holdfast.lane_in_use is 'The lanes that scheduled or held jobs name, or counts that are not yet added up.';

create or replace function holdfast.mark_lanes(me bigint, now_at timestamptz)
returns void
language sql volatile
as $$
  insert into holdfast.retired_lane (lane_id, mark)
  select l.id, mark_lanes.me
  from holdfast.lane l
  where not exists (select from holdfast.retired_lane r where r.lane_id = l.id offset 0)
    and not exists (
      select from holdfast.lane_activity a where a.lane_id = l.id and a.at >= now_at - interval '10 minutes' offset 0)
    and not exists (
      select from holdfast.live j
      where j.lane_id = l.id and j.state = 'pending' and j.seq >= l.safe_head
      offset 0)
    and not exists (select from holdfast.lane_in_use u where u.lane_id = l.id)
  limit 20000
$$;
comment on function holdfast.mark_lanes(bigint, timestamptz) is 'Mark lanes that have been empty for ten minutes.';

-- In one statement, so that by its snapshot no job can be on its way from one state to another.
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
    returning l.id
  ),
  forgotten as (
    delete from holdfast.lane_activity a using gone g where a.lane_id = g.id
  )
  select count(*) into removed from gone;
  delete from holdfast.retired_lane r where r.mark <= remove_lanes.mark;
  return removed;
end
$$;
comment on function holdfast.remove_lanes(bigint) is 'Remove retired lanes that are empty; the others are ordinary lanes again.';

-- Every transaction holds a lock on its own virtual id from its begin to its end, whether
-- it has written or not, and everybody may see it. A prepared one does not: it is known by
-- its number.
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
    -- Autovacuum, which has no user, and sessions of other databases make no jobs here.
    and (a.datname is null or (a.datname = current_database() and a.usesysid is not null))
$$;
comment on function holdfast.open_transactions() is 'The transactions that are open in this database, but for this one.';

create or replace function holdfast.prepared_transactions()
returns text[]
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(array_agg('prepared ' || p.transaction), '{}')
  from pg_prepared_xacts p
  where p.database = current_database()
$$;
comment on function holdfast.prepared_transactions() is 'The prepared transactions of this database.';

-- One that is no longer open may have been prepared since.
create or replace function holdfast.still_open(noted text[])
returns text[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  before text[] := array(select n from unnest(noted) n where n not like 'prepared %');
  prepared text[] := holdfast.prepared_transactions();
  still text[] := array(select n from unnest(before) n where n = any(holdfast.open_transactions()));
begin
  -- Whoever is prepared between these looks is found by the second one.
  if cardinality(still) < cardinality(before) then
    return still || holdfast.prepared_transactions();
  end if;
  return still || array(select n from unnest(noted) n where n like 'prepared %' and n = any(prepared));
end
$$;
comment on function holdfast.still_open(text[]) is 'Which of these transactions are still open, or may have been prepared since.';

-- Whether jobs may be put into a lane by hand.
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
  'Whether a lane is not retired, or this transaction may have looked it up before it was.';
