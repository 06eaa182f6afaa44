"""The generated pages of the reference say what the code says."""

import runpy
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.examples.pages import ROOT

ADVICE = "Run make reference"


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "generate_reference.py"))


@pytest.fixture
def installed(holdfast_server: str) -> Iterator[psycopg.Connection[Any]]:
    """A database with the schema as it is installed; the tests' own has another clock."""
    from holdfast import schema

    with psycopg.connect(holdfast_server, autocommit=True) as server:
        server.execute("create database holdfast_reference")
        try:
            with psycopg.connect(holdfast_server, dbname="holdfast_reference", autocommit=True) as connection:
                schema.apply(connection)
                yield connection
        finally:
            server.execute("drop database holdfast_reference with (force)")


def test_the_page_of_sql_functions_is_up_to_date(
    generator: dict[str, Any], installed: psycopg.Connection[Any]
) -> None:
    assert (ROOT / "docs/reference/sql.md").read_text() == generator["sql_page"](installed), ADVICE


def test_the_page_of_commands_is_up_to_date(generator: dict[str, Any]) -> None:
    assert (ROOT / "docs/reference/cli.md").read_text() == generator["cli_page"](), ADVICE


def test_the_page_of_python_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "generate_python_reference.py"))
    assert (ROOT / "docs/reference/python.md").read_text() == script["page"](), ADVICE


def test_every_public_name_of_python_is_on_the_page() -> None:
    import holdfast

    page = (ROOT / "docs/reference/python.md").read_text()
    assert [name for name in holdfast.__all__ if f"`{name}`" not in page and f"# {name}\n" not in page] == []


def test_every_function_that_python_calls_has_its_place_on_the_page(generator: dict[str, Any]) -> None:
    from holdfast.values import call

    placed = {name for names in generator["groups"]().values() for name in names}
    assert call.FUNCTIONS.keys() <= placed
