"""Headers are an object of at most 8 KiB, and some of their names are the queue's own."""

import json

import pytest

from holdfast.testing import Clock
from tests.sql.sessions import Refused, Session

LIMIT = 8192


def copy(sql: Session, headers: str) -> None:
    lane = sql.value("lane", queue="default", priority=100, task="task")
    with sql.connection.cursor().copy("copy holdfast.job (lane_id, task, headers) from stdin") as rows:
        rows.write_row((lane, "task", headers))


WAYS = {
    "enqueue": lambda sql, headers: sql.enqueue(headers=headers),
    "enqueue_many": lambda sql, headers: sql.enqueue_many(2, headers=[None, headers]),
    "copy": copy,
}


def of_size(size: int) -> str:
    """Headers whose text, as PostgreSQL writes it, has this many bytes."""
    return json.dumps({"trace": "x" * (size - len('{"trace": ""}'))})


@pytest.mark.parametrize("way", WAYS)
def test_headers_of_exactly_8_kib_are_welcome_and_one_byte_more_is_not(
    sql: Session, way: str, refused: Refused
) -> None:
    WAYS[way](sql, of_size(LIMIT))
    before = sql.one("select count(*) from holdfast.job")
    with refused("HF008") as error:
        WAYS[way](sql, of_size(LIMIT + 1))
    assert error.detail["field"] == "headers"
    assert "8192 bytes" in error.message
    assert sql.one("select count(*) from holdfast.job") == before


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("headers", ["[]", "1", '"text"', "null"])
def test_headers_are_an_object(sql: Session, way: str, headers: str, refused: Refused) -> None:
    with refused("HF008") as error:
        WAYS[way](sql, headers)
    assert "must be an object" in error.message


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["resumes", "schedule", "tick"])
def test_a_name_of_the_queues_own_is_refused_from_outside(
    sql: Session, way: str, name: str, refused: Refused
) -> None:
    with refused("HF008") as error:
        WAYS[way](sql, json.dumps({"trace": "1", name: "x"}))
    assert f'"{name}"' in error.message
    WAYS[way](sql, json.dumps({"trace": "1", "deeper": {name: "x"}, name.title(): 1}))


def test_the_queue_itself_still_writes_its_names(sql: Session, clock: Clock) -> None:
    sql.value("add_schedule", name="s", task="ticks", every="1 hour", payload="{}")
    sql.value("run_schedule", name="s")
    clock.advance(hours=1)
    sql.value("fire")
    written = sql("select headers from holdfast.job order by headers ? 'tick'")
    assert [sorted(headers) for (headers,) in written] == [["schedule"], ["schedule", "tick"]]
    job_id = sql.enqueue("dies", headers='{"trace": "1"}', max_attempts=1)
    job = sql.claim_one(tasks=["dies"])
    sql.value("fail", id=job.id, lease=job.lease, error="no")
    sql.value("replay", id=job_id)
    assert sql.job(job_id).headers == {"trace": "1", "resumes": True}


@pytest.mark.parametrize("amount", [40, 200])
def test_headers_count_in_the_bytes_of_a_claim(sql: Session, amount: int) -> None:
    ids = [sql.enqueue() for _ in range(40)]
    # As large as only 0.1 took them: a claim has room for 16 MiB.
    sql(
        "update holdfast.live set headers = jsonb_build_object('x', "
        "(select string_agg(md5(n::text), '') from generate_series(1, 32768) n)) where id = any(%s)",
        ids,
    )
    worker = sql.value("register")
    assert [len(sql.claim(amount, worker=worker)) for _ in range(3)] == [15, 15, 10]
