-- Return the setting that applies: the queue's own, otherwise the default's.

create or replace function holdfast.payload_limit(queue text)
returns integer
language plpgsql stable
as $$
begin
  return coalesce(
    (select q.payload_limit from holdfast.queue q where q.name = payload_limit.queue),
    (select q.payload_limit from holdfast.queue q where q.name = '*'),
    262144);
end
$$;
comment on function holdfast.payload_limit(text) is
  'Return how many bytes of JSON a payload of this queue may have.';

create or replace function holdfast.lane_limit(queue text)
returns integer
language plpgsql stable
as $$
begin
  return coalesce(
    (select q.lane_limit from holdfast.queue q where q.name = lane_limit.queue),
    (select q.lane_limit from holdfast.queue q where q.name = '*'),
    10000);
end
$$;
comment on function holdfast.lane_limit(text) is 'Return how many lanes of fresh jobs this queue may have.';

-- The first that is set wins: the call, the task's policy, the queue, the default.
create or replace function holdfast.max_attempts(task text, queue text)
returns integer
language plpgsql stable
as $$
begin
  return coalesce(
    (select p.max_attempts from holdfast.retry_policy p where p.task = max_attempts.task),
    (select q.max_attempts from holdfast.queue q where q.name = max_attempts.queue),
    (select q.max_attempts from holdfast.queue q where q.name = '*'),
    3);
end
$$;
comment on function holdfast.max_attempts(text, text) is
  'Return how often a job of this task and queue is tried unless its call says otherwise.';

-- The delay is least(base × factor^(attempt − 1), cap) plus up to `jitter` of that, so that a
-- thousand jobs that failed together do not return together.
-- holdfast: role worker viewer
create or replace function holdfast.retry_delay(task text, attempt integer, queue text default 'default')
returns interval
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  with policy as (
    select
      coalesce(p.base, q.retry_base, d.retry_base, interval '1 minute') as base,
      coalesce(p.factor, q.retry_factor, d.retry_factor, 2) as factor,
      coalesce(p.cap, q.retry_cap, d.retry_cap, interval '1 hour') as cap,
      coalesce(p.jitter, q.retry_jitter, d.retry_jitter, 0.1) as jitter
    from (values (1)) one (row)
    left join holdfast.retry_policy p on p.task = retry_delay.task
    left join holdfast.queue q on q.name = retry_delay.queue
    left join holdfast.queue d on d.name = '*'
  )
  select least(
      -- The exponent is bounded so that no attempt number overflows.
      extract(epoch from base)::double precision * power(factor, least(greatest(attempt, 1) - 1, 60)),
      extract(epoch from cap)::double precision)
    * (1 + jitter * random()) * interval '1 second'
  from policy
$$;
comment on function holdfast.retry_delay(text, integer, text) is
  'Return how long a job waits after this failed attempt: exponential backoff with a cap and jitter.';
