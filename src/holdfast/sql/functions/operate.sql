-- What an operator does to jobs and queues. Each is written to the audit log.

create or replace function holdfast.note(action text, target text, detail jsonb default null)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into holdfast.audit (at, who, action, target, detail)
  values (holdfast.clock(), session_user, note.action, note.target, note.detail)
$$;
comment on function holdfast.note(text, text, jsonb) is 'Write a line to the audit log.';

-- Call a job off. One that nobody has claimed is cancelled at once; a claimed
-- one is marked, and is cancelled if it fails, is given back or is lost, while a
-- completion that comes first wins. Returns the state, or 'requested'.
create or replace function holdfast.cancel(id uuid)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  known text;
begin
  select j.state into known from holdfast.job j where j.id = cancel.id for update;
  if known in ('scheduled', 'pending') then
    perform holdfast.call_off(array[cancel.id], now_at);
    perform holdfast.note('cancel', cancel.id::text);
    return 'cancelled';
  elsif known = 'claimed' then
    update holdfast.job j
    set cancel_requested_at = coalesce(j.cancel_requested_at, now_at)
    where j.id = cancel.id;
    perform holdfast.note('cancel', cancel.id::text, '{"requested": true}');
    return 'requested';
  end if;
  select v.state into known from holdfast.verdict(cancel.id, null, 'cancel') v;
  if known is null then
    perform holdfast.refuse_job(cancel.id);
  end if;
  return known;
end
$$;
comment on function holdfast.cancel(uuid) is
  'Call a job off: returns cancelled, requested (a worker holds it), or the end state that it had already.';

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
    hint = 'Check the id; jobs are kept for the retention time after they finish.';
end
$$;
comment on function holdfast.refuse_job(uuid) is 'Raise the error for an id that no job has.';

-- Do not wait for the time or the backoff: a scheduled job becomes pending now.
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
  perform from holdfast.job j where j.id = run_now.id and j.state = 'scheduled' for update;
  if found then
    perform holdfast.make_pending(array[run_now.id], now_at);
    perform holdfast.note('run now', run_now.id::text);
  end if;
  select v.state into known from holdfast.job(run_now.id) v;
  if known is null then
    perform holdfast.refuse_job(run_now.id);
  end if;
  return known;
end
$$;
comment on function holdfast.run_now(uuid) is 'Make a scheduled job pending at once; returns the state that it has then.';

-- A paused queue takes jobs in but hands none out; what runs goes on.
create or replace function holdfast.pause(queue text)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.check_name('queue', pause.queue);
  insert into holdfast.queue (name, paused_at)
  values (pause.queue, holdfast.clock())
  on conflict (name) do update set paused_at = coalesce(queue.paused_at, excluded.paused_at);
  perform holdfast.note('pause', pause.queue);
end
$$;
comment on function holdfast.pause(text) is 'Stop handing out the jobs of a queue; those that run go on.';

create or replace function holdfast.resume(queue text)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform holdfast.check_name('queue', resume.queue);
  update holdfast.queue q set paused_at = null where q.name = resume.queue;
  perform holdfast.note('resume', resume.queue);
  perform holdfast.wake_lanes(array(select l.id from holdfast.lane l where l.queue = resume.queue));
end
$$;
comment on function holdfast.resume(text) is 'Hand out the jobs of a paused queue again.';
