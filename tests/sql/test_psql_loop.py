"""No Python: psql in a loop calls `holdfast.tick()`, as pg_cron would, and psql consumes what that brings.

The processes' ends are what is waited for; the clock is moved.
"""

import os
import subprocess
from collections.abc import Callable
from datetime import timedelta

import pytest

from holdfast import embedded
from holdfast.testing import Clock
from tests.sql.sessions import PATIENCE, Session

Psql = Callable[..., list[str]]

TICK = "select * from holdfast.tick()"
DONE = ["fire|", "promote|", "recover|", "advance|", "fold_stats|", "upkeep|"]  # each without an error

# Takes what there is and reports it done; prints what it was. Hours may pass meanwhile.
CONSUME = r"""
select holdfast.register(lease_time => '1 hour') as worker, gen_random_uuid() as lease \gset
select task || ' ' || attempt from holdfast.claim(:'worker', :'lease', amount => 1000) order by 1;
select * from holdfast.finish(
  ids => array(select id from holdfast.claimed(:'worker', :'lease')),
  leases => array(select lease from holdfast.claimed(:'worker', :'lease')));
select holdfast.leave(:'worker') \gset
"""

# Two of these move the clock by turns, half a minute each, and race for what is due then.
LOOP = """
for n in $(seq 50); do
  "$0" "$@" -c "update holdfast.test_clock set shift = shift + 30" -c "$TICK" || exit 1
done
"""


@pytest.fixture(scope="module")
def command() -> list[str]:
    program = embedded.find_psql()
    if program is None:
        pytest.skip("THERE IS NO psql on this machine: nothing of a life without Python was tried")
    return [str(program), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]


@pytest.fixture
def psql(command: list[str], holdfast_dsn: str) -> Callable[..., list[str]]:
    """Run a script by a psql of its own; the lines that it prints."""

    def psql(script: str) -> list[str]:
        done = subprocess.run(
            [*command, "-d", holdfast_dsn, "-f", "-"],
            input=script,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return psql


@pytest.fixture
def minutes_pass(psql: Psql, clock: Clock) -> Callable[[int], None]:
    """A loop of once a minute, for so many."""

    def minutes_pass(amount: int) -> None:
        for _ in range(amount):
            clock.advance(minutes=1)
            assert psql(TICK) == DONE

    return minutes_pass


def test_a_delayed_job_is_consumed_when_its_time_has_come(
    psql: Psql, minutes_pass: Callable[[int], None]
) -> None:
    psql("select holdfast.enqueue('letter', run_at => holdfast.clock() + interval '2 minutes')")
    minutes_pass(1)
    assert psql(CONSUME) == []
    minutes_pass(1)
    assert psql(CONSUME) == ["letter 1"]
    minutes_pass(1)
    assert psql(CONSUME) == []


def test_a_failed_job_is_tried_again_when_its_time_has_come(
    psql: Psql, minutes_pass: Callable[[int], None]
) -> None:
    psql(r"""
        select holdfast.enqueue('letter') \gset
        select id, lease from holdfast.claim(gen_random_uuid(), amount => 1) \gset
        select holdfast.fail(:'id', :'lease', error => 'out of paper', retry_in => '3 minutes');
    """)
    minutes_pass(2)
    assert psql(CONSUME) == []
    minutes_pass(1)
    assert psql(CONSUME) == ["letter 2"]
    assert psql("select state, last_error from holdfast.jobs") == ["completed|out of paper"]


def test_the_jobs_of_a_lost_consumer_go_to_another(psql: Psql, minutes_pass: Callable[[int], None]) -> None:
    psql(r"""
        select holdfast.register(name => 'gone', lease_time => '30 seconds') as worker \gset
        select holdfast.enqueue('letter') from generate_series(1, 3);
        select count(*) from holdfast.claim(:'worker', gen_random_uuid(), amount => 3);
    """)
    minutes_pass(1)
    assert psql(CONSUME) == []
    minutes_pass(2)
    # A suspect is alone with its consumer.
    assert [psql(CONSUME) for _ in range(4)] == [["letter 1"], ["letter 1"], ["letter 1"], []]
    assert psql("select status, recovered from holdfast.list_workers() where name = 'gone'") == ["lost|3"]


@pytest.fixture
def loop(command: list[str], holdfast_dsn: str) -> Callable[[], "subprocess.Popen[str]"]:
    """Start a loop of fifty ticks."""
    return lambda: subprocess.Popen(
        ["/bin/sh", "-c", LOOP, *command, "-d", holdfast_dsn],
        env={**os.environ, "TICK": TICK},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_loops_at_once_bring_each_minute_of_a_schedule_once(
    psql: Psql, loop: Callable[[], "subprocess.Popen[str]"], sql: Session
) -> None:
    psql("select holdfast.add_schedule('report', 'report', cron => '* * * * *', missed => 'all')")
    begun = sql.one("select next_at from holdfast.list_schedules()")
    consumed = 0
    with loop() as one, loop() as two:
        while one.poll() is None or two.poll() is None:
            consumed += len(psql(CONSUME))
        said = [line for each in (one, two) for line in each.communicate()[0].splitlines()]
    assert (one.returncode, two.returncode, set(said)) == (0, 0, set(DONE))
    assert psql(TICK) == DONE
    consumed += len(psql(CONSUME))
    ticks = [row[0] for row in sql("select (headers ->> 'tick')::timestamptz from holdfast.jobs order by 1")]
    assert len(ticks) in {50, 51}
    assert ticks == [begun + n * timedelta(minutes=1) for n in range(len(ticks))]
    assert consumed == len(ticks)
