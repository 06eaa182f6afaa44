-- Delete dead letters by hand. Each purge is written to the audit log.

-- holdfast: role operator
create or replace function holdfast.purge(id uuid)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_job(purge.id);
  if holdfast.erase_dead(array[purge.id]) = 0 then
    perform holdfast.refuse_unless_dead(purge.id, 'purged', null);
  end if;
  perform holdfast.note('purge', purge.id::text);
end
$$;
comment on function holdfast.purge(uuid) is 'Delete a dead job with its errors and steps.';

-- holdfast: role operator
create or replace function holdfast.purge_many(
  queue text default null,
  task text default null,
  error text default null,
  died_after timestamptz default null,
  died_before timestamptz default null,
  amount integer default null,
  everything boolean default false
)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  purged bigint;
begin
  perform holdfast.check_amount(purge_many.amount);
  perform holdfast.check_filter(
    purge_many.queue, purge_many.task, purge_many.error, purge_many.died_after, purge_many.died_before,
    purge_many.everything);
  purged := holdfast.erase_dead(array(select holdfast.pick_dead(
    purge_many.queue, purge_many.task, purge_many.error, purge_many.died_after, purge_many.died_before,
    purge_many.amount)));
  perform holdfast.note_dead(
    'purge many', purged, purge_many.queue, purge_many.task, purge_many.error, purge_many.died_after,
    purge_many.died_before);
  return purged;
end
$$;
comment on function holdfast.purge_many(text, text, text, timestamptz, timestamptz, integer, boolean) is
  'Delete the dead jobs that match, or all of them, with their errors. Returns how many.';

-- The errors of these jobs go too.
create or replace function holdfast.erase_dead(ids uuid[])
returns bigint
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  with gone as (
    delete from holdfast.dead_letter d where d.id = any(ids) returning d.id
  ),
  errors as (
    delete from holdfast.attempt_error e using gone g where e.job_id = g.id
  ),
  steps as (
    delete from holdfast.step s using gone g where s.job_id = g.id
  ),
  checkpoints as (
    delete from holdfast.checkpoint c using gone g where c.job_id = g.id
  ),
  -- Errors and events were masked by the payload, which is gone.
  events as (
    delete from holdfast.event e using gone g where e.job_id = g.id
  ),
  counts as (
    delete from holdfast.event_count c using gone g where c.job_id = g.id
  )
  select count(*) from gone
$$;
comment on function holdfast.erase_dead(uuid[]) is
  'Delete dead letters with their errors and steps. Returns how many.';
