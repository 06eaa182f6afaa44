"""What the documentation shows is what happens."""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

from holdfast import Holdfast, embedded
from holdfast.cli.root import root
from tests.examples.pages import PAGES, ROOT, Block, blocks, pages_with

# Their Python is a test module and runs under pytest, below.
TEST_MODULES = {"docs/guides/testing.md"}
# Their commands are typed as they stand; on other pages they may name files and ids that nobody has.
TYPED = {"docs/tutorial.md", "docs/guides/command-line.md"}
# Their Python is the program app.py, which is run; it declares this many tasks.
PROGRAMS = {"README.md": 1, "docs/tour.md": 2}
# Such a first line names the file that a block is saved as.
FILE = re.compile(r"# (\w+\.py)\n")


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, holdfast_dsn: str) -> Iterator[ModuleType]:
    """The module that the Python of one page is, as if it had been saved as app.py."""
    module = ModuleType("app")
    module.__file__ = str(tmp_path / "app.py")
    monkeypatch.setitem(sys.modules, "app", module)
    monkeypatch.setenv("HOLDFAST_DSN", holdfast_dsn)
    yield module
    for value in vars(module).values():
        if isinstance(value, Holdfast):
            value.close()


def run(block: Block, page: Path, module: ModuleType) -> str:
    # The empty lines make a traceback name the line of the page.
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, vars(module))
    return printed.getvalue()


def type_in(block: Block, directory: Path) -> str:
    """What the commands of a block print, but for those that install something."""
    commands = [line for line in block.text.splitlines() if line.startswith("holdfast ")]
    return type_commands(commands, directory)


def type_commands(commands: list[str], directory: Path) -> str:
    done = subprocess.run(
        ["/bin/sh", "-e", "-c", "\n".join(commands)],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sorted({*pages_with("python"), *TYPED} - TEST_MODULES))
def test_a_page_does_and_prints_what_it_says(name: str, app: ModuleType) -> None:
    directory = Path(str(app.__file__)).parent
    if name in PROGRAMS:
        app.__name__ = "__main__"
    for block in blocks(ROOT / name, "python", *(["sh"] if name in TYPED else [])):
        file = FILE.match(block.text)
        if file:
            with (directory / file[1]).open("a") as source:
                source.write(block.text)
        if block.language == "sh":
            printed = type_in(block, directory)
        elif file and file[1] != "app.py":
            printed = type_commands([f"python {file[1]}"], directory)
        else:
            printed = run(block, ROOT / name, app)
        assert block.agrees_with(printed), f"{name}:{block.line} printed\n{printed}"


def test_the_tutorial_can_be_followed_with_files_alone() -> None:
    """A block that is not saved would need what an earlier one has imported."""
    assert all(FILE.match(block.text) for block in blocks(ROOT / "docs/tutorial.md", "python"))


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_worker_that_imports_a_program_enqueues_nothing(name: str, app: ModuleType, hf: Holdfast) -> None:
    for block in blocks(ROOT / name, "python"):
        if FILE.match(block.text):
            run(block, ROOT / name, app)
    assert hf.jobs.list() == []
    assert len(app.hf.tasks) == PROGRAMS[name]


@pytest.mark.parametrize("name", pages_with("sh"))
def test_the_commands_of_a_page_exist_and_have_those_options(name: str) -> None:
    for block in blocks(ROOT / name, "sh"):
        for line in block.text.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["holdfast"]:
                understand(words[1:], click.Context(root, **root.context_settings), f"{name}:{block.line}")


def understand(words: list[str], context: click.Context, place: str) -> None:
    """Parse a command line as click would, but run nothing."""
    command = context.command
    if isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found, f"{place}: there is no command {words[0]}"
        understand(words[1:], click.Context(found, parent=context, **found.context_settings), place)
    elif words[-2:-1] != [">"]:
        command.make_context(command.name, words, parent=context.parent)
    else:
        command.make_context(command.name, words[:-2], parent=context.parent)


@pytest.mark.parametrize("name", sorted(TEST_MODULES))
def test_the_tests_that_a_page_shows_pass(name: str, tmp_path: Path, holdfast_server: str) -> None:
    (tmp_path / "test_page.py").write_text("\n".join(block.text for block in blocks(ROOT / name, "python")))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", tmp_path],
        env={**os.environ, "HOLDFAST_TEST_DSN": holdfast_server},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_app_of_the_readme_is_tested_as_the_guide_says(tmp_path: Path, holdfast_server: str) -> None:
    guide = ROOT / "docs/guides/testing.md"
    (settings,) = blocks(guide, "toml")
    (tmp_path / "pyproject.toml").write_text(settings.text)
    (tmp_path / "app.py").write_text(next(blocks(ROOT / "README.md", "python")).text)
    for block in blocks(guide, "text"):
        if file := FILE.match(block.text):
            (tmp_path / file[1]).write_text(block.text)
    done = subprocess.run(
        [Path(sys.executable).parent / "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"],
        env={**os.environ, "HOLDFAST_TEST_DSN": holdfast_server},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("name", pages_with("sql"))
def test_the_sql_of_a_page_runs_in_psql(
    name: str, tmp_path: Path, holdfast_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_PG_BIN", raising=False)  # some bring a server but no psql
    psql = shutil.which("psql", path=os.fspath(embedded.find_binaries())) or shutil.which("psql")
    assert psql, "there is no psql to try the page with"
    script = tmp_path / "page.sql"
    script.write_text("\n".join(block.text for block in blocks(ROOT / name, "sql")))
    done = subprocess.run(
        [psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", holdfast_dsn, "-f", script],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        linked = (page.parent / place).resolve() if place else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_reached_from_the_index_or_the_readme(page: Path) -> None:
    index = ROOT / "docs" / "index.md"
    if page in {index, ROOT / "README.md"}:
        return
    linked = {
        (source.parent / target.partition("#")[0]).resolve()
        for source in (index, ROOT / "README.md", ROOT / "CONTRIBUTING.md")
        for target in re.findall(r"\]\(([^)\s]+)\)", source.read_text(encoding="utf-8"))
    }
    assert page in linked
