"""An error of the database that nobody foresaw is told without the row that it quotes."""

import asyncio

import psycopg
import pytest

from holdfast import Holdfast, NewJob
from holdfast.operations import enqueue
from holdfast.values.call import one
from holdfast.values.errors import UnexpectedError


def test_what_a_session_raises_does_not_quote_the_row(hf: Holdfast, holdfast_dsn: str) -> None:
    with psycopg.connect(holdfast_dsn, autocommit=True) as owner:
        owner.execute("alter table holdfast.job add column extra text not null default 'x'")
        owner.execute("alter table holdfast.job alter extra drop default")

    async def send() -> None:
        session = hf.database.session()
        try:
            await session.run(
                enqueue.enqueue(NewJob(task="t", payload='{"card": {"$secret": "4111-1111"}}'), one)
            )
        finally:
            await session.close()

    with pytest.raises(UnexpectedError, match="23502: null value in column") as raised:
        asyncio.run(send())
    assert "4111" not in repr(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.code == "23502"
