"""The rules for SQL files, as far as a test can see them."""

import re
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[2]
FILES = sorted((HOUSE / "src" / "holdfast" / "sql" / "functions").rglob("*.sql"))
WIDTH, LINES = 110, 80
# A line that may be longer: a list of numbers.
WIDE = re.compile(r"^  select '\{0\.0001,")
FUNCTION = re.compile(r"create or replace function holdfast\.(\w+)\(.*?\nas \$\$\n(.*?)\n\$\$;", re.DOTALL)


def named(file: Path) -> str:
    return file.stem


@pytest.mark.parametrize("file", FILES, ids=named)
def test_no_line_is_too_long(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    long = [
        f"line {number}: {len(line)} columns"
        for number, line in enumerate(lines, 1)
        if len(line) > WIDTH and not WIDE.match(line)
    ]
    assert long == []


@pytest.mark.parametrize("file", FILES, ids=named)
def test_a_long_body_has_its_reason_above_it(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    long = [
        found[1]
        for found in FUNCTION.finditer(text)
        if found[2].count("\n") + 1 > LINES and "long on purpose" not in text[: found.start()]
    ]
    assert long == [], "split it, or say above it why it is long on purpose"
