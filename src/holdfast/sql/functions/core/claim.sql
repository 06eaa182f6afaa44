-- Claim up to `amount` pending jobs for one worker, most urgent first.
--
-- Locked rows are skipped, so claims never wait for each other. The worker must present
-- the lease to report on these jobs. The caller makes the lease, so that it can ask
-- claimed(worker, lease) if the reply is lost.
--
-- Higher priorities go first. Within a priority, suspects go first, then returned jobs,
-- then fresh ones; each kind in the order of arrival across all lanes. So a job is
-- overtaken only by jobs of the same claim. A claim takes at most one suspect, as its last
-- job. It ends at 16 MiB of payloads and headers, but takes at least one job. A busy
-- worker can claim only jobs `above` a given priority.
--
-- Each lane is read from its head, never from the beginning of the index: see advance.sql.
-- A look into a lane costs 2 to 5 µs, and lanes outside the claim cost nothing. The
-- plans are pinned: with a table that was never analyzed, or an eager JIT, a claim takes 4
-- to 40 times as long.
-- holdfast: role worker
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
  now_at constant timestamptz := holdfast.clock();
  consumer constant uuid := coalesce(claim.worker, gen_random_uuid());
  new_lease constant uuid := coalesce(claim.lease, gen_random_uuid());
  known_tasks text[] := claim.tasks;
  room constant bigint := 16 * 1024 * 1024;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform holdfast.check_isolation('claim');
  end if;
  if claim.amount is null or claim.amount not between 1 and 10000 then
    perform holdfast.refuse_value('amount', claim.amount::text, 'must be between 1 and 10000');
  end if;
  if claim.tasks is null then -- lanes are found by their task
    known_tasks := holdfast.tasks_of(claim.queues);
  end if;

  -- The worker is checked only by statements that lock `live` first: see look_after_gone().
  --
  -- The fast path: a small claim where one lane alone has work, as nearly always when a
  -- worker was woken. It locks and takes in one statement. With take() instead of an update
  -- of its own, a claim of one job would cost 10 µs more of 110.
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
      claimed_at = case when greatest(j.run_at, j.created_at) > now_at then holdfast.clock() else now_at end,
      changed_at = now_at
    from (
      -- In the order of the lane, as they are read: an ORDER BY here would sort them.
      select j.place, l.queue, l.priority, sum(j.bytes) over () as total
      from holdfast.attending(consumer, now_at)
      cross join lanes l
      cross join lateral (
        select
          j.ctid as place,
          holdfast.bytes_at_most(j.payload) + coalesce(holdfast.bytes_at_most(j.headers), 0) as bytes
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
      and p.total <= room -- otherwise claim_by_level() measures the payloads one by one
    returning
      j.id, j.task, j.payload, j.attempt, j.lease, j.max_attempts, p.queue, p.priority::integer,
      false, j.worker_id, j.created_at, j.headers;
  if not found then
    perform holdfast.attending(consumer, now_at);
    if not found then
      perform holdfast.attend(consumer, now_at, claim.queues, claim.tasks);
    end if;
    return query
      select j.*
      from holdfast.claim_by_level(
        claim.queues, known_tasks, claim.above, claim.amount, room, consumer, new_lease, now_at) j;
  end if;
end
$$;
comment on function holdfast.claim(uuid, uuid, text[], text[], integer, integer) is
  'Claim up to amount pending jobs for one worker under one lease, most urgent first; with above, only jobs'
  ' above that '
  'priority. A missing worker id or lease is generated.';

-- Claim level by level: the lanes of one priority and kind at a time, the most urgent first.
--
-- Each round finds the place up to which the oldest jobs of these lanes lie (reach), locks
-- them, and takes what fits (take). The body is long on purpose: a function for the lock
-- would have to return five values, two of them arrays, for each round.
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
      -- Jobs behind the place where the oldest of all lanes end have to wait.
      cut := case
        when level.amount = 1 then 9223372036854775807
        else holdfast.reach(level.ids, level.firsts, greatest(wanted, passed / 4))
      end;
      -- Lock them and note their places: the rows stay there until they are updated.
      select
        array_agg(k.place) as places,
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
          select
            j.ctid as place, j.seq,
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
      if picked.is_mixed then -- each lane is in order, but not all of them together
        picked.places := array(
          select k.place from unnest(picked.places, picked.seqs) k (place, seq) order by k.seq);
      end if;
      if picked.total > room_left then
        select f.amount, f.bytes into picked.amount, picked.total
        from holdfast.fitting(picked.places[:picked.amount], room_left) f;
        if picked.amount = 0 and remaining = claim_by_level.amount and picked.found > 0 then
          picked.amount := 1; -- at least one job, however large
          picked.total := room_left + 1;
        end if;
      end if;
      if picked.amount > 0 then
        return query
          select t.*
          from holdfast.take(
            picked.places[:picked.amount], level.ids, level.queues, level.priority, level.is_suspect,
            worker, lease, now_at) t;
      end if;
      remaining := remaining - picked.amount;
      room_left := room_left - picked.total;

      if level.is_suspect and picked.amount > 0 then
        -- One suspect at a time, and nothing after it. Its start is recorded before its handler
        -- can run, so that only the culprit pays if the worker dies again.
        perform holdfast.start_suspect(worker, lease, level.ids, now_at);
        exit levels;
      end if;
      exit levels when remaining = 0;
      exit levels when picked.found > picked.amount; -- there is no room for the next one
      exit when cut = 9223372036854775807; -- there are no more
      -- Some jobs were locked or had no attempts left. Look behind them before anything less
      -- urgent is taken. The range grows with the number of jobs passed in vain, since more
      -- jobs may be locked than are taken.
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

-- Give the jobs at these places, which the caller has locked, to a worker. Return them in the order of the
-- places given.
--
-- One TID scan finds all of them. A join by place would begin a scan for each job, and each
-- scan asks the system how long the table is, which takes 1 µs. A TID scan returns rows in
-- the order of their places, so jobs that lie in another order are sorted afterwards.
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
        -- The job may have come, or fallen due, after this call read the clock. Its own time would
        -- be wrong if the clock was set back.
        claimed_at = case when greatest(j.run_at, j.created_at) > now_at then holdfast.clock()
          else now_at end,
        changed_at = now_at
      where j.ctid = any(places)
      returning
        j.id, j.task, j.payload, j.attempt, j.lease, j.max_attempts,
        take.queues[array_position(lanes, j.lane_id)], take.priority, is_suspect, j.worker_id, j.created_at,
          j.headers;
  else
    ranks := array(select u.n from unnest(places) with ordinality u (place, n) order by u.place);
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

create or replace function holdfast.tasks_of(queues text[])
returns text[]
language plpgsql volatile -- so that it sees what was committed while it waited for a lock
as $$
begin
  if tasks_of.queues is null then
    return array(select l.task from holdfast.lane l where l.id > 0);
  end if;
  return array(
    select l.task
    from unnest(tasks_of.queues) q (name)
    cross join lateral (select l.task from holdfast.lane l where l.queue = q.name offset 0) l);
end
$$;
comment on function holdfast.tasks_of(text[]) is
  'Return the tasks of all lanes of some queues, or of every queue.';

-- Return the lanes that have work, each with the place of its first job. The entries between
-- the head and that job are read here, and not again. This function and the next have no SET
-- clause, so that PostgreSQL inlines them.
create or replace function holdfast.lanes_at_work(queues text[], tasks text[], above integer)
returns table (id integer, queue text, priority smallint, kind smallint, first bigint)
language sql stable
as $$
  select l.id, l.queue, l.priority, l.kind, first.seq
  from (
    -- Both branches use an index, so the lanes of others cost nothing.
    select l.* from holdfast.lane l where l.task = any(lanes_at_work.tasks)
      and l.queue = any(lanes_at_work.queues)
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
comment on function holdfast.lanes_at_work(text[], text[], integer) is
  'Return the lanes that have jobs to claim, each with the place of the first one.';

-- Return the place up to which the `amount` oldest jobs of these lanes lie, given the first job
-- of each lane. If there are fewer jobs, return the largest possible place.
--
-- Reading that many jobs of each lane would cost more than the claim. So the first look covers
-- twice an even share. A lane with that many jobs before the place found so far may have more
-- of them there, and is read further, until no such lane is left. Equal lanes need one look. If
-- one lane holds all the oldest jobs, its own jobs are the answer.
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
  -- An upper bound: `amount` lanes have a job up to here, or the lane with the oldest job has that many.
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
  'Return the place up to which the oldest jobs of several lanes lie, for a given number of jobs.';

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
comment on function holdfast.attending(uuid, timestamptz) is
  'Return a row if a worker is known and sent a heartbeat recently.';

-- The exact size of a compressed payload is known only after unpacking it. At most, pglz makes
-- 88 bytes of one byte, and lz4 255. There is no SET clause, so that PostgreSQL inlines the
-- function.
create or replace function holdfast.bytes_at_most(payload jsonb)
returns integer
language sql stable
as $$
  select case
    when pg_column_compression(payload) is null then pg_column_size(payload)
    -- the sum of two still fits an integer
    else least(255::bigint * pg_column_size(payload), 1023 * 1024 * 1024)::integer
  end
$$;
comment on function holdfast.bytes_at_most(jsonb) is
  'Return an upper bound of the size of a payload as it is sent, without unpacking it.';

-- Unpack no more payloads than fit.
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
      case when pg_column_compression(j.payload) is null then pg_column_size(j.payload)
        else octet_length(j.payload::text) end
      + coalesce(
        case when pg_column_compression(j.headers) is null then pg_column_size(j.headers)
        else octet_length(j.headers::text) end, 0)
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
comment on function holdfast.fitting(tid[], bigint) is
  'Return how many of the first jobs fit together, and how many bytes they have.';

-- A caller whose claim's reply was lost asks for it here.
-- holdfast: role worker
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
comment on function holdfast.claimed(uuid, uuid) is
  'Return the jobs that a worker holds under a lease. Call it after a claim whose reply was lost.';
