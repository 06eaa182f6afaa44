-- Create the roles of those who use Holdfast, and give them their rights.
--
-- A line `-- holdfast: role …` stands beside each function and view that a role may use;
-- rights.sql is generated from these lines. An operator may do all that a viewer may.
--
-- The roles belong to the cluster, and cannot log in: a DBA grants them to logins.
-- `holdfast migrate --roles` creates them and lets them into this database. From then on
-- every migrate gives them exactly these rights. A DBA who wants to grant more should use
-- another role.

-- Give the roles that were let into this schema their rights, and take all others. Only
-- differences are changed.
create or replace function holdfast.grant_rights()
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  command text;
begin
  for round in 1..2 loop -- revoking a right on a table also revokes it on the columns
    for command in
      with let_in as (
        select r.oid, r.rolname, substr(r.rolname, length('holdfast_') + 1) as role
        from pg_roles r
        join pg_namespace n on n.nspname = 'holdfast'
        cross join lateral aclexplode(n.nspacl) a
        where a.grantee = r.oid
          and r.rolname in ('holdfast_producer', 'holdfast_worker', 'holdfast_viewer', 'holdfast_operator')
      ),
      -- everything that can be granted, with its grantees
      thing (kind, name, id, target, privilege, acl) as (
        select 'function', p.proname, p.oid,
          format('%s %s', case p.prokind when 'p' then 'procedure' else 'function' end, p.oid::regprocedure),
          'execute', p.proacl
        from pg_proc p
        where p.pronamespace = 'holdfast'::regnamespace
          and p.prokind in ('f', 'p')
        union all
        select
          case c.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end, c.relname, c.oid,
          case c.relkind when 'S' then 'sequence ' else 'table ' end || c.oid::regclass,
          case c.relkind when 'S' then 'usage' else 'select' end, c.relacl
        from pg_class c
        where c.relnamespace = 'holdfast'::regnamespace
          and c.relkind in ('r', 'p', 'v', 'S')
        union all
        select 'column', a.attname, a.attrelid, format('table holdfast.job'),
          format('insert (%I)', a.attname), a.attacl
        from pg_attribute a
        where a.attrelid = 'holdfast.job'::regclass
          and a.attnum > 0
          and not a.attisdropped
      ),
      state as (
        select
          t.*, l.rolname,
          exists (
            select from holdfast.role_rights() r where r.kind = t.kind and r.name = t.name
            and r.role = l.role) as wanted,
          array(select lower(a.privilege_type) from aclexplode(t.acl) a where a.grantee = l.oid) as has
        from thing t, let_in l
      )
      select
        case when s.wanted
          then format('grant %s on %s to %I', s.privilege, s.target, s.rolname)
          else format(
            'revoke %s on %s from %I', case s.kind when 'column' then format('all (%I)', s.name)
            else 'all' end, s.target, s.rolname)
        end
      from state s
      where s.wanted and split_part(s.privilege, ' ', 1) <> all(s.has)
        or not s.wanted and cardinality(s.has) > 0
    loop
      execute command;
    end loop;
  end loop;
end
$$;
comment on function holdfast.grant_rights() is
  'Give the roles that were let into this schema the rights of role_rights(), and no others.';

-- Create the roles that the cluster lacks, and let them in. Two databases of one cluster may
-- do this at the same time: the second finds them there.
create or replace function holdfast.create_roles()
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  wanted constant text[] := '{holdfast_producer,holdfast_worker,holdfast_viewer,holdfast_operator}';
  one text;
begin
  foreach one in array wanted loop
    continue when exists (select from pg_roles r where r.rolname = one);
    begin
      execute format('create role %I nologin', one);
    exception
      when duplicate_object or unique_violation then
        null; -- another database was faster
      when insufficient_privilege then
        raise exception using
          errcode = 'insufficient_privilege',
          message = format('there is no role %s, and %s may not create roles', one, current_user),
          hint = format(
            'Let a DBA run: %sThen run holdfast migrate --roles again.',
            (select string_agg(format('create role %I nologin; ', w), '' order by n)
              from unnest(wanted) with ordinality w (w, n)
              where not exists (select from pg_roles r where r.rolname = w)));
    end;
  end loop;
  foreach one in array wanted loop
    if not exists (
      select from pg_namespace n, aclexplode(n.nspacl) a join pg_roles r on r.oid = a.grantee
      where n.nspname = 'holdfast' and r.rolname = one
    ) then
      execute format('grant usage on schema holdfast to %I', one);
    end if;
  end loop;
  perform holdfast.grant_rights();
end
$$;
comment on function holdfast.create_roles() is
  'Create the roles that are missing, and let them into this database.';

-- Every process reads this when it starts, whatever its role.
-- holdfast: role producer worker viewer
create or replace view holdfast.installed as
select m.name, m.kind, m.checksum, m.version, m.applied_at from holdfast.migration m;
comment on view holdfast.installed is 'The SQL files that made this schema; every role may read it.';
