"""Who may do what: root's server runs as an ordinary user, and nobody else gets in."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import embedded
from tests.embedded.watching import QUICK, ask, postmaster

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root steps down to another user")

NOBODY: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []}


@as_root
def test_roots_server_runs_as_an_ordinary_user(new_home: Path, server_user: dict[str, Any]) -> None:
    with embedded.start(new_home, settings=QUICK) as server:
        assert Path(f"/proc/{postmaster(new_home)}").stat().st_uid == server_user["user"]
        assert ask(server.dsn, "select current_user") == "postgres"
        assert new_home.stat().st_uid == 0, "the server's user could plant links where root writes"
        for private in ("data", "socket"):
            assert (new_home / private).stat().st_uid == server_user["user"]


@as_root
def test_a_cluster_begun_as_one_user_stays_with_it(new_home: Path) -> None:
    embedded.start(new_home, settings=QUICK).stop()
    for path in (new_home / "data", *(new_home / "data").rglob("*")):
        os.chown(path, 65534, 65534)
    with embedded.start(new_home, settings=QUICK) as server:
        assert Path(f"/proc/{postmaster(new_home)}").stat().st_uid == 65534
        assert ask(server.dsn, "select 1") == 1


@as_root
def test_binaries_that_the_servers_user_cannot_read_are_copied_once(home: Path, place: Path) -> None:
    site = embedded.find_binaries().parents[2]
    private = place / "private"
    private.mkdir(mode=0o700)
    (private / "site").symlink_to(site)
    hidden = private / "site" / embedded.find_binaries().relative_to(site)
    copies = []
    for _ in range(2):
        with embedded.start(home, bin_directory=hidden, settings=QUICK):
            # Not its exe link: root in a container may not look there.
            running = Path(Path(f"/proc/{postmaster(home)}/cmdline").read_text().split("\0")[0])
            assert running.is_relative_to(home / "binaries")
            copies.append((running, running.stat().st_ino))
    assert copies[0] == copies[1]


def test_an_ordinary_user_runs_its_own_server(new_home: Path) -> None:
    script = """if True:
        import os, psycopg
        from holdfast import embedded
        from holdfast.embedded.home import Home
        from holdfast.embedded.server import _listener
        with embedded.start(settings={"fsync": "off"}) as server:
            home = server.data_directory.parent
            assert str(home.parent) == os.environ["XDG_DATA_HOME"] + "/holdfast/projects", home
            assert os.stat(f"/proc/{_listener(Home(home))}").st_uid == os.getuid() != 0
            for private in (home, home / "data", home / "socket"):
                assert private.stat().st_mode & 0o777 == 0o700, private
            with psycopg.connect(server.dsn) as connection:
                print(*connection.execute("select 'hello from ' || current_database()").fetchone())
        assert not _listener(Home(home))
    """
    new_home.mkdir()
    python, environment = [sys.executable], dict(os.environ)
    who: dict[str, Any] = {}
    if os.geteuid() == 0:
        python, environment, who = *an_interpreter_for_nobody(), NOBODY
        os.chown(new_home, 65534, 65534)
    environment.pop("HOLDFAST_HOME", None)
    result = subprocess.run(
        [*python, "-c", script],
        env=environment | {"XDG_DATA_HOME": str(new_home)},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        **who,
    )
    assert (result.stdout, result.stderr) == ("hello from holdfast\n", "")


def an_interpreter_for_nobody() -> tuple[list[str], dict[str, str]]:
    """Ours may be in root's own directory; then another of the same version, with our packages."""
    packages = [sysconfig.get_path("purelib"), str(Path(holdfast.__file__).parents[1])]
    environment = {
        "PYTHONPATH": ":".join(packages),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": os.environ["PATH"],
    }
    same = f"import sys, psycopg, holdfast.embedded; assert sys.version_info[:2] == {sys.version_info[:2]}"
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}", "/usr/local/bin/python3"):
        try:
            subprocess.run(
                [python, "-c", same], env=environment, cwd="/", check=True, capture_output=True, **NOBODY
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return [python], environment
    pytest.skip("root found no interpreter that nobody can run; run the tests as an ordinary user as well")


def test_nobody_else_can_connect(home: Path) -> None:
    with embedded.start(home, settings=QUICK) as server:
        assert ask(server.dsn, "show listen_addresses") == ""
        assert (home / "socket").stat().st_mode & 0o077 == 0
        assert (home / "server.log").stat().st_mode & 0o077 == 0


def test_the_servers_processes_do_not_see_our_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRIPE_SECRET", "sk_live_1")
    with embedded.start(home, settings=QUICK):
        assert b"sk_live_1" not in Path(f"/proc/{postmaster(home)}/environ").read_bytes()


def test_variables_meant_for_another_server_do_not_mislead(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PGPORT": "1",
        "PGDATA": "/nowhere",
        "PGHOST": "/nowhere",
        "PGUSER": "someone",
    }.items():
        monkeypatch.setenv(name, value)
    with embedded.start(home, settings=QUICK) as server:
        assert ask(server.dsn, "select current_user") == "postgres"


def test_settings_reach_the_server_but_cannot_open_it_to_the_network(home: Path) -> None:
    settings = {**QUICK, "max_prepared_transactions": "7", "listen_addresses": "*"}
    with embedded.start(home, settings=settings) as server:
        assert ask(server.dsn, "show max_prepared_transactions") == "7"
        assert ask(server.dsn, "show listen_addresses") == ""
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.dsn, host="127.0.0.1", port=5432).close()


def test_the_home_is_where_the_environment_says(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(home))
    with embedded.start(settings=QUICK) as server:
        assert server.data_directory == home / "data"
