-- What an operator may set for a queue, or in the row '*' for all of them. A null
-- means "as in '*'", and a null there that nothing is asked for. A thousand years
-- stand for ever: an infinite interval exists since PostgreSQL 17 only.
update holdfast.queue q set retention = interval '1000 years' where q.retention > interval '1000 years';

alter table holdfast.queue
  -- how long dead letters are kept
  add column dead_retention interval,
  -- what happens to a day's finished jobs and events past the retention: drop,
  -- archive (moved to the schema holdfast_archive), export (kept until they were exported)
  add column disposal text collate "C",
  -- when a queue is not well: jobs that wait, how long the oldest waits, the share
  -- of attempts that failed in the last hour, and whether a worker must be there
  add column waiting_warning bigint,
  add column waiting_critical bigint,
  add column age_warning interval,
  add column age_critical interval,
  add column failures_warning double precision,
  add column failures_critical double precision,
  add column worker_expected boolean,
  -- what those who may only look see of payloads and results: all of it but the
  -- values of these keys, or nothing
  add column payload_visible boolean,
  add column redacted text[],
  add constraint "retention is at most 1000 years" check (retention <= interval '1000 years'),
  add constraint "dead_retention is between 0 and 1000 years" check (dead_retention between interval '0' and interval '1000 years'),
  add constraint "disposal is drop, archive or export" check (disposal in ('drop', 'archive', 'export')),
  add constraint "disposal is set for all queues alone" check (disposal is null or name = '*'),
  add constraint "waiting_warning is not negative" check (waiting_warning >= 0),
  add constraint "waiting_critical is not negative" check (waiting_critical >= 0),
  add constraint "age_warning is between 0 and 1000 years" check (age_warning between interval '0' and interval '1000 years'),
  add constraint "age_critical is between 0 and 1000 years" check (age_critical between interval '0' and interval '1000 years'),
  add constraint "failures_warning is between 0 and 1" check (failures_warning between 0 and 1),
  add constraint "failures_critical is between 0 and 1" check (failures_critical between 0 and 1);

update holdfast.queue q
set
  dead_retention = '365 days',
  disposal = 'drop',
  age_warning = '1 minute',
  age_critical = '10 minutes',
  failures_warning = 0.25,
  failures_critical = 0.75,
  worker_expected = true,
  payload_visible = true,
  redacted = '{password,passwd,secret,token,api_key,authorization}'
where q.name = '*';
