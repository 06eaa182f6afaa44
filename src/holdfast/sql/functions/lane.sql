-- Find the lane of a queue, priority, task and kind, or make it.
--
-- There is no unique key and no lock: when two open transactions are both the
-- first to use a lane, each makes a row and both are served. Lanes are few and
-- are never removed while a job could still name them.
create or replace function holdfast.lane(queue text, priority integer, task text, kind integer default 0)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  found_id integer;
begin
  select l.id into found_id
  from holdfast.lane l
  where l.queue = lane.queue
    and l.task = lane.task
    and l.priority = lane.priority
    and l.kind = lane.kind
  order by l.id
  limit 1;
  if found then
    return found_id;
  end if;
  perform holdfast.check_name('queue', lane.queue);
  perform holdfast.check_name('task', lane.task);
  perform holdfast.check_priority(lane.priority);
  insert into holdfast.lane (queue, priority, task, kind)
  values (lane.queue, lane.priority, lane.task, lane.kind)
  returning id into found_id;
  return found_id;
end
$$;
comment on function holdfast.lane(text, integer, text, integer) is
  'The lane of a queue, priority and task, made if it is new: what a bulk COPY into holdfast.job names in lane_id.';

-- The lane of the same queue, priority and task but of another kind.
create or replace function holdfast.sibling(lane_id integer, kind integer)
returns integer
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.lane(l.queue, l.priority, l.task, sibling.kind)
  from holdfast.lane l
  where l.id = sibling.lane_id
$$;
comment on function holdfast.sibling(integer, integer) is 'The fresh, returned or suspect lane beside a lane.';
