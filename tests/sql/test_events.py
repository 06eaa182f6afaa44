"""The log of a job: each event once, in order, whenever its transaction commits."""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Connect, Refused, Session


@pytest.fixture
def job(sql: Session) -> Any:
    sql.enqueue()
    return sql.claim_one()


@pytest.fixture
def publish(sql: Session) -> Callable[..., None]:
    def publish(job: Any, name: str, data: Any = None, session: Session = sql) -> None:
        session.value("publish", id=job.id, lease=job.lease, name=name, data=json.dumps(data))

    return publish


def names(sql: Session, **which: Any) -> list[str]:
    return [event.name for event in sql.rows("read_events", **which)]


def flush(sql: Session, job: Any, *numbers: Any, lease: UUID | None = None) -> list[Any]:
    """Publish numbered events, as a worker does."""
    return sql.rows(
        "publish_many",
        ids=[job.id] * len(numbers),
        leases=[lease or job.lease] * len(numbers),
        numbers=list(numbers),
        names=[f"n{number}" for number in numbers],
        datas=[None] * len(numbers),
    )


def test_an_event_is_on_record_with_what_it_is_about(
    sql: Session, job: Any, publish: Callable[..., None]
) -> None:
    publish(job, "page_rendered", {"page": 3})
    (event,) = sql.rows("read_events", job_id=job.id)
    assert (event.job_id, event.queue, event.task) == (job.id, "default", "task")
    assert (event.name, event.attempt, event.data) == ("page_rendered", 1, {"page": 3})
    assert sql.job(job.id).events == 1


def test_events_have_bounds(sql: Session, job: Any, publish: Callable[..., None], refused: Refused) -> None:
    for name, code in (("No", "HF005"), ("", "HF005"), ("job.dead", "HF008")):
        with refused(code):
            publish(job, name)
    with refused("HF008") as error:
        publish(job, "large", "x" * 32768)
    assert error.detail["field"] == "data"
    sql("insert into holdfast.event_count values (%s, 9999, holdfast.clock())", job.id)
    publish(job, "last")
    with refused("HF008") as error:
        publish(job, "one_too_many")
    assert "10000 events" in error.message
    flush(sql, job, 1, 2)
    assert names(sql, job_id=job.id) == ["last"], "a worker's are counted and not kept"
    assert sql.job(job.id).events == 10_002
    sql.finish([job], "failed", errors=["no"], delays=["1 h"])
    assert names(sql, job_id=job.id) == ["last", "job.failed"], "ours always are"


def test_an_event_under_a_lost_lease_is_refused(
    sql: Session, job: Any, publish: Callable[..., None], refused: Refused, new_lease: Callable[[], UUID]
) -> None:
    with refused("HF001"):
        sql.value("publish", id=job.id, lease=new_lease(), name="x")
    assert [row[0] for row in flush(sql, job, 1, lease=new_lease())] == [job.id]
    assert names(sql, job_id=job.id) == []


def test_numbered_events_that_are_sent_again_are_written_once(sql: Session, job: Any) -> None:
    flush(sql, job, 1, 2)
    flush(sql, job, 1, 2, 3)
    flush(sql, job, 3)
    assert names(sql, job_id=job.id) == ["n1", "n2", "n3"]
    sql.finish([job], "released")
    again = sql.claim_one()
    flush(sql, again, 1)
    assert names(sql, job_id=job.id) == ["n1", "n2", "n3", "n1"], "a new lease counts anew"


def test_what_happens_to_a_job_is_an_event(sql: Session, clock: Clock) -> None:
    job_id = sql.enqueue(max_attempts=4)
    job = sql.claim_one()
    sql.value("progress", id=job.id, lease=job.lease, percent=40, stage="render")
    sql.finish([job], "failed", errors=["boom"], delays=["10 s"])
    clock.advance(seconds=11)
    sql.value("promote")
    sql.finish([sql.claim_one()], "snoozed", delays=["0 s"])
    sql.value("promote")
    sql.finish([sql.claim_one()], "interrupted")
    lost = sql.claim_one()
    sql.rows("start", ids=[lost.id], leases=[lost.lease])
    sql.lose(lost.worker)
    sql.finish([sql.claim_one()], "failed", errors=["at last"], retries=[False])
    sql.value("replay", id=job_id)
    held = sql.claim_one()
    sql.value("cancel", id=job_id)
    sql.finish([held], "cancelled", errors=["called off"])
    events = sql.rows("read_events", job_id=job_id)
    assert [event.name for event in events] == [
        "job.failed", "job.snoozed", "job.interrupted", "job.recovered", "job.dead", "job.replayed",
        "job.cancel_requested", "job.cancelled",
    ]  # fmt: skip
    failed, _, _, recovered, dead, *_ = events
    assert failed.data.items() >= {"error": "boom", "progress": 40, "stage": "render"}.items()
    assert recovered.data == {"worker": str(lost.worker), "started": True, "deaths": 1}
    assert dead.data == {"error": "at last"}
    assert sql.job(job_id).events == len(events)


