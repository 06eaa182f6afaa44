"""Looking at jobs: few are counted, very many estimated, and nothing is sorted that is not shown."""

from uuid import UUID

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Session

MANY = 120_000


def test_very_many_jobs_are_estimated_and_marked_so(sql: Session) -> None:
    sql(
        "insert into holdfast.job (lane_id, task) "
        "select case when n %% 4 = 0 then b else a end, case when n %% 4 = 0 then 'b' else 'a' end "
        "from holdfast.lane('mail', 100, 'a') a, holdfast.lane('mail', 100, 'b') b, generate_series(1, %s) n",
        MANY,
    )
    sql(
        "insert into holdfast.job (lane_id, task, run_at) "
        "select a, 'a', holdfast.clock() + n * interval '1 minute' "
        "from holdfast.lane('later', 100, 'a') a, generate_series(1, %s) n",
        MANY,
    )
    sql.enqueue("few")
    found = {(row.queue, row.state): row for row in sql.rows("count_jobs")}
    assert found["mail", "pending"].estimated
    assert found["mail", "pending"].jobs == pytest.approx(MANY, rel=0.02)
    assert found["later", "scheduled"].estimated
    assert found["later", "scheduled"].jobs == pytest.approx(MANY, rel=0.1)
    assert (found["default", "pending"].jobs, found["default", "pending"].estimated) == (1, False)
    tasks = {row.task: row for row in sql.rows("statistics", by="task", queue="mail")}
    assert tasks["a"].estimated
    assert tasks["b"].waiting == MANY // 4, "few enough to be counted"
    assert [row.waiting for row in sql.rows("health", queue="mail")] == [found["mail", "pending"].jobs]
    (mail,) = [row for row in sql.rows("list_queues") if row.name == "mail"]
    assert mail.pending == found["mail", "pending"].jobs


def test_a_lane_with_gaps_is_estimated_by_where_its_jobs_are(sql: Session) -> None:
    """A bulk load, a long pause in which others were served, and another one."""
    for amount, skipped in ((80_000, 500_000), (40_000, 0)):
        sql(
            "insert into holdfast.job (lane_id, task) "
            "select a, 'a' from holdfast.lane('mail', 100, 'a') a, generate_series(1, %s) n",
            amount,
        )
        sql("select setval('holdfast.job_seq', nextval('holdfast.job_seq') + %s)", skipped)
    (row,) = sql.rows("count_jobs")
    assert row.estimated
    assert row.jobs == pytest.approx(120_000, rel=0.1)


def test_many_finished_jobs_are_estimated(sql: Session) -> None:
    sql("alter table holdfast.finished_default set (autovacuum_enabled = false)")
    sql(
        "insert into holdfast.finished (id, queue, priority, task, payload, state, attempt, max_attempts, "
        "created_at, finished_at) select gen_random_uuid(), 'mail', 100, 'a', '{}', "
        "case when n % 10 = 0 then 'cancelled' else 'completed' end, 1, 3, now(), now() "
        "from generate_series(1, 60000) n"
    )
    found = {row.state: row for row in sql.rows("count_jobs")}
    assert found["completed"].estimated
    assert found["completed"].jobs == pytest.approx(54_000, rel=0.1)
    assert found["cancelled"].jobs == pytest.approx(6_000, rel=0.2)
    sql("alter table holdfast.finished_default reset (autovacuum_enabled)")


@pytest.fixture
def some(sql: Session, clock: Clock) -> dict[str, UUID]:
    """A job in each state, in the order in which they last changed, the oldest first."""
    pending = sql.enqueue("a", queue="mail")
    clock.advance(seconds=1)
    scheduled = sql.enqueue("a", delay="1 hour")
    jobs = {"pending": pending, "scheduled": scheduled}
    for state in ("completed", "dead", "cancelled", "claimed", "running"):
        clock.advance(seconds=1)
        jobs[state] = sql.enqueue("b", max_attempts=1)
        job = sql.claim_one(tasks=["b"])
        match state:
            case "completed" | "cancelled":
                sql.finish([job], state)
            case "dead":
                sql.finish([job], "failed")
            case "running":
                sql.rows("start", ids=[job.id], leases=[job.lease])
    return jobs


def test_jobs_are_listed_by_their_last_change_whatever_their_state(
    sql: Session, some: dict[str, UUID]
) -> None:
    assert [row.state for row in sql.rows("list_jobs")] == list(reversed(some))
    assert [row.id for row in sql.rows("list_jobs", amount=3)] == list(reversed(some.values()))[:3]
    for state, job_id in some.items():
        assert [row.id for row in sql.rows("list_jobs", state=state)] == [job_id], state
    assert {row.state for row in sql.rows("list_jobs", task="a")} == {"pending", "scheduled"}
    assert [row.id for row in sql.rows("list_jobs", queue="mail")] == [some["pending"]]
    assert sql.rows("list_jobs", queue="nobody") == []
    assert len(sql.rows("list_jobs", amount=None)) == len(some)


def test_a_live_job_looks_the_same_by_its_id_as_among_all(sql: Session, some: dict[str, UUID]) -> None:
    among_all = "select j from holdfast.every_job j where j.finished_at is null"
    by_id = sql("select j from holdfast.live_jobs(%s) j", [*some.values()])
    assert len(by_id) == 4
    assert sorted(by_id) == sorted(sql(among_all))


def test_the_latest_finished_jobs_are_found_in_every_days_table(sql: Session, clock: Clock) -> None:
    sql.value("upkeep")  # which makes the tables of the next days
    done = []
    for _ in range(3):
        done.append(sql.enqueue())
        sql.finish([sql.claim_one()])
        clock.advance(days=1)
    assert [row.id for row in sql.rows("list_jobs", state="completed")] == done[::-1]
    assert [row.id for row in sql.rows("list_jobs", state="completed", amount=2)] == done[:0:-1]


def test_pending_jobs_of_many_lanes_are_listed_as_they_came(sql: Session) -> None:
    came = [sql.enqueue(f"task{n % 7}", priority=n % 3) for n in range(30)]
    assert [row.id for row in sql.rows("list_jobs", state="pending", amount=20)] == came[:9:-1]


def test_no_list_reads_the_whole_backlog(sql: Session) -> None:
    sql(
        "insert into holdfast.job (lane_id, task) "
        "select a, 'a' from holdfast.lane('mail', 100, 'a') a, generate_series(1, 20000) n"
    )
    sql(
        "insert into holdfast.job (lane_id, task, run_at) "
        "select a, 'a', holdfast.clock() + interval '1 day' "
        "from holdfast.lane('later', 100, 'a') a, generate_series(1, 20000) n"
    )
    first = sql.enqueue()
    for look, most in {
        "list_jobs(queue => 'mail', state => 'pending')": 1000,
        "list_jobs(state => 'running')": 1000,
        f"job('{first}')": 1000,
        "list_jobs()": 25_000,  # all that are scheduled, once
    }.items():
        with sql.connection.transaction():
            sql(f"select from holdfast.{look}")
            read = sql.one(
                "select sum(pg_stat_get_xact_tuples_returned(i)) from unnest(array["
                "'holdfast.live'::regclass, 'holdfast.job_pkey', 'holdfast.job_pending', "
                "'holdfast.job_due', 'holdfast.job_held']) i"
            )
        assert read < most, look
