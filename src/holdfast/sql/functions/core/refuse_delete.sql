-- Keep rows of `job` from being deleted other than by our functions, which delete from `live`.

create or replace function holdfast.refuse_delete()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using
    errcode = 'HF010',
    message = 'jobs do not leave holdfast.job by hand',
    detail = '{"id": null}',
    hint = 'Use holdfast.cancel(id) or a worker''s report.';
end
$$;
comment on function holdfast.refuse_delete() is
  'Raise the error for a job that is deleted other than by our functions.';

-- Functions of 0.1 delete from `job` and call this first. They may still run while a database of 0.1 is
-- upgraded.
create or replace function holdfast.door(is_open boolean)
returns void
language sql volatile
as $$
  select set_config('holdfast.door', case when is_open then 'open' else '' end, true)
$$;
comment on function holdfast.door(boolean) is
  'Let the next statements of this transaction delete from holdfast.job, or not.';

create or replace trigger job_refuse_delete
before delete on holdfast.job
for each statement when (current_setting('holdfast.door', true) is distinct from 'open')
execute function holdfast.refuse_delete();

create or replace trigger job_is_not_truncated
before truncate on holdfast.job
for each statement execute function holdfast.refuse_delete();

create or replace trigger job_is_not_truncated
before truncate on holdfast.live
for each statement execute function holdfast.refuse_delete();
