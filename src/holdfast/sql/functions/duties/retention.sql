-- Return how long ended jobs are kept: finished jobs and events for the retention of their queue, dead
-- letters for its dead_retention. Jobs that have not ended are never touched.

-- At least a minute, so that a waiting session finds the result.
create or replace function holdfast.retentions()
returns table (queue text, span interval)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select q.name, greatest(coalesce(q.retention, interval '30 days'), interval '1 minute')
  from holdfast.queue q
  where q.retention is not null
    or q.name = '*'
$$;
comment on function holdfast.retentions() is
  'Return how long each queue with a retention of its own keeps its finished jobs, and * for all others.';

create or replace function holdfast.longest_retention()
returns interval
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select max(r.span) from holdfast.retentions() r
$$;
comment on function holdfast.longest_retention() is
  'Return the longest time for which a queue keeps its finished jobs.';
