"""Carries calls to PostgreSQL: through pools, on the caller's own connection, or on a worker's session.

    Call ─┬─► run_on / arun_on     the caller's connection, inside its open transaction
          ├─► Database.run / arun  a pool of ours, each call a transaction of its own
          └─► Session.run          a worker's own connection: reconnects, and every call has a deadline

Errors of PostgreSQL become ours in one place, `translation`.
"""

from holdfast.database.carriers import arun_all_on, arun_on, run_all_on, run_on
from holdfast.database.pools import Database
from holdfast.database.session import Listener, Session

__all__ = ["Database", "Listener", "Session", "arun_all_on", "arun_on", "run_all_on", "run_on"]
