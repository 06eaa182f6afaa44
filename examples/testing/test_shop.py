"""Test the shop on a real PostgreSQL: its jobs, their results, and a crash."""

import asyncio
from datetime import timedelta

import pytest
import shop

from holdfast.testing import HandlerFailed


def test_an_order_is_to_be_charged_and_asked_about_in_a_week(assert_enqueued, refute_enqueued):
    shop.place(7, 30)
    assert_enqueued(shop.charge, args={"order": 7, "amount": 30}, count=1)
    assert_enqueued(shop.ask, args={"order": 7}, queue="mail", delay=timedelta(weeks=1))
    refute_enqueued(shop.confirm)


def test_a_customer_is_asked_after_a_week(clock, drain):
    shop.place(7, 30)
    drain()
    assert shop.letters == ["Your order 7 is on its way."]
    clock.advance(weeks=1)
    drain()
    assert shop.letters[1:] == ["How did you like order 7?"]


def test_inline_an_order_is_paid_and_confirmed_when_the_call_returns(inline):
    with inline():
        shop.place(7, 30)
    assert list(shop.payments.values()) == [30]
    assert shop.letters == ["Your order 7 is on its way."]


def test_inline_a_refused_card_is_seen_at_once(inline, refute_enqueued):
    with inline(), pytest.raises(HandlerFailed, match="2000 is too much") as failed:
        shop.place(7, 2000)
    assert isinstance(failed.value.__cause__, shop.CardError)
    refute_enqueued(shop.confirm)


def test_a_refused_card_is_given_up_after_two_attempts(hf, clock, drain):
    shop.place(7, 2000)
    for _ in range(2):
        drain()
        clock.advance(hours=1)
    (dead,) = hf.dead.list()
    assert (dead.task, dead.attempt) == ("shop.charge", 2)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_however_a_worker_is_lost_an_order_is_paid_once(crash, drain, moment):
    shop.place(7, 30)
    getattr(crash, moment)(shop.charge)
    crash.recover()
    drain()
    assert list(shop.payments.values()) == [30]


def test_a_worker_is_lost_while_it_pays(hf, crash, drain, monkeypatch):
    shop.place(7, 30)
    with monkeypatch.context() as patch:
        patch.setattr(shop, "pay", crash.here)
        crash.during(shop.charge)
    assert shop.payments == {}
    crash.recover()
    drain()
    (paid,) = hf.jobs.list(task="shop.charge")
    assert (paid.state, paid.attempt) == ("completed", 1)


def test_a_customer_is_asked_after_a_week_in_a_coroutine(clock, adrain, aassert_enqueued):
    async def main() -> None:
        await shop.aplace(7, 30)
        await aassert_enqueued(shop.ask, delay=timedelta(weeks=1))
        await clock.aadvance(weeks=1)
        await adrain()

    asyncio.run(main())
    assert sorted(shop.letters) == ["How did you like order 7?", "Your order 7 is on its way."]


def test_a_worker_is_lost_in_a_coroutine(crash, adrain, inline):
    async def main() -> None:
        await shop.aplace(7, 30)
        await crash.aafter(shop.charge)
        await crash.arecover()
        with inline():
            await shop.aplace(8, 40)
        await adrain()

    asyncio.run(main())
    assert sorted(shop.payments.values()) == [30, 40]
