"""One server for everyone who names the same home: the first one in starts it, the last one out stops it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from holdfast import embedded
from tests.embedded.watching import QUICK, Sharer, ask, postmaster


def test_a_server_is_there_until_it_is_stopped(new_home: Path) -> None:
    with embedded.start(new_home, settings=QUICK) as server:
        assert ask(server.dsn, "select current_database()") == "holdfast"
        assert server.data_directory == new_home / "data"
        assert postmaster(new_home)
    assert not postmaster(new_home)


def test_stopping_twice_is_harmless(home: Path) -> None:
    server = embedded.start(home, settings=QUICK)
    server.stop()
    with embedded.start(home, settings=QUICK) as another:
        server.stop()
        assert ask(another.dsn, "select 1") == 1


def test_what_was_stored_is_there_after_the_next_start(home: Path) -> None:
    with embedded.start(home, settings=QUICK) as server:
        ask(server.dsn, "drop table if exists kept; create table kept as select 42 as answer")
    with embedded.start(home, settings=QUICK) as server:
        assert ask(server.dsn, "select answer from kept") == 42


def test_each_may_use_a_database_of_its_own(home: Path) -> None:
    with embedded.start(home, settings=QUICK), embedded.start(home, database="my jobs") as server:
        assert ask(server.dsn, "select current_database()") == "my jobs"


def test_two_processes_share_one_server(home: Path, sharer: Callable[..., Sharer]) -> None:
    first = sharer(home)
    dsn = first.dsn()
    pid = postmaster(home)
    second = sharer(home)
    assert second.dsn() == dsn
    assert postmaster(home) == pid

    first.leave()
    assert postmaster(home) == pid, "it was stopped under the second user's feet"
    assert ask(dsn, "select 1") == 1
    second.leave()
    assert not postmaster(home)


def test_two_handles_in_one_process_are_two_users(home: Path) -> None:
    first, second = embedded.start(home, settings=QUICK), embedded.start(home)
    first.stop()
    assert ask(second.dsn, "select 1") == 1
    second.stop()
    assert not postmaster(home)


def test_four_processes_may_all_be_the_first(new_home: Path, sharer: Callable[..., Sharer]) -> None:
    users = [sharer(new_home) for _ in range(4)]
    assert len({user.dsn() for user in users}) == 1
    pid = postmaster(new_home)
    for user in users:
        assert postmaster(new_home) == pid
        user.leave()
    assert not postmaster(new_home)


def test_a_killed_starter_takes_nobody_with_it(home: Path, sharer: Callable[..., Sharer]) -> None:
    owner = sharer(home)
    dsn = owner.dsn()
    other = sharer(home)
    other.dsn()
    owner.kill()
    assert ask(dsn, "select 1") == 1
    other.leave()
    assert not postmaster(home)


def test_a_server_whose_only_user_was_killed_is_stopped_by_the_next_one(
    home: Path, sharer: Callable[..., Sharer]
) -> None:
    user = sharer(home)
    user.dsn()
    pid = postmaster(home)
    user.kill()
    assert postmaster(home) == pid
    with embedded.start(home):
        assert postmaster(home) == pid
    assert not postmaster(home)


def test_a_forked_child_may_stay_longer_than_its_parent(home: Path) -> None:
    script = """if True:
        import os, sys, psycopg
        from pathlib import Path
        from holdfast import embedded
        server = embedded.start(Path(sys.argv[1]), settings={"fsync": "off"})
        parent_left, say_so = os.pipe()
        if child := os.fork():
            server.stop()
            os.close(say_so)
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os.close(say_so)
        os.read(parent_left, 1)
        psycopg.connect(server.dsn).close()
        server.stop()
    """
    subprocess.run([sys.executable, "-c", script, str(home)], check=True)
    assert not postmaster(home)


def test_ctrl_c_in_the_terminal_does_not_reach_the_server(home: Path) -> None:
    with embedded.start(home, settings=QUICK):
        assert os.getsid(postmaster(home)) != os.getsid(0)
        assert os.getpgid(postmaster(home)) != os.getpgid(0)


def test_the_server_is_nobodys_child(home: Path, sharer: Callable[..., Sharer]) -> None:
    user = sharer(home)
    user.dsn()
    status = Path(f"/proc/{postmaster(home)}/status").read_text()
    assert f"PPid:\t{user.process.pid}\n" not in status
    user.leave()
