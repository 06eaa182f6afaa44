"""The plugin that pytest loads for everybody who has Holdfast installed."""

import re
import subprocess
import sys
from pathlib import Path


def _loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_it_loads_nothing_that_holdfast_does_not() -> None:
    more = _loaded("import pytest, holdfast.testing") - _loaded("import pytest, holdfast")
    assert {name for name in more if not name.startswith("holdfast.testing")} == set()


def test_its_fixtures_are_those_that_the_guide_names(tmp_path: Path) -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--fixtures", "-q", "-p", "no:cacheprovider", tmp_path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    ours = listed.partition("fixtures defined from holdfast.testing")[2]
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "testing.md").read_text()
    named = re.findall(r"^\| `(\w+)` \|", guide, re.MULTILINE)
    assert {"hf", "clock", "drain", "assert_enqueued", "inline", "crash"} <= set(named)
    for name in (*named, "adrain", "aassert_enqueued", "arefute_enqueued"):
        assert f"\n{name} " in ours, name
