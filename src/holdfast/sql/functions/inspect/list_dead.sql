-- holdfast: after jobs
-- List dead letters. A null filter matches everything. `error` matches a part of the last error, in
-- upper or lower case.

-- holdfast: role viewer
create or replace function holdfast.list_dead(
  queue text default null,
  task text default null,
  error text default null,
  died_after timestamptz default null,
  died_before timestamptz default null,
  amount integer default 50
)
returns setof holdfast.jobs
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select holdfast.job_as_seen(j::holdfast.every_job)
  from (
    select j.*
    from holdfast.ended_job j
    where j.state = 'dead'
      and ((select holdfast.unrestricted()) or j.queue = any((select holdfast.queues_in_reach())::text[]))
      and (list_dead.queue is null or j.queue = list_dead.queue)
      and (list_dead.task is null or j.task = list_dead.task)
      -- Match only what the caller sees. Otherwise a caller could find masked text by trying filters.
      and (
        list_dead.error is null
        or strpos(lower(j.last_error), lower(list_dead.error)) > 0
          and strpos(
            lower(holdfast.text_as_seen(j.last_error, j.queue, j.payload, (select holdfast.sees_payloads()))),
            lower(list_dead.error)) > 0
      )
      and (list_dead.died_after is null or j.finished_at >= list_dead.died_after)
      and (list_dead.died_before is null or j.finished_at < list_dead.died_before)
    order by j.finished_at desc, j.id
    limit list_dead.amount
  ) j
$$;
comment on function holdfast.list_dead(text, text, text, timestamptz, timestamptz, integer) is
  'Return dead jobs by queue, task, a part of the last error and time of death, the latest first.';
