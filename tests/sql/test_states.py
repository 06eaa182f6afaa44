"""The state machine: written down once, and kept by the database itself."""

from collections.abc import Callable, Iterator
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.sql.sessions import Connect, Refused, Session

TERMINAL = {"completed", "dead", "cancelled"}
LIVE = {"scheduled", "pending", "claimed"}


@pytest.fixture
def job_in(sql: Session) -> Callable[[str], UUID]:
    """Make a job in a live state; returns its id."""

    def make(state: str) -> UUID:
        if state == "scheduled":
            return sql.enqueue(delay="1 hour")
        job_id = sql.enqueue()
        if state == "claimed":
            sql.claim_one()
        return job_id

    return make


def test_the_reference_table_says_what_each_state_is(sql: Session) -> None:
    rows = sql("select name, terminal, claimable from holdfast.state")
    assert {name for name, terminal, _ in rows if terminal} == TERMINAL
    assert {name for name, _, claimable in rows if claimable} == {"pending"}
    assert {name for name, _, _ in rows} == LIVE | TERMINAL | {"running"}


def test_no_state_follows_a_terminal_one_but_by_a_replay(sql: Session) -> None:
    follows = dict(sql("select name, successors from holdfast.state where terminal"))
    assert follows == {"completed": [], "cancelled": [], "dead": ["pending"]}


def test_every_successor_is_a_state(sql: Session) -> None:
    assert sql("select unnest(successors) from holdfast.state except select name from holdfast.state") == []


def test_is_terminal_answers_for_one_state(sql: Session, refused: Refused) -> None:
    for name in LIVE | {"running"}:
        assert sql.value("is_terminal", state=name) is False
    for name in TERMINAL:
        assert sql.value("is_terminal", state=name) is True
    for odd in ("done", None):
        with refused("HF008") as error:
            sql.value("is_terminal", state=odd)
        assert "pending" in error.hint


@pytest.mark.parametrize("old", sorted(LIVE))
def test_an_illegal_change_of_state_is_refused_by_the_database_itself(
    sql: Session, job_in: Callable[[str], UUID], old: str, refused: Refused
) -> None:
    job_id = job_in(old)
    legal = set(sql.one("select successors from holdfast.state where name = %s", old)) | {old}
    for new in (LIVE | TERMINAL | {"running", "asleep"}) - legal:
        with refused("HF010") as error:
            sql(
                "update holdfast.job set state = %s, seq = nextval('holdfast.job_seq') where id = %s",
                new,
                job_id,
            )
        assert error.detail == {"id": str(job_id), "from_state": old, "to_state": new}
        assert "holdfast.state" in error.hint
    assert sql.live(job_id).state == old


@pytest.mark.parametrize("old", sorted(LIVE))
def test_a_job_that_ends_leaves_the_table_and_is_never_marked_there(
    sql: Session, job_in: Callable[[str], UUID], old: str
) -> None:
    job_id = job_in(old)
    legal = set(sql.one("select successors from holdfast.state where name = %s", old))
    for new in legal & (TERMINAL | {"running"}):
        with pytest.raises(
            psycopg.errors.CheckViolation, match="a live job is scheduled, pending or claimed"
        ):
            sql(
                "update holdfast.job set state = %s, lease = null, worker_id = null where id = %s",
                new,
                job_id,
            )


def test_a_job_never_gets_a_place_that_a_head_may_have_passed(
    sql: Session, job_in: Callable[[str], UUID], refused: Refused
) -> None:
    claimed, scheduled, pending = (job_in(state) for state in ("claimed", "scheduled", "pending"))
    lane = sql.value("lane", queue="other", priority=1, task="task")
    for job_id, change in [
        (scheduled, "state = 'pending'"),
        (scheduled, "seq = seq - 1"),
        (pending, "seq = seq - 1"),
        (pending, f"lane_id = {lane}"),
        (claimed, "state = 'pending'"),
        (claimed, "seq = 0"),
    ]:
        with refused("HF010") as error:
            sql(f"update holdfast.job set {change} where id = %s", job_id)
        assert "not behind its old place" in error.message


def test_a_legal_change_with_a_new_place_is_allowed(sql: Session, job_in: Callable[[str], UUID]) -> None:
    job_id = job_in("scheduled")
    sql("update holdfast.job set state = 'pending', seq = nextval('holdfast.job_seq') where id = %s", job_id)
    assert sql.claim_one().id == job_id


def test_a_job_keeps_its_id(sql: Session, job_in: Callable[[str], UUID], refused: Refused) -> None:
    with refused("HF010"):
        sql("update holdfast.job set id = gen_random_uuid() where id = %s", job_in("pending"))


