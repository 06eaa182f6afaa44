-- Make a scheduled job pending now, before its time or the end of its backoff. A job in any other
-- state stays as it is. A job without attempts left dies.
-- holdfast: role operator
create or replace function holdfast.run_now(id uuid)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  found_state text;
begin
  perform holdfast.check_job(run_now.id);
  -- Search by id only. With `state` in the condition, the planner may read the index of scheduled
  -- jobs, which starts with many dead entries.
  select j.state into found_state from holdfast.live j where j.id = run_now.id;
  -- Lock only a scheduled job, so that this call does not wait for the report of a running one.
  if found_state = 'scheduled' then
    select j.state into found_state from holdfast.live j where j.id = run_now.id for update;
  end if;
  if found_state = 'scheduled' then
    perform holdfast.make_pending_now(run_now.id, now_at);
    perform holdfast.note('run now', run_now.id::text);
  end if;
  select v.state into found_state from holdfast.job(run_now.id) v;
  if found_state is null then
    perform holdfast.refuse_job(run_now.id);
  end if;
  return found_state;
end
$$;
comment on function holdfast.run_now(uuid) is
  'Make a scheduled job pending now. Returns the state of the job, which is unchanged if it was not '
  'scheduled.';

-- Make a scheduled job pending, for run_now() and reschedule(). The caller has locked it.
create or replace function holdfast.make_pending_now(id uuid, now_at timestamptz)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  update holdfast.live j set run_at = now_at where j.id = make_pending_now.id;
  perform holdfast.make_pending(array[make_pending_now.id], now_at);
end
$$;
comment on function holdfast.make_pending_now(uuid, timestamptz) is
  'Make a scheduled job due and pending now.';
