-- A table for each duty, without rows: who does the duty holds a lock on the table. An advisory lock would do the same,
-- but every login may take one; these tables belong to the owner alone. See functions/duty.sql.
do $$
declare
  duty text;
begin
  foreach duty in array '{promote,recover,advance,fold_stats,upkeep,sweep,export}'::text[] loop
    execute format('create table holdfast.%I ()', 'duty_' || duty);
    execute format(
      'comment on table holdfast.%I is %L', 'duty_' || duty,
      format('Always empty. The session that does the duty %s holds a lock on this table.', duty));
  end loop;
end
$$;

alter table holdfast.duty add column done_at timestamptz;
comment on column holdfast.duty.done_at is 'When it last ended well, to within a minute.';
