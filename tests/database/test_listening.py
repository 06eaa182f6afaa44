"""A session that claims and listens on one line misses no notification, whenever it comes."""

import asyncio
import errno
import os
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast.database import Database, Session, session as session_module
from holdfast.database.session import ListeningSession
from holdfast.operations import duties, workers
from holdfast.values.errors import DatabaseUnavailable
from tests.fixtures import Ask, Until

BACKEND = "select pid from pg_stat_activity where datname = current_database() and application_name = 'ears'"
LOCK = "lock table holdfast.duty_recover in share update exclusive mode"


class Ears:
    """What a listening session has told."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.lost: list[DatabaseUnavailable] = []


@pytest.fixture(params=["asyncio", "uvloop"])
def hears(holdfast_dsn: str, request: pytest.FixtureRequest) -> Callable[..., None]:
    """`hears(test)`: run it with a session that listens to all queues, and with what that has told."""
    factory = pytest.importorskip("uvloop").new_event_loop if request.param == "uvloop" else None

    def hears(test: Callable[[ListeningSession, Ears], Awaitable[None]]) -> None:
        async def main() -> None:
            async with listening(holdfast_dsn) as (session, ears):
                await session.run(duties.advance())
                await ears.news.wait()  # it has connected
                ears.news.clear()
                async with asyncio.timeout(15):
                    await test(session, ears)

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    return hears


@asynccontextmanager
async def listening(dsn: str) -> AsyncIterator[tuple[ListeningSession, Ears]]:
    ears = Ears()
    session = Database(dsn).listening_session(
        ("application_name", "ears"),
        deadline=10,
        channels=[workers.channel("*")],
        heard=lambda _: ears.news.set(),
        lost=ears.lost.append,
    )
    try:
        assert isinstance(session, ListeningSession)
        yield session, ears
    finally:
        await session.close()


@pytest.fixture
def holder(holdfast_dsn: str) -> Iterator[psycopg.Connection]:
    """A session that holds a duty: `holder.execute(LOCK)`, until `holder.commit()`."""
    with psycopg.connect(holdfast_dsn) as connection:
        yield connection


async def held_up(
    session: Session, ask: Ask, until: Until, holder: psycopg.Connection
) -> "asyncio.Task[int]":
    """A call that waits in the server for a duty that another session holds."""
    holder.execute(LOCK)
    call = asyncio.create_task(session.run(duties.recover(timedelta(days=1))))
    await asyncio.to_thread(until, lambda: ask(f"{BACKEND} and wait_event = 'relation'"))
    return call


def notify(ask: Ask) -> None:
    ask("select pg_notify(holdfast.channel('*'), 'any')")


def left_behind() -> list[tuple[int, int]]:
    """What the kernel has to tell this loop, also of sockets that the loop has forgotten."""
    loop: Any = asyncio.get_running_loop()
    return loop._selector._selector.poll(0)


def test_what_comes_between_calls_is_heard(ask: Ask, hears: Callable[..., None]) -> None:
    async def test(session: ListeningSession, ears: Ears) -> None:
        for _ in range(3):
            notify(ask)
            await ears.news.wait()
            ears.news.clear()
            await session.run(duties.advance())
            assert not ears.news.is_set(), "told twice"
        assert not ears.lost

    hears(test)


def test_what_comes_during_a_call_is_heard_after_it(
    ask: Ask, until: Until, hears: Callable[..., None], holder: psycopg.Connection
) -> None:
    async def test(session: ListeningSession, ears: Ears) -> None:
        call = await held_up(session, ask, until, holder)
        notify(ask)
        holder.commit()
        await call
        assert ears.news.is_set()

    hears(test)


def test_a_session_that_was_ended_says_so_at_once_and_listens_again_at_the_next_call(
    ask: Ask, hears: Callable[..., None]
) -> None:
    async def test(session: ListeningSession, ears: Ears) -> None:
        connection = session._connection
        ask(f"select pg_terminate_backend(pid) from ({BACKEND}) b")
        await ears.news.wait()
        assert len(ears.lost) == 1
        assert connection._watched is None
        ears.news.clear()
        await session.run(duties.advance())
        assert ears.news.is_set(), "something may have been missed"
        ears.news.clear()
        notify(ask)
        await ears.news.wait()
        assert len(ears.lost) == 1

    hears(test)


def test_a_line_that_breaks_under_a_call_is_told_once(
    ask: Ask, until: Until, hears: Callable[..., None], holder: psycopg.Connection
) -> None:
    async def test(session: ListeningSession, ears: Ears) -> None:
        connection = session._connection
        call = await held_up(session, ask, until, holder)
        ask(f"select pg_terminate_backend(pid) from ({BACKEND}) b")
        with pytest.raises(DatabaseUnavailable):
            await call
        assert connection._watched is None
        holder.commit()
        assert len(ears.lost) == 1
        assert ears.news.is_set(), "the next call must come now, to connect again"
        await session.run(duties.advance())
        assert len(ears.lost) == 1

    hears(test)


@pytest.mark.parametrize("hears", ["asyncio"], indirect=True)  # only of this loop can it be asked
@pytest.mark.parametrize("calling", [False, True])
def test_a_line_that_a_forked_child_has_too_keeps_no_loop_busy(
    ask: Ask, until: Until, hears: Callable[..., None], calling: bool, holder: psycopg.Connection
) -> None:
    async def test(session: ListeningSession, ears: Ears) -> None:
        with socket.socket(fileno=os.dup(session._connection.fileno())):
            call = await held_up(session, ask, until, holder) if calling else None
            ask(f"select pg_terminate_backend(pid) from ({BACKEND}) b")
            if call is None:
                await ears.news.wait()
            else:
                with pytest.raises(DatabaseUnavailable):
                    await call
            assert not left_behind()

    hears(test)


def test_a_call_without_an_answer_ends_at_its_deadline(
    ask: Ask, hears: Callable[..., None], holder: psycopg.Connection
) -> None:
    async def test(session: ListeningSession, ears: Ears) -> None:
        holder.execute(LOCK)
        connection = session._connection
        with pytest.raises(DatabaseUnavailable, match="no answer within"):
            await session.run(duties.recover(timedelta(days=1)), deadline=0.05)
        assert connection._watched is None
        assert len(ears.lost) == 1

    hears(test)


def test_a_call_that_is_given_up_leaves_a_line_that_hears(
    ask: Ask, until: Until, hears: Callable[..., None], holder: psycopg.Connection
) -> None:
    async def test(session: ListeningSession, ears: Ears) -> None:
        call = await held_up(session, ask, until, holder)
        call.cancel()
        holder.commit()
        with pytest.raises(asyncio.CancelledError):
            await call
        notify(ask)
        await ears.news.wait()
        assert not ears.lost

    hears(test)


def test_a_call_that_is_given_up_and_does_not_end_loses_the_line_and_says_so_at_once(
    ask: Ask,
    until: Until,
    hears: Callable[..., None],
    holder: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "ABANDON_SECONDS", 0.05)

    async def test(session: ListeningSession, ears: Ears) -> None:
        call = await held_up(session, ask, until, holder)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert len(ears.lost) == 1
        assert ears.news.is_set(), "the next call must come now, to connect again"
        holder.commit()
        ears.news.clear()
        await session.run(duties.advance())
        assert ears.news.is_set(), "something may have been missed"
        assert len(ears.lost) == 1

    hears(test)


def test_a_line_that_was_cut_off_as_its_answer_came_is_not_used_again(hears: Callable[..., None]) -> None:
    async def test(session: ListeningSession, ears: Ears) -> None:
        cut = session._connection
        cut.was_cut_off = True
        await session.run(duties.advance())
        assert cut.closed
        await session.run(duties.advance())

    hears(test)


def test_a_line_that_the_loop_no_longer_watches_is_found_broken_by_the_next_call(
    ask: Ask, until: Until, hears: Callable[..., None]
) -> None:
    async def test(session: ListeningSession, ears: Ears) -> None:
        assert session._connection
        watched = session._connection._watched
        assert watched is not None
        # As uvloop does after an error.
        asyncio.get_running_loop().remove_reader(watched)
        ask(f"select pg_terminate_backend(pid) from ({BACKEND}) b")
        hung_up = select.poll()
        hung_up.register(session._connection.fileno(), 0)  # a server is no longer listed before it hangs up
        await asyncio.to_thread(until, lambda: hung_up.poll(0))
        with pytest.raises(DatabaseUnavailable) as error:
            await session.run(duties.advance())
        assert "no answer within" not in str(error.value)
        assert len(ears.lost) == 1

    hears(test)


def test_calls_go_on_where_no_more_files_can_be_opened(
    hears: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def test(session: ListeningSession, ears: Ears) -> None:
        session._unwatch()
        with monkeypatch.context() as patch:
            patch.setattr(os, "dup", full)
            for _ in range(2):
                await session.run(duties.advance())
        assert not ears.lost

    hears(test)


def test_calls_at_once_do_not_get_in_each_others_way(ask: Ask, hears: Callable[..., None]) -> None:
    async def test(session: ListeningSession, ears: Ears) -> None:
        for _ in range(20):
            notify(ask)
            await asyncio.gather(*(session.run(duties.advance()) for _ in range(5)), ears.news.wait())
            ears.news.clear()
        assert not ears.lost

    hears(test)
