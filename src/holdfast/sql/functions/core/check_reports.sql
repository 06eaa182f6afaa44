-- Check a batch of reports before finish() writes any of them.

create or replace function holdfast.check_reports(ids uuid[], leases uuid[], outcomes text[])
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  odd text;
begin
  if cardinality(ids) is distinct from cardinality(leases)
    or cardinality(ids) <> coalesce(cardinality(outcomes), cardinality(ids)) then
    perform holdfast.refuse_value(
      'leases', cardinality(leases)::text, 'ids, leases and outcomes must be of one length');
  end if;
  if not coalesce(
    array_remove(outcomes, null) <@ '{completed,cancelled,failed,snoozed,released,interrupted}', true) then
    select o into odd from unnest(outcomes) o
    where o <> all('{completed,cancelled,failed,snoozed,released,interrupted}') limit 1;
    perform holdfast.refuse_value(
      'outcomes', odd, 'must be one of completed, cancelled, failed, snoozed, released, interrupted');
  end if;
end
$$;
comment on function holdfast.check_reports(uuid[], uuid[], text[]) is
  'Refuse reports with unknown outcomes or arrays of different lengths.';

create or replace function holdfast.refuse_doubles(ids uuid[])
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if cardinality(ids) > 1 and (select count(distinct i) < count(i) from unnest(ids) i) then
    perform holdfast.refuse_value('ids', cardinality(ids)::text, 'a job may be reported only once in a call');
  end if;
end
$$;
comment on function holdfast.refuse_doubles(uuid[]) is 'Refuse reports that name a job twice.';
