-- Every duty once: for pg_cron, system cron or a person, where no worker runs.
--
-- Each duty stands in a block of its own, so one that fails stops no other; its
-- error is kept in holdfast.duty. Workers call the duties one by one instead,
-- each in a transaction of its own. They come back at once where more is due, and
-- cron does not: so more is let in at a time, 20,000 in about half a second.
create or replace function holdfast.tick()
returns table (duty text, error text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform holdfast.check_isolation('tick');
  foreach duty in array '{fire,promote,recover,advance,fold_stats,upkeep}'::text[] loop
    error := null;
    begin
      case duty
        when 'fire' then perform holdfast.fire();
        when 'promote' then perform holdfast.promote(20000);
        when 'recover' then perform holdfast.recover();
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
comment on function holdfast.tick() is 'Run every background duty once; returns each with its error, if any.';
