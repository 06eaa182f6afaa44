"""How often a job is tried is kept with its lane; what decides on it may change, and counts at once."""

from collections.abc import Callable

import pytest

from tests.sql.sessions import Background, Session


@pytest.fixture
def attempts(sql: Session) -> Callable[..., int]:
    """What the next job is given, by default and in bulk as well."""

    def of_the_next(session: Session = sql, task: str = "task", queue: str = "mail") -> int:
        alone = session.live(session.enqueue(task, queue=queue)).max_attempts
        (one,) = session.enqueue_many(1, task, queues=[queue])
        assert session.live(one).max_attempts == alone
        return alone

    return of_the_next


def configure(session: Session, queue: str, attempts: int | None) -> None:
    session("select holdfast.configure(%s, jsonb_build_object('max_attempts', %s::integer))", queue, attempts)


@pytest.mark.parametrize("settled", [False, True])
def test_each_change_counts_at_once(sql: Session, attempts: Callable[..., int], settled: bool) -> None:
    def next_is(expected: int) -> None:
        assert attempts() == expected
        if settled:
            sql.value("upkeep")
            assert attempts() == expected

    next_is(3)
    configure(sql, "*", 4)
    next_is(4)
    configure(sql, "mail", 5)
    next_is(5)
    sql.value("declare_retry_policy", task="task", max_attempts=6)
    next_is(6)
    sql.value("set_retry_policy", task="task", max_attempts=7)
    next_is(7)
    sql.value("reset_retry_policy", task="task")
    next_is(5)
    configure(sql, "mail", None)
    next_is(4)
    sql("insert into holdfast.retry_policy (task, max_attempts) values ('task', 8)")  # by hand too
    next_is(8)
    sql("update holdfast.queue set max_attempts = 9 where name = '*'; delete from holdfast.retry_policy")
    next_is(9)


def test_once_upkeep_has_come_by_no_policy_is_looked_at(sql: Session) -> None:
    read = (
        "select sum(pg_stat_get_xact_tuples_returned(i) + pg_stat_get_xact_numscans(i)) "
        "from unnest(array['holdfast.retry_policy'::regclass, 'holdfast.queue', "
        "'holdfast.retry_policy_pkey', 'holdfast.queue_pkey']) i"
    )

    def looked_at() -> int:
        with sql.transaction():
            before = sql.one(read)
            sql.enqueue()
            return sql.one(read) - before

    sql.enqueue()
    assert looked_at() == 0
    sql.value("set_retry_policy", task="other", max_attempts=7)
    assert looked_at() > 0
    sql.value("upkeep")
    assert looked_at() == 0


def test_a_policy_that_is_declared_again_as_it_is_waits_for_nobody(
    sql: Session, other: Session, attempts: Callable[..., int]
) -> None:
    sql.value("declare_retry_policy", task="task", max_attempts=6)
    with other.transaction():
        other.value("set_retry_policy", task="other", max_attempts=7)
        sql.value("declare_retry_policy", task="task", max_attempts=6)
        assert attempts() == 6


def test_a_worker_that_declares_does_not_wait_for_changes_of_other_settings(
    sql: Session, other: Session, attempts: Callable[..., int]
) -> None:
    with other.transaction():
        other("select holdfast.configure('other', '{\"retention\": \"1 day\"}')")
        sql.value("declare_retry_policy", task="task", max_attempts=6)
        assert attempts() == 6


def test_the_same_declaration_by_many_at_once_is_written_once(
    sql: Session, other: Session, background: Background
) -> None:
    written = "select xmin::text from holdfast.retry_policy where task = 'task'"
    with sql.transaction():
        sql.value("declare_retry_policy", task="task", max_attempts=6)
        done = background(lambda: other.value("declare_retry_policy", task="task", max_attempts=6))
        sql.until(lambda: sql.is_waiting(other))
        before = sql.one(written)
    done()
    assert sql.one(written) == before


@pytest.mark.parametrize(
    "change",
    ["truncate holdfast.retry_policy", "update holdfast.retry_policy set task = 'other' where task = 'task'"],
)
def test_a_change_past_the_triggers_is_found_by_upkeep(
    sql: Session, attempts: Callable[..., int], change: str
) -> None:
    sql.value("set_retry_policy", task="task", max_attempts=7)
    sql.value("upkeep")
    assert attempts() == 7
    sql(change)
    sql.value("upkeep")
    assert attempts() == 3


