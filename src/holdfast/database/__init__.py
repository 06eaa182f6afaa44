"""Carries calls to PostgreSQL: through pools, on the caller's own connection, or on a worker's session.

    Call ─┬─► run_on / arun_on     the caller's connection, inside its open transaction
          ├─► Database.run / arun  a pool of ours, each call a transaction of its own; `libpq` if it is plain
          └─► Session.run          a worker's own connection: reconnects, and every call has a deadline
    many new jobs ─► load_on, Database.load and their twins: by COPY, see `copy_in`

Errors of PostgreSQL become ours in one place, `translation`.
"""

from psycopg import AsyncConnection, Connection

from holdfast.database.copy_in import aload_on, load_on
from holdfast.database.doctor import examine
from holdfast.database.dsn import without_driver
from holdfast.database.outage import Outage
from holdfast.database.pools import Database
from holdfast.database.session import DUTY_SETTINGS, Session
from holdfast.database.statements import arun_on, in_transaction, run_on

__all__ = [
    "DUTY_SETTINGS",
    "AsyncConnection",
    "Connection",
    "Database",
    "Outage",
    "Session",
    "aload_on",
    "arun_on",
    "examine",
    "in_transaction",
    "load_on",
    "run_on",
    "without_driver",
]
