-- Who asks, which queues are theirs, and what they see of payloads.
--
-- These functions run with their owner's rights, so PostgreSQL's own checks end at
-- their door. What depends on who came in is asked here: of the role that is set,
-- and of the one that logged in, so that SET ROLE loses no restriction.

create or replace function holdfast.caller()
returns name
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(nullif(current_setting('role'), 'none'), session_user)::name
$$;
comment on function holdfast.caller() is 'Return the role with whose rights the calling function was called.';

-- Whether a role has all the rights of another at hand; not if there is no such role.
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

-- Whether a role is kept to some queues. An owner reads the tables themselves, and a
-- worker claims from any queue, so neither can be.
create or replace function holdfast.is_bound(role name)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    exists (
      select from holdfast.access a join pg_roles r on r.oid = a.role_id
        where pg_has_role(is_bound.role, r.oid, 'member')
    )
    and not holdfast.is_owner(is_bound.role)
    and not holdfast.acts_as(is_bound.role, 'holdfast_worker')
$$;
comment on function holdfast.is_bound(name) is 'Return whether a role is restricted to some queues.';

-- holdfast: role viewer
create or replace function holdfast.unrestricted()
returns boolean
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if not exists (select from holdfast.access) then
    return true; -- nearly everywhere
  end if;
  return not holdfast.is_bound(session_user) and not holdfast.is_bound(holdfast.caller());
end
$$;
comment on function holdfast.unrestricted() is 'Return whether the caller may use every queue.';

-- Its price is a lie that is nearly always true: where nobody is kept to anything it is
-- not called, and the planner must not go out of its way to call it less often.
-- holdfast: role viewer
create or replace function holdfast.in_reach(queue text)
returns boolean
language sql stable security definer cost 1
set search_path = pg_catalog, pg_temp
as $$
  select bool_and(
    not holdfast.is_bound(who.role)
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

-- All of them at once, for what reads many jobs: lanes know every queue that was ever used.
-- holdfast: role viewer
create or replace function holdfast.queues_in_reach()
returns text[]
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select array(
    select l.queue from (select distinct l.queue from holdfast.lane l) l where holdfast.in_reach(l.queue))
$$;
comment on function holdfast.queues_in_reach() is
  'Return the queues that the caller may use, among all that were ever used.';

-- For a call about one queue: refuse those of others.
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

-- For what counts for all queues: refuse those who are kept to some.
create or replace function holdfast.check_unrestricted(what text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if not holdfast.unrestricted() then
    raise exception using
      errcode = 'insufficient_privilege',
      message = format('role %s is kept to some queues, and %s counts for all', holdfast.caller(), what),
      hint = 'Ask an operator who may use every queue.';
  end if;
end
$$;
comment on function holdfast.check_unrestricted(text) is
  'Refuse a call that affects all queues if the caller is restricted to some.';

-- Those of these jobs that are in queues of whoever asks.
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
    where (select bool_and(holdfast.in_reach(f.queue)) from holdfast.lives_of(i) f));
end
$$;
comment on function holdfast.jobs_in_reach(uuid[]) is
  'Return which of these jobs are in queues that the caller may use.';

-- A job in a queue of others is no job.
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

-- All that has had this id: it may be used again once the job has ended, and what is
-- kept by id alone, such as errors and events, does not say of which.
create or replace function holdfast.lives_of(id uuid)
returns table (queue text, payload jsonb, at timestamptz)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select l.queue, j.payload, 'infinity'::timestamptz
  from holdfast.live j join holdfast.lane l on l.id = j.lane_id
  where j.id = lives_of.id
  union all
  select f.queue, f.payload, f.finished_at from holdfast.finished f where f.id = lives_of.id
  union all
  select d.queue, d.payload, d.died_at from holdfast.dead_letter d where d.id = lives_of.id
$$;
comment on function holdfast.lives_of(uuid) is
  'Return the queues and payloads of all jobs under this id that are kept.';

-- The queue of the latest, and what must not be seen of any.
create or replace function holdfast.found_job(id uuid)
returns table (queue text, payload jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    (array_agg(f.queue order by f.at desc))[1],
    case when count(*) = 1 then (array_agg(f.payload))[1] else jsonb_agg(f.payload order by f.at desc) end
  from holdfast.lives_of(found_job.id) f
  having count(*) > 0
$$;
comment on function holdfast.found_job(uuid) is
  'Return the queue and the payload of a live, finished or dead job; all payloads if its id was used again.';
