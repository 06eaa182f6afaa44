-- holdfast: with functions
-- Hands write `job`, our functions write `live`: the same rows under two names, so that what is checked of others costs
-- our functions nothing. See guard.sql.
alter table holdfast.job rename to live;

create table holdfast.job (like holdfast.live including defaults including comments) partition by list (task);
alter table holdfast.job attach partition holdfast.live default;
comment on table holdfast.job is 'Live jobs: scheduled, pending or claimed. Rows leave only through the functions.';
comment on table holdfast.live is 'The same rows as in job, for our functions alone: nothing is checked here.';

-- Who was given rights on jobs has them under the name that was meant, and under the other none.
do $$
declare
  command text;
begin
  for command in
    select format(c.command, r.privilege, r.columns, r.grantee, r.option)
    from (
      select
        a.privilege_type as privilege, r.columns, case when a.is_grantable then ' with grant option' else '' end as option,
        case a.grantee when 0 then 'public' else a.grantee::regrole::text end as grantee
      from (
        select '' as columns, c.relacl as acl from pg_class c where c.oid = 'holdfast.live'::regclass
        union all
        select format(' (%I)', t.attname), t.attacl from pg_attribute t where t.attrelid = 'holdfast.live'::regclass
      ) r
      cross join lateral aclexplode(r.acl) a
      where a.grantee <> (select c.relowner from pg_class c where c.oid = 'holdfast.live'::regclass)
    ) r
    cross join (values
      (1, 'grant %1$s%2$s on holdfast.job to %3$s%4$s'),
      (2, 'revoke %1$s%2$s on holdfast.live from %3$s cascade')) c (n, command)
    order by c.n
  loop
    execute command;
  end loop;
end
$$;