def test_a_waiting_job_that_is_called_off_or_given_up_says_so(sql: Session) -> None:
    off, up = sql.enqueue_many(2)
    sql.value("cancel", id=off)
    sql.value("give_up", id=up, reason="hopeless")
    assert names(sql, job_id=off) == ["job.cancelled"]
    (event,) = sql.rows("read_events", job_id=up)
    assert (event.name, event.data) == ("job.dead", {"error": "hopeless"})


def test_a_step_is_an_event_once(sql: Session, job: Any) -> None:
    for _ in range(2):
        sql.value("keep_step", id=job.id, lease=job.lease, name="render")
    (event,) = sql.rows("read_events", job_id=job.id)
    assert (event.name, event.data) == ("job.step", {"step": "render"})


def test_a_completion_is_an_event_of_a_job_that_has_others_and_of_no_other(sql: Session) -> None:
    sql.enqueue_many(5)
    told, progressed, silent, stepped, failed = jobs = sql.claim()
    sql.value("keep_step", id=stepped.id, lease=stepped.lease, name="render")
    sql.finish([failed], "failed", errors=["no"], delays=["0 s"])
    sql.value("promote")
    jobs[4] = sql.claim_one()
    flush(sql, told, 1)
    sql.value("progress", id=progressed.id, lease=progressed.lease, percent=1)
    sql.finish(jobs)
    sql.finish(jobs)  # the same again
    assert names(sql, job_id=told.id) == ["n1", "job.completed"]
    assert names(sql, job_id=stepped.id) == ["job.step", "job.completed"]
    assert names(sql, job_id=failed.id) == ["job.failed", "job.completed"]
    assert names(sql, job_id=progressed.id) == names(sql, job_id=silent.id) == []


# Following.


@pytest.fixture
def follow(sql: Session) -> Callable[..., Any]:
    """A reader that goes on after what it has seen, a few at a time."""

    class Reader:
        def __init__(self, queue: str | None = None) -> None:
            self.queue, self.cursor = queue, None

        def read(self, amount: int = 1000) -> list[str]:
            page = sql.rows("read_events", queue=self.queue, after=self.cursor, amount=amount)
            if page:
                self.cursor = page[-1].cursor
            return [event.name for event in page]

    return Reader


def test_a_reader_sees_each_event_once_and_waits_for_no_transaction(
    sql: Session, other: Session, connect: Connect, publish: Callable[..., None], follow: Callable[..., Any]
) -> None:
    sql.enqueue_many(3)
    one, two, three = sql.claim()
    reader = follow()
    publish(one, "a")
    other("begin")
    publish(two, "late", session=other)
    publish(one, "b")
    assert reader.read() == ["a", "b"], "not held up by who has not committed"
    third = connect()
    third("begin")
    publish(three, "later", session=third)
    publish(one, "c")
    assert reader.read() == ["c"]
    other("commit")
    assert reader.read() == ["late"], "it came late, and is not missed"
    assert reader.read() == []
    third("commit")
    publish(one, "d")
    assert reader.read() == ["later", "d"]
    assert reader.read() == []


def test_the_cursor_of_any_event_goes_on_after_it(
    sql: Session, other: Session, publish: Callable[..., None]
) -> None:
    sql.enqueue_many(2)
    one, two = sql.claim()
    other("begin")
    publish(two, "late", session=other)
    for name in "abc":
        publish(one, name)
    first = sql.rows("read_events")
    other("commit")
    publish(one, "d")
    for index, event in enumerate(first):
        expected = [later.name for later in first[index + 1 :]] + ["late", "d"]
        assert names(sql, after=event.cursor) == expected
        # In pages of one, too.
        seen, cursor = [], event.cursor
        while page := sql.rows("read_events", after=cursor, amount=1):
            seen.append(page[0].name)
            cursor = page[0].cursor
        assert seen == expected


def test_a_reader_of_a_queue_sees_that_queue(
    sql: Session, publish: Callable[..., None], follow: Callable[..., Any]
) -> None:
    sql.enqueue(queue="mail")
    sql.enqueue(queue="other")
    mail, elsewhere = sorted(sql.claim(), key=lambda job: job.queue)
    reader = follow(queue="mail")
    publish(mail, "a")
    publish(elsewhere, "x")
    assert reader.read() == ["a"]
    publish(elsewhere, "y")
    publish(mail, "b")
    assert reader.read() == ["b"]


