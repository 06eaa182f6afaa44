"""Messages name a guide by its title: the reader may have the site or the wheel, but not the folder docs/."""

import re
from collections.abc import Iterator
from pathlib import Path

HOUSE = Path(__file__).parents[2]
SOURCE = HOUSE / "src" / "holdfast"


def sources() -> Iterator[tuple[str, str]]:
    for file in sorted([*SOURCE.rglob("*.py"), *SOURCE.rglob("*.sql")]):
        yield str(file.relative_to(SOURCE)), file.read_text(encoding="utf-8")


def test_no_source_names_a_file_of_the_documentation() -> None:
    assert [name for name, text in sources() if re.search(r"\bdocs/\w", text)] == []


def test_every_guide_that_a_message_names_exists() -> None:
    index = (HOUSE / "docs" / "index.md").read_text(encoding="utf-8")
    titles = {title.partition(":")[0] for title in re.findall(r"^- \[(.+?)\]\(", index, re.MULTILINE)}
    named = {title for _, text in sources() for title in re.findall(r'The guide "(.+?)"', text)}
    assert named
    assert named <= titles
