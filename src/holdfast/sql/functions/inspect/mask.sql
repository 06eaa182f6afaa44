-- Decide how much of payloads, results and errors each role sees. Nothing else decides this.
--
--   a Secret         {"$secret": …} is ***** to everybody, and so is its value in other texts
--   redacted keys    their values are ***** except to operators and the owner
--   not visible      payloads and results are hidden except from operators and the owner
--
-- Workers get payloads unchanged from claim().

-- holdfast: role viewer
create or replace function holdfast.sees_payloads()
returns boolean
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.is_owner(holdfast.caller()) or holdfast.acts_as(holdfast.caller(), 'holdfast_operator')
$$;
comment on function holdfast.sees_payloads() is
  'Return whether the caller sees payloads and results except their secrets.';

-- Return two settings of a queue: whether viewers see payloads at all, and the keys to mask, in
-- lower case.
create or replace function holdfast.redaction(queue text, out visible boolean, out keys text[])
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select
    coalesce(q.payload_visible, d.payload_visible, true),
    array(select lower(k) from unnest(coalesce(q.redacted, d.redacted, '{}')) k)
  from (values (1)) one (row)
  left join holdfast.queue q on q.name = redaction.queue
  left join holdfast.queue d on d.name = '*'
$$;
comment on function holdfast.redaction(text) is 'Return what viewers see of the payloads of a queue.';

