-- Remove an earlier signature of a function. Call this after the new signature was created.
-- Rights that were granted by hand on the old one go to the new one.
create or replace function holdfast.replace_function(earlier text, later text)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  old regprocedure := to_regprocedure(replace_function.earlier);
  new regprocedure := to_regprocedure(replace_function.later);
  grantee name;
begin
  if old is null then
    return;
  end if;
  for grantee in
    select pg_get_userbyid(a.grantee)
    from pg_proc p, aclexplode(p.proacl) a
    where p.oid = old
      and a.grantee not in (0, p.proowner)
  loop
    execute format('grant execute on function %s to %I', new, grantee);
  end loop;
  execute format('drop function %s', old);
end
$$;
comment on function holdfast.replace_function(text, text) is
  'Remove the earlier signature of a function and give its rights to the later one.';
