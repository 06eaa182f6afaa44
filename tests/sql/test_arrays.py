"""Arrays that we write are read by PostgreSQL as what they were."""

import math
from typing import Any
from uuid import UUID

import msgspec
from hypothesis import HealthCheck, Phase, example, given, settings, strategies as st

from holdfast.values import arrays
from tests.sql.sessions import Session

# All that PostgreSQL can store: no NUL, no lone surrogates.
STORABLE = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
ODD = st.text(st.sampled_from("\\\",{}'nNULul \n\t\u00a0€𝄞"))

# The session is only asked, so one does for all the examples.
many = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[phase for phase in Phase if phase is not Phase.explain],  # it traces every line
)


@many
@given(values=st.lists(st.none() | STORABLE | ODD))
@example(values=["", "NULL", "null", None, '"', "\\", '\\"', "{}", ",", " padded ", "\n"])
def test_any_texts_arrive_as_they_were(sql: Session, values: list[str | None]) -> None:
    assert sql.one("select %s::text[]", arrays.texts(values)) == values


@many
@given(value=st.recursive(st.none() | st.integers(-(2**53), 2**53) | STORABLE | ODD, st.lists))
def test_json_arrives_as_it_was(sql: Session, value: Any) -> None:
    text = msgspec.json.encode(value).decode()
    kept, nothing = sql("select unnest(%s::jsonb[])::text", arrays.texts([text, None]))
    assert sql.one("select %s::jsonb = %s::jsonb", kept[0], text)
    assert nothing == (None,)


@many
@given(values=st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 10**6)))
def test_numbers_arrive_as_they_were(sql: Session, values: list[float | None]) -> None:
    assert sql.one("select %s::double precision[]", arrays.numbers(values)) == values


def test_a_number_that_is_not_finite_is_left_out(sql: Session) -> None:
    assert sql.one("select %s::double precision[]", arrays.numbers([math.nan, math.inf, 1.5])) == [
        None,
        None,
        1.5,
    ]


@many
@given(values=st.lists(st.uuids()))
def test_uuids_arrive_as_they_were(sql: Session, values: list[UUID]) -> None:
    assert sql.one("select %s::uuid[]", arrays.words(map(str, values))) == values


@many
@given(values=st.lists(st.uuids()))
def test_uuids_arrive_as_they_were_also_in_the_form_the_server_keeps(
    sql: Session, values: list[UUID]
) -> None:
    assert as_kept(sql, "uuid[]", arrays.uuids([str(value) for value in values])) == values


@many
@given(values=st.lists(st.floats(allow_nan=False)))
def test_numbers_arrive_as_they_were_also_in_the_form_the_server_keeps(
    sql: Session, values: list[float]
) -> None:
    assert as_kept(sql, "double precision[]", arrays.doubles(values)) == values


def as_kept(sql: Session, kind: str, value: bytes) -> Any:
    result = sql.connection.pgconn.exec_params(f"select $1::{kind}".encode(), [value], param_formats=[1])
    assert not result.error_message
    return sql.one(f"select %s::{kind}", result.get_value(0, 0).decode())
