-- Restrict roles to queues. Only the owner may.

-- holdfast: role owner
create or replace function holdfast.grant_queues(role text, queues text[])
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if coalesce(cardinality(grant_queues.queues), 0) = 0 then
    perform holdfast.refuse_value('queues', grant_queues.queues::text, 'name at least one queue');
  end if;
  if not exists (select from pg_roles r where r.rolname = grant_queues.role) then
    perform holdfast.refuse_value('role', grant_queues.role, 'there is no such role in this cluster');
  end if;
  if holdfast.is_owner(grant_queues.role::name) then
    perform holdfast.refuse_value(
      'role', grant_queues.role, 'owns the tables, so it cannot be restricted');
  end if;
  if holdfast.acts_as(grant_queues.role::name, 'holdfast_worker') then
    perform holdfast.refuse_value(
      'role', grant_queues.role, 'is a worker, and workers claim from every queue');
  end if;
  perform holdfast.check_queues(q) from unnest(grant_queues.queues) q;
  insert into holdfast.access (role_id, queues, granted_by, granted_at)
  select (select r.oid from pg_roles r where r.rolname = grant_queues.role), q, session_user, holdfast.clock()
  from (select distinct unnest(grant_queues.queues) as q) q
  on conflict (role_id, queues) do nothing;
  perform holdfast.note('grant queues', grant_queues.role, to_jsonb(grant_queues.queues));
end
$$;
comment on function holdfast.grant_queues(text, text[]) is
  'Restrict a role to these queues, in addition to those granted before. acme.* means all queues whose '
  'names begin with acme.';

create or replace function holdfast.check_queues(queues text)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if check_queues.queues is null or check_queues.queues !~ '^[a-z0-9_.:-]{0,99}([a-z0-9_.:-]|\*)$' then
    perform holdfast.refuse_value(
      'queues', check_queues.queues, 'must be names of queues, or how names begin and a star, as in acme.*');
  end if;
end
$$;
comment on function holdfast.check_queues(text) is
  'Refuse a pattern that is neither the name of a queue nor the beginning of names with a star.';

-- holdfast: role owner
create or replace function holdfast.revoke_queues(role text, queues text[] default null)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known constant oid := (select r.oid from pg_roles r where r.rolname = revoke_queues.role);
  gone text[];
begin
  if known is null then
    perform holdfast.refuse_value('role', revoke_queues.role, 'there is no such role in this cluster');
  end if;
  with revoked as (
    delete from holdfast.access a
    where a.role_id = known
      and (revoke_queues.queues is null or a.queues = any(revoke_queues.queues))
    returning a.queues
  )
  select coalesce(array_agg(r.queues), '{}') into gone from revoked r;
  if revoke_queues.queues is not null and cardinality(gone) > 0
    and not exists (select from holdfast.access a where a.role_id = known) then
    -- Without its last queue the role would see all of them, so the caller must say that explicitly.
    perform holdfast.refuse_value(
      'queues', revoke_queues.queues::text,
      'these are the only queues of the role: leave queues out to let it use every queue');
  end if;
  if cardinality(gone) > 0 then
    perform holdfast.note('revoke queues', revoke_queues.role, to_jsonb(gone));
  end if;
  return cardinality(gone);
end
$$;
comment on function holdfast.revoke_queues(text, text[]) is
  'Take queues from a restricted role. Without queues, lift the restriction: the role may then use every '
  'queue. Returns how many were taken.';

-- holdfast: role owner
create or replace function holdfast.list_grants()
returns table (role text, queues text, granted_by text, granted_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(r.rolname::text, format('(dropped: %s)', a.role_id)), a.queues, a.granted_by, a.granted_at
  from holdfast.access a
  left join pg_roles r on r.oid = a.role_id
  order by 1, 2
$$;
comment on function holdfast.list_grants() is 'List which roles are restricted to which queues.';
