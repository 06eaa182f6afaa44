"""What a monitoring system asks of the database itself."""

from typing import Any

from holdfast.testing import Clock
from tests.sql.sessions import Session


def gauges(sql: Session) -> dict[str, Any]:
    return dict(sql("select name, value from holdfast.gauges()"))


def test_a_quiet_database_shows_nothing_to_worry_about(sql: Session) -> None:
    sql.enqueue()
    sql.value("advance")
    assert set(gauges(sql).values()) == {0.0}


def test_a_transaction_that_enqueued_and_stays_open_is_seen(
    sql: Session, other: Session, clock: Clock
) -> None:
    with other.transaction():
        other.enqueue()
        sql.value("advance")
        clock.advance(minutes=2)
        assert gauges(sql)["oldest_writer_seconds"] >= 120
    sql.value("advance")
    assert gauges(sql)["oldest_writer_seconds"] == 0


def test_heads_that_run_ahead_of_their_proof_and_duties_that_failed_are_seen(
    sql: Session, clock: Clock
) -> None:
    sql.enqueue()
    sql("update holdfast.lane set head = 30000, safe_head = 10000")
    sql("select holdfast.note_duty('recover', 'broken')")
    seen = gauges(sql)
    assert (seen["heads_lag_places"], seen["duties_failed"]) == (20000, 1)
    clock.advance(minutes=6)
    assert gauges(sql)["duties_failed"] == 0
