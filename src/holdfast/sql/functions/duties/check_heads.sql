-- Find jobs behind a head and move the head back to them. upkeep() runs this every few
-- minutes, in case a promise above was broken.
-- holdfast: role worker
create or replace function holdfast.check_heads()
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
  begun_at timestamptz;
  repaired integer;
  lanes integer[];
begin
  perform holdfast.check_isolation('check_heads');
  -- advance() must not move heads meanwhile.
  perform holdfast.await_duty('advance');
  begun_at := holdfast.clock();
  -- Look again for late jobs that were locked when advance() looked.
  perform holdfast.include_late_jobs(0);
  update holdfast.writer_watch w
  set promote_from = j.run_at
  from (
    select j.run_at
    from holdfast.live j
    where j.state = 'scheduled'
      and j.run_at >= (select w.due_from from holdfast.writer_watch w)
      and j.run_at < (select w.promote_from from holdfast.writer_watch w)
    order by j.run_at
    limit 1
    for update skip locked
  ) j;
  with behind as (
    select l.id, f.seq
    from holdfast.lane l
    cross join lateral (
      select j.seq
      from holdfast.live j
      where j.lane_id = l.id
        and j.state = 'pending'
        and j.seq < l.safe_head
      order by j.seq
      limit 1
    ) f
  ),
  moved as (
    update holdfast.lane l
    set head = b.seq, safe_head = b.seq
    from behind b
    where l.id = b.id
    returning l.id, l.head
  ),
  due as (
    update holdfast.writer_watch w
    set due_from = f.run_at, promote_from = f.run_at
    from (select min(j.run_at) as run_at from holdfast.live j where j.state = 'scheduled') f
    where f.run_at < w.due_from
    returning w.due_from
  ),
  noted as (
    insert into holdfast.audit (at, who, action, target, detail)
    select holdfast.clock(), session_user, 'repair', 'lane ' || m.id, jsonb_build_object('head', m.head)
    from moved m
    union all
    select holdfast.clock(), session_user, 'repair', 'due_from', jsonb_build_object('due_from', d.due_from)
    from due d
    returning id
  )
  select (select count(*) from noted), (select array_agg(m.id) from moved m) into repaired, lanes;
  if lanes is not null then
    perform holdfast.wake_lanes(lanes, 1000); -- any number of jobs may lie behind the heads
  end if;
  perform holdfast.note_look('check_heads', begun_at);
  return repaired;
end
$$;
comment on function holdfast.check_heads() is
  'Find jobs behind the head of their lane, or behind the mark of scheduled jobs, and move it back. Returns '
  'how many were repaired.';

-- Repair a sequence that stands below a place it has reached before: it was reset, restored
-- or replicated. Heads start over, and the sequence moves above everything, with room for
-- places that open transactions have taken.
create or replace function holdfast.repair_sequence()
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  reached bigint;
begin
  select greatest(
    (select max(l.head) from holdfast.lane l),
    (select max(j.seq) from holdfast.live j),
    (select max(w.top) from holdfast.writer_watch w),
    nextval('holdfast.job_seq'))
  into reached;
  perform setval('holdfast.job_seq', reached + 10000);
  -- Nothing is known about the writers that are open now.
  insert into holdfast.writer_watch (seq, at, top)
  values (0, '-infinity', reached)
  on conflict (only_row) do update set
    (seq, at, writers, since, since_at, seen_at, top)
    = (excluded.seq, excluded.at, '{}', '{}', '{}', '{}', excluded.top);
  update holdfast.lane set head = 0, safe_head = 0 where head <> 0 or safe_head <> 0;
  perform holdfast.note('repair', 'job_seq', jsonb_build_object('reached', reached));
end
$$;
comment on function holdfast.repair_sequence() is
  'Set the heads back and the sequence forward after the sequence was reset.';
