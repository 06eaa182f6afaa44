"""Reads the documentation as code: its fenced blocks in order, with what they are said to print.

A `text` block right behind a block is what that block prints; an ellipsis in it stands for anything.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "src/holdfast/sql/README.md", *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    prints: str | None

    def agrees_with(self, printed: str) -> bool:
        """Whether this was said to be printed."""
        if self.prints is None:
            return True
        pattern = ".*?".join(map(re.escape, self.prints.strip().split("…")))
        printed = re.sub(r" +$", "", printed.strip(), flags=re.MULTILINE)
        return re.fullmatch(pattern, printed, re.DOTALL) is not None


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for fence in _FENCE.finditer(text):
        follower = _FENCE.search(text, fence.end())
        follows = follower and follower[1] == "text" and not text[fence.end() : follower.start()].strip()
        if fence[1] in languages:
            yield Block(
                fence[1],
                fence[2],
                text.count("\n", 0, fence.start()) + 2,
                follower[2] if follower and follows else None,
            )


def pages_with(language: str) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in PAGES if any(blocks(page, language))]
