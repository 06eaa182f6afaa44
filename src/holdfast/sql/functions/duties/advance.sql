-- Move the heads of the lanes forward: this is why claiming never slows down.
--
-- A queue that claims from the beginning of its index walks over the entries of all
-- jobs done since the oldest snapshot that anyone holds: 39,000 jobs/s fell to 6,700
-- after 600,000 jobs under one open report. A claim reads from the head of its lane, and
-- the head moves past what is done.
--
-- A head may lag, but it must never pass a job that is or will be pending. A
-- transaction may take a place (a seq) early and commit late:
--
--      inserter A   takes 100 ........................... commits
--      inserter B      takes 101, commits
--      claim              takes 101; is the first pending job now 102? No: 100 is to come.
--
-- The safe head
--
-- The *safe* head only moves up to a proven place. Each run of this duty
--
--   1. takes S = nextval(job_seq),
--   2. then notes the *writers*: transactions that hold RowExclusiveLock on `job` or
--      `live`. Every inserter takes that lock before it takes a place, and holds it to
--      its end. So a writer that is first seen in this run began after the previous run
--      and took only places above the S of that run. That S is the writer's `since`.
--
-- No job can still appear at or below the least `since` of the open writers (or S, if
-- there are none): head = least(first pending place, that + 1).
--
-- A prepared transaction holds its lock without a process, and changes its name at a
-- restart, so it may look new although it is old. Its `since` is 0, and nothing is
-- proven while one is open.
--
-- The eager head: transactions that stay open
--
-- A transaction that enqueued and stays open for minutes would hold all heads back. If
-- it has been open for 5 seconds, and a safe head lags by more than 10,000 places, claims
-- read from the first pending place instead (the *eager* head). Jobs that commit late
-- between the two heads get a new place, or the head goes back to them if they are very
-- many. Late jobs can only come from a writer that has ended since the last run, so the
-- search for them begins at its `since`, not at the safe head.
--
-- A transaction that has cancelled or claimed a waiting job and stays open leaves that job
-- pending for all others. The eager head passes such a job once its lock is 5 to 10
-- seconds old. The transaction that holds the lock, its *locker*, is noted with the first
-- place that was passed. When the locker has ended, the jobs from that place on are treated
-- like late ones.
--
-- A locker is the number in `xmax`, not a session: a savepoint has its own number and may be
-- rolled back alone, and a prepared transaction keeps its number through a restart. If
-- several transactions lock a row at once, `xmax` is a multixact. It is taken for a number
-- that has ended, so no head passes that row.
--
-- Failures
--
-- If the sequence stands below a place it has reached before, it was reset, restored or
-- replicated, and new jobs would stand behind the heads. Then all heads start over.
--
-- Claims commit without waiting for the disk. The move of a head past a claim is written
-- later in the same log, so a crash that loses the claim loses the move too.
--
-- Scheduled jobs
--
-- The index of scheduled jobs has a mark of the same kind, `due_from`: no scheduled job is
-- due before it. A job is scheduled only for a time after its writer took the lock. So when
-- a writer has ended, the index is searched from the time of the last run before that writer was
-- seen. A second mark, `promote_from`, also passes scheduled jobs that have a locker: promote()
-- reads from there.
--
-- The parts are in writers.sql, move_heads.sql, lockers.sql and due_from.sql. check_heads.sql moves
-- a head back if it has passed a job all the same.
--
-- The body is long on purpose: its steps share the proof, and their order is the proof.
-- holdfast: role worker
create or replace function holdfast.advance()
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
  patience constant interval := '5 seconds';
  now_at timestamptz := holdfast.clock();
  s bigint; -- the place that this run takes
  open text[]; -- the writers that are open now
  watch holdfast.writer_watch; -- the notes of the last run, updated by this one
  seen record; -- the known facts about the open writers
  late record; -- the first place and time at which the ended writers may have left jobs
  unlocked record; -- the same for the lockers that have ended
  set_back boolean; -- the clock was set back since the last run
  next_xid xid8 := pg_snapshot_xmax(pg_current_snapshot());
  promote_from timestamptz;
  moved integer;
