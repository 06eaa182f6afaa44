-- Hand up to `amount` pending jobs to one worker, most urgent first.
--
-- Rows that another worker is claiming are stepped over, so claims never wait
-- for each other. The lease is what the worker must show to report on them; the
-- caller makes it, so that after a lost reply it can ask claimed(lease).
--
-- Each lane is read from its head, never from the beginning of the index: see
-- advance.sql. Higher priority goes first; within a priority suspects, then
-- returned jobs, then fresh ones, each in the order of their arrival across all
-- lanes: a job is overtaken only by jobs of the same claim. A claim has one
-- suspect at most, which comes last. It is bounded in bytes of payload and headers too, but
-- never below one job. Who has enough to do may ask for what goes before it alone:
-- for jobs `above` a priority.
--
-- To look into a lane costs 2 to 5 µs. Lanes that are not asked for cost nothing. The
-- plans are pinned, because a never-analyzed table or an eager JIT costs 4 to 40 times.
create or replace function holdfast.claim(
  worker uuid default null,
  lease uuid default null,
  queues text[] default null,
  tasks text[] default null,
  amount integer default 10,
  above integer default null
)
returns setof holdfast.claimed_job
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  consumer uuid := coalesce(claim.worker, gen_random_uuid());
  new_lease uuid := coalesce(claim.lease, gen_random_uuid());
  known_tasks text[] := claim.tasks;
  remaining integer := claim.amount;
  room bigint := 16 * 1024 * 1024;
  level record;
  picked record;
  wanted integer;
  passed integer;
  cut bigint;
  in_order boolean;
  its_queue text;
  its_priority integer;
  is_suspect boolean;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform holdfast.check_isolation('claim');
  end if;
  if claim.amount is null or claim.amount not between 1 and 10000 then
    perform holdfast.refuse_value('amount', claim.amount::text, 'must be between 1 and 10000');
  end if;

  if claim.tasks is null then -- whatever there is: lanes are found by their task
    known_tasks := case
      when claim.queues is null then array(select l.task from holdfast.lane l where l.id > 0)
      else array(
        select l.task
        from unnest(claim.queues) q (name)
        cross join lateral (select l.task from holdfast.lane l where l.queue = q.name offset 0) l)
    end;
  end if;

  -- Nothing about the worker is asked before a statement that locks `live`: see look_after_gone().
  --
  -- A few are asked for and one lane alone has work, as nearly always when a worker was
  -- woken: then all is one statement, which takes an eighth less time than those below.
  return query
    with lanes as materialized (
      select l.*
      from holdfast.lanes_at_work(claim.queues, known_tasks, claim.above) l
      where claim.amount <= 100
      limit 2
    )
    update holdfast.live j
    set
      state = 'claimed',
      worker_id = consumer,
      lease = new_lease,
      attempt = j.attempt + 1,
      -- It may have come, or fallen due, since we looked at the clock. Not its own time: the clock may have been set back.
      claimed_at = case when greatest(j.run_at, j.created_at) > now_at then holdfast.clock() else now_at end,
      changed_at = now_at
    from (
      -- In the order of the lane, as they come: to ask for it would sort them.
      select j.place, l.queue, l.priority, sum(j.bytes) over () as total
      from holdfast.attending(consumer, now_at)
      cross join lanes l
      cross join lateral (
        select j.ctid as place, holdfast.bytes_at_most(j.payload) + coalesce(holdfast.bytes_at_most(j.headers), 0) as bytes
        from holdfast.live j
        where j.lane_id = l.id
          and j.state = 'pending'
          and j.seq >= l.first
          and j.attempt < j.max_attempts
        order by j.seq
        limit claim.amount
        for update skip locked
      ) j
      where l.kind <> 2
        and (select count(*) from lanes) = 1
    ) p
    where j.ctid = p.place
      and p.total <= room -- else below, where they are looked at one by one
    returning
      j.id, j.task, j.payload, j.attempt, j.lease, j.max_attempts, p.queue, p.priority::integer,
      false, j.worker_id, j.created_at, j.headers;
  if found then
    return;
  end if;

  perform holdfast.attending(consumer, now_at);
  if not found then
    perform holdfast.attend(consumer, now_at, claim.queues, claim.tasks);
  end if;
  <<levels>>
  for level in
    select
      l.priority, l.kind, count(*)::integer as amount, min(l.queue) = max(l.queue) as is_one_queue,
      array_agg(l.id) as ids, array_agg(l.first) as firsts, array_agg(l.queue) as queues
    from (
      select l.* from holdfast.lanes_at_work(claim.queues, known_tasks, claim.above) l
      order by l.priority desc, l.kind desc, l.id
    ) l
    group by l.priority, l.kind
    order by l.priority desc, l.kind desc
  loop
    its_priority := level.priority;
    is_suspect := level.kind = 2;
    continue when is_suspect and not holdfast.may_take_suspect(consumer, now_at);
    passed := 0;

    loop
      wanted := case when is_suspect then 1 else remaining end;
      -- Up to the place where the oldest of all lanes end: whatever is behind them has to wait.
      cut := case
        when level.amount = 1 then 9223372036854775807
        else holdfast.reach(level.ids, level.firsts, greatest(wanted, passed / 4))
      end;
      -- Lock them, and note where they lie: the rows stay there until we write.
      select
        array_agg(k.place) as places,
        array_agg(k.n) filter (where level.amount > 1) as at,
        array_agg(k.seq) filter (where level.amount > 1) as seqs,
        min(k.n) <> max(k.n) as is_mixed,
        count(*)::integer as found,
        least(count(*), wanted)::integer as amount,
        coalesce(sum(k.bytes), 0) as total
      into picked
      from (
        select j.place, j.seq, j.bytes, l.n
        from unnest(level.ids, level.firsts) with ordinality l (id, first, n)
        cross join lateral (
          select j.ctid as place, j.seq, holdfast.bytes_at_most(j.payload) + coalesce(holdfast.bytes_at_most(j.headers), 0) as bytes
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
      if picked.is_mixed then -- each lane is in order, but not all together
        select array_agg(k.place order by k.seq), array_agg(k.n order by k.seq)
        into picked.places, picked.at
        from unnest(picked.places, picked.at, picked.seqs) k (place, n, seq);
      end if;
      if picked.total > room then
        select f.amount, f.bytes into picked.amount, picked.total
        from holdfast.fitting(picked.places[:picked.amount], room) f;
        if picked.amount = 0 and remaining = claim.amount and picked.found > 0 then
          picked.amount := 1;
          picked.total := room + 1; -- and nothing beside it
        end if;
      end if;

      -- To join by place begins a scan for each job, and each asks the system how long the table is: 1 µs.
      -- Where they lie in the order of the lane, as after a bulk enqueue, one scan finds all of them.
      its_queue := level.queues[coalesce(picked.at[1], 1)];
      in_order := (level.is_one_queue or not picked.is_mixed)
        and picked.places[1] < picked.places[picked.found / 2]
        and picked.places[picked.found / 2] < picked.places[picked.found]
        and picked.places = array(select p.place from unnest(picked.places) p (place) order by p.place);
      if picked.amount > 0 and in_order then
        return query
          update holdfast.live j
          set
            state = 'claimed',
            worker_id = consumer,
            lease = new_lease,
            attempt = j.attempt + 1,
            claimed_at = case when greatest(j.run_at, j.created_at) > now_at then holdfast.clock() else now_at end,
            changed_at = now_at
          where j.ctid = any(picked.places[:picked.amount])
          returning
            j.id, j.task, j.payload, j.attempt, new_lease, j.max_attempts, its_queue, its_priority,
            is_suspect, consumer, j.created_at, j.headers;
      elsif picked.amount > 0 then
        return query
          update holdfast.live j
          set
            state = 'claimed',
            worker_id = consumer,
            lease = new_lease,
            attempt = j.attempt + 1,
            claimed_at = case when greatest(j.run_at, j.created_at) > now_at then holdfast.clock() else now_at end,
            changed_at = now_at
          from unnest(picked.places[:picked.amount], picked.at[:picked.amount]) p (place, n)
          where j.ctid = p.place
          returning
            j.id, j.task, j.payload, j.attempt, new_lease, j.max_attempts, level.queues[coalesce(p.n, 1)], its_priority,
            is_suspect, consumer, j.created_at, j.headers;
      end if;
      remaining := remaining - picked.amount;
      room := room - picked.total;

      if is_suspect and picked.amount > 0 then
        -- One suspect at a time, and nothing after it. Its start is on record
        -- before its handler can run, so that only the culprit pays if the
        -- worker dies again.
        perform holdfast.start_suspect(consumer, new_lease, level.ids, now_at);
        exit levels;
      end if;
      exit levels when remaining = 0;
      exit levels when picked.found > picked.amount; -- enough bytes
      exit when cut = 9223372036854775807; -- there are no more
      -- Others have locked some of them, or their attempts are used up: look further from there, before anything
      -- less urgent is taken. The more were passed in vain, the further: then more may be locked than are taken.
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
comment on function holdfast.claim(uuid, uuid, text[], text[], integer, integer) is
  'Hand up to amount pending jobs to one worker, most urgent first, under one lease; those above a priority alone, if one is given. A missing worker id or lease is made up.';

-- The lanes that have something to hand out, and where: what lies between the head and
-- the first job is walked over here, and not again. Without a SET clause, as the next
-- one, so that they become a part of the query that asks.
create or replace function holdfast.lanes_at_work(queues text[], tasks text[], above integer)
returns table (id integer, queue text, priority smallint, kind smallint, first bigint)
language sql stable
as $$
  select l.id, l.queue, l.priority, l.kind, first.seq
  from (
    -- Either by an index: what is not asked for costs nothing, however many lanes others have.
    select l.* from holdfast.lane l where l.task = any(lanes_at_work.tasks) and l.queue = any(lanes_at_work.queues)
    union all
    select l.* from holdfast.lane l where l.task = any(lanes_at_work.tasks) and lanes_at_work.queues is null
  ) l
  cross join lateral (
    select j.seq
    from holdfast.live j
    where j.lane_id = l.id
      and j.state = 'pending'
      and j.seq >= l.head
    order by j.seq
    limit 1
  ) first
  where (lanes_at_work.above is null or l.priority > lanes_at_work.above)
    and not exists (select from holdfast.queue q where q.name = l.queue and q.paused_at is not null)
$$;
comment on function holdfast.lanes_at_work(text[], text[], integer) is 'The lanes that have jobs to claim, and the place of the first one.';

-- Return the place up to which the `amount` oldest jobs of these lanes lie, given the first
-- job of each; the largest place there is, if there are fewer jobs.
--
-- To look at that many jobs of each lane would cost more than the claim. So the first look
-- covers twice an even share. A lane that has this many jobs before the place found so far
-- may have more of them there, and is looked into further, until no lane can. Equal lanes
-- need one look. Where one lane holds all the oldest jobs, its own jobs are the answer.
create or replace function holdfast.reach(lanes integer[], firsts bigint[], amount integer)
returns bigint
language plpgsql volatile
as $$
declare
  furthest constant bigint := 9223372036854775807;
  ids integer[];
  starts bigint[];
  ahead bigint[] := '{}';
  cut bigint;
  glance integer;
begin
  -- At most this far: so many lanes have a job up to here, or the lane with the oldest job has so many.
  with bound as materialized (
    select least(
      furthest,
      (select f from unnest(firsts) f order by f offset amount - 1 limit 1),
      (
        select j.seq
        from (select l.id, l.first from unnest(lanes, firsts) l (id, first) order by l.first limit 1) l
        cross join lateral (
          select j.seq
          from holdfast.live j
          where j.lane_id = l.id
            and j.state = 'pending'
            and j.seq >= l.first
          order by j.seq
          offset amount - 1
          limit 1
        ) j
      )) as place
  )
  select b.place, array_agg(l.id), array_agg(l.first) into cut, ids, starts
  from bound b
  join unnest(lanes, firsts) l (id, first) on l.first <= b.place
  group by b.place;
  if cardinality(ids) = 1 then
    return cut;
  end if;
  loop
    glance := least(amount, 2 * amount / cardinality(ids) + 8);
    with looked as materialized (
      select l.id, s.seqs
      from unnest(ids, starts) l (id, first)
      cross join lateral (
        select array(
          select j.seq
          from holdfast.live j
          where j.lane_id = l.id
            and j.state = 'pending'
            and j.seq between l.first and cut
          order by j.seq
          limit glance
        ) as seqs
      ) s
    ),
    merged as materialized (
      select array(
        (select unnest(ahead) as seq union all select unnest(l.seqs) from looked l) order by seq limit amount
      ) as seqs
    )
    select
      m.seqs, coalesce(m.seqs[amount], furthest),
      array_agg(l.id) filter (where l.seqs[glance] < coalesce(m.seqs[amount], furthest)),
      array_agg(l.seqs[glance] + 1) filter (where l.seqs[glance] < coalesce(m.seqs[amount], furthest))
    into ahead, cut, ids, starts
    from merged m
    left join looked l on true
    group by m.seqs;
    exit when ids is null;
  end loop;
  return cut;
end
$$;
comment on function holdfast.reach(integer[], bigint[], integer) is
  'The place up to which the oldest jobs of several lanes lie, so many of them together.';

create or replace function holdfast.attending(worker uuid, now_at timestamptz)
returns setof boolean
language sql stable
as $$
  select true
  from holdfast.worker w
  where w.id = attending.worker
    and w.lost_at is null
    and w.left_at is null
    and w.heartbeat_at > now_at - w.lease_time / 3
$$;
comment on function holdfast.attending(uuid, timestamptz) is 'A row if a worker is known and was heard of lately.';

create or replace function holdfast.start_suspect(worker uuid, lease uuid, lanes integer[], now_at timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.running (job_id, lease, started_at, changed_at)
  select j.id, j.lease, now_at, now_at
  from holdfast.live j
  where j.worker_id = start_suspect.worker
    and j.state = 'claimed'
    and j.lease = start_suspect.lease
    and j.lane_id = any(lanes)
  on conflict (job_id) do update
    set lease = excluded.lease, started_at = excluded.started_at, changed_at = excluded.changed_at,
      deadline_at = null, progress = null, stage = null, message = null, step = null, published = 0
$$;
comment on function holdfast.start_suspect(uuid, uuid, integer[], timestamptz) is 'Record the start of the suspect that was claimed under this lease.';

-- How large a payload may be when it is sent. How large one is that was compressed is
-- known to who unpacks it; the most that pglz and lz4 make out of a byte is 88 and 255.
-- Without a SET clause, so that it becomes a part of the query that asks.
create or replace function holdfast.bytes_at_most(payload jsonb)
returns integer
language sql stable
as $$
  select case
    when pg_column_compression(payload) is null then pg_column_size(payload)
    else least(255::bigint * pg_column_size(payload), 1023 * 1024 * 1024)::integer -- two of them have room in an integer
  end
$$;
comment on function holdfast.bytes_at_most(jsonb) is 'How large a payload may be when it is sent, told without unpacking it.';

-- How many of the jobs at these places have room together, and how large they are. No
-- more of them are unpacked than have room.
create or replace function holdfast.fitting(places tid[], room bigint)
returns table (amount integer, bytes bigint)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  place tid;
  size integer;
begin
  amount := 0;
  bytes := 0;
  foreach place in array places loop
    select
      case when pg_column_compression(j.payload) is null then pg_column_size(j.payload) else octet_length(j.payload::text) end
      + coalesce(case when pg_column_compression(j.headers) is null then pg_column_size(j.headers) else octet_length(j.headers::text) end, 0)
    into size
    from holdfast.live j
    where j.ctid = place;
    exit when bytes + size > room;
    amount := amount + 1;
    bytes := bytes + size;
  end loop;
  return next;
end
$$;
comment on function holdfast.fitting(tid[], bigint) is 'How many of the first jobs have payloads that have room together, and how large these are.';

-- What a claim took, for a caller whose reply was lost on the way.
create or replace function holdfast.claimed(worker uuid, lease uuid)
returns setof holdfast.claimed_job
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
  select
    j.id, j.task, j.payload, j.attempt, j.lease, j.max_attempts, l.queue, l.priority::integer,
    l.kind = 2, j.worker_id, j.created_at, j.headers
  from holdfast.live j
  join holdfast.lane l on l.id = j.lane_id
  where j.worker_id = claimed.worker
    and j.state = 'claimed'
    and j.lease = claimed.lease
  order by l.priority desc, l.kind desc, j.seq
$$;
comment on function holdfast.claimed(uuid, uuid) is 'The jobs that this worker holds under this lease: ask after a claim whose reply was lost.';

-- Whether a worker holds a suspect that is not cleared yet: that may still kill the
-- worker. A suspect is cleared when it has run clearly longer than at any death so far.
-- Twenty innocent jobs of an hour each would otherwise run one after the other.
create or replace function holdfast.has_uncleared_suspect(worker uuid, now_at timestamptz)
returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select
    from holdfast.live j
    join holdfast.lane l on l.id = j.lane_id
    left join lateral (select d.longest from holdfast.death d where d.job_id = j.id offset 0) d on true
    where j.worker_id = has_uncleared_suspect.worker
      and j.state = 'claimed'
      and l.kind = 2
      and now_at - j.claimed_at < holdfast.clearing_time(d.longest)
  )
$$;
comment on function holdfast.has_uncleared_suspect(uuid, timestamptz) is 'Whether this worker holds a suspect that has not run for long enough to be cleared.';

create or replace function holdfast.clearing_time(longest interval)
returns interval
language sql immutable
as $$
  select greatest(interval '5 seconds', 2 * clearing_time.longest)
$$;
comment on function holdfast.clearing_time(interval) is 'How long a suspect must run to be cleared, given how long it had run at a death.';

-- Whether a worker may take a suspect now. Two claims of one worker must not both find
-- that it may, so they wait for each other at its row. That also puts on record that
-- the worker is alive at this moment: if it dies later, recover() sees that the
-- suspects it holds had been cleared.
create or replace function holdfast.may_take_suspect(worker uuid, now_at timestamptz)
returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if holdfast.has_uncleared_suspect(may_take_suspect.worker, now_at) then
    return false;
  end if;
  update holdfast.worker w
  set heartbeat_at = greatest(w.heartbeat_at, now_at)
  where w.id = may_take_suspect.worker
    and w.lost_at is null
    and w.left_at is null;
  return found and not holdfast.has_uncleared_suspect(may_take_suspect.worker, now_at);
end
$$;
comment on function holdfast.may_take_suspect(uuid, timestamptz) is 'Whether a worker may take a suspect now; a worker takes the next one when the last is cleared.';
