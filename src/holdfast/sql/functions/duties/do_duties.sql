-- holdfast: after tick
-- Run the frequent duties, at the rate of the whole fleet.
--
-- Every worker calls this about every two seconds. The first call that comes 1.75 s after the last
-- run does the work. The others read one number and return. So the duties run as often with fifty
-- workers as with one, and no worker has to be elected or replaced. The others call again when the
-- next run is due. So if a worker dies after its run, another one runs the duties within two seconds.
--
-- The time of the last run is the value of the sequence `duties_at`. Other sessions see it at once,
-- even if this transaction stays open or is rolled back. Two calls at the same moment may both find
-- it old. They share the work then, because each duty has a lock.
--
-- advance, fold_stats and recover run here, in one transaction. `recover` comes last, because other
-- sessions wait for the rows of the jobs that it takes back. fire, promote, upkeep and sweep may take
-- longer or hold locks on jobs, so each needs a transaction of its own. For these the result says when.
--
-- A part that fails stops no other, and its error is kept in holdfast.duty.

-- Each row names a duty and how long to wait before the caller runs it as a duty of its own: null if
-- it need not. The row of `do_duties` says when to call this again. `done` counts jobs that recover
-- took back.
-- holdfast: role worker
create or replace function holdfast.do_duties()
returns table (duty text, wait interval, done integer)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  now_at constant timestamptz := holdfast.clock();
  every constant interval := interval '2 s';
  since_last constant interval :=
    now_at - holdfast.began_at((select d.last_value from holdfast.duties_at d));
  error text;
begin
  perform holdfast.check_isolation('do_duties');
  if since_last between interval '0' and every * 0.875 then
    return query select 'do_duties', holdfast.duty_pause(every, since_last), 0;
    return;
  end if;
  perform setval('holdfast.duties_at', holdfast.milliseconds(now_at));
  foreach duty in array '{advance,fold_stats,recover,fire,promote,upkeep,sweep,do_duties}'::text[] loop
    wait := null;
    done := 0;
    error := null;
    begin
      case duty
        when 'advance' then
          if holdfast.advance() > 0 then
            wait := interval '0.25 s'; -- jobs are being claimed
          end if;
        when 'fold_stats' then perform holdfast.fold_stats(false);
        when 'recover' then
          -- recover() takes the interval between two looks for the usual one. After two looks at the same
          -- moment the next ones would seem late, and a worker with a short lease would get more time.
          if not holdfast.rests('recover', every / 2, 0, '0', holdfast.clock()) then
            done := holdfast.recover(also_fold => false);
          end if;
        -- The work above may have taken a second, so read the clock again.
        when 'fire' then wait := holdfast.next_tick(now_at) - holdfast.clock();
        when 'promote' then wait := holdfast.next_due() - holdfast.clock();
        when 'upkeep' then wait := case when holdfast.upkeep_due(now_at) then interval '0' end;
        when 'sweep' then wait := case when holdfast.sweep_due_now(now_at) then interval '0' end;
        when 'do_duties' then
          wait := holdfast.duty_pause(every, interval '0');
          perform holdfast.wake_missed();
      end case;
    exception when others then
      error := sqlerrm;
    end;
    perform holdfast.note_duty(duty, error);
    return next;
  end loop;
end
$$;
comment on function holdfast.do_duties() is
  'Run the frequent duties unless a worker has just run them, and return when to run which duty next.';

-- Up to 25 workers call again when the next run is due. If each waited a whole period instead, the only
-- worker that is left could come almost two periods after the last run.
--
-- 25 workers make 12 calls a second. With more workers each comes less often, at any time. The limit of ten
-- seconds keeps the duties going soon after most of a large fleet has died.
create or replace function holdfast.duty_pause(every interval, since_last interval)
returns interval
language sql stable
as $$
  select case
    when w.workers > 25 then least(interval '10 s', every * (w.workers / 25.0))
    else every - since_last
  end
  from holdfast.count_workers() w (workers)
$$;
comment on function holdfast.duty_pause(interval, interval) is
  'Return how long a worker waits before it calls do_duties() again: until the next run, or longer if there '
  'are many workers.';

create or replace function holdfast.milliseconds(at timestamptz)
returns bigint
language sql immutable
as $$
  select greatest(0, floor(extract(epoch from milliseconds.at) * 1000))::bigint
$$;
comment on function holdfast.milliseconds(timestamptz) is 'Return a time as milliseconds since 1970.';

create or replace function holdfast.began_at(milliseconds bigint)
returns timestamptz
language sql immutable
as $$
  select to_timestamp(began_at.milliseconds / 1000.0)
$$;
comment on function holdfast.began_at(bigint) is 'Return the time of some milliseconds since 1970.';

-- Only workers that call do_duties() have a channel. Other consumers must not slow them down.
create or replace function holdfast.count_workers()
returns bigint
language sql stable
as $$
  select count(*) from holdfast.worker w
  where w.lost_at is null and w.left_at is null and w.channel is not null
$$;
comment on function holdfast.count_workers() is
  'Return how many workers with a channel of their own are registered and not lost.';

-- Try the lock too, so that no worker joins a duty that runs. An upkeep that fails is not tried again for
-- 30 s, because it may have taken long.
create or replace function holdfast.upkeep_due(now_at timestamptz)
returns boolean
language plpgsql volatile
as $$
begin
  if now_at - holdfast.began_at((select u.last_value from holdfast.upkeep_at u))
    between interval '0' and interval '30 s'
    or holdfast.rests('upkeep', interval '60 s', 20, '15 minutes', now_at)
    or not holdfast.try_duty('upkeep')
  then
    return false;
  end if;
  perform setval('holdfast.upkeep_at', holdfast.milliseconds(now_at));
  return true;
end
$$;
comment on function holdfast.upkeep_due(timestamptz) is
  'Return whether an upkeep is due and none runs; true at most every 30 s.';

-- The search for expired rows reads the sizes of partitions, so it takes place every 30 s.
create or replace function holdfast.sweep_due_now(now_at timestamptz)
returns boolean
language plpgsql volatile
as $$
begin
  if now_at - holdfast.began_at((select s.last_value from holdfast.sweep_at s))
    between interval '0' and interval '30 s'
    or not holdfast.try_duty('sweep')
  then
    return false;
  end if;
  perform setval('holdfast.sweep_at', holdfast.milliseconds(now_at));
  return holdfast.sweep_due(now_at);
end
$$;
comment on function holdfast.sweep_due_now(timestamptz) is
  'Return whether rows are past their retention and no sweep runs; at most every 30 s.';
