"""A role that is kept to some queues sees and uses these alone, whatever it tries."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast.testing import Clock
from tests.sql.roles import let_in, login, name_of
from tests.sql.sessions import Refused, Session


@pytest.fixture(scope="module")
def tenants(database: tuple[str, psycopg.Connection[Any]]) -> Iterator[dict[str, str]]:
    """Logins of two tenants, and one of nobody's."""
    dsn, _ = database
    let_in(dsn)
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(login(dsn, "producer", "viewer", "operator"))
            for name in ("acme", "beta", "free")
        }


@pytest.fixture
def as_(tenants: dict[str, str], sql: Session) -> Iterator[dict[str, Session]]:
    for tenant in ("acme", "beta"):
        sql.rows("grant_queues", role=name_of(tenants[tenant]), queues=[f"{tenant}.*", tenant])
    with ExitStack() as stack:
        yield {
            name: Session(stack.enter_context(psycopg.connect(dsn, autocommit=True)))
            for name, dsn in tenants.items()
        }


def test_a_tenant_sees_the_jobs_of_its_queues_alone(sql: Session, as_: dict[str, Session]) -> None:
    ids = {queue: sql.enqueue("task", queue=queue) for queue in ("acme.mail", "acme", "acmes", "beta.mail")}
    job = sql.claim_one(queues=["beta.mail"])
    sql.value("publish", id=job.id, lease=job.lease, name="told")
    sql.value("keep_checkpoint", id=job.id, lease=job.lease, state="{}")
    sql.value("keep_step", id=job.id, lease=job.lease, name="step")
    sql.value("fail", id=job.id, lease=job.lease, error="no", retry=False)
    sql.value("add_schedule", name="s", task="task", cron="0 9 * * *", queue="beta.mail")
    acme, beta, free = as_["acme"], as_["beta"], as_["free"]
    mine = {ids["acme.mail"], ids["acme"]}
    assert {row.id for row in acme.rows("list_jobs")} == mine
    assert {row[0] for row in acme("select id from holdfast.jobs")} == mine
    assert (
        {row.queue for row in acme.rows("stats")}
        == {row.name for row in acme.rows("list_queues")}
        == {"acme", "acme.mail"}
    )
    for session, amount in ((acme, 0), (beta, 1), (free, 1), (sql, 1)):
        theirs = ids["beta.mail"]
        found = {name: len(session.rows(name, id=theirs)) for name in ("job", "job_errors", "job_steps")}
        found["list_dead"] = len(session.rows("list_dead"))
        found["list_schedules"] = len(session.rows("list_schedules"))
        found["ends"] = len([row for row in session.rows("ends", ids=[theirs]) if row.state])
        found["read_events"] = min(1, len(session.rows("read_events", job_id=theirs)))
        found["queue's events"] = min(1, len(session.rows("read_events", queue="beta.mail")))
        found["all events"] = min(1, len(session.rows("read_events")))
        assert set(found.values()) == {amount}, found
    assert len(free.rows("list_jobs")) == 4


def test_a_tenant_sees_the_ended_jobs_of_a_queue_whose_lanes_are_gone(
    sql: Session, as_: dict[str, Session], clock: Clock
) -> None:
    ended: dict[str, UUID] = {}
    for queue in ("acme.mail", "beta"):
        ended[queue] = sql.enqueue("task", queue=queue)
        (job,) = sql.claim()
        sql.value("fail", id=job.id, lease=job.lease, error="no", retry=False)
    sql.value("fold_stats")
    clock.advance(minutes=11)
    for _ in range(4):
        sql.value("upkeep")
    assert sql.one("select count(*) from holdfast.lane") == 0
    assert [job.id for job in as_["acme"].rows("list_dead")] == [ended["acme.mail"]]
    clock.advance(days=40)
    sql.value("upkeep")
    assert [job.id for job in as_["acme"].rows("list_dead")] == [ended["acme.mail"]]
    assert as_["acme"].value("replay_many", everything=True) == 1
    sql.value("purge", id=ended["beta"])
    clock.advance(days=40)
    sql.value("upkeep")
    assert sql("select name from holdfast.known_queue") == []