def test_jobs_do_not_leave_by_hand(sql: Session, job_in: Callable[[str], UUID], refused: Refused) -> None:
    job_id = job_in("pending")
    with refused("HF010") as error:
        sql("delete from holdfast.job")
    assert "cancel" in error.hint
    with refused("HF010"):
        sql("truncate holdfast.job")
    assert sql.state(job_id) == "pending"


@pytest.mark.parametrize(
    "said",
    [
        "state = 'claimed'",
        "state = 'scheduled'",
        "state = 'completed'",
        "attempt = 1",
        "last_lease = gen_random_uuid()",
        "claimed_at = now()",
        "cancel_requested_at = now()",
    ],
)
def test_a_job_begins_at_the_beginning(sql: Session, said: str, refused: Refused) -> None:
    column, value = said.split(" = ")
    lane = sql.value("lane", queue="default", priority=100, task="task")
    with refused("HF010"):
        sql(f"insert into holdfast.job (lane_id, task, {column}) values ({lane}, 'task', {value})")


@pytest.mark.parametrize("column", ["lease", "worker_id"])
def test_a_new_job_is_held_by_nobody(sql: Session, column: str) -> None:
    lane = sql.value("lane", queue="default", priority=100, task="task")
    with pytest.raises(psycopg.errors.CheckViolation, match="no other has a lease and a worker"):
        sql(f"insert into holdfast.job (lane_id, task, {column}) values ({lane}, 'task', gen_random_uuid())")


def test_what_a_live_job_must_have_is_a_constraint(sql: Session, job_in: Callable[[str], UUID]) -> None:
    claimed, scheduled = job_in("claimed"), job_in("scheduled")
    for job_id, change, sentence in [
        (claimed, "lease = null", "a claimed job and no other has a lease and a worker"),
        (claimed, "worker_id = null", "a claimed job and no other has a lease and a worker"),
        (scheduled, "lease = id", "a claimed job and no other has a lease and a worker"),
        (scheduled, "worker_id = id", "a claimed job and no other has a lease and a worker"),
        (scheduled, "run_at = null", "a scheduled job has a time"),
        (claimed, "attempt = -1", "attempts are counted from 0"),
        (claimed, "max_attempts = 0", "max_attempts is between 1 and 32767"),
    ]:
        with pytest.raises(psycopg.errors.CheckViolation, match=sentence):
            sql(f"update holdfast.job set {change} where id = %s", job_id)


@pytest.fixture
def producer(sql: Session, connect: Connect) -> Iterator[Session]:
    """A session of a role that may insert new jobs, and nothing else."""
    role = f"holdfast_test_{uuid4().hex[:12]}"
    sql(f"create role {role}")
    sql(f"grant usage on schema holdfast to {role}")
    sql(f"grant insert (id, lane_id, task, payload, max_attempts) on holdfast.job to {role}")
    sql(f"grant usage on sequence holdfast.job_seq to {role}")
    sql(f"grant execute on function holdfast.clock, holdfast.new_id to {role}")
    session = connect()
    session(f"set role {role}")
    yield session
    session("reset role")
    sql(f"drop owned by {role}")
    sql(f"drop role {role}")


def test_many_changes_by_hand_are_checked_after_one_as_after_none(sql: Session) -> None:
    # The plan is kept from the first: to compare each row with each other one would take minutes.
    sql.enqueue_many(20_000)
    sql("set statement_timeout = '60s'")
    sql("update holdfast.job set max_attempts = 4 where id = (select id from holdfast.job limit 1)")
    sql("update holdfast.job set max_attempts = 5")
    with pytest.raises(psycopg.Error, match="not behind its old place"):
        sql("update holdfast.job set seq = seq - 1")


def test_nobody_else_opens_the_door(sql: Session, producer: Session) -> None:
    lane = sql.value("lane", queue="default", priority=100, task="task")
    returned = sql.value("lane", queue="default", priority=100, task="task", kind=1)
    producer("set holdfast.door = 'open'")
    insert = "insert into holdfast.job (lane_id, task, payload, max_attempts) values (%s, %s, %s, %s)"
    for given in [
        (lane, "task", "{}", 0),
        (lane, "other", "{}", 3),
        (returned, "task", "{}", 3),
        (0, "task", "{}", 3),
        (lane, "task", f'"{"x" * 300_000}"', 3),
    ]:
        with pytest.raises(psycopg.Error) as error:
            producer(insert, *given)
        assert error.value.sqlstate in {"23514", "HF004", "HF008"}, error.value
    producer(insert, lane, "task", "{}", 3)
    assert len(sql.claim()) == 1
