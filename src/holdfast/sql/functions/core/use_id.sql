-- Record an id that a caller supplied. Return true if it is new, and false if it was used for
-- the same task and payload. Raise an error if it was used for another job.
--
-- A second transaction with the same id waits here until the first has ended.
--
-- An id that a tenant may not see is always refused in the same way. So the tenant cannot guess
-- the task or the payload of its job, and cannot take it over.
create or replace function holdfast.use_id(id uuid, task text, payload jsonb, now_at timestamptz, queue text)
returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  -- Half a SHA-256 instead of MD5, which a server in FIPS mode does not have.
  hash uuid := encode(substr(sha256(convert_to(use_id.payload::text, 'UTF8')), 1, 16), 'hex')::uuid;
  used holdfast.used_id;
  restricted constant boolean := not holdfast.unrestricted();
begin
  if restricted and exists (
    select from holdfast.jobs_with_id(use_id.id) j where not holdfast.in_reach(j.queue)
  ) then
    perform holdfast.refuse_id(use_id.id);
  end if;
  loop
    insert into holdfast.used_id (id, task, payload_hash, used_at, queue)
    values (use_id.id, use_id.task, hash, use_id.now_at, use_id.queue)
    on conflict (id) do nothing;
    if found then
      return true;
    end if;
    select u.* into used from holdfast.used_id u where u.id = use_id.id;
    exit when found; -- otherwise the id was forgotten just now
  end loop;
  -- Its job may be past its retention, or have been enqueued while this waited for it.
  if restricted and used.queue is not null and not holdfast.in_reach(used.queue) then
    perform holdfast.refuse_id(use_id.id);
  end if;
  if used.task = use_id.task and used.payload_hash = hash then
    return false;
  end if;
  raise exception using
    errcode = 'HF007',
    message = format(
      'id %s is already used for another %s', use_id.id, case when used.task = use_id.task then 'payload'
      else 'task' end),
    detail = jsonb_build_object(
      'id', use_id.id,
      'field', case when used.task = use_id.task then 'payload' else 'task' end),
    hint = 'Use a new id for a new job; the same id is only for repeating the same call.';
end
$$;
comment on function holdfast.use_id(uuid, text, jsonb, timestamptz, text) is
  'Record an id that a caller supplied. Returns false if the same job has it already.';

create or replace function holdfast.refuse_id(id uuid)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using
    errcode = 'HF007',
    message = format('id %s cannot be used', refuse_id.id),
    detail = jsonb_build_object('id', refuse_id.id, 'field', 'id'),
    hint = 'Use a new id for a new job.';
end
$$;
comment on function holdfast.refuse_id(uuid) is
  'Raise the error for an id that the caller may not use, without a word about its job.';