def test_a_tenant_enqueues_into_its_queues_alone_by_every_way(
    sql: Session, as_: dict[str, Session], refused: Refused
) -> None:
    acme = as_["acme"]
    acme.enqueue("task", queue="acme.mail")
    acme.enqueue_many(2, queues=["acme.mail", "acme"])
    with refused("42501") as error:
        acme.enqueue("task", queue="beta.mail")
    assert "may not use queue beta.mail" in error.message
    with refused("42501"):
        acme.enqueue_many(2, queues=["acme.mail", "beta.mail"])
    lane = sql.one("select holdfast.lane('beta.mail', 100, 'task')")
    with refused("42501"):
        acme(f"insert into holdfast.job (lane_id, task) values ({lane}, 'task')")
    with refused("42501"):
        acme.value("add_schedule", name="s", task="task", cron="0 9 * * *", queue="beta.mail")
    assert sql.one("select count(*) from holdfast.job") == 3
    as_["free"].enqueue("task", queue="beta.mail")


def test_a_tenant_operates_on_its_jobs_and_queues_alone(
    sql: Session, as_: dict[str, Session], refused: Refused
) -> None:
    acme = as_["acme"]
    theirs = sql.enqueue("task", queue="beta.mail", delay="1 hour")
    dead = sql.enqueue("task", queue="beta.dead")
    sql.value("give_up", id=dead)
    sql.value("add_schedule", name="s", task="task", cron="0 9 * * *", queue="beta.mail")
    calls: list[dict[str, Any]] = [
        {"function": "cancel", "id": theirs},
        {"function": "run_now", "id": theirs},
        {"function": "reschedule", "id": theirs, "delay": "1 minute"},
        {"function": "give_up", "id": theirs},
        {"function": "replay", "id": dead},
        {"function": "purge", "id": dead},
    ]
    for call in calls:
        with refused("HF002"):
            acme.value(**call)
    assert acme.rows("cancel_many", ids=[theirs])[0].answer is None
    assert acme.rows("cancel_matching", task="task")[0].cancelled == 0
    assert acme.value("replay_many", everything=True) == acme.value("purge_many", everything=True) == 0
    assert acme.value("remove_schedule", name="s") is False
    for name in ("pause_schedule", "resume_schedule", "run_schedule", "upcoming"):
        with refused("HF008"):
            acme.rows(name, name="s")
    calls = [
        {"function": "pause", "queue": "beta.mail"},
        {"function": "resume", "queue": "beta.mail"},
        {"function": "set_retry_policy", "task": "task", "max_attempts": 1},
        {"function": "reset_retry_policy", "task": "task"},
    ]
    for call in calls:
        with refused("42501"):
            acme.value(**call)
    assert sql.state(theirs) == "scheduled"
    assert sql.state(dead) == "dead"
    assert as_["beta"].value("cancel", id=theirs) == "cancelled"
    acme.value("pause", queue="acme.mail")


def test_no_role_that_is_set_and_no_condition_sees_more(
    sql: Session, as_: dict[str, Session], tenants: dict[str, str]
) -> None:
    sql.enqueue("task", queue="beta.mail", payload='{"a": "canary"}')
    acme = as_["acme"]
    acme("set role holdfast_viewer")
    assert acme.rows("list_jobs") == acme("select * from holdfast.jobs") == []
    acme("reset role")
    acme(
        "create function pg_temp.leak(text) returns boolean language plpgsql cost 0.0000001 as "
        "$$ begin raise notice 'saw %', $1; return true; end $$"
    )
    notices: list[str | None] = []
    acme.connection.add_notice_handler(lambda diagnostic: notices.append(diagnostic.message_primary))
    assert acme("select * from holdfast.jobs where pg_temp.leak(task)") == []
    assert notices == []


def test_a_connection_that_tenants_share_sees_what_the_role_that_it_sets_may(
    sql: Session,
    as_: dict[str, Session],
    tenants: dict[str, str],
    database: tuple[str, psycopg.Connection[Any]],
) -> None:
    for queue in ("acme.mail", "beta.mail", "other"):
        sql.enqueue("task", queue=queue)
    dsn, _ = database
    with login(dsn) as shared:
        for tenant in ("acme", "beta"):
            sql(f'grant "{name_of(tenants[tenant])}" to "{name_of(shared)}"')
        with psycopg.connect(shared, autocommit=True) as connection:
            session = Session(connection)
            assert {row.queue for row in session.rows("list_jobs")} == {"acme.mail", "beta.mail"}
            session(f'set role "{name_of(tenants["acme"])}"')
            assert {row.queue for row in session.rows("list_jobs")} == {"acme.mail"}