def test_what_does_not_touch_the_attempts_is_not_counted(sql: Session) -> None:
    counted = "select changes from holdfast.policy_watch"
    sql.value("declare_retry_policy", task="task", max_attempts=6)
    before = sql.one(counted)
    sql.value("declare_retry_policy", task="task", max_attempts=6, base="1 second")
    sql.value("pause", queue="mail")
    sql("select holdfast.configure('mail', '{\"retention\": \"1 day\"}')")
    assert sql.one(counted) == before


def test_a_lane_that_is_made_while_a_policy_changes(
    sql: Session, other: Session, attempts: Callable[..., int]
) -> None:
    with other.transaction():
        other.enqueue(queue="mail")
        sql.value("set_retry_policy", task="task", max_attempts=7)
    assert attempts() == 7


def test_a_policy_that_changes_while_a_lane_is_made(
    sql: Session, other: Session, attempts: Callable[..., int]
) -> None:
    with other.transaction():
        other.value("set_retry_policy", task="task", max_attempts=7)
        assert attempts() == 3
    assert attempts() == 7


def test_a_lane_that_is_made_by_an_old_snapshot(
    sql: Session, other: Session, attempts: Callable[..., int]
) -> None:
    with other.transaction("repeatable read"):
        other("select from holdfast.lane")
        sql.value("set_retry_policy", task="task", max_attempts=7)
        assert other.live(other.enqueue(queue="mail")).max_attempts == 3
    assert attempts() == 7


def test_several_changes_in_one_transaction_each_count(sql: Session, attempts: Callable[..., int]) -> None:
    with sql.transaction():
        for expected in (5, 6, 7):
            sql.value("set_retry_policy", task="task", max_attempts=expected)
            assert attempts() == expected


def test_two_transactions_that_change_several_policies_wait_but_do_not_deadlock(
    sql: Session, other: Session, attempts: Callable[..., int], background: Background
) -> None:
    with sql.transaction():
        sql.value("set_retry_policy", task="one", max_attempts=5)
        done = background(lambda: other.value("set_retry_policy", task="two", max_attempts=6))
        sql.until(lambda: sql.is_waiting(other))
        configure(sql, "mail", 4)
        sql.value("set_retry_policy", task="two", max_attempts=7)
    done()
    assert [attempts(task=task) for task in ("one", "two", "three")] == [5, 6, 4]


def test_a_policy_and_a_setting_in_one_transaction_do_not_deadlock_with_a_setting(
    sql: Session, other: Session, attempts: Callable[..., int], background: Background
) -> None:
    with sql.transaction():
        sql.value("set_retry_policy", task="one", max_attempts=5)
        done = background(lambda: configure(other, "mail", 6))
        sql.until(lambda: sql.is_waiting(other))
        configure(sql, "mail", 4)
    done()
    assert [attempts(task=task) for task in ("one", "two")] == [5, 6]


def test_two_transactions_that_declare_several_policies_wait_but_do_not_deadlock(
    sql: Session, other: Session, attempts: Callable[..., int], background: Background
) -> None:
    with sql.transaction():
        sql.value("declare_retry_policy", task="one", max_attempts=5)
        done = background(lambda: other.value("declare_retry_policy", task="two", max_attempts=6))
        sql.until(lambda: sql.is_waiting(other))
        sql.value("declare_retry_policy", task="two", max_attempts=7)
    done()
    assert [attempts(task=task) for task in ("one", "two")] == [5, 6]


def test_a_change_that_is_rolled_back_never_was(sql: Session, attempts: Callable[..., int]) -> None:
    attempts()
    with sql.connection.transaction(force_rollback=True):
        sql.value("set_retry_policy", task="task", max_attempts=7)
        assert attempts() == 7
        sql.value("settle_lanes")
    assert attempts() == 3


def test_upkeep_waits_for_no_lane(sql: Session, other: Session, attempts: Callable[..., int]) -> None:
    attempts()
    sql.value("set_retry_policy", task="task", max_attempts=7)
    with other.transaction():
        other("update holdfast.lane set head = head")
        assert sql.value("settle_lanes") == 0
    assert attempts() == 7
    assert sql.value("settle_lanes") == 1
    assert attempts() == 7
