"""What cannot be a job is refused at enqueue, with a named error, by whatever way it comes."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.sql.sessions import Refused, Session

LIMIT = 262_144

Way = Callable[[Session, Any], Any]


def text_of(size: int) -> str:
    """A JSON string whose text, as PostgreSQL writes it, has this many bytes."""
    return '"' + "x" * (size - 2) + '"'


def copy(sql: Session, payload: str) -> None:
    lane = sql.value("lane", queue="default", priority=100, task="task")
    with sql.connection.cursor().copy("copy holdfast.job (lane_id, task, payload) from stdin") as rows:
        rows.write_row((lane, "task", payload))


WAYS = {
    "enqueue": lambda sql, payload: sql.enqueue(payload=payload),
    "enqueue_many": lambda sql, payload: sql.enqueue_many(2, payloads=["{}", payload]),
    "copy": copy,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_payload_of_exactly_the_limit_is_welcome_and_one_byte_more_is_not(
    sql: Session, way: str, refused: Refused
) -> None:
    WAYS[way](sql, text_of(LIMIT))
    before = sql.one("select count(*) from holdfast.job")
    with refused("HF004") as error:
        WAYS[way](sql, text_of(LIMIT + 1))
    assert (error.detail["size"], error.detail["limit"]) == (LIMIT + 1, LIMIT)
    assert "reference" in error.hint
    assert sql.one("select count(*) from holdfast.job") == before


def test_a_queue_has_its_own_limit(sql: Session, refused: Refused) -> None:
    sql("insert into holdfast.queue (name, payload_limit) values ('small', 1024)")
    sql.enqueue(queue="small", payload=text_of(1024))
    with refused("HF004") as error:
        sql.enqueue(queue="small", payload=text_of(1025))
    assert error.detail["limit"] == 1024
    sql.enqueue(queue="default", payload=text_of(1025))
    sql("update holdfast.queue set payload_limit = 2048 where name = '*'")
    with refused("HF004"):
        sql.enqueue(queue="default", payload=text_of(2049))


def test_the_limit_counts_bytes_of_text_not_what_is_stored(sql: Session, refused: Refused) -> None:
    sql("update holdfast.queue set payload_limit = 1024 where name = '*'")
    # One byte of jsonb is six of text, and a number of 16 bytes can have 131,072 digits.
    sql.enqueue(payload='"' + r"\u0001" * 170 + '"')
    with refused("HF004") as error:
        sql.enqueue(payload='"' + r"\u0001" * 171 + '"')
    assert error.detail["size"] == 171 * 6 + 2
    with refused("HF004") as error:
        sql.enqueue(payload="1e131000")
    assert error.detail["size"] == 131_001
    # Two bytes each.
    with refused("HF004"):
        sql.enqueue(payload='"' + "é" * 512 + '"')


def test_the_limit_looks_through_compression(sql: Session, refused: Refused) -> None:
    sql("create temp table stored as select to_jsonb(repeat('x', 300000)) as payload")
    assert sql.one("select pg_column_size(payload) from stored") < 10_000
    with refused("HF004"):
        sql("select holdfast.enqueue('task', (select payload from stored))")
    with refused("HF004"):
        sql("select holdfast.enqueue_many('{task}', array(select payload from stored))")


@pytest.mark.parametrize("way", WAYS)
def test_nul_has_no_place_in_a_payload(sql: Session, way: str) -> None:
    with pytest.raises(psycopg.DataError):
        WAYS[way](sql, r'{"a": "\u0000"}')
    assert sql("select from holdfast.job") == []


@pytest.mark.parametrize("payload", [r'"\ud800"', "1e400000", "{", "NaN"])
def test_what_json_cannot_hold_is_refused(sql: Session, payload: str) -> None:
    with pytest.raises(psycopg.DataError):
        sql.enqueue(payload=payload)


def test_a_payload_of_sql_null_is_refused_but_json_null_is_a_value(sql: Session, refused: Refused) -> None:
    with refused("HF008") as error:
        sql.enqueue(payload=None)
    assert error.detail["field"] == "payload"
    assert sql.job(sql.enqueue(payload="null")).payload is None


@pytest.mark.parametrize(
    "name", ["", " ", "Mail", "a b", "a/b", "é", "x" * 101, "a\n", "a'b", "a;b", "*", None], ids=repr
)
@pytest.mark.parametrize("field", ["task", "queue"])
def test_a_name_that_breaks_the_rules_is_refused(
    sql: Session, field: str, name: str | None, refused: Refused
) -> None:
    options = {"task": "good", "queue": "good", field: name}
    with refused("HF005") as error:
        sql.value("enqueue", **options)
    assert error.detail == {"field": field, "value": name}
    assert "1 to 100 characters" in error.hint
    if name is not None or field == "task":  # in an array, a missing queue is the default one
        with refused("HF005"):
            sql.rows("enqueue_many", tasks=["ok", options["task"]], queues=["ok", options["queue"]])


def test_every_character_of_the_rules_makes_a_name(sql: Session) -> None:
    names = ["a", "x" * 100, "0", "_", ".", ":", "-", "mail.welcome:v2_3-4"]
    for name in names:
        sql.enqueue(name, queue=name)
    assert {job.queue for job in sql.claim()} == set(names)


def test_a_bad_name_is_refused_under_an_id_of_the_callers_too(
    sql: Session, new_lease: Callable[[], UUID], refused: Refused
) -> None:
    for name in ("Bad", None):
        with refused("HF005"):
            sql.value("enqueue", task=name, id=new_lease())
        with refused("HF005"):
            sql.rows("enqueue_many", tasks=["good", name], ids=[new_lease(), new_lease()])
    assert sql("select from holdfast.used_id") == []


@pytest.mark.parametrize("priority", [-32769, 32768, 2_000_000_000, None])
def test_a_priority_outside_the_range_is_refused(
    sql: Session, priority: int | None, refused: Refused
) -> None:
    with refused("HF008") as error:
        sql.enqueue(priority=priority)
    assert error.detail["field"] == "priority"
    assert "-32768 to 32767" in error.message
    if priority is not None:
        with refused("HF008"):
            sql.enqueue_many(2, priorities=[0, priority])


@pytest.mark.parametrize("amount", [0, -1, 32768])
def test_a_number_of_attempts_outside_the_range_is_refused(
    sql: Session, amount: int, refused: Refused
) -> None:
    with refused("HF008") as error:
        sql.enqueue(max_attempts=amount)
    assert error.detail["field"] == "max_attempts"
    with refused("HF008"):
        sql.enqueue_many(2, max_attempts=[3, amount])


@pytest.mark.parametrize(
    "when",
    [
        {"run_at": "infinity"},
        {"run_at": "-infinity"},
        {"run_at": "33000-01-01 00:00+00"},
        {"delay": "-1 second"},
        {"delay": "101 years"},
        {"run_at": "2030-01-01 00:00+00", "delay": "1 second"},
    ],
    ids=str,
)
def test_an_absurd_time_is_refused(sql: Session, when: dict[str, Any], refused: Refused) -> None:
    with refused("HF008") as error:
        sql.enqueue(**when)
    assert error.detail["field"] == ("delay" if "delay" in when else "run_at")
    arrays: dict[str, Any] = {f"{name}s": [None, value] for name, value in when.items()}
    with refused("HF008"):
        sql.enqueue_many(2, **arrays)
    assert sql("select from holdfast.job") == []


@pytest.mark.parametrize("when", ["infinity", "33000-01-01 00:00+00"])
def test_an_absurd_time_is_refused_by_copy_too(sql: Session, when: str, refused: Refused) -> None:
    lane = sql.value("lane", queue="default", priority=100, task="task")
    with refused("HF008"):
        sql("insert into holdfast.job (lane_id, task, run_at) values (%s, 'task', %s)", lane, when)


# What Python's decoders refuse: a list that shows one such value would fail for everybody.
DEEPEST = "[" * 200 + "1" + "]" * 200
TOO_DEEP = "[" * 201 + "1" + "]" * 201
LARGEST = "[17976931348623157" + "0" * 292 + ", -" + "1" + "0" * 308 + ', "' + "9" * 400 + '"]'
UNREADABLE = {
    "deep": TOO_DEEP,
    "deep objects": '{"a":' * 300 + "1" + "}" * 300,
    "many digits": '{"a": [1e30000]}',
    "below": '{"a": [-1e310]}',
    "a fraction": "1" + "0" * 400 + ".5",
}


def running(sql: Session) -> Any:
    sql.enqueue()
    return sql.claim_one()


def _on_running(verb: str, **names: Any) -> Way:
    def way(sql: Session, value: Any) -> None:
        job = running(sql)
        given = {name: value if said is ... else said for name, said in names.items()}
        sql.value(verb, id=job.id, lease=job.lease, **given)

    return way


def _many(call: str) -> Way:
    def way(sql: Session, value: Any) -> None:
        job = running(sql)
        sql(call, job.id, job.lease, value)

    return way


EVERY_WAY = {
    **WAYS,
    "schedule": lambda sql, value: sql.value(
        "add_schedule", name="s", task="t", every="1 hour", payload=value
    ),
    "changed schedule": lambda sql, value: (
        sql.value("add_schedule", name="s", task="t", every="1 hour"),
        sql.value("change_schedule", name="s", payload=value),
    ),
    "headers": lambda sql, value: sql.enqueue(headers=f'{{"a": {value}}}'),
    "complete": _on_running("complete", result=...),
    "finish": _many("select holdfast.finish(array[%s::uuid], array[%s::uuid], null, array[%s::jsonb])"),
    "publish": _on_running("publish", name="e", data=...),
    "publish_many": _many(
        "select holdfast.publish_many(array[%s::uuid], array[%s::uuid], '{1}', '{e}', array[%s::jsonb])"
    ),
    "keep_step": _on_running("keep_step", name="s", result=...),
}  # fmt: skip
OBJECT_WAYS = {
    "keep_checkpoint": _on_running("keep_checkpoint", state=...),
    "progress_many": _many(
        "select holdfast.progress_many(array[%s::uuid], array[%s::uuid], '{1}', '{a}', '{b}', '{c}', "
        "array[%s::jsonb])"
    ),
}


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("value", UNREADABLE)
def test_what_python_cannot_read_again_is_refused_by_every_way_in(
    sql: Session, way: str, value: str, refused: Refused
) -> None:
    with refused("HF008") as error:
        EVERY_WAY[way](sql, UNREADABLE[value])
    assert error.detail["field"] in {"payload", "headers", "result", "data"}
    if "bytes" not in error.message:  # of headers, whose limit speaks first
        assert ("200 levels" if value.startswith("deep") else "digits") in error.message


@pytest.mark.parametrize("way", OBJECT_WAYS)
@pytest.mark.parametrize("value", UNREADABLE)
def test_a_checkpoint_that_python_cannot_read_again_is_refused(
    sql: Session, way: str, value: str, refused: Refused
) -> None:
    with refused("HF008") as error:
        OBJECT_WAYS[way](sql, f'{{"a": {UNREADABLE[value]}}}')
    assert error.detail["field"] == "state"


@pytest.mark.parametrize("way", EVERY_WAY)
def test_what_python_can_just_read_is_welcome_by_every_way_in(sql: Session, way: str) -> None:
    EVERY_WAY[way](sql, "[" * 199 + "1" + "]" * 199)


def test_the_deepest_and_the_largest_are_welcome(sql: Session) -> None:
    for payload in (DEEPEST, LARGEST, '{"a": 1e-400}', '"' + "1" * 5000 + '"'):
        for way in WAYS.values():
            way(sql, payload)


def test_a_value_as_deep_as_the_server_reads_is_refused_by_name(sql: Session, refused: Refused) -> None:
    with refused("HF008"):
        sql.enqueue(payload="[" * 5000 + "]" * 5000)
