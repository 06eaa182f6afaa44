alter table holdfast.schedule add column planned_at timestamptz;
comment on column holdfast.schedule.planned_at is 'When next_at was worked out; if that lies in the future, the clock was set back since.';
