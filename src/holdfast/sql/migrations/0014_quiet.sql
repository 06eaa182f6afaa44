-- Less work beside the work: for what is finished, and for workers that are gone.

-- A day's rows are written once, read by their ids, and dropped together. So autovacuum need not go through them, and
-- write them anew, because of the rows that come in: only when they are so old that they must be frozen, if they live
-- so long.
do $$
declare
  part regclass;
begin
  for part in
    select c.oid::regclass
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid and c.relkind = 'r'
    where i.inhparent in ('holdfast.finished'::regclass, 'holdfast.event'::regclass)
    order by c.oid
  loop
    execute format('alter table %s set (autovacuum_vacuum_insert_threshold = -1)', part);
  end loop;
end
$$;

alter table holdfast.worker add column awaits text[];
comment on column holdfast.worker.awaits is 'Of a worker that is gone: the transactions that may yet have claimed for it; empty once all of them have ended and what they brought was taken back.';
comment on column holdfast.duty.looks is 'When it was last done: the last three looks of recover, the newest first; of others the end, and the beginning, of the last.';
