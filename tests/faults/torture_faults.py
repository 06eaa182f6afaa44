"""What the nemesis does: each fault leaves all as it was, or as the workers must put right by themselves."""

import contextlib
import os
import signal
import time
from collections.abc import Callable

from tests.faults.proxy import READY
from tests.faults.torture_arena import LEASE, Arena


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

        def ends(of: str, data: bytes, command: bytes = command) -> bool:
            return of == "producer" and command in data and data.endswith(READY)

        arena.lose(ends)


def open_cancel(arena: Arena) -> None:
    """Jobs that wait and jobs that run are cancelled, and for seconds nobody knows whether that counts."""
    ids = "array(select id from holdfast.job order by random() limit 20)"
    arena.leave_open(lambda connection: connection.execute(f"select holdfast.cancel_many({ids})"))


def open_claim(arena: Arena) -> None:
    """A consumer's claim stays open, longer than its lease perhaps. It starts none of these jobs."""
    worker = _consumer(arena)
    claim = "select holdfast.claim(worker => %s, amount => 5)"
    arena.leave_open(lambda connection: connection.execute(claim, [worker]), then=_end_of(arena, worker))


def open_finish(arena: Arena) -> None:
    """A consumer's reports stay open, longer than its lease perhaps: meanwhile it is taken for lost."""
    worker = _consumer(arena)
    claim = "select id, lease from holdfast.claim(worker => %s, tasks => '{noop}', amount => 5)"
    jobs = arena.ask(claim, worker)
    finish = "select holdfast.finish(ids => %s, leases => %s, results => %s::jsonb[])"
    reports = [job for job, _ in jobs], [lease for _, lease in jobs], [f'"{lease}"' for _, lease in jobs]
    arena.leave_open(lambda connection: connection.execute(finish, reports), then=_end_of(arena, worker))


def _consumer(arena: Arena) -> object:
    return arena.ask("select holdfast.register(lease_time => make_interval(secs => %s))", LEASE)[0][0]


def _end_of(arena: Arena, worker: object) -> Callable[[], object]:
    """It leaves and gives back what it still holds, or says nothing and is found out."""
    leaves = arena.chance.random() < 0.5
    return lambda: arena.ask("select holdfast.leave(%s)", worker) if leaves else None


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
    open_cancel,
    open_claim,
    open_finish,
]
