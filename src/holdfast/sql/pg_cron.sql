-- Let pg_cron do Holdfast's duties, with no worker running: for a superuser, once,
-- in the database that the setting cron.database_name names.
create extension if not exists pg_cron;

-- Before pg_cron 1.5 write '* * * * *', once a minute, in place of '10 seconds'.
select cron.schedule_in_database(:'name', '10 seconds', 'set statement_timeout = 0; select holdfast.tick()', :'database');

-- pg_cron keeps a record of every run, so old records are deleted.
select cron.schedule('holdfast history', '17 3 * * *', $$
  delete from cron.job_run_details
  where command like '%holdfast.tick()%'
    and end_time < now() - interval '3 days'
$$);

-- What it did lately, and which duties failed (that in Holdfast's own database):
-- select start_time, status, return_message from cron.job_run_details order by start_time desc limit 10;
-- select name, error, error_at from holdfast.duty where error is not null;

-- To stop it:
-- select cron.unschedule(jobid) from cron.job where jobname = :'name';
