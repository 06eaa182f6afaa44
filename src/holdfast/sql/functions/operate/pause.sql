-- Pause a queue: it accepts jobs but hands none out. Running jobs continue.
-- holdfast: role operator
create or replace function holdfast.pause(queue text)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.check_name('queue', pause.queue);
  perform holdfast.check_queue(pause.queue);
  insert into holdfast.queue (name, paused_at)
  values (pause.queue, holdfast.clock())
  on conflict (name) do update set paused_at = coalesce(queue.paused_at, excluded.paused_at);
  perform holdfast.note('pause', pause.queue);
end
$$;
comment on function holdfast.pause(text) is 'Stop handing out the jobs of a queue. Running jobs continue.';

-- holdfast: role operator
create or replace function holdfast.resume(queue text)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.check_name('queue', resume.queue);
  perform holdfast.check_queue(resume.queue);
  -- Lock like an enqueue, so that a worker that falls asleep before this commit sees the lock and
  -- looks again.
  lock table holdfast.live in row exclusive mode;
  update holdfast.queue q set paused_at = null where q.name = resume.queue;
  perform holdfast.note('resume', resume.queue);
  -- All workers, because any number of jobs may wait.
  perform holdfast.wake_lanes(array(select l.id from holdfast.lane l where l.queue = resume.queue), 10000);
end
$$;
comment on function holdfast.resume(text) is 'Hand out the jobs of a paused queue again.';
