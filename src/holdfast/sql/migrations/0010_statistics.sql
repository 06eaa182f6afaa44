-- What was done, counted: each report appends one row, and a duty adds them up.

-- Appended by whoever ends an attempt, so that no two of them ever wait for one row. The arrays go together: so
-- many jobs of a lane that waited and ran for about so long, and the sum of either in seconds.
create table holdfast.stat_delta (
  at timestamptz not null,
  outcome text collate "C" not null,
  lanes integer[] not null,
  buckets integer[] not null,
  jobs bigint[] not null,
  wait_seconds double precision[] not null,
  run_seconds double precision[] not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);
-- Rows are deleted, also where a publication is for all tables.
alter table holdfast.stat_delta replica identity full;
alter table holdfast.finished_default replica identity full;
alter table holdfast.event_default replica identity full;
create index stat_delta_time on holdfast.stat_delta (at);
comment on table holdfast.stat_delta is 'What was reported and is not yet counted in stat: one row for each batch of reports and outcome.';
comment on column holdfast.stat_delta.outcome is 'completed, failed (an attempt), dead or cancelled.';
comment on column holdfast.stat_delta.buckets is 'How long they waited and ran: see holdfast.stat_bucket().';

-- One row for each minute of the last hours, and for each hour of the last days.
create table holdfast.stat (
  span text collate "C" not null,
  at timestamptz not null,
  queue text collate "C" not null,
  task text collate "C" not null,
  completed bigint not null,
  failed bigint not null,
  dead bigint not null,
  cancelled bigint not null,
  wait_seconds double precision not null,
  run_seconds double precision not null,
  waits integer[] not null,
  runs integer[] not null,
  primary key (span, at, queue, task),
  constraint "a span is a minute or an hour" check (span in ('minute', 'hour'))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 500);
comment on table holdfast.stat is 'What was done in each minute and each hour, by queue and task.';
comment on column holdfast.stat.failed is 'Attempts that failed, whether or not the job was tried again.';
comment on column holdfast.stat.waits is 'How many attempts waited for how long: one number for each bucket, see holdfast.stat_bounds().';
comment on column holdfast.stat.runs is 'How many attempts ran for how long: one number for each bucket, see holdfast.stat_bounds().';

create type holdfast.statistic as (
  queue text,
  task text,
  paused_at timestamptz,
  waiting bigint,
  scheduled bigint,
  running bigint,
  dead bigint,
  estimated boolean,
  waiting_since timestamptz,
  hour_completed bigint,
  hour_failed bigint,
  hour_dead bigint,
  hour_cancelled bigint,
  hour_per_second double precision,
  hour_failures double precision,
  hour_wait_avg interval,
  hour_wait_p50 interval,
  hour_wait_p95 interval,
  hour_wait_p99 interval,
  hour_run_avg interval,
  hour_run_p50 interval,
  hour_run_p95 interval,
  hour_run_p99 interval,
  day_completed bigint,
  day_failed bigint,
  day_dead bigint,
  day_cancelled bigint,
  day_per_second double precision,
  day_failures double precision,
  day_wait_avg interval,
  day_wait_p50 interval,
  day_wait_p95 interval,
  day_wait_p99 interval,
  day_run_avg interval,
  day_run_p50 interval,
  day_run_p95 interval,
  day_run_p99 interval,
  minutes bigint[]
);
comment on type holdfast.statistic is
  'A queue, or a task of it: what is there now, and what was done in the last hour and the last day; `minutes` are the jobs completed in each minute of the last hour.';

create type holdfast.queue_report as (
  queue text,
  status text,
  message text,
  waiting bigint,
  estimated boolean,
  waiting_since timestamptz,
  oldest interval,
  attempts bigint,
  failed bigint,
  failures double precision,
  workers integer,
  paused_at timestamptz
);
comment on type holdfast.queue_report is
  'How a queue is: OK, WARNING or CRITICAL, why, and what that was judged by. Attempts and failures are those of the last hour.';
