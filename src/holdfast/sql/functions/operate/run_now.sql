-- Make a scheduled job pending without waiting for its time or backoff.
-- holdfast: role operator
create or replace function holdfast.run_now(id uuid)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  known text;
begin
  perform holdfast.check_job(run_now.id);
  -- By the id alone: with the state in the condition, the planner might use the index of scheduled jobs.
  select j.state into known from holdfast.live j where j.id = run_now.id;
  if known = 'scheduled' then
    select j.state into known from holdfast.live j where j.id = run_now.id for update;
  end if;
  if known = 'scheduled' then
    perform holdfast.make_pending_now(run_now.id, now_at);
    perform holdfast.note('run now', run_now.id::text);
  end if;
  select v.state into known from holdfast.job(run_now.id) v;
  if known is null then
    perform holdfast.refuse_job(run_now.id);
  end if;
  return known;
end
$$;
comment on function holdfast.run_now(uuid) is 'Make a scheduled job pending at once. Returns its new state.';

-- The caller has locked the job. reschedule() also calls this.
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
