-- Note the lockers: transactions that hold a job which a head has passed. advance.sql explains them.

-- Note the transactions that now lock the jobs that were passed. When a locker has ended,
-- another transaction may have waited for its lock and hold it.
create or replace function holdfast.note_still_locked(from_seq bigint)
returns void
language sql volatile
as $$
  insert into holdfast.locker (xid, seq)
  select holdfast.long_xid(j.xmax, pg_snapshot_xmax(pg_current_snapshot())), min(j.seq)
  from holdfast.lane l
  cross join lateral (
    select j.xmax, j.seq
    from holdfast.live j
    where j.lane_id = l.id
      and j.state = 'pending'
      and j.seq >= greatest(l.safe_head, from_seq)
      and j.seq < l.head
  ) j
  where l.head > l.safe_head
  group by 1
  on conflict (xid) do update set seq = least(locker.seq, excluded.seq)
$$;
comment on function holdfast.note_still_locked(bigint) is
  'Record which transactions lock the jobs between the safe heads and the heads, from a given place on.';

-- Return the full number of a transaction from the 32 bits that a row has: the one nearest to
-- `next_xid`. This function and is_open() have no SET clause, so that PostgreSQL inlines them.
create or replace function holdfast.long_xid(xid xid, next_xid xid8)
returns xid8
language sql immutable
as $$
  select greatest(
    next_xid::text::bigint - 2147483648
      + (xid::text::bigint - next_xid::text::bigint % 4294967296 + 6442450944) % 4294967296,
    0)::text::xid8
$$;
comment on function holdfast.long_xid(xid, xid8) is
  'Return the full number of a transaction from the part of it that a row has.';

-- Return whether a transaction or savepoint is open and has a number less than `below`. That may
-- be at most the next number: PostgreSQL refuses to tell the status of a future transaction.
create or replace function holdfast.is_open(xid xid8, below xid8)
returns boolean
language sql volatile
as $$
  select case when xid < below then coalesce(pg_xact_status(xid) = 'in progress', false) else false end
$$;
comment on function holdfast.is_open(xid8, xid8) is
  'Return whether the transaction with this number is open and older than another number.';
