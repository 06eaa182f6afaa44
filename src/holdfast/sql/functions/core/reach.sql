-- Find the role of the caller, and the queues that it may use.
--
-- Holdfast's functions run with their owner's rights, so PostgreSQL does not check the caller's
-- rights on tables. These functions check them instead. A session has two roles, the one that logged
-- in and the one that SET ROLE has chosen. A queue must be allowed to both, so SET ROLE lifts no
-- restriction.
--
--   roles     caller, acts_as, is_owner, is_restricted
--   queues    unrestricted, in_reach, queues_in_reach; check_queue and check_unrestricted raise an
--             error
--   jobs      jobs_in_reach, jobs_with_id, found_job; check_job raises an error
--
-- The table `access` holds the queues of restricted roles. It is nearly always empty.

-- In a function with its owner's rights, current_user is the owner. The setting `role` still names
-- the role that SET ROLE has chosen, or is none.
create or replace function holdfast.caller()
returns name
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(nullif(current_setting('role'), 'none'), session_user)::name
$$;
comment on function holdfast.caller() is
  'Return the current role of the session: the one that SET ROLE has chosen, or the one that logged in.';

-- Return false if the other role does not exist.
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

-- A role is restricted if `access` names it, or a role that it is a member of. An owner reads the
-- tables directly, and a worker claims from any queue, so neither can be restricted.
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

-- Queries call this once and check single queues only if it is false: (select unrestricted()) or
-- in_reach(queue).
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

-- Each entry in `access` is the name of a queue, or the beginning of names followed by *.
--
-- The cost is lower than the real one on purpose. Usually unrestricted() is true and this function is
-- not called. With the real cost, the planner might choose a worse plan to call it less often.
-- holdfast: role viewer
create or replace function holdfast.in_reach(queue text)
returns boolean
language sql stable security definer cost 1
set search_path = pg_catalog, pg_temp
as $$
  select bool_and(
    not holdfast.is_restricted(both_roles.role)
    or exists (
      select
      from holdfast.access a
      join pg_roles r on r.oid = a.role_id
      where pg_has_role(both_roles.role, r.oid, 'member')
        and case when right(a.queues, 1) = '*' then starts_with(in_reach.queue, left(a.queues, -1))
          else in_reach.queue = a.queues end
    ))
  from (values (session_user::name), (holdfast.caller())) both_roles (role)
$$;
comment on function holdfast.in_reach(text) is 'Return whether the caller may see and use this queue.';

-- Functions that read many jobs call this once, instead of in_reach() for each job. `known_queue`
-- has the queues that lost their lanes.
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

-- If several jobs have had the same id, all of them must be in these queues: see jobs_with_id(). An
-- id without a job is left out.
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

-- The error is the one for an unknown id, so a caller cannot find out which ids exist.
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

-- Usually this is one job, but an id may be used again after its job has ended. Errors, steps and
-- checkpoints are stored by id, and do not say to which of these jobs they belong. So a caller may
-- see them only if it may see all of these jobs.
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

-- Return the queue of the latest job, and its payload. If the id was used again, return an array of
-- all payloads. as_seen() and text_as_seen() search it for secrets: an error may contain a secret of
-- any of these jobs.
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
  'Return the queue and the payload of a live, finished or dead job, or an array of all payloads if its id '
  'was used again.';
