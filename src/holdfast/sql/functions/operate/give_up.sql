-- Send a waiting job to the dead letters by hand.
-- holdfast: role operator
create or replace function holdfast.give_up(id uuid, reason text default null)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  why text := coalesce(nullif(give_up.reason, ''), 'given up by hand');
  known record;
begin
  perform holdfast.check_job(give_up.id);
  select j.state, j.attempt into known from holdfast.live j where j.id = give_up.id for update;
  if known.state in ('scheduled', 'pending') then
    insert into holdfast.attempt_error (job_id, attempt, failed_at, error)
    values (give_up.id, known.attempt, now_at, left(why, 10000));
    perform holdfast.end_jobs('dead', array[give_up.id], array[why], now_at);
    perform holdfast.note('give up', give_up.id::text, jsonb_build_object('reason', left(why, 1000)));
    return 'dead';
  end if;
  if (select v.state from holdfast.job(give_up.id) v) is distinct from 'dead' then
    perform holdfast.refuse_transition(
      give_up.id, 'dead', 'only a waiting job can be given up',
      'Cancel a job that a worker holds; one that has ended stays as it is.');
  end if;
  return 'dead';
end
$$;
comment on function holdfast.give_up(uuid, text) is
  'Send a waiting job to the dead letters by hand, with a reason.';
