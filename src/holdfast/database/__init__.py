"""Runs calls in PostgreSQL: through pools, on the caller's own connection, or in a worker's session.

    Call ─┬─► run_on / arun_on     the caller's connection, inside its open transaction
          ├─► Database.run / arun  a pool, each call in its own transaction; by `libpq` if the call is plain
          └─► Session.run          a worker's own connection: reconnects, and every call has a deadline
    many new jobs ─► load_on, Database.load and their twins: by COPY; see `copy_in`

`translation` is the one place where errors of PostgreSQL become errors of Holdfast.
"""

from psycopg import AsyncConnection, Connection

from holdfast.database.doctor import examine
from holdfast.database.dsn import without_driver
from holdfast.database.on_connection import OnConnection
from holdfast.database.outage import Outage, connect_pauses
from holdfast.database.pools import Database
from holdfast.database.session import DUTY_SETTINGS, Session, Settings
from holdfast.database.spare import UNUSED_SECONDS, SparedSession, StandIn
from holdfast.database.statements import arun_on, in_transaction, run_on

__all__ = [
    "DUTY_SETTINGS",
    "UNUSED_SECONDS",
    "AsyncConnection",
    "Connection",
    "Database",
    "OnConnection",
    "Outage",
    "Session",
    "Settings",
    "SparedSession",
    "StandIn",
    "arun_on",
    "connect_pauses",
    "examine",
    "in_transaction",
    "run_on",
    "without_driver",
]
