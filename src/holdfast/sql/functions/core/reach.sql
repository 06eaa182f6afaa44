-- Find the role of the caller, and the queues that it may use.
--
-- Holdfast's functions run with their owner's rights, so PostgreSQL does not check the caller's
-- rights on tables. These functions check them for both roles: the current one and the one that
-- logged in. So SET ROLE lifts no restriction.

create or replace function holdfast.caller()
returns name
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(nullif(current_setting('role'), 'none'), session_user)::name
$$;
comment on function holdfast.caller() is 'Return the role with whose rights the calling function was called.';

-- Returns false if there is no such role.
create or replace function holdfast.acts_as(role name, other name)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select from pg_roles r where r.rolname = acts_as.other and pg_has_role(acts_as.role, r.oid, 'usage')
  )
$$;
comment on function holdfast.acts_as(name, name) is 'Return whether a role has the rights of another role.';

create or replace function holdfast.is_owner(role name)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select pg_has_role(is_owner.role, c.relowner, 'usage') from pg_class c
    where c.oid = 'holdfast.live'::regclass
$$;
comment on function holdfast.is_owner(name) is
  'Return whether a role owns the tables of Holdfast or is a superuser.';

-- An owner reads the tables themselves, and a worker claims from any queue, so neither can be
-- restricted.
create or replace function holdfast.is_restricted(role name)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    exists (
      select from holdfast.access a join pg_roles r on r.oid = a.role_id
        where pg_has_role(is_restricted.role, r.oid, 'member')
    )
    and not holdfast.is_owner(is_restricted.role)
    and not holdfast.acts_as(is_restricted.role, 'holdfast_worker')
$$;
comment on function holdfast.is_restricted(name) is 'Return whether a role is restricted to some queues.';

-- holdfast: role viewer
create or replace function holdfast.unrestricted()
returns boolean
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if not exists (select from holdfast.access) then
    return true; -- the usual case
  end if;
  return not holdfast.is_restricted(session_user) and not holdfast.is_restricted(holdfast.caller());
end
$$;
comment on function holdfast.unrestricted() is 'Return whether the caller may use every queue.';

-- The cost is set too low on purpose: without restricted roles it is not called, so the planner
-- must not choose a worse plan to call it less often.
-- holdfast: role viewer
create or replace function holdfast.in_reach(queue text)
returns boolean
language sql stable security definer cost 1
set search_path = pg_catalog, pg_temp
as $$
  select bool_and(
    not holdfast.is_restricted(who.role)
    or exists (
      select
      from holdfast.access a
      join pg_roles r on r.oid = a.role_id
      where pg_has_role(who.role, r.oid, 'member')
        and case when right(a.queues, 1) = '*' then starts_with(in_reach.queue, left(a.queues, -1))
          else in_reach.queue = a.queues end
    ))
  from (values (session_user::name), (holdfast.caller())) who (role)
$$;
comment on function holdfast.in_reach(text) is 'Return whether the caller may see and use this queue.';

-- Return all at once, for functions that read many jobs. `known_queue` has the queues that lost
-- their lanes.
-- holdfast: role viewer
create or replace function holdfast.queues_in_reach()
returns text[]
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select array(
    select q.name
    from (select l.queue from holdfast.lane l union select k.name from holdfast.known_queue k) q (name)
    where holdfast.in_reach(q.name))
$$;
comment on function holdfast.queues_in_reach() is
  'Return the queues that the caller may use, among those that have jobs or had some.';

-- Functions that work on one queue call this.
create or replace function holdfast.check_queue(queue text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if not holdfast.unrestricted() and not coalesce(holdfast.in_reach(check_queue.queue), false) then
    raise exception using
      errcode = 'insufficient_privilege',
      message = format(
        'role %s may not use queue %s', holdfast.caller(), coalesce(check_queue.queue, 'null')),
      hint = format(
        'The owner can let it: select holdfast.grant_queues(%L, array[%L]).', holdfast.caller(),
        check_queue.queue);
  end if;
end
$$;
comment on function holdfast.check_queue(text) is 'Refuse a queue that the caller may not use.';

-- Functions that affect all queues call this.
create or replace function holdfast.check_unrestricted(what text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if not holdfast.unrestricted() then
    raise exception using
      errcode = 'insufficient_privilege',
      message = format(
        'role %s is restricted to some queues, and %s applies to all', holdfast.caller(), what),
      hint = 'Ask an operator who may use every queue.';
  end if;
end
$$;
comment on function holdfast.check_unrestricted(text) is
  'Refuse a call that affects all queues if the caller is restricted to some.';

-- Filter jobs by the queues of the caller.
create or replace function holdfast.jobs_in_reach(ids uuid[])
returns uuid[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if holdfast.unrestricted() then
    return jobs_in_reach.ids;
  end if;
  return array(
    select i
    from unnest(jobs_in_reach.ids) i
    where (select bool_and(holdfast.in_reach(f.queue)) from holdfast.jobs_with_id(i) f));
end
$$;
comment on function holdfast.jobs_in_reach(uuid[]) is
  'Return which of these jobs are in queues that the caller may use.';

-- A job in a queue of others counts as no job.
create or replace function holdfast.check_job(id uuid)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if not holdfast.unrestricted() and cardinality(holdfast.jobs_in_reach(array[check_job.id])) = 0 then
    perform holdfast.refuse_job(check_job.id);
  end if;
end
$$;
comment on function holdfast.check_job(uuid) is
  'Refuse a job in a queue that the caller may not use, as if it did not exist.';

-- An id may be used again after its job has ended. Rows that are kept by id alone, such as
-- errors and events, do not say to which job they belong.
create or replace function holdfast.jobs_with_id(id uuid)
returns table (queue text, payload jsonb, at timestamptz)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select l.queue, j.payload, 'infinity'::timestamptz
  from holdfast.live j join holdfast.lane l on l.id = j.lane_id
  where j.id = jobs_with_id.id
  union all
  select f.queue, f.payload, f.finished_at from holdfast.finished f where f.id = jobs_with_id.id
  union all
  select d.queue, d.payload, d.died_at from holdfast.dead_letter d where d.id = jobs_with_id.id
$$;
comment on function holdfast.jobs_with_id(uuid) is
  'Return the queues and payloads of all jobs under this id that are kept.';

-- Return the queue of the latest job, and the payloads of all: none of them may be shown.
create or replace function holdfast.found_job(id uuid)
returns table (queue text, payload jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    (array_agg(f.queue order by f.at desc))[1],
    case when count(*) = 1 then (array_agg(f.payload))[1] else jsonb_agg(f.payload order by f.at desc) end
  from holdfast.jobs_with_id(found_job.id) f
  having count(*) > 0
$$;
comment on function holdfast.found_job(uuid) is
  'Return the queue and the payload of a live, finished or dead job; all payloads if its id was used again.';