begin
  perform holdfast.check_isolation('advance');
  if not holdfast.try_duty('advance') then
    return 0;
  end if;

  -- Take the place first and read the writers second: only this order proves anything.
  s := nextval('holdfast.job_seq');
  open := holdfast.writers();
  select w.* into watch from holdfast.writer_watch w;
  if s <= watch.top or s < (select max(l.head) from holdfast.lane l) then
    perform holdfast.repair_sequence();
    return 0;
  end if;
  -- If the clock was set back, the noted times of writers say nothing about scheduled jobs.
  set_back := coalesce(now_at < watch.at, false);
  -- Every 5 seconds old_xid becomes the number noted 5 seconds before (mark_xid). So open
  -- transactions below old_xid are older than `patience`, and heads no longer wait for them.
  if (watch.mark_at between now_at - patience and now_at) is not true then
    watch.old_xid := coalesce(watch.mark_xid, '0');
    watch.mark_xid := next_xid;
    watch.mark_at := now_at;
  end if;
  watch.old_xid := least(watch.old_xid, next_xid); -- it is higher only after a restore elsewhere

  select
    coalesce(array_agg(w.writer), '{}') as writers,
    coalesce(array_agg(w.since), '{}') as since,
    coalesce(array_agg(w.since_at), '{}') as since_at,
    coalesce(array_agg(w.seen_at), '{}') as seen_at,
    coalesce(min(w.since), s) as proven,
    coalesce(min(w.since) filter (where w.seen_at > now_at - patience), s) as waited_for
  into seen
  from (
    select
      o.writer,
      case when o.writer like 'prepared %' then 0 else coalesce(w.since, watch.seq, 0) end as since,
      case
        when set_back or o.writer like 'prepared %' then '-infinity'
        else coalesce(w.since_at, watch.at, '-infinity')
      end as since_at,
      coalesce(w.seen_at, now_at) as seen_at
    from unnest(open) o (writer)
    left join unnest(watch.writers, watch.since, watch.since_at, watch.seen_at) w (
      writer, since, since_at, seen_at)
      on w.writer = o.writer
  ) w;

  select least(watch.seq, min(w.since)) as seq, least(watch.at, min(w.since_at)) as at into late
  from unnest(watch.writers, watch.since, watch.since_at) w (writer, since, since_at)
  where w.writer <> all(open);
  -- Find the ended lockers first, and the jobs that they left second.
  with ended as (
    delete from holdfast.locker k where not holdfast.is_open(k.xid, next_xid) returning k.seq, k.run_at
  )
  select min(e.seq) as seq, min(e.run_at) as run_at, count(*) > 0 as any into unlocked from ended e;
  perform holdfast.include_late_jobs(least(coalesce(late.seq, 0), unlocked.seq));
  if unlocked.seq is not null then
    perform holdfast.note_still_locked(unlocked.seq);
  end if;
  moved := holdfast.advance_safe_heads(seen.proven, next_xid);
  if seen.waited_for > seen.proven + 10000 then
    moved := moved + holdfast.advance_eager_heads(seen.waited_for, watch.old_xid);
  end if;

  -- Write only if something has changed, so that an idle database stays idle.
  if watch.seq is null or open <> '{}' or watch.writers <> '{}' or s > watch.top + 100 or set_back
    or unlocked.any or watch.promote_from < watch.due_from
  then
    promote_from := holdfast.promote_from(
      case when set_back then '-infinity' else least(watch.promote_from, unlocked.run_at) end,
      late.at, now_at, watch.old_xid);
    insert into holdfast.writer_watch
      (seq, at, writers, since, since_at, seen_at, top, due_from, promote_from, old_xid, mark_xid, mark_at)
    values (
      s, now_at, seen.writers, seen.since, seen.since_at, seen.seen_at, s,
      holdfast.due_from(case when set_back then '-infinity' else watch.due_from end, late.at, now_at),
      promote_from, watch.old_xid, watch.mark_xid, watch.mark_at)
    on conflict (only_row) do update set
      (seq, at, writers, since, since_at, seen_at, top, due_from, promote_from, old_xid, mark_xid,
        mark_at) = (
        excluded.seq, excluded.at, excluded.writers, excluded.since, excluded.since_at, excluded.seen_at,
        excluded.top,
        excluded.due_from, excluded.promote_from, excluded.old_xid, excluded.mark_xid, excluded.mark_at);
  end if;
  if holdfast.is_old((select d.done_at from holdfast.duty d where d.name = 'advance'), now_at) then
    perform holdfast.note_done('advance', now_at);
  end if;
  return moved;
end
$$;
comment on function holdfast.advance() is
  'Move the heads of the lanes past the jobs that are done. Returns how many heads moved.';
