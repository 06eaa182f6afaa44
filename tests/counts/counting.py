"""What the server did: statements, transactions, bytes of log, entries of an index."""

import re
from collections import Counter as Tally
from typing import Any

from tests.sql.sessions import Session

_STATEMENTS = """
select s.query, s.calls, s.wal_bytes::bigint, s.wal_fpi
from pg_stat_statements s join pg_database d on d.oid = s.dbid
where d.datname = %s and s.toplevel
"""
_COMMITS = "select xact_commit from pg_stat_database where datname = %s"
_CLIENTS = "select count(*) from pg_stat_activity where datname = %s and backend_type = 'client backend'"
_NEXT_XID = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"


class Counter:
    """Counts from `start()` on. Statements are those that clients sent, not those inside functions."""

    def __init__(self, session: Session, database: str) -> None:
        self._session = session
        self._database = database
        self._first_xid = self._first_commit = 0

    def start(self) -> None:
        self._session("select pg_stat_statements_reset()")
        self._first_xid = self._session.one(_NEXT_XID)
        self._first_commit = self._session.one(_COMMITS, self._database)

    def statements(self) -> Tally[str]:
        """How often each was sent: `claim` for a call of our function, else its first word."""
        tally: Tally[str] = Tally()
        for query, calls, _, _ in self._session(_STATEMENTS, self._database):
            tally[_name(query)] += calls
        return tally

    def wal_bytes(self, *, without: str = "") -> int:
        """What these statements wrote to the log, without their commits; the same on any machine."""
        rows = [row for row in self._session(_STATEMENTS, self._database) if _name(row[0]) != without]
        assert not [query for query, _, _, images in rows if images], "whole pages were logged"
        return sum(size for _, _, size, _ in rows)

    def writes(self) -> int:
        """How many transactions, and parts of some, have written anything."""
        return self._session.one(_NEXT_XID) - self._first_xid

    def commits(self) -> int:
        """How many transactions were committed; a session tells at its end, so all must have ended."""
        assert self.is_alone(), "somebody is still connected"
        return self._session.one(_COMMITS, self._database) - self._first_commit

    def is_alone(self) -> bool:
        return self._session.one(_CLIENTS, self._database) == 0


def _name(query: str) -> str:
    called = re.search(r"\b(?:from|select)\s+holdfast\.(\w+)\(", query)
    return called[1] if called else query.split(maxsplit=1)[0].lower()


class Entries:
    """How many index entries this session reads, dead ones too, and how many rows by no index at all."""

    def __init__(self, session: Session) -> None:
        self.rows: list[Any] = []
        self._session = session

    def of(self, function: str, **arguments: Any) -> Tally[str]:
        """What a call reads of each index, and of each table without one; `rows` is its answer."""
        before = self._read()
        self.rows = self._session.rows(function, **arguments)
        return self._read() - before

    def are_at_most(self, recorded: dict[str, int], read: Tally[str]) -> None:
        """Hardly more than was recorded, where it is about jobs; no table of many rows is read as a whole."""
        print("\n", dict(read))  # noqa: T201 - to be recorded
        for name, most in recorded.items():
            assert read[name] <= 1.1 * most + 20, (name, read)
        unknown = {name: amount for name, amount in read.items() if name not in recorded and amount > 50}
        assert not unknown, read

    def _read(self) -> Tally[str]:
        return Tally(
            dict(
                self._session(
                    "select relname, pg_stat_get_xact_tuples_returned(oid) from pg_class "
                    "where relnamespace = 'holdfast'::regnamespace and relkind in ('r', 'i')"
                )
            )
        )


def blocks(session: Session, function: str, **arguments: Any) -> int:
    """How many blocks a call touches, in memory or not."""
    given = ", ".join(f"{name} => %s" for name in arguments)
    explain = "explain (analyze, buffers, timing off, format json)"
    query = f"{explain} select * from holdfast.{function}({given})"
    plan = session.one(query, *arguments.values())[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
