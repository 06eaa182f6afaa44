"""The doctor's checks that need a client: the schema, a pooler, the clocks, the round trip.

The database makes all other checks itself, in `sql/functions/inspect/doctor.sql`.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import psycopg
from psycopg import Connection
from psycopg.rows import scalar_row

from holdfast import schema
from holdfast.database.pooler import share_sessions
from holdfast.database.pools import Database
from holdfast.database.statements import run_on
from holdfast.values.call import Call, Rows, function
from holdfast.values.errors import NotReady, SchemaMissing, SchemaOutdated, SchemaTooNew

SEVERITIES = ("critical", "warning", "info", "ok")
MOST_SKEW = 2.0
SLOW_TRIP = 0.05
_TRIPS = 5

_doctor = function("doctor", "healthy boolean")


class Finding(NamedTuple):
    """The result of one check. `severity` is `critical`, `warning`, `info`, or `ok` if nothing was found."""

    name: str
    severity: str
    finding: str | None
    remedy: str | None
    detail: dict[str, Any] | None


def examine(database: Database, *, healthy: bool = False) -> list[Finding]:
    """Run all checks, and return the findings, the worst first."""
    checks: dict[str, Callable[[Connection[Any]], Iterator[Finding]]] = {
        "schema": _schema,
        "pooling": lambda _: _pooling(database),
        "clock": _clock,
    }
    findings: list[Finding] = []
    with database.connection() as connection:
        for name, check in checks.items():
            findings += _findings(name, check, connection, healthy=healthy)
        if not any(finding.name == "schema" and finding.severity == "critical" for finding in findings):
            findings_of_server = run_on(connection, ask_doctor(healthy=healthy))
            findings += findings_of_server
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def _findings(
    name: str,
    check: Callable[[Connection[Any]], Iterator[Finding]],
    connection: Connection[Any],
    *,
    healthy: bool,
) -> list[Finding]:
    try:
        findings = list(check(connection))
    except psycopg.errors.InsufficientPrivilege as error:
        said = f"This check could not be made: {error.diag.message_primary}."
        return [Finding(name, "info", said, "Run it as the owner of the schema holdfast.", None)]
    return findings or ([Finding(name, "ok", None, None, None)] if healthy else [])


def _schema(connection: Connection[Any]) -> Iterator[Finding]:
    try:
        schema.verify(connection)
    except (SchemaMissing, SchemaOutdated, SchemaTooNew, schema.MigrationEdited) as error:
        yield Finding("schema", "critical", _sentence(error), error.hint, {"error": type(error).__name__})
        return
    if newer := schema.load().newer(schema.installed(connection)):
        yield Finding(
            "schema",
            "info",
            f"The database was migrated by release {newer[0].version}, which is newer than this one.",
            "Upgrade the holdfast package here, too.",
            {"version": newer[0].version},
        )


def _pooling(database: Database) -> Iterator[Finding]:
    pooler = database.pooler
    if pooler.is_configured and not pooler.transaction_mode and share_sessions(database.dsn):
        yield Finding(
            "pooling",
            "critical",
            "A pooler in transaction mode stands in front of the database: LISTEN, prepared statements and "
            "settings of a session are lost between two statements, or reach other clients.",
            "Leave out transaction_pooling=False, or connect to the server itself.",
            {"mode": "transaction"},
        )
    if pooler.transaction_mode and not pooler.is_configured:
        yield Finding(
            "pooling",
            "info",
            "A pooler in transaction mode was found, so nothing is prepared, and idle workers poll.",
            "Write Holdfast(dsn, transaction_pooling=True), or let workers connect to the server itself.",
            {"mode": "transaction"},
        )


def _clock(connection: Connection[Any]) -> Iterator[Finding]:
    skews, trips = [], []
    for _ in range(_TRIPS):
        asked, begun = datetime.now(UTC), time.monotonic()
        findings_of_server = _scalar(connection, "select clock_timestamp()")
        trips.append(time.monotonic() - begun)
        skews.append((findings_of_server - asked).total_seconds() - trips[-1] / 2)
    skew, trip = statistics.median(skews), statistics.median(trips)
    if abs(skew) > MOST_SKEW + trip:
        direction = "ahead of" if skew > 0 else "behind"
        yield Finding(
            "clock",
            "warning",
            f"The clock of the database is {abs(skew):.1f} s {direction} the clock of this machine.",
            "Let NTP set both. Holdfast uses the database's, so a run_at that is computed here is off.",
            {"seconds": round(skew, 3)},
        )
    if trip > SLOW_TRIP:
        yield Finding(
            "clock",
            "info",
            f"A round trip to the database takes {trip * 1000:.0f} ms.",
            "Run workers near the database; enqueue many jobs with enqueue_many.",
            {"milliseconds": round(trip * 1000)},
        )


def _sentence(error: NotReady) -> str:
    return error.message if error.message.endswith(".") else f"{error.message}."


def _scalar(connection: Connection[Any], query: str) -> Any:
    return connection.cursor(row_factory=scalar_row).execute(query).fetchone()


def ask_doctor(*, healthy: bool = False) -> Call[list[Finding]]:
    """Run the checks in the database. With `healthy`, include the checks that found nothing."""
    return _doctor(_read_findings, healthy)


def _read_findings(rows: Rows) -> list[Finding]:
    return [Finding._make(row) for row in rows]
