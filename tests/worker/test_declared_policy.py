"""A policy declared in code is written when a worker starts, and gives way to an operator's."""

from datetime import timedelta

from holdfast import Holdfast, RetryPolicy
from holdfast.operations.policies import retry_delay


def test_a_declared_policy_holds_once_a_worker_was_made(hf: Holdfast) -> None:
    @hf.task(name="mail", retry=RetryPolicy(max_attempts=5, base=30, jitter=0))
    async def mail() -> None: ...

    hf.worker()
    assert hf.carrier.run(retry_delay("mail", 2)) == timedelta(minutes=1)
    assert mail.enqueue().refresh().max_attempts == 5


def test_an_operators_policy_is_not_overwritten_by_a_deploy(hf: Holdfast) -> None:
    @hf.task(name="mail", retry=RetryPolicy(max_attempts=5, base=30))
    async def mail() -> None: ...

    hf.worker()
    hf.policies.set("mail", RetryPolicy(max_attempts=9, base=5, jitter=0))
    hf.worker()
    assert mail.enqueue().refresh().max_attempts == 9
    assert hf.carrier.run(retry_delay("mail", 1)) == timedelta(seconds=5)


def test_a_changed_declaration_takes_effect_at_the_next_deploy(hf: Holdfast, holdfast_dsn: str) -> None:
    hf.task(name="mail", retry=RetryPolicy(max_attempts=5))(lambda: None)
    hf.worker()
    with Holdfast(holdfast_dsn) as next_release:
        next_release.task(name="mail", retry=RetryPolicy(max_attempts=6))(lambda: None)
        next_release.worker()
        assert next_release.enqueue("mail").refresh().max_attempts == 6


def test_declared_attempts_hold_for_jobs_enqueued_by_name(hf: Holdfast) -> None:
    hf.task(name="mail", max_attempts=7)(lambda: None)
    hf.worker()
    assert hf.enqueue("mail").refresh().max_attempts == 7
    assert hf.carrier.run(retry_delay("mail", 1)) >= timedelta(minutes=1)
