-- Make transaction numbers grow from one cluster to the next, and from one start to the next.
--
-- An event carries the number of the transaction that wrote it, and a cursor is a
-- snapshot of such numbers. A dump takes both into another cluster, where numbers
-- start lower. Events would be hidden until that cluster has counted so far, and would
-- then appear again as new. After a failover or a recovery to a point in time, the server
-- uses numbers again that a cursor has already seen.
--
-- So we store and hand out the number plus the shift of the cluster:
--
--      bits 52 and up   epoch: how often the database has moved
--      bits 40 to 51    a hash of the cluster's mark: two restores of one dump differ
--      bits  0 to 39    the cluster's own number, plus 2^24 for each start of the server
--
-- Every number of an epoch is greater than all numbers of earlier epochs, including those in
-- cursors handed out after the dump. So an old cursor continues exactly where it was, and no
-- stored number needs to change. In epoch 0 the shift starts at 0.
--
-- A cluster's *mark* is its system identifier and its timeline. Reading it costs a look into
-- the control file, too much for each event. So it is compared once for each start of the
-- server; the start time is in memory. The new shift depends only on the stored row and the
-- mark, so sessions that compare at the same time agree on it without waiting.
--
-- When PostgreSQL crashes, it forgets the transactions whose log was not yet on disk, and uses
-- their numbers again, even if a cursor has seen them. So each crash within an epoch adds 2^24
-- to the shift: more than a crash can forget. After 60,000 crashes the sum reaches the bits of
-- the hash, and the numbers still grow. An orderly restart forgets nothing and changes nothing.
--
-- The table `crash_watch` is unlogged: PostgreSQL empties it when it starts after a crash, and at
-- no other time.
create or replace function holdfast.server_start()
returns timestamptz
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  -- If one process crashes, the postmaster restarts all others, but not itself. The crash resets these
  -- statistics. A DBA may reset them too: that costs one more comparison.
  select greatest(
    pg_postmaster_start_time(),
    least(pg_stat_get_bgwriter_stat_reset_time(), (select a.stats_reset from pg_stat_get_archiver() a)))
$$;
comment on function holdfast.server_start() is
  'Return when the server started, or restarted all its processes after one had crashed.';

create or replace function holdfast.cluster_mark()
returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  return concat_ws('/',
    (select c.system_identifier from pg_control_system() c),
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8));
exception when insufficient_privilege then
  return null;
end
$$;
comment on function holdfast.cluster_mark() is
  'Return the system identifier and the timeline of this cluster; null if the owner may not read them.';

create or replace function holdfast.cluster_shift(epoch integer, mark text)
returns bigint
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select case
    when epoch = 0 then 0
    else (epoch::bigint << 52) + (('x' || left(md5(coalesce(mark, '')), 3))::bit(12)::bigint << 40)
  end
$$;
comment on function holdfast.cluster_shift(integer, text) is
  'Return what a new epoch adds to the transaction numbers of a cluster.';

-- Compare the stored row with this cluster and return the row as it should be. If the mark
-- is not stored, or cannot be read, the database has moved if events carry numbers that this
-- cluster has not used yet.
create or replace function holdfast.compared_cluster(known holdfast.cluster)
returns holdfast.cluster
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  mark constant text := holdfast.cluster_mark();
  epoch constant integer := coalesce(known.epoch, 0);
  top xid8;
begin
  known.epoch := coalesce(known.epoch, 0); -- in case the table was emptied
  if mark is null or known.mark is null then
    -- Include our own number: this transaction sees its own events.
    top := greatest(pg_snapshot_xmax(pg_current_snapshot()), pg_current_xact_id_if_assigned());
    if exists (
      select from holdfast.event e where e.xid > holdfast.shifted(top, coalesce(known.shift, 0))
    ) then
      known.epoch := known.epoch + 1;
    end if;
  elsif mark <> known.mark then
    known.epoch := known.epoch + 1;
  end if;
  known.mark := coalesce(mark, known.mark);
  known.shift := case
    when known.epoch > epoch or known.shift is null then holdfast.cluster_shift(known.epoch, known.mark)
    when not exists (select from holdfast.crash_watch) then known.shift + 16777216
    else known.shift
  end;
  known.seen_at := holdfast.server_start();
  return known;
