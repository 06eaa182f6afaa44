-- holdfast: after notify
-- The database itself refuses what must never happen to a job, whoever asks:
-- an illegal change of state, a place in a lane that a head may have passed, a
-- row that vanishes other than through our functions.

create or replace function holdfast.refuse_change()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op in ('DELETE', 'TRUNCATE') then
    raise exception using
      errcode = 'HF010',
      message = 'jobs do not leave holdfast.job by hand',
      detail = jsonb_build_object('id', case when tg_op = 'DELETE' then old.id end),
      hint = 'Use holdfast.cancel(id) or a worker''s report.';
  end if;
  if old.state = new.state or (select new.state = any(s.successors) from holdfast.state s where s.name = old.state) then
    raise exception using
      errcode = 'HF010',
      message = case when old.id <> new.id
        then format('job %s cannot become job %s', old.id, new.id)
        else format('job %s would stand at place %s, not behind its old place %s', old.id, new.seq, old.seq)
      end,
      detail = jsonb_build_object('id', old.id, 'from_state', old.state, 'to_state', new.state),
      hint = 'A job keeps its id; one that becomes pending or changes lane needs a new nextval(''holdfast.job_seq'').';
  end if;
  raise exception using
    errcode = 'HF010',
    message = format('job %s cannot go from %s to %s', old.id, old.state, new.state),
    detail = jsonb_build_object('id', old.id, 'from_state', old.state, 'to_state', new.state),
    hint = 'The legal changes are in holdfast.state.';
end
$$;
comment on function holdfast.refuse_change() is 'Raise the error for a change that the guard on holdfast.job does not allow.';

-- The legal path is judged by the WHEN clause alone and calls no function; the
-- clause is generated from the reference table.
do $$
declare
  legal text;
begin
  select string_agg(format('(%L, %L)', s.name, next), ', ') into legal
  from holdfast.state s, unnest(s.successors) next;
  execute format($trigger$
    create or replace trigger job_guard
    before update of id, state, lane_id, seq on holdfast.job
    for each row when (
      (old.state <> new.state and (old.state::text, new.state::text) not in (%s))
      or (new.state = 'pending' and (old.state <> 'pending' or old.lane_id <> new.lane_id) and new.seq <= old.seq)
      or new.seq < old.seq
      or old.id <> new.id
    )
    execute function holdfast.refuse_change()
  $trigger$, legal);
end
$$;

-- Our functions open the door around the statement that moves jobs out.
-- (A SET clause on the functions would do, but only a superuser may write one
-- for a setting of our own.)
create or replace function holdfast.door(is_open boolean)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform set_config('holdfast.door', case when is_open then 'open' else '' end, true);
end
$$;
comment on function holdfast.door(boolean) is 'Let the next statement move jobs out of holdfast.job, or no longer.';

create or replace trigger job_leaves_by_the_door
before delete on holdfast.job
for each row when (current_setting('holdfast.door', true) is distinct from 'open')
execute function holdfast.refuse_change();

create or replace trigger job_is_not_truncated
before truncate on holdfast.job
for each statement execute function holdfast.refuse_change();

-- A new job is pending, or scheduled if it is due later; nothing else may be
-- said at its birth, whatever the path it comes by.
create or replace function holdfast.birth()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  now_at timestamptz;
begin
  if new.state <> 'pending' or new.attempt <> 0 or new.lease is not null or new.worker_id is not null
    or new.last_lease is not null or new.claimed_at is not null or new.cancel_requested_at is not null
  then
    raise exception using
      errcode = 'HF010',
      message = format('job %s cannot begin as %s', new.id, case new.state when 'pending' then 'one that was claimed before' else new.state end),
      detail = jsonb_build_object('id', new.id, 'from_state', null, 'to_state', new.state),
      hint = 'Leave out state, attempt, worker and lease: a new job is pending, or scheduled by its run_at.';
  end if;
  if new.run_at is not null then
    now_at := holdfast.clock();
    if holdfast.due_time(new.run_at, null, now_at) > now_at then
      new.state := 'scheduled';
    end if;
  end if;
  return new;
end
$$;
comment on function holdfast.birth() is 'Make a job that is due later scheduled, and refuse one that begins otherwise.';

create or replace trigger job_birth
before insert on holdfast.job
for each row when (
  new.run_at is not null
  or new.state <> 'pending'
  or new.attempt <> 0
  or new.lease is not null
  or new.worker_id is not null
  or new.last_lease is not null
  or new.claimed_at is not null
  or new.cancel_requested_at is not null
)
execute function holdfast.birth();

-- What every insert is held to, also a bulk COPY that calls no function of ours.
create or replace function holdfast.arrival()
returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  wrong record;
begin
  -- The limit of each lane once; materialized, or it would be asked for with every job.
  with place as materialized (
    select l.id, l.task, holdfast.payload_limit(l.queue) as payload_limit
    from holdfast.lane l
    where l.kind = 0
      and l.id in (select i.lane_id from inserted i)
  )
  select i.id, i.payload, p.id as lane_id, p.payload_limit into wrong
  from inserted i
  left join place p on p.id = i.lane_id and p.task = i.task
  where p.id is null
    or octet_length(i.payload::text) > p.payload_limit
  limit 1;
  if found and wrong.lane_id is null then
    raise exception using
      errcode = 'HF008',
      message = format('job %s names a lane that is not a lane of its task', wrong.id),
      detail = jsonb_build_object('field', 'lane_id', 'value', null),
      hint = 'Take lane_id from holdfast.lane(queue, priority, task).';
  elsif found then
    perform holdfast.refuse_payload(wrong.id, wrong.payload, wrong.payload_limit);
  end if;
  perform holdfast.wake(array(select distinct i.lane_id from inserted i));
  return null;
end
$$;
comment on function holdfast.arrival() is 'Check the lanes and payloads of new jobs, and wake who sleeps for them.';

create or replace trigger job_arrival
after insert on holdfast.job
referencing new table as inserted
for each statement execute function holdfast.arrival();
