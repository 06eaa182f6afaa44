-- Return the bounds of the buckets: five per power of ten, from 0.1 ms to 11 days. Bucket 0 lies
-- below the first bound, and bucket 51 above the last one.
-- holdfast: role viewer
create or replace function holdfast.stat_bounds()
returns double precision[]
language sql immutable parallel safe
as $$
  select '{0.0001,0.00016,0.00025,0.0004,0.00063,0.001,0.0016,0.0025,0.004,0.0063,0.01,0.016,0.025,0.04,0.063,0.1,0.16,0.25,0.4,0.63,1,1.6,2.5,4,6.3,10,16,25,40,63,100,160,250,400,630,1000,1600,2500,4000,6300,10000,16000,25000,40000,63000,100000,160000,250000,400000,630000,1000000}'::double precision[]
$$;
comment on function holdfast.stat_bounds() is
  'Return the bounds, in seconds, of the buckets for waiting and running times.';

-- Return 64 × the bucket of the waiting time + the bucket of the running time. Bucket 63 means
-- unknown. There is no SET clause, so that PostgreSQL inlines the function.
create or replace function holdfast.stat_bucket(waited double precision, ran double precision)
returns integer
language sql immutable parallel safe
as $$
  select coalesce(width_bucket(waited, holdfast.stat_bounds()), 63) * 64 + coalesce(
    width_bucket(ran, holdfast.stat_bounds()), 63)
$$;
comment on function holdfast.stat_bucket(double precision, double precision) is
  'Return the buckets of a waiting and a running time as one number.';

-- Return one number for each of the 52 buckets.
create or replace function holdfast.histogram(buckets integer[], jobs numeric[])
returns integer[]
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select array_agg(coalesce(p.jobs, 0)::integer order by b.bucket)
  from generate_series(0, 51) b (bucket)
  left join (
    select p.bucket, sum(p.jobs) as jobs from unnest(buckets, jobs) p (bucket, jobs) group by p.bucket) p
    on p.bucket = b.bucket
$$;
comment on function holdfast.histogram(integer[], numeric[]) is 'Return how many jobs each bucket has.';

create or replace function holdfast.add_counts(one integer[], other integer[])
returns integer[]
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select array_agg(p.a + p.b) from unnest(one, other) p (a, b)
$$;
comment on function holdfast.add_counts(integer[], integer[]) is 'Return the sum of two histograms.';

-- Return null if no job is counted. Within a bucket, times are assumed to be spread evenly by
-- their logarithm.
create or replace function holdfast.percentiles(counts bigint[], shares double precision[])
returns double precision[]
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  bounds constant double precision[] := holdfast.stat_bounds();
  total constant double precision := (select sum(c) from unnest(counts) c);
  result double precision[] := '{}';
  passed double precision := 0;
  bucket integer := 1;
  share double precision;
  part double precision;
begin
  if coalesce(total, 0) = 0 then
    return null;
  end if;
  foreach share in array shares loop -- ascending
    while passed + counts[bucket] < share * total and bucket < cardinality(counts) loop
      passed := passed + counts[bucket];
      bucket := bucket + 1;
    end loop;
    part := (share * total - passed) / greatest(counts[bucket], 1);
    result := result || case
      when bucket = 1 then bounds[1] * part
      when bucket > cardinality(bounds) then bounds[cardinality(bounds)]
      else bounds[bucket - 1] * power(bounds[bucket] / bounds[bucket - 1], part)
    end;
  end loop;
  return result;
end
$$;
comment on function holdfast.percentiles(bigint[], double precision[]) is
  'Return the percentiles of a histogram, in seconds. The shares must ascend, as in {0.5,0.95,0.99}.';
