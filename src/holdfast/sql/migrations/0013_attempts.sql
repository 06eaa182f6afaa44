-- A lane knows how often its jobs are tried, so that an enqueue need not look for that in the policies and settings: see functions/policy.sql.
create table holdfast.policy_watch (
  only_row boolean primary key default true,
  changes bigint not null,
  constraint "there is one watch of policies" check (only_row)
) with (fillfactor = 20);
comment on table holdfast.policy_watch is 'How many times what decides on max_attempts has changed.';
insert into holdfast.policy_watch (changes) values (0);

alter table holdfast.lane
  add column max_attempts integer,
  add column policies_seen bigint;
comment on column holdfast.lane.max_attempts is 'How often its jobs are tried unless their call says otherwise, as of policies_seen.';
comment on column holdfast.lane.policies_seen is 'How many changes policy_watch had counted then: if it has counted more by now, max_attempts may be another.';
