-- Find what is wrong with this system. Each check is a function doctor_…(now_at) that returns
-- nothing if all is well. See doctor_server, doctor_tables, doctor_work and doctor_rights.
--
-- A check that fails, for lack of a right or of a view in this version of PostgreSQL, reports
-- that and stops no other. Nothing is written, no lock is taken, and statements of others are
-- not quoted, since they may hold payloads.
-- holdfast: role operator
create or replace function holdfast.doctor(healthy boolean default false)
returns table (name text, severity text, finding text, remedy text, detail jsonb)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  checks constant text[] := '{
    version, settings, timeouts, connections, snapshots, prepared, long_transactions, blocked, notifications,
      wraparound,
    indexes, triggers, vacuum, size, sequences, partitions, statements,
    duties, heads, lanes, workers, unserved, dead_letters, payloads, attempts, volume,
    rights, test_clock}';
  now_at timestamptz := holdfast.clock();
  found_any boolean;
  found record;
begin
  perform holdfast.check_unrestricted('the doctor');
  foreach name in array checks loop
    found_any := false;
    begin
      for found in execute format('select c.* from holdfast.%I($1) c', 'doctor_' || name) using now_at loop
        found_any := true;
        severity := found.severity;
        finding := found.finding;
        remedy := found.remedy;
        detail := found.detail;
        return next;
      end loop;
    exception when others then
      found_any := true;
      severity := 'info';
      finding := format('This check could not be made: %s.', sqlerrm);
      remedy := 'The owner of the schema holdfast may lack a right: grant pg_monitor to it, or let a '
                'superuser look.';
      detail := jsonb_build_object('sqlstate', sqlstate);
      return next;
    end;
    if doctor.healthy and not found_any then
      severity := 'ok';
      finding := null;
      remedy := null;
      detail := null;
      return next;
    end if;
  end loop;
end
$$;
comment on function holdfast.doctor(boolean) is
  'Return what is wrong with this system, or may soon be: severity (info, warning, critical), finding and '
  'remedy. With healthy, also return the checks that found nothing, as ok.';
