-- Pick dead letters by a filter, for replay_many() and purge_many().
--
-- A null matches everything. `error` matches a part of the last error, in upper or lower case.

-- Oldest first. Letters that another session is replaying or purging are skipped.
create or replace function holdfast.pick_dead(
  queue text, task text, error text, died_after timestamptz, died_before timestamptz, amount integer)
returns setof uuid
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select d.id
  from holdfast.dead_letter d
  where ((select holdfast.unrestricted()) or d.queue = any((select holdfast.queues_in_reach())::text[]))
    and (pick_dead.queue is null or d.queue = pick_dead.queue)
    and (pick_dead.task is null or d.task = pick_dead.task)
    -- Match only what the caller sees, as in list_dead().
    and (
      pick_dead.error is null
      or strpos(lower(d.last_error), lower(pick_dead.error)) > 0
        and strpos(
          lower(holdfast.text_as_seen(d.last_error, d.queue, d.payload, (select holdfast.sees_payloads()))),
          lower(pick_dead.error)) > 0
    )
    and (pick_dead.died_after is null or d.died_at >= pick_dead.died_after)
    and (pick_dead.died_before is null or d.died_at < pick_dead.died_before)
  order by d.died_at, d.id
  limit pick_dead.amount
  for update skip locked
$$;
comment on function holdfast.pick_dead(text, text, text, timestamptz, timestamptz, integer) is
  'Lock and return the dead letters that match.';

-- An empty text is refused as a filter: it comes from a variable that was not set and must not mean "all".
create or replace function holdfast.check_filter(
  queue text, task text, error text, died_after timestamptz, died_before timestamptz, everything boolean
)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if everything is not true
    and coalesce(nullif(queue, ''), nullif(task, ''), nullif(error, '')) is null
    and died_after is null
    and died_before is null
  then
    perform holdfast.refuse_value(
      'everything', everything::text, 'no filter is given; say everything => true for all dead jobs');
  end if;
end
$$;
comment on function holdfast.check_filter(text, text, text, timestamptz, timestamptz, boolean) is
  'Refuse a filter that takes all dead jobs unless the caller asks for everything.';

create or replace function holdfast.refuse_unless_dead(id uuid, verb text, to_state text)
returns void
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.refuse_transition(
    refuse_unless_dead.id, refuse_unless_dead.to_state,
    format('only a dead job can be %s', refuse_unless_dead.verb),
    'holdfast.list_dead() shows those that are.')
$$;
comment on function holdfast.refuse_unless_dead(uuid, text, text) is
  'Raise the error for a job that is not among the dead letters.';

create or replace function holdfast.note_dead(
  action text, jobs bigint, queue text, task text, error text, died_after timestamptz,
  died_before timestamptz)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.note(note_dead.action, coalesce(note_dead.queue, '*'), jsonb_strip_nulls(jsonb_build_object(
    'jobs', note_dead.jobs, 'task', note_dead.task, 'error', note_dead.error,
    'died_after', note_dead.died_after, 'died_before', note_dead.died_before)))
$$;
comment on function holdfast.note_dead(text, bigint, text, text, text, timestamptz, timestamptz) is
  'Write to the audit log what was done to the dead letters that matched.';
