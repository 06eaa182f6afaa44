-- Make a job of a schedule at once.
--
-- The times of the schedule continue unchanged, paused or not. Nothing is locked that the times
-- wait for, unless runs must not overlap.
-- holdfast: role operator
create or replace function holdfast.run_schedule(name text)
returns uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known holdfast.schedule := holdfast.seen_schedule(run_schedule.name);
  job_id uuid := holdfast.enqueue_tick(known, null, null);
begin
  if not known.overlap then
    update holdfast.schedule s set last_job = job_id
    where s.name = known.name
      and not exists (select from holdfast.live j where j.id = s.last_job offset 0);
  end if;
  perform holdfast.note('run schedule', known.name, jsonb_build_object('job', job_id));
  return job_id;
end
$$;
comment on function holdfast.run_schedule(text) is
  'Run the job of a schedule now, in addition to its times. Returns the id of the job.';
