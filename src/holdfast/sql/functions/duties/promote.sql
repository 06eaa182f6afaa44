-- holdfast: after replace
-- Make due jobs pending: delayed jobs at the end of their lane, retried and snoozed jobs in
-- the returned lane, so that a retry does not wait behind a million others.
--
-- The index is read from the mark `promote_from`. Before it lie the entries of all jobs that were
-- promoted since the oldest snapshot that any session holds: see advance.sql.
--
-- One call promotes at most `amount` jobs, so that a flood of due jobs does not take the
-- server from others. The result is an interval and not a time, since the caller's clock may
-- be wrong; zero or less means that more jobs are due now. Due jobs that another session has
-- locked or is promoting are looked at again a little later.
--
-- Workers of 0.2 call promote(amount) and expect it to fire schedules. `also_fire` can go in
-- 0.5, two releases later.
-- holdfast: role worker
create or replace function holdfast.promote(amount integer default 2000, also_fire boolean default true)
returns interval
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  due_from timestamptz := (select w.promote_from from holdfast.writer_watch w);
  due uuid[];
  more boolean;
  next_tick timestamptz;
  next_at timestamptz;
begin
  perform holdfast.check_isolation('promote');
  if promote.amount is null or promote.amount not between 1 and 100000 then
    perform holdfast.refuse_value('amount', promote.amount::text, 'must be between 1 and 100000');
  end if;
  if promote.also_fire then
    next_tick := holdfast.next_tick(now_at);
  end if;
  if next_tick <= now_at then
    begin
      next_tick := now_at + holdfast.fire();
    exception when others then
      next_tick := now_at + interval '1 second'; -- an error in schedules must not stop jobs
      perform holdfast.note_duty('fire', sqlerrm);
    end;
  end if;
  -- A session that does not get the lock leaves the work to the session that has it.
  if holdfast.try_duty('promote') then
    select array_agg(d.id order by d.run_at, d.seq)
    into due
    from (
      select j.id, j.run_at, j.seq
      from holdfast.live j
      where j.state = 'scheduled'
        and j.run_at >= coalesce(due_from, '-infinity')
        and j.run_at <= now_at
      order by j.run_at
      limit promote.amount
      for update skip locked
    ) d;
    if due is not null then
      perform holdfast.make_pending(due, now_at);
    end if;
    more := cardinality(due) = promote.amount;
    if holdfast.is_old((select d.done_at from holdfast.duty d where d.name = 'promote'), now_at) then
      perform holdfast.note_done('promote', now_at);
    end if;
  end if;
  next_at := holdfast.next_due();
  return least(
    case when next_at <= now_at and not coalesce(more, false) then interval '100 milliseconds'
      else next_at - now_at end,
    next_tick - now_at);
end
$$;
comment on function holdfast.promote(integer, boolean) is
  'Make due jobs pending. Returns how long it is until the next one is due. With also_fire, which workers '
  'of 0.2 rely on, fire due schedules first, as fire() does.';
select holdfast.replace_function('holdfast.promote(integer)', 'holdfast.promote(integer, boolean)');

create or replace function holdfast.next_due()
returns timestamptz
language sql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
  select j.run_at
  from holdfast.live j
  where j.state = 'scheduled'
    and j.run_at >= coalesce((select w.promote_from from holdfast.writer_watch w), '-infinity')
  order by j.run_at
  limit 1
$$;
comment on function holdfast.next_due() is
  'Return when the next scheduled job is due; null if there is none.';

-- Make scheduled jobs pending, in the order given. The caller has locked them. A job that has no
-- attempts left, because the maximum was lowered, dies instead.
create or replace function holdfast.make_pending(ids uuid[], now_at timestamptz)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  lanes integer[];
begin
  if (select bool_or(j.attempt >= j.max_attempts) from holdfast.live j where j.id = any(ids)) then
    perform holdfast.end_jobs_without_attempts(ids, now_at);
  end if;
  perform holdfast.check_places(ids);
  with moved as (
    update holdfast.live j
    set
      state = 'pending',
      lane_id = o.new_lane,
      seq = o.new_seq,
      changed_at = now_at
    from (
      -- Call nextval() on the sorted rows. A join at this level could change their order.
      select d.row_id, d.new_lane, nextval('holdfast.job_seq') as new_seq
      from (
        select j.row_id, s.new_lane
        from unnest(ids) with ordinality i (id, n)
        cross join lateral (
          select j.ctid as row_id, j.lane_id, j.attempt from holdfast.live j where j.id = i.id offset 0
        ) j
        join (
          select k.lane_id, k.again,
            holdfast.lane_of_kind(k.lane_id, case when k.again then 1 else 0 end) as new_lane
          from (
            select distinct j.lane_id, j.attempt > 0 as again from holdfast.live j where j.id = any(ids)) k
        ) s on s.lane_id = j.lane_id and s.again = (j.attempt > 0)
        order by i.n
      ) d
    ) o
    where j.ctid = o.row_id
    returning j.lane_id
  )
  select array_agg(distinct m.lane_id) into lanes from moved m;
  perform holdfast.wake_lanes(lanes, cardinality(ids));
end
$$;
comment on function holdfast.make_pending(uuid[], timestamptz) is
  'Make scheduled jobs pending, in the order given.';

create or replace function holdfast.end_jobs_without_attempts(ids uuid[], now_at timestamptz)
returns bigint
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.end_jobs(
    'dead',
    array_agg(j.id),
    array_agg(coalesce(j.last_error, format('all %s attempts are used up', j.max_attempts))),
    end_jobs_without_attempts.now_at)
  from holdfast.live j
  where j.id = any(ids)
    and j.attempt >= j.max_attempts
  having count(*) > 0
$$;
comment on function holdfast.end_jobs_without_attempts(uuid[], timestamptz) is
  'Move those of these live jobs that have no attempts left to the dead letters.';
