-- The rules of a live job are kept by the guard: a check constraint is parsed anew by every statement. See functions/guard.sql.
alter table holdfast.job
  drop constraint "a live job is scheduled, pending or claimed",
  drop constraint "a claimed job and no other has a lease and a worker",
  drop constraint "a scheduled job has a time",
  drop constraint "attempts are counted from 0",
  drop constraint "max_attempts is between 1 and 32767";
