"""Keep the prose plain: few sentences may read as archaic or translated.

`python tests/house/test_prose.py [paths]` prints the marked sentences with their file and line.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[2]

# The share of marked sentences, in percent, that every part should reach.
TARGET = 2.0
# The share that a part may have today. Lower a figure when its part has become better; never raise one.
CEILINGS = {
    "src": TARGET,
    "sql": TARGET,
    "docs": TARGET,
    "readme": TARGET,
    "changelog": TARGET,
}
GENERATED = ("sql.md", "cli.md", "python.md")
# The last migration of a release: this one and all before it, and bootstrap.sql, are never edited.
LAST_RELEASED = "0026"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A phrase to avoid, with a sentence that has it and one that says the same plainly."""

    name: str
    matches: re.Pattern[str]
    bad: str
    good: str
    only: str | None = None  # a kind of sentence; None is every kind


@dataclass(frozen=True, slots=True)
class Sentence:
    text: str
    line: int
    kind: str  # docstring: the first of one; fragment: a heading or a table cell; text


def _pattern(name: str, expression: str, *, bad: str, good: str, only: str | None = None) -> Pattern:
    return Pattern(name, re.compile(expression, re.IGNORECASE), bad, good, only)


PATTERNS = (
    _pattern(
        "free subject",
        r"(?:^|; (?:and |but |or )?)(?:who|whom|whose|what|whatever|whether)\b(?!.*[?:]$)"
        r"|: (?:who|whatever)\b",
        bad="Who follows events misses none.",
        good="A follower sees every event exactly once.",
        only="text",
    ),
    _pattern(
        "free object",
        r"(?<!depends )\b(?:of|from|by|behind|beside|past|with|on|than|but|because|if)"
        r" (?:who|what) (?:is|was|are|has|had|have|goes|comes|came|went|does|did|may|must|can|waits|needs)\b"
        r"|\b(?:whoever|whomever|whosoever|that which|those alone)\b",
        bad="An index of what is pending.",
        good="An index of the pending jobs.",
    ),
    _pattern(
        "docstring without a verb",
        r"^(?:what|how|whether|who|whom|whose|where|why|when|which)\b",
        bad="What a worker holds.",
        good="Return the jobs that a worker holds.",
        only="docstring",
    ),
    _pattern(
        "archaic word",
        r"\b(?:anew|at hand|for ever|hence|thereby|whereby|therein|thereof|thereupon|whence|thence|lest"
        r"|hitherto|forthwith|heretofore|naught|betimes|albeit|upon|of (?:ours|theirs))\b"
        r"|^(?!.*\bneither\b).*\bnor\b",
        bad="A lost worker registers anew.",
        good="A lost worker registers again.",
    ),
    _pattern(
        "so many",
        r"\bso (?:many|much|long|few|little|lately)\b(?! (?:more|less)\b)(?!.*\b(?:that|as)\b)",
        bad="A job is dead after so many attempts.",
        good="A job is dead after that number of attempts.",
    ),
    _pattern(
        "call off",
        r"\bcall(?:s|ed|ing)? (?:\w+ )?off\b",
        bad="A job can be called off while it waits.",
        good="A job can be cancelled while it waits.",
    ),
    _pattern(
        "also for even",
        r"(?:^|[,;:(] )also (?:if|when|where|while|after|before|not|though|without|with|in|on|for|at|by"
        r"|those|what|from)\b",
        bad="It is never claimed, also if the maximum was lowered.",
        good="It is never claimed, even if the maximum was lowered.",
    ),
    _pattern(
        "in the place of",
        r"\bin the place of\b|\bin (?:\w+ )?stead\b",
        bad="It writes an error in the place of the result.",
        good="It writes an error instead of the result.",
    ),
    _pattern(
        "else for otherwise",
        r"(?:^|[,;:(] (?:and )?)else\b",
        bad="It uses the DSN, else the environment.",
        good="It uses the DSN; otherwise the environment.",
    ),
    _pattern(
        "mood of a machine",
        r"\b(?:hungry|hunger|nap|naps|napping|farewell|last words|bites?|newborn|weary|tired|happy|happily"
        r"|patient|patience|polite(?:ly)?|mourns?|obeys?|strangers?|greets?|greeting|pays for|who pays"
        r"|being somebody|somebody (?:else )?(?:holds?|has|had|is|reads|waits|may|must)"
        r"|nobody (?:else|is|was|knows|wait(?:s|ed)|look(?:s|ed)|listen(?:s|ed)|holds|asks|sleeps))\b",
        bad="A hungry worker takes a nap.",
        good="An idle worker polls once a second.",
    ),
    _pattern(
        "passive of saying",
        r"\b(?:is|are|was|were|be|been) (?:said|told(?! apart)|found out|heard of|had|spoken of)\b",
        bad="How a call is to run is said by its options.",
        good="Set options to change how a call runs.",
    ),
    _pattern(
        "inverted condition",
        r"(?:^|[;:] )(?:should|were|had) (?:a|an|the|all|it|they|this|that|these|those|one)\b(?!.*\?$)",
        bad="Were the worker to report now, it would fail.",
        good="If the worker reported now, it would fail.",
    ),
    _pattern(
        "translated turn",
        r"(?<=[\w,] )but for\b|\bby \S+ ?%? (?:sooner|faster|slower)\b|\bnot so (?:in|if|with|for|when)\b"
        r"|\b(?:for|of|by) (?:those|it|itself|them|who) alone\b|\bas well be\b|\bis to be (?:had|found)\b"
        r"|\bwhat (?:becomes|became) of\b|\bgo(?:es)? before\b",
        bad="Nothing is stored but for the lane.",
        good="Only the lane is stored.",
    ),
)