def test_grants_are_checked_listed_audited_and_taken_back(
    sql: Session,
    as_: dict[str, Session],
    tenants: dict[str, str],
    database: tuple[str, psycopg.Connection[Any]],
    refused: Refused,
) -> None:
    acme = name_of(tenants["acme"])
    assert [(row.role, row.queues) for row in sql.rows("list_grants") if row.role == acme] == [
        (acme, "acme"), (acme, "acme.*"),
    ]  # fmt: skip
    for queues in ([], ["A"], ["*.a"], ["a b"], [None], [""]):
        with refused("HF008") as error:
            sql.value("grant_queues", role=acme, queues=queues)
        assert error.detail["field"] == "queues"
    with refused("HF008"):
        sql.value("grant_queues", role=f"nobody_{uuid4().hex}", queues=["a"])
    with refused("HF008") as error:
        sql.value("grant_queues", role=sql.one("select current_user::text"), queues=["a"])
    assert "owns the tables" in error.message
    with login(database[0], "worker") as worker, refused("HF008") as error:
        sql.value("grant_queues", role=name_of(worker), queues=["a"])
    assert "is a worker" in error.message
    assert sql.value("revoke_queues", role=acme, queues=["acme"]) == 1
    with refused("HF008") as error:
        sql.value("revoke_queues", role=acme, queues=["acme.*"])
    assert "leave queues out" in error.message
    sql.enqueue("task", queue="beta.mail")
    assert as_["acme"].rows("list_jobs") == []
    assert sql.value("revoke_queues", role=acme) == 1
    assert len(as_["acme"].rows("list_jobs")) == 1
    actions = [
        action for (action,) in sql("select action from holdfast.audit where target = %s order by id", acme)
    ]
    assert actions == ["grant queues", "revoke queues", "revoke queues"]


def test_a_setting_of_the_session_opens_no_door(
    sql: Session, as_: dict[str, Session], refused: Refused
) -> None:
    acme = as_["acme"]
    acme("set holdfast.door = 'open'")
    with refused("42501"):
        acme.rows("enqueue_many", tasks=["task"], queues=["beta.mail"])
    with refused("42501"):
        acme.rows("lane", queue="beta.mail", priority=1, task="of.nobody")
    assert sql.one("select count(*) from holdfast.job") == 0


def test_an_id_that_is_used_again_opens_nothing_of_its_former_life(
    sql: Session, as_: dict[str, Session], refused: Refused
) -> None:
    theirs = sql.enqueue(queue="beta.mail", max_attempts=1)
    sql.finish(sql.claim(), "failed", errors=["of beta"])
    acme = as_["acme"]
    sql.enqueue(queue="acme.mail", id=theirs, delay="1 day")  # which only somebody bound to no queues can
    assert acme.rows("job_errors", id=theirs) == []
    for verb in ("purge", "replay"):
        with refused("HF002"):
            acme.rows(verb, id=theirs)
    assert sql.one("select queue from holdfast.dead_letter") == "beta.mail"


def test_a_role_that_is_renamed_stays_bound(
    sql: Session, as_: dict[str, Session], tenants: dict[str, str]
) -> None:
    sql.enqueue(queue="beta.mail")
    name = name_of(tenants["acme"])
    sql(f'alter role "{name}" rename to "{name}_x"')
    try:
        assert as_["acme"].rows("list_jobs") == []
        assert {row.role for row in sql.rows("list_grants")} == {f"{name}_x", name_of(tenants["beta"])}
    finally:
        sql(f'alter role "{name}_x" rename to "{name}"')


def test_what_counts_for_all_is_not_told_or_changed_for_one(
    sql: Session, as_: dict[str, Session], refused: Refused
) -> None:
    sql.enqueue("charge", queue="beta.mail")
    acme = as_["acme"]
    acme.enqueue(queue="acme.mail")
    with refused("HF008") as error:
        acme.rows("health", queue="acme.unknown")
    assert "beta" not in error.message + str(error.hint)
    with refused("42501"):
        acme.rows("doctor")
    with refused("HF008"):
        acme.rows("configure", queue="acme.mail", settings='{"retention": "40 years"}')
    sql.value("add_schedule", name="s", task="t", cron="0 9 * * *", queue="beta.mail", declared=True)
    with refused("42501"):
        acme.value("declare_schedule", name="s", task="t", cron="0 9 * * *", queue="acme.mail")


