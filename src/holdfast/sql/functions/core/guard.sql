-- Refuse changes to jobs that must never happen: an illegal change of state, and a place in a
-- lane that a head may have passed. check_inserted.sql checks new jobs, and refuse_delete.sql
-- keeps rows from being deleted.
--
-- Other programs write to `job`, and our functions write to `live`, its only partition.
-- A statement-level trigger fires only for the table that the statement names. So these
-- checks cost our functions nothing, and no other role has rights on `live`. A transition
-- table on `live` would cost each enqueue 27 µs, a quarter of its time. A row-level check
-- would cost a fifteenth of a claim.
--
-- `live` has no check constraints and only one WHEN clause. Each statement parses them
-- again: the check constraints of 0.1 took a third of the time of a single claim.

create or replace function holdfast.guard()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_nestloop = off -- the plan is made for the first update of a session, which may change one row
as $$
declare
  wrong record;
begin
  select o.id, o.state, n.state as new_state into wrong
  from before o
  join after n on n.id = o.id
  where o.state <> n.state
    and (select n.state <> all(s.successors) from holdfast.state s where s.name = o.state)
  limit 1;
  if found then
    raise exception using
      errcode = 'HF010',
      message = format('job %s cannot go from %s to %s', wrong.id, wrong.state, wrong.new_state),
      detail = jsonb_build_object('id', wrong.id, 'from_state', wrong.state, 'to_state', wrong.new_state),
      hint = 'The legal changes are in holdfast.state.';
  end if;
  select o.id, n.id as new_id into wrong
  from (select id from before except select id from after) o
  cross join (select id from after except select id from before) n
  limit 1;
  if found then
    raise exception using
      errcode = 'HF010',
      message = format('job %s cannot become job %s', wrong.id, wrong.new_id),
      detail = jsonb_build_object('id', wrong.id),
      hint = 'A job keeps its id.';
  end if;
  perform holdfast.refuse_place(o.id, o.seq, n.seq)
  from before o
  join after n on n.id = o.id
  where n.seq < o.seq
    or (n.seq = o.seq and n.state = 'pending' and (o.state <> 'pending' or o.lane_id <> n.lane_id));
  perform holdfast.refuse_broken(n) from after n;
  perform holdfast.refuse_lane(n.id)
  from before o
  join after n on n.id = o.id
  where n.lane_id <> o.lane_id
    and not exists (select from holdfast.lane l where l.id = n.lane_id and holdfast.takes_jobs(l.id));
  return null;
end
$$;
comment on function holdfast.guard() is
  'Refuse updates of jobs that change a state illegally, reuse an id or a place, or break a rule.';

create or replace function holdfast.refuse_place(id uuid, old_seq bigint, new_seq bigint)
returns void
language plpgsql immutable
as $$
begin
  raise exception using
    errcode = 'HF010',
    message = format(
      'job %s would stand at place %s, not behind its old place %s', refuse_place.id, new_seq, old_seq),
    detail = jsonb_build_object('id', refuse_place.id),
    hint = 'One that becomes pending or changes lane needs a new nextval(''holdfast.job_seq'').';
end
$$;
comment on function holdfast.refuse_place(uuid, bigint, bigint) is
  'Raise the error for a job whose new place is not behind its old one.';

-- Our functions call this before they give out new places, since the sequence may have been reset.
create or replace function holdfast.check_places(ids uuid[])
returns void
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.refuse_place(j.id, j.seq, s.next)
  from (select j.id, j.seq from holdfast.live j where j.id = any(ids) order by j.seq desc limit 1) j
  join (select s.last_value + s.is_called::integer as next from holdfast.job_seq s) s on s.next <= j.seq
$$;
comment on function holdfast.check_places(uuid[]) is
  'Refuse to move these jobs if their next places are not behind their old ones.';

-- Raise the error that a check constraint would raise, if a job breaks a rule of live jobs.
create or replace function holdfast.refuse_broken(new holdfast.job)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  rule text := case
    when new.state not in ('scheduled', 'pending', 'claimed')
      then 'a live job is scheduled, pending or claimed'
    when (new.state = 'claimed') <> (new.lease is not null)
      or (new.state = 'claimed') <> (new.worker_id is not null)
      then 'a claimed job and no other has a lease and a worker'
    when new.state = 'scheduled' and new.run_at is null then 'a scheduled job has a time'
    when new.attempt < 0 then 'attempts are counted from 0'
    when new.max_attempts not between 1 and 32767 then 'max_attempts is between 1 and 32767'
  end;
begin
  if rule is not null then
    raise exception using
      errcode = 'check_violation',
      message = format('job %s: %s', new.id, rule),
      schema = 'holdfast',
      table = 'job',
      constraint = rule;
  end if;
end
$$;
comment on function holdfast.refuse_broken(holdfast.job) is
  'Raise an error if a job breaks a rule of live jobs.';

create or replace trigger job_guard
after update on holdfast.job
referencing old table as before new table as after
for each statement execute function holdfast.guard();
