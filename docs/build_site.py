"""Build the documentation site, and fail on any dead link.

    .venv/bin/python docs/build_site.py [--into build]

The pages are first copied to build/pages, together with every file outside docs/ that they link to:
Markdown as pages, source code as pages that show it, anything else as it is. The navigation is read from
docs/index.md. Zensical then checks each link and anchor and renders the pages.
"""
# ruff: noqa: INP001 - a script beside the pages, not a package

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import zensical

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = DOCS / "site"  # settings, style sheet and logo

LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s]+)(?=[)\s])")
ELSEWHERE = re.compile(r"[a-z]+:")
ENTRY = re.compile(r"- \[(?P<title>.+?)\]\((?P<target>[^)\s]+)\)")
HOME = "---\nhide:\n  - navigation\n  - path\n---\n"  # it lists all pages itself
LANGUAGES = {".py": "python", ".sql": "sql", ".toml": "toml", ".ini": "ini", ".sh": "sh", "": "text"}


class DeadLinkError(Exception):
    """A page links to a file that does not exist."""


def place(file: Path) -> Path:
    """Return where a file of the repository belongs on the site."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS)
    path = file.relative_to(ROOT)
    if path == Path("README.md"):
        return Path("readme/index.md")  # the home page is docs/index.md
    if file.is_dir():
        return path / "index.md"
    return path.with_name(f"{path.name}.md") if file.suffix in LANGUAGES else path


def stage(pages: Path) -> None:
    """Copy the pages, and whatever they link to, into the folder `pages`."""
    waiting = sorted(DOCS.rglob("*.md"))
    known = set(waiting)
    for file in waiting:  # grows while it is read
        text, linked = page(file)
        target = pages / place(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            shutil.copyfile(file, target)
        else:
            target.write_text(text, encoding="utf-8")
        waiting += sorted(linked - known)
        known |= linked
    shutil.copytree(SITE, pages / "assets", ignore=shutil.ignore_patterns("*.toml"))


def page(file: Path) -> tuple[str | None, set[Path]]:
    """Return the text that the site shows for a file, if it is text, and the files that the text links to."""
    if file.is_dir():
        return folder_page(file)
    if file.suffix == ".md":
        text, linked = relinked(file, file.read_text(encoding="utf-8"))
        return (HOME + text if file == DOCS / "index.md" else text), linked
    return (source_page(file) if file.suffix in LANGUAGES else None), set()


def relinked(file: Path, text: str) -> tuple[str, set[Path]]:
    """Point the links of a page at the places that their targets have on the site."""
    linked: set[Path] = set()
    lines = text.split("\n")
    for number, line in prose(lines):
        lines[number] = LINK.sub(partial(moved, file, number + 1, linked.add), line)
    return "\n".join(lines), linked


def prose(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Number the lines that are not inside a fenced block."""
    fenced = False
    for number, line in enumerate(lines):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def moved(file: Path, line: int, note: Callable[[Path], None], link: re.Match[str]) -> str:
    target, hash_sign, anchor = link["target"].partition("#")
    if not target or ELSEWHERE.match(target):
        return link["target"]
    linked = (file.parent / target).resolve()
    if not linked.exists():
        raise DeadLinkError(f"{file.relative_to(ROOT)}:{line}: {target} does not exist")
    note(linked)
    return os.path.relpath(place(linked), place(file).parent) + hash_sign + anchor


def folder_page(folder: Path) -> tuple[str, set[Path]]:
    """List the programs in a folder, each with the first line of its docstring."""
    programs = sorted(folder.glob("*.py"))
    entries = "\n".join(f"- [{program.name}]({program.name}): {first_line(program)}" for program in programs)
    text, linked = relinked(folder / "index.md", f"# {folder.name.capitalize()}\n\n{entries}\n")
    return text, linked


def first_line(program: Path) -> str:
    return program.read_text(encoding="utf-8").removeprefix('"""').split("\n", 1)[0].strip('"')


def source_page(file: Path) -> str:
    language = LANGUAGES[file.suffix]
    text = file.read_text(encoding="utf-8").strip("\n")
    fence = "````" if "```" in text else "```"
    # A search for a word should find the page that explains it, not the code that uses it.
    return f"---\nsearch:\n  exclude: true\n---\n# {file.name}\n\n{fence}{language}\n{text}\n{fence}\n"


def navigation(index: str) -> list[object]:
    """Read the navigation from the headings and lists of docs/index.md."""
    sections: list[object] = [{"Home": "index.md"}]
    current: list[object] = sections
    section: list[object] = sections
    for line in index.splitlines():
        if line.startswith("## "):
            section = current = []
            sections.append({line[3:]: section})
        elif line.startswith("### "):
            current = []
            section.append({line[4:]: current})
        elif entry := ENTRY.match(line):
            current.append({entry["title"].replace("`", ""): entry["target"].partition("#")[0]})
    return sections


def toml(value: object) -> str:
    match value:
        case dict():
            return "{ " + ", ".join(f"{json.dumps(key)} = {toml(it)}" for key, it in value.items()) + " }"
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case _:
            return json.dumps(value)


def configure(folder: Path) -> Path:
    """Write Zensical's configuration: the settings in docs/site/ and the navigation."""
    settings = (SITE / "zensical.toml").read_text(encoding="utf-8")
    index = (folder / "pages" / "index.md").read_text(encoding="utf-8")
    file = folder / "zensical.toml"
    file.write_text(
        settings.replace("[project]\n", f"[project]\nnav = {toml(navigation(index))}\n", 1), encoding="utf-8"
    )
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the documentation site, and fail on any dead link.")
    parser.add_argument("--into", type=Path, default=ROOT / "build", help="the site is its subfolder `site`")
    folder = parser.parse_args().into.resolve()
    shutil.rmtree(folder / "pages", ignore_errors=True)
    try:
        stage(folder / "pages")
        zensical.build(str(configure(folder)), {"strict": True, "clean": False})
    except (DeadLinkError, RuntimeError) as error:
        sys.exit(f"The documentation site was not built: {error}")


if __name__ == "__main__":
    main()
