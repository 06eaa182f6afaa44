-- Measure payloads, so that one claim returns no more than 16 MiB.

-- The exact size of a compressed payload is known only after unpacking it. At most, pglz makes
-- 88 bytes of one byte, and lz4 255. There is no SET clause, so that PostgreSQL inlines the
-- function.
create or replace function holdfast.bytes_at_most(payload jsonb)
returns integer
language sql stable
as $$
  select case
    when pg_column_compression(payload) is null then pg_column_size(payload)
    -- the sum of two still fits an integer
    else least(255::bigint * pg_column_size(payload), 1023 * 1024 * 1024)::integer
  end
$$;
comment on function holdfast.bytes_at_most(jsonb) is
  'Return an upper bound of the size of a payload as it is sent, without unpacking it.';

-- Return how many of the first jobs fit, and unpack no more payloads than that. `places` are the
-- row ids (ctid) of the jobs.
create or replace function holdfast.fitting(places tid[], room bigint)
returns table (amount integer, bytes bigint)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  row_id tid;
  size integer;
begin
  amount := 0;
  bytes := 0;
  foreach row_id in array places loop
    select
      case when pg_column_compression(j.payload) is null then pg_column_size(j.payload)
        else octet_length(j.payload::text) end
      + coalesce(
        case when pg_column_compression(j.headers) is null then pg_column_size(j.headers)
        else octet_length(j.headers::text) end, 0)
    into size
    from holdfast.live j
    where j.ctid = row_id;
    exit when bytes + size > room;
    amount := amount + 1;
    bytes := bytes + size;
  end loop;
  return next;
end
$$;
comment on function holdfast.fitting(tid[], bigint) is
  'Return how many of the first jobs fit together, and how many bytes they have.';
