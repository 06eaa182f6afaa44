-- Explain that no worker serves a job, and which workers there are.

create or replace function holdfast.why_unserved(lane holdfast.lane, now_at timestamptz)
returns table (answer text, explanation text, remedy text, detail jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  known record;
  last holdfast.worker;
begin
  select
    count(*) as alive,
    count(*) filter (where holdfast.serves(w, lane.queue, lane.task)) as serving,
    count(*) filter (
      where holdfast.serves(w, lane.queue, lane.task)
      and w.heartbeat_at > now_at - w.lease_time / 2) as heard,
    count(*) filter (where w.queues is null or lane.queue = any(w.queues)) as of_queue,
    max(w.heartbeat_at) as heartbeat_at,
    string_agg(distinct holdfast.worker_in_words(w), ', ') filter (
      where holdfast.serves(w, lane.queue, lane.task)) as names
  into known
  from holdfast.live_workers(now_at) w;

  if known.heard > 0 then
    return;
  elsif known.serving > 0 then
    answer := 'worker_silent';
    explanation := format('The workers that serve it have sent no heartbeat for %s: %s.',
      holdfast.span_in_words(now_at - known.heartbeat_at), known.names);
    remedy := 'Check whether they still run and reach the database.';
    detail := jsonb_build_object('workers', known.serving, 'heartbeat_at', known.heartbeat_at);
  elsif known.alive = 0 then
    select w.* into last from holdfast.worker w order by greatest(w.left_at, w.lost_at, w.heartbeat_at) desc
      limit 1;
    answer := 'no_worker';
    explanation := case
      when last.id is null then 'No worker is alive, and there was none in the last day.'
      else format('No worker is alive. The last one, %s, %s %s ago.', holdfast.worker_in_words(last),
        case when last.left_at is not null then 'left' else 'sent its last heartbeat' end,
        holdfast.span_in_words(now_at - coalesce(last.left_at, last.heartbeat_at)))
    end;
    remedy := 'Start one: holdfast worker app:hf';
    detail := jsonb_build_object('workers', 0, 'last', last.name);
  elsif known.of_queue = 0 then
    answer := 'no_worker_for_queue';
    explanation := format('No worker serves queue %s. %s: %s.', lane.queue,
      case when known.alive = 1 then 'The only one alive serves'
        else format('The %s that are alive serve', known.alive) end,
      (select string_agg(distinct q, ', ') from holdfast.live_workers(now_at) w, unnest(w.queues) q));
    remedy := format('Start one: holdfast worker app:hf --queues %s', lane.queue);
    detail := jsonb_build_object('queue', lane.queue, 'workers', known.alive);
  else
    answer := 'no_worker_for_task';
    explanation := format('No worker of queue %s knows task %s%s.', lane.queue, lane.task, coalesce(
      -- A function that was moved to another module.
      (select format('; one knows %s, which may be what it is called now', min(t))
      from holdfast.live_workers(now_at) w, unnest(w.tasks) t
      where regexp_replace(t, '^.*[.:]', '') = regexp_replace(lane.task, '^.*[.:]', '')
      having count(*) > 0),
      -- A name that was misspelled.
      (select '; the nearest name that one knows is ' || holdfast.nearest(lane.task, array_agg(distinct t))
      from holdfast.live_workers(now_at) w, unnest(w.tasks) t
      where w.queues is null or lane.queue = any(w.queues))));
    remedy := 'Deploy a worker whose code has this task, or cancel the job if the task no longer exists.';
    detail := jsonb_build_object('task', lane.task, 'queue', lane.queue, 'workers', known.of_queue);
  end if;
  return next;
end
$$;
comment on function holdfast.why_unserved(holdfast.lane, timestamptz) is
  'Return that no worker takes jobs of this lane, and which workers there are.';
