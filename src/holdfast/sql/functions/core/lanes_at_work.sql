-- Find the lanes that a claim may take jobs from, and how far into each lane its jobs lie.

-- Return the tasks of all lanes of some queues, because lanes are found by their task.
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
create or replace function holdfast.nth_place(lanes integer[], firsts bigint[], amount integer)
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
comment on function holdfast.nth_place(integer[], bigint[], integer) is
  'Return the place up to which the oldest jobs of several lanes lie, for a given number of jobs.';
