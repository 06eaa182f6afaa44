"""A session that claims and listens on one line misses no notification, whenever it comes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from holdfast import calls
from holdfast.database import Database, Session
from holdfast.errors import DatabaseUnavailable

BACKEND = "select pid from pg_stat_activity where datname = current_database() and application_name = 'ears'"
LOCK = "holdfast.duty_lock('recover')"


class Ears:
    """What a listening session has told."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.lost: list[DatabaseUnavailable] = []


@pytest.fixture
def hears(holdfast_dsn):
    """`hears(test)`: run it with a session that listens to all queues, and with what that has told."""

    def hears(test: Callable[[Session, Ears], Awaitable[None]]) -> None:
        async def main() -> None:
            async with listening(holdfast_dsn) as (session, ears):
                await session.run(calls.advance())
                await ears.news.wait()  # it has connected
                ears.news.clear()
                async with asyncio.timeout(15):
                    await test(session, ears)

        asyncio.run(main())

    return hears


@asynccontextmanager
async def listening(dsn: str) -> AsyncIterator[tuple[Session, Ears]]:
    ears = Ears()
    session = Database(dsn).listening_session(
        ("application_name", "ears"),
        deadline=10,
        channels=[calls.channel("*")],
        heard=ears.news.set,
        lost=ears.lost.append,
    )
    try:
        yield session, ears
    finally:
        await session.close()


async def held_up(session: Session, ask, until) -> "asyncio.Task[int]":
    """A call that waits in the server for a lock of ours."""
    ask(f"select pg_advisory_lock({LOCK})")
    call = asyncio.create_task(session.run(calls.recover(timedelta(days=1))))
    await asyncio.to_thread(until, lambda: ask(f"{BACKEND} and wait_event = 'advisory'"))
    return call


def notify(ask) -> None:
    ask("select pg_notify(holdfast.channel('*'), 'any')")


def test_what_comes_between_calls_is_heard(ask, hears):
    async def test(session, ears):
        for _ in range(3):
            notify(ask)
            await ears.news.wait()
            ears.news.clear()
            await session.run(calls.advance())
            assert not ears.news.is_set(), "told twice"
        assert not ears.lost

    hears(test)


def test_what_comes_during_a_call_is_heard_after_it(ask, until, hears):
    async def test(session, ears):
        call = await held_up(session, ask, until)
        notify(ask)
        ask(f"select pg_advisory_unlock({LOCK})")
        await call
        assert ears.news.is_set()

    hears(test)


def test_a_session_that_was_ended_says_so_at_once_and_listens_again_at_the_next_call(ask, hears):
    async def test(session, ears):
        ask(f"select pg_terminate_backend(pid) from ({BACKEND}) b")
        await ears.news.wait()
        assert len(ears.lost) == 1
        ears.news.clear()
        await session.run(calls.advance())
        assert ears.news.is_set(), "something may have been missed"
        ears.news.clear()
        notify(ask)
        await ears.news.wait()
        assert len(ears.lost) == 1

    hears(test)


def test_a_line_that_breaks_under_a_call_is_told_once(ask, until, hears):
    async def test(session, ears):
        call = await held_up(session, ask, until)
        ask(f"select pg_terminate_backend(pid) from ({BACKEND}) b")
        with pytest.raises(DatabaseUnavailable):
            await call
        ask(f"select pg_advisory_unlock({LOCK})")
        assert len(ears.lost) == 1
        await session.run(calls.advance())
        assert len(ears.lost) == 1

    hears(test)


def test_calls_at_once_do_not_get_in_each_others_way(ask, hears):
    async def test(session, ears):
        for _ in range(20):
            notify(ask)
            await asyncio.gather(*(session.run(calls.advance()) for _ in range(5)), ears.news.wait())
            ears.news.clear()
        assert not ears.lost

    hears(test)
