"""What it costs to call off very many jobs: each is read a few times, however many batches it takes.

To record anew, write down what `pytest -s tests/counts/test_cancel.py` says, the largest of each.
"""

import pytest

from holdfast import Holdfast
from tests.counts.counting import Counter as CountingCounter, Entries
from tests.sql.sessions import Session

MANY = 20_000
BATCH = 400

# Of a batch of 400 among as many that do not match: to find, to lock twice, to tell apart, to log, to remove.
# Caught: a cancel_matching that begins anew each time, a pick_matching or a cancel_many without its settings.
RECORDED = {"job_pkey": 7 * BATCH, "lane_pkey": 3 * BATCH}


@pytest.fixture
def many(sql: Session) -> None:
    """Every second job is to be called off."""
    sql(
        "insert into holdfast.job (lane_id, task) "
        "select case n %% 2 when 0 then a else b end, case n %% 2 when 0 then 'a' else 'b' end "
        "from holdfast.lane('mail', 100, 'a') a, holdfast.lane('mail', 100, 'b') b, generate_series(1, %s) n",
        2 * MANY,
    )


def test_the_last_of_fifty_batches_reads_no_more_than_the_first(sql: Session, many: None) -> None:
    entries, last = Entries(sql), None
    for number in range(MANY // BATCH):
        read = entries.of("cancel_matching", task="a", state="pending", amount=BATCH, after=last)
        ((cancelled, requested, last),) = entries.rows
        assert (cancelled, requested) == (BATCH, 0), number
        if number in {0, 1, MANY // BATCH - 1}:
            entries.are_at_most(RECORDED, read)
    assert sql.rows("cancel_matching", task="a", amount=BATCH, after=last) == [(0, 0, None)]


def test_twenty_thousand_jobs_are_called_off_in_ten_batches(
    hf: Holdfast, many: None, counter: CountingCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.operations.jobs.CANCEL_BATCH", MANY // 10)
    hf.stats.count()  # which connects
    counter.start()
    assert hf.jobs.cancel_matching(task="a") == (MANY, 0)
    assert counter.statements() == {"cancel_matching": 11}
    assert [(stat.state, stat.jobs) for stat in hf.stats.count()] == [("cancelled", MANY), ("pending", MANY)]
