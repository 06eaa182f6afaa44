-- Raise the errors for a job that does not exist, or is in the wrong state for a call.

create or replace function holdfast.refuse_job(id uuid)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using
    errcode = 'HF002',
    message = format('there is no job %s', id),
    detail = jsonb_build_object('id', id),
    hint = 'Check the id, and that its transaction has committed. Old jobs are removed.';
end
$$;
comment on function holdfast.refuse_job(uuid) is 'Raise the error for an id that no job has.';

create or replace function holdfast.refuse_transition(id uuid, to_state text, rule text, hint text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  known text := (select j.state from holdfast.job(refuse_transition.id) j);
begin
  if known is null then
    perform holdfast.refuse_job(refuse_transition.id);
  end if;
  raise exception using
    errcode = 'HF010',
    message = format('job %s is %s: %s', refuse_transition.id, known, rule),
    detail = jsonb_build_object('id', refuse_transition.id, 'from_state', known, 'to_state', to_state),
    hint = refuse_transition.hint;
end
$$;
comment on function holdfast.refuse_transition(uuid, text, text, text) is
  'Raise the error for a job that is in the wrong state for a call, or does not exist.';