def test_a_tenants_statistics_ask_once_for_each_queue_whether_it_is_theirs(
    sql: Session, as_: dict[str, Session], clock: Clock
) -> None:
    clock.set(datetime(2030, 5, 1, 12, 30, tzinfo=UTC))  # the minute has just begun
    sql(
        "insert into holdfast.stat (span, at, queue, task, completed, failed, dead, cancelled, wait_seconds, "
        "run_seconds, waits, runs) select 'minute', date_trunc('minute', holdfast.clock(), 'UTC') "
        "- n * interval '1 minute', q, 'task', 1, 0, 0, 0, 0, 0, "
        "array_fill(0, array[52]), array_fill(0, array[52]) "
        "from generate_series(0, 59) n, unnest('{acme,acme.mail,beta}'::text[]) q"
    )
    with sql.connection.transaction():
        sql("set local track_functions = 'all'")  # which only a superuser may
        sql(f"set local session authorization {as_['acme'].one('select current_user')}")
        rows = sql.rows("statistics")
        asked = "select pg_stat_get_xact_function_calls('holdfast.in_reach(text)'::regprocedure)"
        assert 0 < sql.one(asked) < 20, "not for each of 180 minutes"
    assert {row.queue: row.hour_completed for row in rows} == {"acme": 60, "acme.mail": 60}


ENDS = {"live": None, "completed": "complete", "dead": "fail"}


def ended_of_beta(sql: Session, end: str, **options: Any) -> UUID:
    job_id = sql.enqueue("pay", queue="beta", payload='{"n": 1}', max_attempts=1, **options)
    if ENDS[end]:
        job = sql.claim_one(queues=["beta"])
        sql.finish([job], "completed" if ENDS[end] == "complete" else "failed")
    return job_id


def copy_as(session: Session, job_id: UUID) -> None:
    lane = session.value("lane", queue="acme", priority=100, task="pay")
    with session.connection.cursor().copy("copy holdfast.job (id, lane_id, task) from stdin") as rows:
        rows.write_row((job_id, lane, "pay"))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("own", [True, False], ids=["caller's id", "made up id"])
@pytest.mark.parametrize("way", ["enqueue", "enqueue_many"])
def test_a_tenant_cannot_use_the_id_of_anothers_job(
    sql: Session, as_: dict[str, Session], refused: Refused, end: str, own: bool, way: str
) -> None:
    theirs = ended_of_beta(sql, end, **({"id": uuid4()} if own else {}))
    said = set()
    for task, payload in (("pay", '{"n": 1}'), ("pay", '{"n": 2}'), ("other", "{}")):
        with refused("HF007") as error:
            if way == "enqueue":
                as_["acme"].enqueue(task, queue="acme", payload=payload, id=theirs)
            else:
                as_["acme"].enqueue_many(1, task, queues=["acme"], payloads=[payload], ids=[theirs])
        said.add((error.message, str(error.detail), error.hint))
    detail = str({"id": str(theirs), "field": "id"})
    assert said == {(f"id {theirs} cannot be used", detail, "Use a new id for a new job.")}
    assert as_["beta"].job(theirs).queue == "beta"


@pytest.mark.parametrize("end", ["completed", "dead"])
def test_nor_by_an_insert_of_its_own(
    sql: Session, as_: dict[str, Session], refused: Refused, end: str
) -> None:
    theirs = ended_of_beta(sql, end)
    with refused("HF007") as error:
        copy_as(as_["acme"], theirs)
    assert error.message == f"id {theirs} cannot be used"
    copy_as(as_["acme"], uuid4())


def test_nor_after_that_job_is_gone(
    sql: Session, as_: dict[str, Session], refused: Refused, clock: Clock
) -> None:
    theirs = ended_of_beta(sql, "completed", id=uuid4())
    sql("truncate holdfast.finished")
    with refused("HF007") as error:
        as_["acme"].enqueue("pay", queue="acme", payload='{"n": 1}', id=theirs)
    assert error.message == f"id {theirs} cannot be used"


def test_a_tenant_repeats_its_own_call_as_before(
    sql: Session, as_: dict[str, Session], refused: Refused
) -> None:
    mine = uuid4()
    for _ in range(2):
        assert as_["acme"].enqueue("pay", queue="acme", payload='{"n": 1}', id=mine) == mine
    with refused("HF007") as error:
        as_["acme"].enqueue("pay", queue="acme", payload='{"n": 2}', id=mine)
    assert error.detail["field"] == "payload"
    assert len(as_["acme"].rows("list_jobs")) == 1


def test_a_tenant_is_told_of_the_end_of_its_own_jobs_alone(sql: Session, as_: dict[str, Session]) -> None:
    mine, theirs = sql.enqueue(queue="acme"), sql.enqueue(queue="beta")
    as_["acme"].rows("await_jobs", ids=[mine, theirs, uuid4()], channel="acme_waits")
    assert sql("select job_id from holdfast.waiter") == [(mine,)]
