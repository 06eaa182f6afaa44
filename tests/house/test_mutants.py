"""The mutants stay in step with the SQL: `make mutants` takes long, this takes no time."""

import pytest

from tests.mutants import HOUSE, MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_finds_its_guard_once_and_its_tests(mutant: Mutant) -> None:
    assert (HOUSE / mutant.file).read_text().count(mutant.guard) == 1
    for test in mutant.tests.split():
        assert (HOUSE / "tests" / test.partition("::")[0]).is_file()
