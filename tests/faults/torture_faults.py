"""What the nemesis does: each fault leaves all as it was, or as the workers must put right by themselves."""

import contextlib
import os
import signal
import time
from collections.abc import Callable

from proxy import READY
from torture_arena import LEASE, Arena


def kill_worker(arena: Arena) -> None:
    arena.some_worker().kill()


def stop_worker_for_a_while(arena: Arena) -> None:
    worker = arena.some_worker()
    worker.send_signal(signal.SIGSTOP)
    time.sleep(arena.chance.uniform(LEASE * 0.5, LEASE * 2.5))
    worker.send_signal(signal.SIGCONT)


def end_worker_in_good_order(arena: Arena) -> None:
    arena.some_worker().terminate()


def worker_a_day_ahead(arena: Arena) -> None:
    arena.some_worker().kill()
    arena.hire(shift=86_400)


def worker_a_day_behind(arena: Arena) -> None:
    arena.some_worker().kill()
    arena.hire(shift=-86_400)


def terminate_backends(arena: Arena) -> None:
    arena.ask(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where application_name like 'holdfast%%' order by random() limit 3"
    )


def kill_backend(arena: Arena) -> None:
    """The server ends all the others too, and recovers."""
    pids = arena.ask(
        "select pid from pg_stat_activity where application_name like 'holdfast%%' and state is not null"
    )
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(arena.chance.choice(pids)[0], signal.SIGKILL)
        arena.until_it_answers()


def kill_postmaster(arena: Arena) -> None:
    arena.stop_server(signal.SIGKILL)
    arena.start_server()


def restart_at_once(arena: Arena) -> None:
    arena.stop_server(signal.SIGQUIT)
    arena.start_server()


def stop_server_for_long(arena: Arena) -> None:
    arena.stop_server(signal.SIGINT)
    time.sleep(LEASE * 1.5)
    arena.start_server()


def cut_connections(arena: Arena) -> None:
    purposes = ["claimer", "finisher", "duties", "keeper", "producer", "all"]
    arena.proxy.cut(arena.chance.choice(purposes))


def silence_connections(arena: Arena) -> None:
    arena.proxy.silence(arena.chance.choice(["claimer", "finisher", "duties", "keeper"]))


def lose_replies(arena: Arena) -> None:
    """What a worker has asked for is done, and it is not told."""
    purpose = arena.chance.choice(["claimer", "finisher", "keeper"])
    arena.lose(lambda of, _: of == purpose, times=arena.chance.randint(1, 3))


def lose_commits_of_handlers(arena: Arena) -> None:
    """Their work and the end of their job are committed, and they are not told."""
    arena.lose(
        lambda of, data: not of and b"COMMIT" in data and data.endswith(READY),
        times=arena.chance.randint(1, 3),
    )


def lose_commits_of_the_producer(arena: Arena) -> None:
    """Its jobs are there, and it is not told: of a transaction, and of calls that are one by themselves."""
    for command in (b"COMMIT", b"SELECT 1") * 5:
        arena.lose(
            lambda of, data, command=command: of == "producer" and command in data and data.endswith(READY)
        )


FAULTS: list[Callable[[Arena], None]] = [
    kill_worker,
    stop_worker_for_a_while,
    end_worker_in_good_order,
    worker_a_day_ahead,
    worker_a_day_behind,
    terminate_backends,
    kill_backend,
    kill_postmaster,
    restart_at_once,
    stop_server_for_long,
    cut_connections,
    silence_connections,
    lose_replies,
    lose_commits_of_handlers,
    lose_commits_of_the_producer,
]
