-- List the duties and run them. This is the only table of duties: tick() and do_duties() follow it.
--
-- cron calls tick() once a minute, so promote() handles more jobs at a time there: 20,000 in
-- about half a second. upkeep() does what sweep() does, so tick() leaves sweep() out.
-- holdfast: role worker operator
create or replace function holdfast.list_duties()
returns table (name text, every interval, in_tick boolean, purpose text)
language sql immutable security definer
set search_path = pg_catalog, pg_temp
as $$
  values
    ('fire', interval '2 s', true, 'put the jobs of due schedules on their queues'),
    ('promote', interval '2 s', true, 'make due jobs pending'),
    ('recover', interval '2 s', true, 'take back the jobs of lost workers'),
    ('advance', interval '2 s', true, 'move the heads of the lanes'),
    ('fold_stats', interval '2 s', true, 'add up the statistics'),
    ('upkeep', interval '60 s', true, 'make and drop partitions, remove orphans, check heads'),
    ('sweep', interval '30 s', false, 'delete what is past the retention of its queue')
$$;
comment on function holdfast.list_duties() is
  'List the background duties: how often the workers together do each, and whether tick() does it too.';

-- Run every duty once: for pg_cron, system cron or a person, if no worker runs.
--
-- Each duty runs in a block of its own, so one that fails stops no other. Its error is kept in
-- holdfast.duty.
-- holdfast: role worker operator
create or replace function holdfast.tick()
returns table (duty text, error text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_isolation('tick');
  for duty in select d.name from holdfast.list_duties() d where d.in_tick loop
    error := null;
    begin
      case duty
        when 'fire' then
          -- Once more if it had too much for one call.
          if holdfast.fire() <= interval '0' then
            perform holdfast.fire();
          end if;
        when 'promote' then perform holdfast.promote(20000, also_fire => false);
        when 'recover' then perform holdfast.recover(also_fold => false);
        when 'advance' then perform holdfast.advance();
        when 'fold_stats' then perform holdfast.fold_stats();
        when 'upkeep' then perform holdfast.upkeep();
      end case;
    exception when others then
      error := sqlerrm;
    end;
    perform holdfast.note_duty(duty, error);
    return next;
  end loop;
end
$$;
comment on function holdfast.tick() is 'Run every background duty once. Returns each with its error, if any.';
