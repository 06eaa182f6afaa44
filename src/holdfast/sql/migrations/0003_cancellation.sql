-- Cancels that a worker has yet to hear of. Apart from `job`, so that workers ask a table that is nearly always empty.
create table holdfast.cancellation (
  job_id uuid primary key,
  lease uuid not null,
  worker_id uuid not null,
  requested_at timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
comment on table holdfast.cancellation is 'Cancels of jobs that a worker holds, until the job has ended.';

-- A job that must never run a second time says so when it starts.
alter table holdfast.running add column once boolean not null default false;
comment on column holdfast.running.once is 'It must not run a second time: whatever happens to it now, it is not tried again.';

create index dead_letter_time on holdfast.dead_letter (died_at);
