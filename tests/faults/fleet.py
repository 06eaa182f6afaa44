"""A fleet of `holdfast worker` processes, and a record of which of them ran the duties."""

import os
import signal
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from holdfast import Holdfast
from tests.cli.programs import Program
from tests.waiting import until

REPEATS = int(os.environ.get("HOLDFAST_REPEATS", "1"))
HERE = Path(__file__).parent

# `recover` stores each of its looks, and `do_duties` calls it in every run. Heartbeats go over the same
# connection, so they tell which worker the run belongs to.
RECORD = """
create table public.duty_run (number bigint generated always as identity, backend integer);
create table public.backend (backend integer primary key, worker uuid);
create function public.record_run() returns trigger language plpgsql as $$
begin
  insert into public.duty_run (backend) values (pg_backend_pid());
  return null;
end $$;
create function public.record_backend() returns trigger language plpgsql as $$
begin
  insert into public.backend values (pg_backend_pid(), new.id)
  on conflict (backend) do update set worker = excluded.worker;
  return null;
end $$;
create trigger record_run after insert or update of looks on holdfast.duty
for each row when (new.name = 'recover') execute function public.record_run();
create trigger record_backend after update of heartbeat_at on holdfast.worker
for each row when (new.graced_at is not distinct from old.graced_at) execute function public.record_backend();
"""

NEXT_RUN = """
select w.pid
from public.duty_run r
join public.backend b using (backend)
join holdfast.worker w on w.id = b.worker
where r.number > %s
order by r.number desc
limit 1
"""

HELD = """
select l.id, w.pid from holdfast.live l join holdfast.worker w on w.id = l.worker_id where l.state = 'claimed'
"""

# A job of a schedule was due at its tick.
LATENESS = """
select f.claimed_at - coalesce((f.headers ->> 'tick')::timestamptz, f.run_at)
from holdfast.finished f
where f.headers ->> 'tick' is not null or f.id = any(%s)
"""


class Fleet:
    """Workers on a database, and how late their duties are by its clock."""

    def __init__(self, hf: Holdfast) -> None:
        self.programs: list[Program] = []
        self._hf = hf
        self._connection = psycopg.connect(hf.dsn, autocommit=True)
        self._connection.execute(RECORD)
        # Otherwise the workers that are woken would also know when these jobs are due.
        self._connection.execute("set holdfast.notify = off")
        self._delayed: list[UUID] = []
        self._stopped: list[int] = []

    def start(self, amount: int, *arguments: str) -> list[Program]:
        """Start several commands at once, and return when all their workers are registered."""
        processes = 2 if "--processes" in arguments else 1
        before = len(self.pids())
        started = [Program("worker", "app:hf", *arguments, cwd=HERE, dsn=self._hf.dsn) for _ in range(amount)]
        self.programs += started
        until(lambda: len(self.pids()) == before + amount * processes)
        return started

    def pids(self) -> set[int]:
        """Return the processes of the workers that are registered and not lost."""
        return {row.pid for row in self._hf.workers.list() if row.status in {"idle", "busy"} and row.pid}

    def next_run(self) -> int:
        """Wait for the next run of the duties, and return the process that runs them."""
        ((known,),) = self.ask("select coalesce(max(number), 0) from public.duty_run")
        ((pid,),) = until(lambda: self.ask(NEXT_RUN, known))
        return int(pid)

    def delay_jobs(self, due: datetime, *, amount: int) -> None:
        """Enqueue jobs that are due from this time on, every quarter second, and add a schedule.

        No worker is notified. So these stand for jobs that only the killed workers knew of.
        """
        delays = [due + timedelta(seconds=0.1 + number / 4) for number in range(amount)]
        enqueue = "select holdfast.enqueue('noop', run_at => at) from unnest(%s::timestamptz[]) at"
        self._delayed += [job for (job,) in self.ask(enqueue, delays)]
        tick = due + timedelta(seconds=1.5)
        cron = f"{tick.second} {tick.minute} * * * *"
        self.ask("select holdfast.add_schedule('tick', 'noop', %s, missed => 'all')", cron)

    def kill(self, *pids: int) -> datetime:
        """Kill these processes at once, and return the database's time."""
        ((killed_at,),) = self.ask("select clock_timestamp()")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return killed_at

    def stop(self, pid: int) -> datetime:
        """Stop this process until the end of the test at most, and return the database's time."""
        ((stopped_at,),) = self.ask("select clock_timestamp()")
        os.kill(pid, signal.SIGSTOP)
        self._stopped.append(pid)
        return stopped_at

    def resume(self) -> None:
        while self._stopped:
            os.kill(self._stopped.pop(), signal.SIGCONT)

    def held_by(self, pids: Collection[int]) -> set[UUID]:
        """Return the jobs that these processes hold."""
        return {job for job, pid in self.ask(HELD) if pid in pids}

    def holder(self, job: UUID) -> int | None:
        """Return the process that holds this job."""
        return dict(self.ask(HELD)).get(job)

    def lateness(self) -> list[timedelta]:
        """Return how late the delayed jobs and those of the schedule were claimed."""
        return [late for (late,) in self.ask(LATENESS, self._delayed)]

    def ask(self, question: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(question, values)
        return cursor.fetchall()

    def close(self) -> None:
        self._connection.close()
        self.resume()
        for program in self.programs:
            program.close()


def note(name: str, measured: timedelta) -> None:
    """Print a measured time."""
    print(f"\n{name} {measured.total_seconds():.3f} s")  # noqa: T201 - to be recorded