end
$$;
comment on function holdfast.compared_cluster(holdfast.cluster) is
  'Return the row of `cluster` after a comparison with this cluster.';

-- Return the shift for a reader: compare, but write nothing. A standby does not compare; it
-- uses the row that its primary has written.
create or replace function holdfast.xid_shift()
returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  known holdfast.cluster;
begin
  select c.* into known from holdfast.cluster c;
  if known.seen_at = holdfast.server_start() or pg_is_in_recovery() then
    return coalesce(known.shift, 0);
  end if;
  known := holdfast.compared_cluster(known);
  return known.shift;
end
$$;
comment on function holdfast.xid_shift() is 'Return what to add to the transaction numbers of this cluster.';

-- Return the shift for a writer or a duty, and store the result of a comparison. If another
-- session has locked the row, this one does not wait: the other one stores the same.
create or replace function holdfast.note_cluster()
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  known holdfast.cluster;
  compared holdfast.cluster;
  pair record;
begin
  select c.* into known from holdfast.cluster c;
  if known.seen_at = holdfast.server_start() then
    return known.shift;
  end if;
  -- Read the row and `crash_watch` in one statement, and so in one snapshot. Another session that
  -- compares changes both together. To see only its mark in `crash_watch` would hide the crash.
  select c as known, holdfast.compared_cluster(c) as compared into pair from holdfast.cluster c;
  if found then
    known := pair.known;
    compared := pair.compared;
  else
    compared := holdfast.compared_cluster(null);
  end if;
  if current_setting('transaction_isolation') = 'read committed' then
    perform from holdfast.cluster c where c is not distinct from known for update skip locked;
    if found then
      -- Duties do not wait for the disk, but the next crash must not forget this row.
      perform set_config('synchronous_commit', 'on', true);
      update holdfast.cluster c
      set mark = compared.mark, epoch = compared.epoch, shift = compared.shift, seen_at = compared.seen_at;
      insert into holdfast.crash_watch default values on conflict do nothing;
      if compared.shift > known.shift then
        -- A cursor of one job is the id of an event. Skip the ids that were used after the dump
        -- or lost in a crash.
        perform setval('holdfast.event_seq', nextval('holdfast.event_seq') + 4294967296);
      end if;
      if compared.epoch > known.epoch then
        perform holdfast.note(
          'repair', 'events', jsonb_build_object('epoch', compared.epoch, 'cluster', compared.mark));
      end if;
    end if;
  end if;
  return compared.shift;
end
$$;
comment on function holdfast.note_cluster() is
  'Return what to add to the transaction numbers of this cluster, and store it if the cluster has changed.';

create or replace function holdfast.shifted(number xid8, shift bigint)
returns xid8
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select (number::text::bigint + shift)::text::xid8
$$;
comment on function holdfast.shifted(xid8, bigint) is
  'Add the shift of a cluster to its transaction numbers.';

create or replace function holdfast.shifted(seen pg_snapshot, shift bigint)
returns pg_snapshot
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select case
    when shift = 0 then seen
    else format(
      '%s:%s:%s', holdfast.shifted(pg_snapshot_xmin(seen), shift),
      holdfast.shifted(pg_snapshot_xmax(seen), shift),
      (select string_agg(holdfast.shifted(x, shift)::text, ',' order by x) from pg_snapshot_xip(seen) x)
    )::pg_snapshot
  end
$$;
comment on function holdfast.shifted(pg_snapshot, bigint) is
  'Add the shift of a cluster to its transaction numbers.';
