"""How fast a worker believes to be decides how much it takes in advance."""

import time
from collections.abc import Callable

import pytest

from holdfast.worker.pace import Pace


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
    """`after(rate, jobs=…, seconds=…)`: jobs per second, once so many more were done in that time."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def after(rate: Pace, *, jobs: int, seconds: float) -> float:
        nonlocal now
        now += seconds
        rate.jobs += jobs
        return rate.measure()

    return after


def test_many_short_jobs_are_known_for_it_within_milliseconds(after: Callable[..., float]) -> None:
    rate = Pace()
    assert after(rate, jobs=0, seconds=60) == 0
    rate.begin()
    assert after(rate, jobs=20, seconds=0.004) == pytest.approx(5000)
    assert after(rate, jobs=500, seconds=0.02) == pytest.approx(25_000)


def test_a_few_quick_ones_say_little_about_the_others(after: Callable[..., float]) -> None:
    rate = Pace()
    rate.begin()
    assert after(rate, jobs=5, seconds=0.004) == 0
    assert after(rate, jobs=0, seconds=0.1) == pytest.approx(5 / 0.104)


def test_one_slow_spell_does_not_undo_what_was_known(after: Callable[..., float]) -> None:
    rate = Pace()
    assert after(rate, jobs=1000, seconds=1.0) == pytest.approx(1000)
    assert after(rate, jobs=0, seconds=0.2) == pytest.approx(500)
    assert after(rate, jobs=0, seconds=1.0) == pytest.approx(0)