def test_a_cursor_of_now_leaves_out_what_was(sql: Session, job: Any, publish: Callable[..., None]) -> None:
    publish(job, "before")
    everywhere, own = sql.value("event_cursor"), sql.value("event_cursor", job_id=job.id)
    publish(job, "after")
    assert names(sql, after=everywhere) == names(sql, job_id=job.id, after=own) == ["after"]


def test_a_cursor_does_not_pass_what_its_own_transaction_writes_later(
    sql: Session, other: Session, publish: Callable[..., None]
) -> None:
    sql.enqueue_many(2)
    one, two = sql.claim()
    other("begin")
    publish(one, "first", session=other)
    publish(two, "beside")
    cursor = other.value("event_cursor")
    publish(one, "second", session=other)
    other("commit")
    assert names(sql, after=cursor) == ["first", "second"]


def test_events_of_one_job_wait_for_each_other(
    sql: Session, other: Session, job: Any, publish: Callable[..., None]
) -> None:
    """So a reader who has seen one has seen all before it, and a number will do as its cursor."""
    other("begin")
    publish(job, "first", session=other)
    sql("set lock_timeout = '100ms'")
    with pytest.raises(Exception, match="lock timeout"):
        publish(job, "second")
    other("commit")
    publish(job, "second")
    first, second = sql.rows("read_events", job_id=job.id)
    assert (first.name, second.name) == ("first", "second")
    assert names(sql, job_id=job.id, after=first.cursor) == ["second"]


def test_a_cursor_that_is_none_is_refused(sql: Session, refused: Refused) -> None:
    for cursor in ("x", "1/2", "1:1:/x/1", "1:1:/1:1:/999999999999999999999"):
        with refused("HF008") as error:
            sql.rows("read_events", after=cursor)
        assert error.detail["field"] == "after"
    with refused("HF008") as error:
        sql.rows("read_events", after="1:999999999999:")
    assert "another server" in error.message
    with refused("HF008") as error:
        sql.rows("read_events", job_id=sql.one("select gen_random_uuid()"), after="1:1:")
    assert "not a cursor of one job" in error.message
    with refused("HF008") as error:
        sql.rows("read_events", amount=0)
    assert error.detail["field"] == "amount"


def test_a_reader_reads_what_is_new_and_not_what_was(sql: Session, job: Any) -> None:
    # However much there was, and whoever stays open.
    sql(
        "insert into holdfast.event (job_id, queue, task, name, attempt, at) "
        "select gen_random_uuid(), 'default', 'task', 'old', 1, holdfast.clock() "
        "from generate_series(1, 20000)"
    )
    cursor = sql.value("event_cursor")
    flush(sql, job, 1, 2, 3)
    before = sql.one("select sum(idx_tup_read) from pg_stat_all_indexes where relname like 'event%%'")
    assert names(sql, after=cursor) == ["n1", "n2", "n3"]
    sql("select pg_stat_force_next_flush()")
    after = sql.one("select sum(idx_tup_read) from pg_stat_all_indexes where relname like 'event%%'")
    assert after - before < 100


# Keeping.


def test_events_have_a_partition_a_day_and_go_with_it(
    sql: Session, job: Any, publish: Callable[..., None], clock: Clock
) -> None:
    sql.value("upkeep")
    clock.advance(days=1)
    publish(job, "tomorrow")
    ((table,),) = sql("select tableoid::regclass::text from holdfast.event")
    assert table.startswith("holdfast.event_2")
    sql.finish([job])
    clock.advance(days=33)
    sql.value("upkeep")
    assert sql.one("select to_regclass(%s)", table) is None, sql("select * from holdfast.duty")
    assert sql("select from holdfast.event") == sql("select from holdfast.event_count") == []


def test_events_of_today_go_too(sql: Session, job: Any, publish: Callable[..., None], clock: Clock) -> None:
    publish(job, "today")
    sql.finish([job])
    clock.advance(days=31)
    sql.value("upkeep")
    assert sql("select from holdfast.event") == []


def test_a_dead_letter_keeps_the_number_of_its_events_until_it_is_gone(
    sql: Session, job: Any, publish: Callable[..., None], clock: Clock
) -> None:
    for number in range(3):
        publish(job, f"page.{number}")
    sql.finish([job], "failed", errors=["no"], retries=[False])
    clock.advance(days=40)  # longer than finished jobs are kept
    sql.value("upkeep")
    sql.value("replay", id=job.id)
    again = sql.claim_one()
    publish(again, "page.3")
    assert sql.one("select events from holdfast.event_count where job_id = %s", job.id) == 6
    assert sql.job(job.id).events == 6
