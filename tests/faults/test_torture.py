"""One seed of the torture, with every kind of fault once; `make torture` runs more of it."""

import pytest

from tests.faults import torture
from tests.faults.torture_faults import FAULTS


@pytest.mark.timeout(300)  # a minute alone; what dead workers held is run one by one at the end
def test_nothing_is_lost_and_nothing_runs_twice_unseen(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = torture.torture(seed=1, jobs=2000, faults=len(FAULTS))
    with capsys.disabled():
        print(f"\n{verdict}")  # noqa: T201 - what was survived, for whoever reads the log
    assert not verdict.violations
    assert verdict.jobs >= 2000
    assert verdict.in_doubt_and_there > 0
    assert len(verdict.faults) == len(FAULTS)
