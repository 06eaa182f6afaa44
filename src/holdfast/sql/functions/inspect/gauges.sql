-- Measure the database for a monitoring system, in addition to the jobs.
--
-- Each value is read from memory or from a few rows, so it may be asked for every few seconds
-- however many jobs wait. New gauges may be added in any release.
-- holdfast: role worker viewer
create or replace function holdfast.gauges()
returns table (name text, value double precision, meaning text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  now_at timestamptz := holdfast.clock();
begin
  return query values
    ('notify_queue_usage', pg_notification_queue_usage(),
      'How full the queue of notifications of the server is, from 0 to 1.'),
    ('heads_lag_places',
      coalesce((select max(greatest(l.head - l.safe_head, 0)) from holdfast.lane l), 0)::double precision,
      'How far the proven heads are behind those that claims read from.'),
    ('oldest_writer_seconds',
      coalesce((
        select extract(epoch from now_at - min(s.seen_at))
        from holdfast.writer_watch w
        cross join lateral unnest(w.seen_at) s (seen_at)
      ), 0)::double precision,
      'How long the oldest transaction that may have enqueued something is open.'),
    ('duties_failed',
      (select count(*) from holdfast.duty d
      where d.error_at > now_at - interval '5 minutes')::double precision,
      'Background duties that failed within the last five minutes.');
end
$$;
comment on function holdfast.gauges() is
  'Return measures of the database for a monitoring system: each with its name, value and meaning.';
