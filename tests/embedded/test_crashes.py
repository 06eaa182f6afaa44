"""kill -9 on either side, at any moment, and what it leaves lying about."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import embedded
from holdfast.embedded import launch
from holdfast.embedded.home import Home, is_held
from tests.embedded.watching import QUICK, Sharer, ask, end_server, postmaster, wait_until


def test_a_killed_server_comes_back_with_its_data(home: Path) -> None:
    with embedded.start(home) as server:
        ask(server.dsn, "drop table if exists kept; create table kept as select 42 as answer")
        pid = postmaster(home)
        end_server(home, signal.SIGKILL)
        with embedded.start(home) as again:
            assert postmaster(home) not in (0, pid)
            assert ask(again.dsn, "select answer from kept") == 42
        assert postmaster(home), "the first user is still in"
        assert ask(server.dsn, "select answer from kept") == 42
    assert not postmaster(home)


def test_a_start_waits_for_the_last_process_of_a_killed_server(home: Path) -> None:
    # A busy backend does not notice at once that its server is gone, and still writes to its memory.
    busy = (
        "do $$ begin while clock_timestamp() < statement_timestamp() + interval '0.5 s' loop end loop; end $$"
    )
    with embedded.start(home, settings=QUICK) as server:
        connection = psycopg.connect(server.dsn, autocommit=True)
        backend = connection.info.backend_pid
        thread = threading.Thread(target=connection.execute, args=[busy])
        thread.start()
        state = f"select count(*) from pg_stat_activity where pid = {backend} and state = 'active'"
        wait_until(lambda: ask(server.dsn, state) == 1)
        os.kill(postmaster(home), signal.SIGKILL)
        wait_until(lambda: not postmaster(home))
        with embedded.start(home, settings=QUICK) as again:
            assert str(backend) not in launch._servers_in(home / "data")
            assert ask(again.dsn, "select 1") == 1
        thread.join()
        connection.close()


def test_a_stale_pid_file_never_hurts_who_has_that_pid_now(home: Path, server_user: dict[str, Any]) -> None:
    with embedded.start(home, settings=QUICK) as server:
        ask(server.dsn, "drop table if exists kept; create table kept as select 42 as answer")
        end_server(home, signal.SIGKILL)
        # Of the server's own user, or PostgreSQL itself would see through it.
        someone = subprocess.Popen(["sleep", "1000"], cwd="/", **server_user)
        try:
            for stale in (home / "data/postmaster.pid", home / "socket/.s.PGSQL.5432.lock"):
                lines = stale.read_text().splitlines(keepends=True)
                stale.write_text("".join([f"{someone.pid}\n", *lines[1:]]))
            with embedded.start(home, settings=QUICK) as again:
                assert ask(again.dsn, "select answer from kept") == 42
            server.stop()
            assert not postmaster(home)
            assert someone.poll() is None
        finally:
            someone.kill()
            someone.wait()


@pytest.mark.parametrize("content", ["", "rubbish\n", "99"], ids=["empty", "rubbish", "cut"])
def test_a_damaged_pid_file_is_no_obstacle(home: Path, content: str) -> None:
    with embedded.start(home, settings=QUICK):
        end_server(home, signal.SIGKILL)
        (home / "data/postmaster.pid").write_text(content)
        (home / "socket/.s.PGSQL.5432.lock").write_text(content)
        with embedded.start(home, settings=QUICK) as server:
            assert ask(server.dsn, "select 1") == 1


def test_a_damaged_pid_file_of_a_running_server_misleads_nobody(home: Path) -> None:
    with embedded.start(home, settings=QUICK):
        pid = postmaster(home)
        (home / "data/postmaster.pid").write_text(f"{os.getpid()}\n")
        with embedded.start(home, settings=QUICK) as server:
            assert ask(server.dsn, "select 1") == 1
            assert postmaster(home) == pid
    assert not postmaster(home)


def test_a_server_that_someone_else_started_in_the_directory_is_left_alone(
    home: Path, place: Path, server_user: dict[str, Any]
) -> None:
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    options = ["-D", str(home / "data"), "--listen_addresses=", f"--unix_socket_directories={elsewhere}"]
    command = [str(embedded.find_binaries() / "postgres"), *options]
    with subprocess.Popen(command, cwd="/", stderr=subprocess.PIPE, text=True, **server_user) as theirs:
        assert theirs.stderr
        next(line for line in theirs.stderr if "ready to accept connections" in line)
        try:
            with pytest.raises(embedded.ServerNotStarted, match=rf"pid .*\b{theirs.pid}\b"):
                embedded.start(home, settings=QUICK)
            assert (home / "data/postmaster.pid").read_text().split()[0] == str(theirs.pid)
            assert ask(f"host={elsewhere} port=5432 user=postgres dbname=holdfast", "select 1") == 1
        finally:
            theirs.send_signal(signal.SIGINT)


def test_killed_in_the_middle_of_initdb_the_next_start_begins_afresh(
    new_home: Path, place: Path, sharer: Callable[..., Sharer]
) -> None:
    real = embedded.find_binaries()
    fake = place / "bin"
    fake.mkdir()
    (fake / "postgres").symlink_to(real / "postgres")
    os.mkfifo(place / "begun")
    (place / "begun").chmod(0o666)
    (fake / "initdb").write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec {real}/initdb --version\n'
        f'echo 18 > "$2/PG_VERSION"\necho "$$" > {place}/begun\nexec sleep 1000\n'
    )
    (fake / "initdb").chmod(0o755)
    for each in (place, fake):
        each.chmod(0o755)

    starter = sharer(new_home, fake)
    initdb = int((place / "begun").read_text())
    starter.kill()
    try:
        with embedded.start(new_home, settings=QUICK) as server:
            assert ask(server.dsn, "select 1") == 1
        assert not list(new_home.glob("data.new-*"))
    finally:
        os.kill(initdb, signal.SIGKILL)


def test_killed_while_the_server_starts_the_next_one_waits_for_it(
    home: Path, sharer: Callable[..., Sharer]
) -> None:
    starter = sharer(home)
    wait_until(lambda: is_held(Home(home).server_lock))
    starter.kill()
    with embedded.start(home, settings=QUICK) as server:
        assert ask(server.dsn, "select 1") == 1
    assert not postmaster(home)