def marks(sentence: Sentence) -> list[str]:
    """Return the names of the patterns that the sentence matches."""
    return [
        pattern.name
        for pattern in PATTERNS
        if (pattern.only is None or _is(sentence.kind, pattern.only))
        and pattern.matches.search(sentence.text)
    ]


def _is(kind: str, wanted: str) -> bool:
    # A free subject reads just as badly at the start of a docstring.
    return kind == wanted or (kind == "docstring" and wanted == "text")


# --- Sentences out of files ----------------------------------------------------------------------

_CODE = re.compile(r"``.*?``|`[^`]*`", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)", re.DOTALL)
_END = re.compile(r"(?<=[.!?])[)\"'*_]*\s+(?=[\"'(*_`A-Z0-9])")
_DRAWING = re.compile(r"[─│┌┐└┘├┤┬┴┼═►◄▲▼▸]")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|vs|cf)\.$")


def sentences(paragraph: str, line: int, kind: str) -> Iterator[Sentence]:
    """Split a paragraph; code becomes the word `code`, so that nothing in it is read as English."""
    text = _CODE.sub(lambda code: "`code`" + "\n" * code[0].count("\n"), paragraph)
    text = _LINK.sub(lambda link: link[1] + "\n" * link[0].count("\n", link[0].find("]")), text)
    start = 0
    ends = [end for end in _END.finditer(text) if not _ABBREVIATION.search(text[: end.start()])]
    for stop in (*(end.end() for end in ends), len(text)):
        words = re.sub(r"[*_]{2}|(?<!\w)[*_]|[*_](?!\w)", "", " ".join(text[start:stop].split()))
        if len(re.findall(r"[A-Za-z]+", words)) > 1:
            yield Sentence(words, line + text.count("\n", 0, start), kind)
            kind = "text" if kind == "docstring" else kind
        start = stop


