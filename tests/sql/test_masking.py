"""Of payloads, results and errors everybody sees what they may, by every way there is."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.sql.roles import let_in, login
from tests.sql.sessions import Refused, Session

HIDDEN = "swordfish-7"
PAYLOAD = {"user": 7, "deep": [{"API_Key": HIDDEN}], "token": 12345678, "note": f"it is {HIDDEN}"}


@pytest.fixture(scope="module")
def with_roles(database: tuple[str, psycopg.Connection[Any]]) -> Iterator[dict[str, str]]:
    dsn, _ = database
    let_in(dsn)
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(login(dsn, *kinds))
            for name, kinds in {
                "viewer": ["viewer"],
                "operator": ["operator"],
                "producer": ["producer"],
                "both": ["viewer", "producer"],
            }.items()
        }


@pytest.fixture
def as_(with_roles: dict[str, str], sql: Session) -> Iterator[dict[str, Session]]:
    with ExitStack() as stack:
        yield {
            kind: Session(stack.enter_context(psycopg.connect(dsn, autocommit=True)))
            for kind, dsn in with_roles.items()
        }


def everything(session: Session, *ids: UUID | str) -> str:
    """All that a session can see of these jobs, by every function and view that shows any of it."""
    seen = [session("select * from holdfast.jobs")]
    if session.one(
        "select has_function_privilege('holdfast.list_jobs(text, text, text, integer)', 'execute')"
    ):
        seen += [session.rows("list_jobs"), session.rows("list_dead"), session.rows("read_events")]
        seen += [session.rows("list_schedules"), session.rows("stats"), session.rows("list_queues")]
    for job_id in ids:
        seen += [
            session.rows(name, id=job_id) for name in ("job", "job_errors", "job_steps", "job_checkpoint")
        ]
        seen += [session.rows("read_events", job_id=job_id), session.rows("ends", ids=[job_id])]
    return repr(seen)


def lives(sql: Session, payload: dict[str, Any], secret: str, queue: str = "default") -> list[UUID]:
    """A job that tells all it knows wherever it can, one dead and one completed."""
    ids = []
    for end in ("fail", "complete"):
        job_id = sql.enqueue("tell", payload=json.dumps(payload), queue=queue, max_attempts=1)
        job = sql.claim_one(queues=[queue])
        told = json.dumps({"said": f"<{secret}>", "password": "letmein!"})
        sql.value("progress", id=job.id, lease=job.lease, percent=5, stage=secret, message=f"m {secret}")
        sql.value("publish", id=job.id, lease=job.lease, name="told", data=told)
        sql.value("keep_step", id=job.id, lease=job.lease, name=f"step {secret}", result=told)
        sql.value("keep_checkpoint", id=job.id, lease=job.lease, state=told)
        if end == "fail":
            sql(
                "select holdfast.finish(array[%s::uuid], array[%s::uuid], '{failed}', null, array[%s], "
                "array[%s])",
                job.id,
                job.lease,
                f"no {secret}",
                f"Frame of {secret}",
            )
        else:
            sql.value("complete", id=job.id, lease=job.lease, result=told)
        ids.append(job_id)
    waits = sql.enqueue("tell", payload=json.dumps(payload), queue=queue, delay="1 hour")
    running = sql.enqueue("tell", payload=json.dumps(payload), queue=queue)
    job = sql.claim_one(queues=[queue])
    sql.value("progress", id=job.id, lease=job.lease, stage=secret, message=secret)
    sql.value(
        "add_schedule", name="s", task="tell", cron="0 9 * * *", payload=json.dumps(payload), queue=queue
    )
    return [*ids, waits, running]


def test_a_viewer_sees_no_value_of_a_redacted_key_and_an_operator_does(
    sql: Session, as_: dict[str, Session]
) -> None:
    ids = lives(sql, PAYLOAD, HIDDEN)
    seen = everything(as_["viewer"], *ids)
    for hidden in (HIDDEN, "12345678", "letmein!"):
        assert hidden not in seen
    assert "'user': 7" in seen
    assert HIDDEN in everything(as_["operator"], *ids)
    assert as_["viewer"].job(ids[2]).payload == {
        "user": 7, "deep": [{"API_Key": "*****"}], "token": "*****", "note": "it is *****",
    }  # fmt: skip


def test_of_a_queue_whose_payloads_are_not_visible_a_viewer_sees_none(
    sql: Session, as_: dict[str, Session]
) -> None:
    sql("insert into holdfast.queue (name, payload_visible) values ('quiet', false)")
    ids = lives(sql, {"anything": HIDDEN}, HIDDEN, queue="quiet")
    seen = everything(as_["viewer"], *ids)
    assert HIDDEN not in seen
    assert "anything" not in seen
    assert "Frame of" not in seen
    assert HIDDEN in everything(as_["operator"], *ids)


def test_a_secret_is_masked_for_everybody_also_the_owner_who_can_ask_for_it(
    sql: Session, as_: dict[str, Session], refused: Refused
) -> None:
    ids = lives(sql, {"card": {"$secret": {"number": HIDDEN, "cvc": 123}}, "user": 7}, f"{HIDDEN} 123")
    for session in (as_["viewer"], as_["operator"]):
        seen = everything(session, *ids)
        assert HIDDEN not in seen
        assert "123" not in seen.replace("1234", "").split("datetime")[0]
    seen = repr([sql("select * from holdfast.jobs"), *(sql.rows("job_errors", id=job_id) for job_id in ids)])
    assert HIDDEN not in seen
    assert sql.value("stored_payload", id=ids[0])["card"]["$secret"]["number"] == HIDDEN
    with refused("42501"):
        as_["operator"].value("stored_payload", id=ids[0])


def test_a_producer_gets_the_result_that_it_waits_for_as_it_is(sql: Session, as_: dict[str, Session]) -> None:
    job_id = as_["producer"].enqueue("tell")
    job = sql.claim_one()
    sql.value("complete", id=job.id, lease=job.lease, result='{"token": "abcdef"}')
    for kind, result in {
        "producer": "abcdef",
        "both": "abcdef",
        "operator": "abcdef",
        "viewer": "*****",
    }.items():
        assert as_[kind].rows("ends", ids=[job_id])[0].result == {"token": result}, kind


def test_a_viewer_cannot_search_for_what_is_masked(sql: Session, as_: dict[str, Session]) -> None:
    lives(sql, PAYLOAD, HIDDEN)
    assert as_["viewer"].rows("list_dead", error="swordfish") == []
    assert len(as_["operator"].rows("list_dead", error="swordfish")) == 1
    assert as_["viewer"]("select from holdfast.jobs where payload::text like '%swordfish%'") == []


def test_a_payload_that_nests_deeply_stops_nobody_from_listing_jobs(
    sql: Session, as_: dict[str, Session]
) -> None:
    # As 0.1 took it.
    for payload in ("[" * 2000 + "]" * 2000, '{"a":' * 1500 + '{"token": "abcdef"}' + "}" * 1500):
        sql("update holdfast.live set payload = %s where id = %s", payload, sql.enqueue("deep"))
    assert len(as_["viewer"].rows("list_jobs")) == 2
    assert "abcdef" not in repr(as_["viewer"].rows("list_jobs"))


def test_a_role_that_is_set_counts_as_the_one_that_asks(sql: Session, with_roles: dict[str, str]) -> None:
    lives(sql, PAYLOAD, HIDDEN)
    with sql.connection.transaction(force_rollback=True):
        sql("set local role holdfast_viewer")
        assert HIDDEN not in repr(sql.rows("list_jobs"))


def test_what_was_masked_by_a_payload_is_not_shown_when_that_is_gone_or_replaced(
    sql: Session, as_: dict[str, Session]
) -> None:
    def died() -> UUID:
        job_id = sql.enqueue(payload=json.dumps(PAYLOAD), max_attempts=1)
        sql.finish(sql.claim(), "failed", errors=[f"refused {HIDDEN}"])
        return job_id

    first, second = died(), died()
    assert HIDDEN not in everything(as_["viewer"], first, second)
    sql.enqueue(id=first, delay="1 day")
    sql.value("purge", id=second)
    assert HIDDEN not in everything(as_["viewer"], first, second)
    sql("set session_replication_role = replica")  # or our guard would not let them go
    sql("truncate holdfast.dead_letter, holdfast.job")
    sql("reset session_replication_role")
    assert HIDDEN not in everything(as_["viewer"], first, second)
    assert HIDDEN in everything(sql, first), "the owner can read the tables as well"


def test_a_secret_is_not_found_by_purging_what_matches(sql: Session, as_: dict[str, Session]) -> None:
    sql.enqueue(payload=json.dumps({"card": {"$secret": HIDDEN}}), max_attempts=1)
    sql.finish(sql.claim(), "failed", errors=[f"refused {HIDDEN}"])
    assert as_["operator"].value("purge_many", error=HIDDEN) == 0
    assert as_["operator"].value("purge_many", error="refused") == 1


def with_secrets(amount: int) -> str:
    return json.dumps(
        {"pins": {"$secret": [f"pin-{n}" for n in range(amount)]}, "rows": ["a", f"it is pin-{amount - 1}"]}
    )


def test_of_a_payload_with_more_than_a_hundred_secrets_nothing_is_shown(
    sql: Session, as_: dict[str, Session]
) -> None:
    few, many = (sql.enqueue(payload=with_secrets(amount), max_attempts=1) for amount in (100, 101))
    sql.finish(sql.claim(), "failed", errors=["no pin-0"] * 2)
    assert sql.job(few).payload == {"pins": "*****", "rows": ["a", "it is *****"]}
    assert sql.job(few).last_error == "no *****"
    for session in (sql, as_["operator"], as_["viewer"]):
        assert (session.job(many).payload, session.job(many).last_error) == ("*****", "*****")


def test_of_more_than_a_hundred_redacted_texts_a_viewer_sees_nothing(
    sql: Session, as_: dict[str, Session]
) -> None:
    job_id = sql.enqueue(payload=json.dumps({"token": [f"pin-{n}" for n in range(101)], "user": 7}))
    assert as_["operator"].job(job_id).payload["user"] == 7
    assert as_["viewer"].job(job_id).payload == "*****"


def test_a_large_payload_full_of_secrets_is_shown_within_a_second(sql: Session) -> None:
    # 171 KiB, of which every number was looked for in every string: six seconds.
    payload = {"a": {"$secret": [*range(10_000, 22_500)]}, "rows": [f"r{n}" for n in range(9000)]}
    job_id = sql.enqueue(payload=json.dumps(payload))
    sql("set statement_timeout = '1s'")
    assert sql.job(job_id).payload == "*****"


def test_a_key_in_a_secret_is_a_secret(sql: Session, as_: dict[str, Session]) -> None:
    secret = {"$secret": {"ada@example.org": {"grace@example.org": 1}}}
    payload = {"who": secret, "to": "mail ada@example.org"}
    job_id = sql.enqueue(payload=json.dumps(payload), max_attempts=1)
    sql.finish(sql.claim(), "failed", errors=["KeyError: 'grace@example.org'"])
    for session in (sql, as_["operator"], as_["viewer"]):
        assert "@example" not in everything(session, job_id)
        assert session.job(job_id).payload == {"who": "*****", "to": "mail *****"}
        assert session.job(job_id).last_error == "KeyError: '*****'"
