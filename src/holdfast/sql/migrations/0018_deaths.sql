-- How often a worker died while it ran a job. Apart from `live`, so that jobs that
-- never met a death, which are nearly all, cost nothing.
create table holdfast.death (
  job_id uuid primary key,
  deaths integer not null,
  longest interval not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
comment on table holdfast.death is 'Live jobs that ran on a worker as it died: how many times, and for how long at most.';
comment on column holdfast.death.longest is 'At least as long as the job had run at any of these deaths.';
