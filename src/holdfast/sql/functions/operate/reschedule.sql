-- Change the time of a job that waits for its time or backoff. A time that has passed makes it
-- pending at once. The clock is read after the job is locked, since the time may have passed
-- meanwhile, and no scheduled job may lie behind the low-water mark.
-- holdfast: role operator
create or replace function holdfast.reschedule(
  id uuid, run_at timestamptz default null, delay interval default null)
returns timestamptz
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  due_at timestamptz := holdfast.due_time(reschedule.run_at, reschedule.delay, holdfast.clock());
  now_at timestamptz;
  known record;
begin
  if due_at is null then
    perform holdfast.refuse_value('run_at', null, 'give run_at or delay; run_now() is for at once');
  end if;
  perform holdfast.check_job(reschedule.id);
  select j.state, j.lane_id into known from holdfast.live j where j.id = reschedule.id for update;
  if known.state is distinct from 'scheduled' then
    perform holdfast.refuse_transition(
      reschedule.id, 'scheduled', 'only a scheduled job can be given another time',
      'Cancel it, and enqueue it again with run_at or delay.');
  end if;
  now_at := holdfast.clock();
  due_at := holdfast.due_time(reschedule.run_at, reschedule.delay, now_at);
  if due_at <= now_at then
    due_at := now_at;
    perform holdfast.make_pending_now(reschedule.id, now_at);
  else
    update holdfast.live j set run_at = due_at, changed_at = now_at where j.id = reschedule.id;
    perform holdfast.wake_lanes(array[known.lane_id], 0); -- they sleep until the next job is due
  end if;
  perform holdfast.note('reschedule', reschedule.id::text, jsonb_build_object('run_at', due_at));
  return due_at;
end
$$;
comment on function holdfast.reschedule(uuid, timestamptz, interval) is
  'Change the time of a scheduled job. Returns when it is due.';
