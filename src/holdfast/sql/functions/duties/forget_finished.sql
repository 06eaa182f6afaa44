-- Delete, past the longest retention, what no dropped partition removes: errors, steps,
-- checkpoints and event counts of jobs that no longer exist, and waiters that were not heard from
-- again. Bounded in rows.
create or replace function holdfast.forget_finished(now_at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  oldest timestamptz;
  waiters integer;
begin
  oldest := now_at - holdfast.longest_retention();
  delete from holdfast.waiter w
  where w.since < now_at - interval '1 minute'
    and (
      w.since < now_at - interval '7 days'
      or not exists (select from holdfast.live j where j.id = w.job_id offset 0));
  get diagnostics waiters = row_count;
  return waiters
    + holdfast.forget_old('attempt_error', 'failed_at', oldest, '{live,dead_letter}')
    + holdfast.forget_old('step', 'finished_at', oldest, '{live,dead_letter}')
    + holdfast.forget_old('checkpoint', 'changed_at', oldest, '{live,dead_letter}')
    + holdfast.forget_old('event_count', 'last_at', oldest, '{live,dead_letter}');
end
$$;
comment on function holdfast.forget_finished(timestamptz) is
  'Delete, past the longest retention, what is left of jobs that no longer exist, and waiters that are '
  'gone.';

-- Delete up to 10,000 old rows of a table, except those of jobs in one of the other tables. The
-- time is checked again in the delete, since a row may have a newer version by then.
create or replace function holdfast.forget_old(
  from_table text, time_column text, oldest timestamptz, unless_in text[])
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  others text := (
    select string_agg(
      format(' and not exists (select from holdfast.%I x where x.id = o.job_id offset 0)', u), '')
    from unnest(unless_in) u);
  forgotten integer;
begin
  execute format(
    'delete from holdfast.%1$I t where t.%2$I < $1 and t.ctid = any(array('
    'select o.ctid from holdfast.%1$I o where o.%2$I < $1%3$s limit 10000))',
    from_table, time_column, others)
  using oldest;
  get diagnostics forgotten = row_count;
  return forgotten;
end
$$;
comment on function holdfast.forget_old(text, text, timestamptz, text[]) is
  'Delete old rows of a table whose job is in none of the other tables given. Returns how many.';