-- Values that are nested more than 40 levels deep are masked too: a payload must not exhaust the
-- stack of a session that lists jobs.
create or replace function holdfast.cover(value jsonb, keys text[], texts text[], depth integer default 0)
returns jsonb
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  mask constant jsonb := '"*****"';
begin
  case jsonb_typeof(value)
    when 'object' then
      if value ? '$secret' or depth > 40 then
        return mask;
      end if;
      return coalesce((
        select jsonb_object_agg(
          holdfast.scrub(e.key, texts),
          case when lower(e.key) = any(keys) then mask
            else holdfast.cover(e.value, keys, texts, depth + 1) end)
        from jsonb_each(value) e), '{}');
    when 'array' then
      if depth > 40 then
        return mask;
      end if;
      return coalesce((
        select jsonb_agg(holdfast.cover(e.value, keys, texts, depth + 1) order by e.n)
        from jsonb_array_elements(value) with ordinality e (value, n)), '[]');
    when 'string' then
      return case when cardinality(texts) = 0 then value
        else to_jsonb(holdfast.scrub(value #>> '{}', texts)) end;
    when 'number' then
      return case when value::text = any(texts) then mask else value end;
    else
      return value;
  end case;
end
$$;
comment on function holdfast.cover(jsonb, text[], text[], integer) is
  'Return a JSON value with ***** in place of secrets, of the values of these keys, and of these texts.';

-- All texts and keys inside a secret are hidden. The texts under the redacted `keys`, or all texts
-- if `everything` is true, are hidden if they have at least 4 characters: shorter ones are too
-- similar to ordinary words.
create or replace function holdfast.hidden_texts(payload jsonb, keys text[], everything boolean)
returns text[]
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  with recursive part (value, key, secret, hidden, depth) as (
    select payload, null::text, false, everything, 0
    union all
    select
      c.value,
      case when p.secret then c.key end,
      p.secret or c.key = '$secret', p.hidden or lower(c.key) = any(keys), p.depth + 1
    from part p
    cross join lateral (
      select e.key, e.value from jsonb_each(case when jsonb_typeof(p.value) = 'object' then p.value end) e
      union all
      select null, e.value
        from jsonb_array_elements(case when jsonb_typeof(p.value) = 'array' then p.value end) e
    ) c
    where p.depth < 1000
  )
  select coalesce(array_agg(t.text order by length(t.text) desc), '{}')
  from (
    select distinct form.text
    from (
      select p.value, p.secret, p.hidden from part p
      union all
      -- A key in a secret is as secret as its value.
      select to_jsonb(p.key), true, true from part p where p.key is not null
    ) p
    cross join lateral (
      select p.value #>> '{}'
      union all
      select substr(p.value::text, 2, length(p.value::text) - 2) where jsonb_typeof(p.value) = 'string'
    ) form (text)
    where jsonb_typeof(p.value) in ('string', 'number')
      and (p.secret and form.text <> '' or p.hidden and length(form.text) >= 4)
  ) t
$$;
comment on function holdfast.hidden_texts(jsonb, text[], boolean) is
  'Return the texts in a payload that must not be shown elsewhere, the longest first.';

-- Each hidden text is searched for in each string that is shown. Without a limit, a payload of 171 KiB took
-- six seconds, and a list shows many. So with more than a hundred texts the whole value is
-- hidden.
create or replace function holdfast.are_too_many(texts text[])
returns boolean
language sql immutable
as $$
  select cardinality(texts) > 100
$$;
comment on function holdfast.are_too_many(text[]) is
  'Return whether there are so many texts to hide that a whole value is hidden.';

-- A short text is replaced only as a whole word: a three-digit code inside every longer number
-- would shred the text and hide nothing.
create or replace function holdfast.scrub(value text, texts text[])
returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  hidden text;
  scrubbed text := scrub.value;
begin
  foreach hidden in array scrub.texts loop
    if strpos(scrubbed, hidden) > 0 then
      scrubbed := case when length(hidden) >= 4
        then replace(scrubbed, hidden, '*****')
        else regexp_replace(
          scrubbed, '(?<!\w)' || regexp_replace(hidden, '(\W)', '\\\1', 'g') || '(?!\w)', '*****', 'g')
      end;
    end if;
  end loop;
  return scrubbed;
end
$$;
comment on function holdfast.scrub(text, text[]) is
  'Return a text with ***** in place of each of these texts.';

-- `in_full` is sees_payloads(), evaluated once for all rows.
-- holdfast: role viewer
create or replace function holdfast.as_seen(value jsonb, queue text, payload jsonb, in_full boolean)
returns jsonb
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  shown record;
  said text;
  hidden text[];
begin
  if value is null then
    return null;
  end if;
  if payload is null then -- the job is gone, so its secrets are unknown
    return case when holdfast.is_owner(holdfast.caller()) then value else '"*****"' end;
  end if;
  if in_full then
    if strpos(value::text, '"$secret"') = 0 and coalesce(strpos(payload::text, '"$secret"'), 0) = 0 then
      return value;
    end if;
    hidden := holdfast.hidden_texts(payload, '{}', false);
    return case when holdfast.are_too_many(hidden) then '"*****"'
      else holdfast.cover(value, '{}', hidden) end;
  end if;
  select r.visible, r.keys into shown from holdfast.redaction(as_seen.queue) r;
  if not shown.visible then
    return '"*****"';
  end if;
  -- Most values are short, so they are not nested deeply and have nothing to hide.
  said := lower(concat(value::text, payload::text));
  if length(said) < 1000
    and not exists (
    select from unnest(shown.keys || '$secret'::text) k where strpos(said, to_jsonb(k)::text) > 0) then
    return value;
  end if;
  hidden := holdfast.hidden_texts(payload, shown.keys, false);
  return case when holdfast.are_too_many(hidden) then '"*****"'
    else holdfast.cover(value, shown.keys, hidden) end;
end
$$;
comment on function holdfast.as_seen(jsonb, text, jsonb, boolean) is
  'Return a value of a job of this queue and payload as the caller may see it.';

-- Mask as as_seen() does, for the texts of a handler: an error, a message, a stage.
-- holdfast: role viewer
create or replace function holdfast.text_as_seen(value text, queue text, payload jsonb, in_full boolean)
returns text
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  shown record;
  hidden text[];
begin
  if value is null then
    return null;
  end if;
  if payload is null then
    return case when holdfast.is_owner(holdfast.caller()) then value else '*****' end;
  end if;
  if in_full then
    if strpos(payload::text, '"$secret"') = 0 then
      return value;
    end if;
    hidden := holdfast.hidden_texts(payload, '{}', false);
  else
    select r.visible, r.keys into shown from holdfast.redaction(text_as_seen.queue) r;
    hidden := holdfast.hidden_texts(payload, shown.keys, not shown.visible);
  end if;
  return case when holdfast.are_too_many(hidden) then '*****' else holdfast.scrub(value, hidden) end;
end
$$;
comment on function holdfast.text_as_seen(text, text, jsonb, boolean) is
  'Return a text of a job of this queue and payload as the caller may see it.';

-- Only the owner may call this, and the owner can read the table anyway.
-- holdfast: role owner
create or replace function holdfast.stored_payload(id uuid)
returns jsonb
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select f.payload from holdfast.found_job(stored_payload.id) f
$$;
comment on function holdfast.stored_payload(uuid) is
  'Return the payload of a job as it is stored, with secrets in plain text; for the owner.';
