"""The rules that keep the house straight, as far as a test can see them."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HOUSE = Path(__file__).parents[2]
SOURCE = HOUSE / "src" / "holdfast"

STATEMENT = re.compile(
    r"^\s*(select\b.+\bfrom\b|select\s+\w+\.|insert\s+into\b|update\s+\w+\.?\w*\s+set\b|delete\s+from\b"
    r"|(create|alter|drop)\s+(table|function|database|index|view|role)\b|listen\s|notify\s)",
    re.IGNORECASE | re.DOTALL,
)
# Where a statement may stand: the database layer, the installer, and what makes servers and test databases.
WHERE_SQL_MAY_STAND = ("database/", "schema/", "embedded/", "testing/")


def _texts(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_no_sql_statement_stands_outside_the_database_layer() -> None:
    found = [
        f"{file.relative_to(SOURCE)}: {text[:80]}"
        for file in SOURCE.rglob("*.py")
        if not str(file.relative_to(SOURCE)).startswith(WHERE_SQL_MAY_STAND)
        for text in _texts(file)
        if STATEMENT.search(text)
    ]
    assert found == []


def test_the_search_for_statements_finds_them_where_they_are() -> None:
    assert any(STATEMENT.search(text) for text in _texts(SOURCE / "database" / "session.py"))


def test_importing_holdfast_loads_neither_the_command_line_nor_a_web_server() -> None:
    code = "import sys, holdfast; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    strangers = {
        "click",
        "rich",
        "starlette",
        "uvicorn",
        "jinja2",
        "pytest",
        "holdfast.cli",
        "holdfast.testing",
    }
    assert strangers.isdisjoint(loaded)


def test_holdfast_can_be_imported_without_the_modules_that_windows_lacks() -> None:
    code = "import sys; sys.modules |= dict.fromkeys(['fcntl', 'grp', 'pwd', 'resource', 'termios'])"
    for module in ("holdfast", "holdfast.cli", "holdfast.embedded"):
        subprocess.run([sys.executable, "-c", f"{code}; import {module}"], check=True)


def test_nothing_names_this_machine_or_a_registry() -> None:
    private = re.compile(r"(^|[^\w.])/(root|work)/|--(extra-)?index-url")
    files = [
        *(
            file for file in HOUSE.iterdir() if file.is_file() and file.name != ".git"
        ),  # a worktree has a file there
        *(
            file
            for part in ("src", "tests", "docs", "bench", "examples")
            for file in (HOUSE / part).rglob("*")
        ),
    ]
    texts = {
        str(file.relative_to(HOUSE)): file.read_text(errors="replace")
        for file in files
        if file.suffix in {".py", ".sql", ".md", ".toml", ".txt", ".sh", ""}
        and not {".envs", "__pycache__"} & set(file.parts)
        and file.is_file()
    }
    del texts["tests/house/test_house.py"]
    assert [name for name, text in texts.items() if private.search(text)] == []
