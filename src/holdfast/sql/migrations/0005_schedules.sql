-- A cron expression, taken apart: see functions/cron.sql.
create type holdfast.cron as (
  seconds integer[],
  minutes integer[],
  hours integer[],
  days integer[],
  last_day boolean,
  months integer[],
  weekdays integer[],
  nth_weekdays integer[],
  last_weekdays integer[],
  both_days boolean,
  by_wall_clock boolean
);
comment on type holdfast.cron is 'A cron expression, taken apart; every list is sorted.';

-- A job at regular times. The functions keep its rules; see functions/schedule.sql.
create table holdfast.schedule (
  name text collate "C" primary key,
  cron text,
  every interval,
  zone text not null,
  task text collate "C" not null,
  payload jsonb not null,
  queue text collate "C" not null,
  priority smallint not null,
  max_attempts smallint,
  missed text not null,
  overlap boolean not null,
  jitter interval not null,
  declared boolean not null,
  created_at timestamptz not null,
  paused_at timestamptz,
  next_at timestamptz not null,
  last_at timestamptz,
  last_job uuid,
  skipped bigint not null default 0,
  error text,
  check ((cron is null) <> (every is null))
) with (fillfactor = 50);
comment on table holdfast.schedule is 'Which task runs at which times.';
comment on column holdfast.schedule.missed is 'What happens to times that came while nothing ran: skip, once or all.';
comment on column holdfast.schedule.overlap is 'Whether a job may begin while the last one is unfinished; if not, its time is skipped.';
comment on column holdfast.schedule.declared is 'Whether it comes from code, which may change it at its next start.';
comment on column holdfast.schedule.skipped is 'How many times were skipped, because they were missed or would have overlapped.';
comment on column holdfast.schedule.error is 'Why its last time brought no job, if it was refused.';

-- The last word on "once": no time of a schedule can have two jobs, whatever happens to next_at.
create table holdfast.schedule_tick (
  schedule text collate "C",
  tick timestamptz,
  job_id uuid,
  primary key (schedule, tick)
);
comment on table holdfast.schedule_tick is 'The times of the last 30 days that had their job.';