def of_markdown(text: str, line: int = 1) -> Iterator[Sentence]:
    """Read paragraphs, list items, headings and the cells of tables; leave out fenced code and drawings."""
    text = re.sub(
        r"^ *```.*?^ *```$", lambda c: "\n" * c[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE
    )
    block: list[str] = []
    first = line
    for number, row in enumerate([*text.split("\n"), ""], line):
        item = re.match(r"\s*(?:[-*+]|\d+\.)\s+|\s*>\s?", row)
        heading = re.match(r"#+ ", row)
        table = row.lstrip().startswith("|")
        drawing = _DRAWING.search(row)
        if block and (not row.strip() or item or heading or table or drawing):
            yield from sentences("\n".join(block), first, "text")
            block = []
        if heading:
            yield from sentences(row[heading.end() :], number, "fragment")
        elif table:
            for cell in re.split(r"(?<!\\)\|", row):
                yield from sentences(cell, number, "text" if cell.rstrip().endswith(".") else "fragment")
        elif row.strip() and not drawing:
            if not block:
                first = number
            block.append(row[item.end() :] if item else row)


def of_python(source: str) -> Iterator[Sentence]:
    """Read docstrings and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield from _as_docstring(of_markdown(text, node.body[0].lineno))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [
        (token.start[0], token.start[1], token.string.lstrip("#").strip())
        for token in tokens
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(?:noqa|type:|fmt:|pragma|!)", token.string)
    ]
    yield from _of_comments(comments)


def of_sql(source: str) -> Iterator[Sentence]:
    """Read comments, and the texts of `comment on`."""
    comments = [
        (number, found.start(), found[1].strip())
        for number, row in enumerate(source.split("\n"), 1)
        if (found := re.search(r"--(?! holdfast:)(?=[^']*(?:'[^']*'[^']*)*$)\s?(.*)$", row))
    ]
    yield from _of_comments(comments)
    for found in re.finditer(r"\bcomment on [^;']*? is\s+((?:e?'(?:[^']|'')*'\s*)+)", source, re.IGNORECASE):
        text = re.sub(r"'\s*\n\s*e?'", "\n", found[1].strip()).strip("'").replace("''", "'")
        line = source.count("\n", 0, found.start(1)) + 1
        kind = "docstring" if re.match(r"comment on function", found[0], re.IGNORECASE) else "text"
        yield from sentences(text, line, kind)


def _of_comments(comments: Iterable[tuple[int, int, str]]) -> Iterator[Sentence]:
    """Join comments on successive lines of one indentation into paragraphs."""
    block: list[str] = []
    first, last = 0, (0, 0)
    for line, column, text in [*comments, (0, 0, "")]:
        if block and ((line, column) != (last[0] + 1, last[1]) or not text):
            yield from of_markdown("\n".join(block), first)
            block = []
        if text:
            if not block:
                first = line
            block.append(text)
        last = (line, column)


def _as_docstring(found: Iterable[Sentence]) -> Iterator[Sentence]:
    for place, sentence in enumerate(found):
        yield sentence if place else Sentence(sentence.text, sentence.line, "docstring")


READERS: dict[str, Callable[[str], Iterator[Sentence]]] = {
    ".md": of_markdown,
    ".py": of_python,
    ".sql": of_sql,
}


def files_of(part: str) -> list[Path]:
    """Return the files of one part of the project."""
    source, docs = HOUSE / "src" / "holdfast", HOUSE / "docs"
    return {
        "src": sorted(source.rglob("*.py")),
        "sql": [
            file
            for file in sorted(source.rglob("*.sql"))
            if file.stem != "bootstrap" and not "0001" <= file.stem[:4] <= LAST_RELEASED
        ],
        "docs": [
            # The pages made from SQL comments, docstrings and help texts are measured where they come from.
            *sorted(set(docs.rglob("*.md")) - {docs / "reference" / name for name in GENERATED}),
            source / "sql" / "README.md",
            *sorted((HOUSE / "examples").rglob("*.py")),
            HOUSE / "CONTRIBUTING.md",
            HOUSE / "SECURITY.md",
            HOUSE / "bench" / "README.md",
        ],
        "readme": [HOUSE / "README.md"],
        "changelog": [HOUSE / "CHANGELOG.md"],
    }[part]


def read(file: Path) -> list[Sentence]:
    return list(READERS[file.suffix](file.read_text(encoding="utf-8")))


def marked(file: Path) -> Iterator[str]:
    for sentence in sorted(read(file), key=lambda sentence: sentence.line):
        names = marks(sentence)
        if names:
            yield f"{file}:{sentence.line}: [{', '.join(names)}] {sentence.text}"


# --- The tests -----------------------------------------------------------------------------------


@pytest.mark.parametrize("part", CEILINGS)
def test_a_part_is_written_in_plain_english(part: str) -> None:
    found = [sentence for file in files_of(part) for sentence in read(file)]
    share = 100 * sum(bool(marks(sentence)) for sentence in found) / len(found)
    assert share <= CEILINGS[part], "run: python tests/house/test_prose.py"


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_a_pattern_marks_a_bad_sentence_and_spares_a_good_one(pattern: Pattern) -> None:
    kind = pattern.only or "text"
    assert pattern.name in marks(Sentence(pattern.bad, 1, kind))
    assert marks(Sentence(pattern.good, 1, kind)) == []


def test_sentences_are_found_with_their_lines() -> None:
    page = (
        "# A *title*\n\nOne `a. B`\nsentence. And\nanother one.\n\n"
        "```sh\nWho is code.\n```\n- an item, [linked](x.md)\n"
    )
    assert [(sentence.line, sentence.text) for sentence in of_markdown(page)] == [
        (1, "A title"),
        (3, "One `code` sentence."),
        (4, "And another one."),
        (10, "an item, linked"),
    ]
    module = (
        '"""Return one thing.\n\nMore of it.\n"""\nx = 1  # a trailing note\n# a comment\n# on two lines\n'
    )
    assert [(sentence.line, sentence.text, sentence.kind) for sentence in of_python(module)] == [
        (1, "Return one thing.", "docstring"),
        (3, "More of it.", "text"),
        (5, "a trailing note", "text"),
        (6, "a comment on two lines", "text"),
    ]
    script = (
        "-- A comment\n-- on two lines.\nselect '-- none';\n"
        "comment on function f() is\n'Return it''s\n'\n'value.';\n"
    )
    assert [(sentence.line, sentence.text, sentence.kind) for sentence in of_sql(script)] == [
        (1, "A comment on two lines.", "text"),
        (5, "Return it's value.", "docstring"),
    ]


def main(arguments: list[str]) -> None:
    out = sys.stdout.write
    if arguments:
        paths = [Path(argument) for argument in arguments]
        files = [[path] if path.is_file() else sorted(path.rglob("*")) for path in paths]
        for file in (file for found in files for file in found if file.suffix in READERS):
            out("".join(f"{line}\n" for line in marked(file)))
        return
    for part in CEILINGS:
        found = [sentence for file in files_of(part) for sentence in read(file)]
        count = sum(bool(marks(sentence)) for sentence in found)
        for file in files_of(part):
            out("".join(f"{line}\n" for line in marked(file)))
        out(f"{part}: {count} of {len(found)} sentences, {100 * count / len(found):.1f} %\n")


if __name__ == "__main__":
    main(sys.argv[1:])
