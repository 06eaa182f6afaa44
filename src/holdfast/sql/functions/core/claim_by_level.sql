-- Claim level by level: the lanes of one priority and kind at a time, the most urgent first.
--
-- Each round finds the place up to which these lanes have the oldest jobs (nth_place), locks those
-- jobs, and gives the worker as many as fit (take).
--
-- The body is long on purpose: a function for the lock would have to return five values, two of
-- them arrays, for each round.
create or replace function holdfast.claim_by_level(
  queues text[], tasks text[], above integer, amount integer, room bigint, worker uuid, lease uuid,
    now_at timestamptz
)
returns setof holdfast.claimed_job
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  remaining integer := claim_by_level.amount;
  room_left bigint := room;
  level record;
  picked record;
  wanted integer;
  passed integer;
  cut bigint;
begin
  <<levels>>
  for level in
    select
      l.priority, l.kind = 2 as is_suspect, count(*)::integer as amount,
      array_agg(l.id) as ids, array_agg(l.first) as firsts, array_agg(l.queue) as queues
    from (
      select l.*
      from holdfast.lanes_at_work(claim_by_level.queues, tasks, above) l
      order by l.priority desc, l.kind desc, l.id
    ) l
    group by l.priority, l.kind
    order by l.priority desc, l.kind desc
  loop
    continue when level.is_suspect and not holdfast.may_take_suspect(worker, now_at);
    passed := 0;

    loop
      wanted := case when level.is_suspect then 1 else remaining end;
      -- Take no job behind the place `cut`, because another lane may have an older one.
      cut := case
        when level.amount = 1 then 9223372036854775807
        else holdfast.nth_place(level.ids, level.firsts, greatest(wanted, passed / 4))
      end;
      -- Lock the jobs and note their row ids (ctid), which stay valid until the rows are updated.
      select
        array_agg(k.row_id) as row_ids,
        array_agg(k.seq) filter (where level.amount > 1) as seqs,
        min(k.n) <> max(k.n) as is_mixed,
        count(*)::integer as found,
        least(count(*), wanted)::integer as amount,
        coalesce(sum(k.bytes), 0) as total
      into picked
      from (
        select j.row_id, j.seq, j.bytes, l.n
        from unnest(level.ids, level.firsts) with ordinality l (id, first, n)
        cross join lateral (
          select
            j.ctid as row_id, j.seq,
            holdfast.bytes_at_most(j.payload) + coalesce(holdfast.bytes_at_most(j.headers), 0) as bytes
          from holdfast.live j
          where j.lane_id = l.id
            and j.state = 'pending'
            and j.seq between l.first and cut
            and j.attempt < j.max_attempts
          order by j.seq
          limit wanted
          for update skip locked
        ) j
        where l.first <= cut
      ) k;
      if picked.is_mixed then -- the jobs of each lane are sorted, but not those of all lanes together
        picked.row_ids := array(
          select k.row_id from unnest(picked.row_ids, picked.seqs) k (row_id, seq) order by k.seq);
      end if;
      if picked.total > room_left then
        select f.amount, f.bytes into picked.amount, picked.total
        from holdfast.fitting(picked.row_ids[:picked.amount], room_left) f;
        if picked.amount = 0 and remaining = claim_by_level.amount and picked.found > 0 then
          picked.amount := 1; -- a claim takes at least one job, however large
          picked.total := room_left + 1;
        end if;
      end if;
      if picked.amount > 0 then
        return query
          select t.*
          from holdfast.take(
            picked.row_ids[:picked.amount], level.ids, level.queues, level.priority, level.is_suspect,
            worker, lease, now_at) t;
      end if;
      remaining := remaining - picked.amount;
      room_left := room_left - picked.total;

      if level.is_suspect and picked.amount > 0 then
        -- Claim one suspect at a time, and no job after it. Record its start before its handler can
        -- run, so that only this job is charged if the worker dies again.
        perform holdfast.start_suspect(worker, lease, level.ids, now_at);
        exit levels;
      end if;
      exit levels when remaining = 0;
      exit levels when picked.found > picked.amount; -- the next job does not fit
      exit when cut = 9223372036854775807; -- these lanes have no more jobs
      -- Some jobs were locked or had no attempts left. Look behind them before taking less urgent
      -- jobs. Look further in each round, because more jobs may be locked than the worker wants.
      passed := passed + greatest(wanted, passed / 4);
      select count(*)::integer, array_agg(l.id), array_agg(j.seq), array_agg(l.queue)
      into level.amount, level.ids, level.firsts, level.queues
      from unnest(level.ids, level.queues) l (id, queue)
      cross join lateral (
        select j.seq
        from holdfast.live j
        where j.lane_id = l.id
          and j.state = 'pending'
          and j.seq > cut
        order by j.seq
        limit 1
      ) j;
      exit when level.amount = 0;
    end loop;
  end loop;
end
$$;
comment on function holdfast.claim_by_level(
  text[], text[], integer, integer, bigint, uuid, uuid, timestamptz) is
  'Claim many jobs, suspects, or jobs from several lanes; a part of claim().';

-- Give jobs to a worker, and return them in the order given. `places` are the row ids (ctid) of the
-- jobs, which the caller has locked.
--
-- One TID scan finds all of them. A join by row id would begin a scan for each job, and each scan
-- asks the system how long the table is, which takes 1 µs. A TID scan returns rows in the order of
-- the table, so jobs that were given in another order are sorted afterwards.
create or replace function holdfast.take(
  places tid[], lanes integer[], queues text[], priority integer, is_suspect boolean,
  worker uuid, lease uuid, now_at timestamptz
)
returns setof holdfast.claimed_job
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  sorted tid[] := places;
  ranks bigint[];
begin
  if cardinality(places) > 1 then
    sorted := array(select p from unnest(places) p order by p);
  end if;
  if places = sorted then
    return query
      update holdfast.live j
      set
        state = 'claimed',
        worker_id = take.worker,
        lease = take.lease,
        attempt = j.attempt + 1,
        -- If the job came or fell due after this call read the clock, read the clock again. The job's
        -- own time would be wrong if the clock was set back.
        claimed_at = case when greatest(j.run_at, j.created_at) > now_at then holdfast.clock()
          else now_at end,
        changed_at = now_at
      where j.ctid = any(places)
      returning
        j.id, j.task, j.payload, j.attempt, j.lease, j.max_attempts,
        take.queues[array_position(lanes, j.lane_id)], take.priority, is_suspect, j.worker_id, j.created_at,
          j.headers;
  else
    ranks := array(select u.n from unnest(places) with ordinality u (row_id, n) order by u.row_id);
    return query
      select
        t.id, t.task, t.payload, t.attempt, t.lease, t.max_attempts, t.queue, t.priority, t.suspect, t.worker,
        t.created_at, t.headers
      from holdfast.take(sorted, lanes, queues, take.priority, is_suspect, take.worker, take.lease, now_at)
        with ordinality t
      order by ranks[t.ordinality];
  end if;
end
$$;
comment on function holdfast.take(tid[], integer[], text[], integer, boolean, uuid, uuid, timestamptz) is
  'Give locked jobs to a worker under a lease and return them in the order given; a part of claim().';
