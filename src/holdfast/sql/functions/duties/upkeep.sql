-- Do the slow duty: make and drop partitions, forget old ids and tombstones, remove orphans, check
-- heads. Return how many things were done.
--
-- It reads many rows, most of all while a session holds an old snapshot, and many workers call it. So it
-- rests if the last run ended less than `rest` ago, or less than twenty times as long ago as it
-- took, up to a quarter of an hour. The search behind the heads hardly ever finds anything and
-- reads everything done since that snapshot. So it rests a thousand times as long as it took, up
-- to five minutes.
-- holdfast: role worker
create or replace function holdfast.upkeep(rest interval default null)
returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
  done integer;
  part text;
  part_begun_at timestamptz;
begin
  perform holdfast.check_isolation('upkeep');
  if not holdfast.try_duty('upkeep') then
    return 0;
  end if;
  if holdfast.rests('upkeep', upkeep.rest, 20, '15 minutes', now_at) then
    return 0;
  end if;
  perform holdfast.note_cluster();

  done := holdfast.take_back_orphans(now_at);
  done := done + holdfast.end_pending_without_attempts(now_at);
  done := done + holdfast.forget_leftovers(now_at);
  -- A part that fails stops no other, and undoes nothing of the above.
  foreach part in array '{
    sweep,forget_finished,forget_stats,check_heads,settle_lanes,make_partitions,drop_partitions,retire_lanes
  }'::text[] loop
    continue when part = 'check_heads' and holdfast.rests(part, upkeep.rest, 1000, '5 minutes', now_at);
    continue when part = 'retire_lanes' and holdfast.rests(part, upkeep.rest, 100, '15 minutes', now_at);
    begin
      part_begun_at := holdfast.clock();
      done := done + case part
        -- A worker has a duty of its own for sweeping, so this is for cron. Only one sweeps at a time.
        when 'sweep' then case when holdfast.try_duty('sweep')
          then holdfast.sweep_partitions(now_at) + holdfast.forget_dead(now_at) else 0 end
        when 'forget_finished' then holdfast.forget_finished(now_at)
        when 'forget_stats' then holdfast.forget_stats(now_at)
        when 'check_heads' then holdfast.check_heads()
        when 'retire_lanes' then holdfast.retire_lanes(now_at)
        when 'settle_lanes' then holdfast.settle_lanes()
        when 'make_partitions'
          then holdfast.make_partitions(now_at, 'finished') + holdfast.make_partitions(now_at, 'event')
        when 'drop_partitions'
          then holdfast.drop_partitions(now_at, 'finished') + holdfast.drop_partitions(now_at, 'event')
      end;
      if part = 'retire_lanes' then
        perform holdfast.note_look(part, part_begun_at);
      end if;
    exception when others then
      perform holdfast.note_duty('upkeep', format('%s: %s', part, sqlerrm));
    end;
  end loop;
  perform holdfast.note_look('upkeep', now_at);
  perform holdfast.note_done('upkeep', now_at);
  return done;
end
$$;
comment on function holdfast.upkeep(interval) is
  'Make and drop partitions, forget old ids and tombstones, remove orphans, and check the heads. Does '
  'nothing if the last upkeep ended less than a rest ago.';
