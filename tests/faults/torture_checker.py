"""Keeps the history of a run in the database, by triggers, and looks there for what must never have happened."""
# ruff: noqa: E501 - long queries

import contextlib
import re
import time
from collections import Counter

import psycopg

from tests.faults.torture_arena import CONCURRENCY, LONGEST, Arena
from tests.faults.torture_producer import Producer

# After the last fault: recovery waits a lease after an outage and another to judge, then come the retries, and
# what has piled up meanwhile is worked off. Suspects run one at a time, and a worker may find as many of them as
# another held.
SETTLED_WITHIN = 30.0 + CONCURRENCY * LONGEST

HISTORY = """
create table effect (job_id uuid not null);
create table history (
  n bigint generated always as identity primary key,
  job_id uuid not null,
  event text not null,
  lease uuid,
  attempt integer not null,
  max_attempts integer
);
create index on history (job_id, n);
create function keep_history() returns trigger language plpgsql security definer as $$
declare
  said jsonb := to_jsonb(new);
begin
  insert into public.history (job_id, event, lease, attempt, max_attempts)
  values (
    coalesce(said ->> 'id', said ->> 'job_id')::uuid,
    case tg_table_name
      when 'job' then case when said ->> 'state' = 'claimed' then 'claimed' else 'given back' end
      when 'attempt_error' then 'failed'
      else coalesce(said ->> 'state', 'dead')
    end,
    -- Handlers say in their results and errors under which lease they ran.
    coalesce(said ->> 'result', substring(said ->> 'error' from 'ran under (.*)'), said ->> 'lease')::uuid,
    (said ->> 'attempt')::integer,
    (said ->> 'max_attempts')::integer);
  return null;
end $$;
create trigger keep_history after update on holdfast.job
for each row when (old.lease is distinct from new.lease) execute function keep_history();
create trigger keep_history after insert on holdfast.attempt_error
for each row when (new.error like '% ran under %') execute function keep_history();
create trigger keep_history after insert on holdfast.finished for each row execute function keep_history();
create trigger keep_history after insert on holdfast.dead_letter for each row execute function keep_history();
"""

# What must not be. Each question is answered with the jobs that break the promise.
VIOLATIONS = {
    "an enqueue has made more than one job": """
        select headers ->> 'ticket' from holdfast.jobs group by headers ->> 'ticket' having count(*) > 1""",
    "a job has ended more than once": """
        select job_id from history where event in ('completed', 'cancelled', 'dead') group by job_id having count(*) > 1""",
    "a job is in more than one place": """
        select id from (
          select id from holdfast.job union all select id from holdfast.finished union all select id from holdfast.dead_letter
        ) j group by id having count(*) > 1""",
    "a report counted under a lease that was not the current one": """
        select e.job_id
        from history e
        cross join lateral (
          select h.lease, h.event from history h where h.job_id = e.job_id and h.n < e.n order by h.n desc limit 1
        ) before
        where e.event in ('completed', 'failed') and (before.event <> 'claimed' or before.lease is distinct from e.lease)""",
    "more attempts than allowed": "select job_id from history where attempt > max_attempts",
    "an attempt was handed out twice at the same time": """
        select e.job_id
        from history e
        join history n on n.job_id = e.job_id and n.n = (select min(h.n) from history h where h.job_id = e.job_id and h.n > e.n)
        where e.event = 'claimed' and n.event = 'claimed' and n.attempt > e.attempt""",
    "an effect without its completion": """
        select e.job_id from effect e
        where not exists (select from holdfast.finished f where f.id = e.job_id and f.state = 'completed')""",
    "an effect more than once": "select job_id from effect group by job_id having count(*) > 1",
    "a completion without its effect": """
        select f.id from holdfast.finished f
        where f.task in ('effect', 'aeffect', 'process') and f.state = 'completed'
          and not exists (select from effect e where e.job_id = f.id)""",
    "a job that kills its worker is not dead": """
        select id from holdfast.jobs where task = 'poison' and state not in ('dead', 'cancelled')""",
    "a job is not finished": "select id from holdfast.job",
}


UNFINISHED = """
    select j.task, j.state, j.attempt, l.kind, w.answer, w.explanation
    from holdfast.job j join holdfast.lane l on l.id = j.lane_id cross join lateral holdfast.why(j.id) w limit 20"""
REGISTERED = """
    select pid, id, now() - heartbeat_at, asleep, lost_at, left_at from holdfast.worker
    where lost_at is null and left_at is null order by started_at"""
BACKENDS = """
    select pid, application_name, state, wait_event, now() - state_change, left(query, 100) from pg_stat_activity
    where datname = current_database() order by application_name"""


class Verdict:
    """What a run has found."""

    def __init__(self, seed: int, jobs: int, faults: int) -> None:
        self.seed = seed
        self.asked = jobs
        self.asked_faults = faults
        self.jobs = 0
        self.in_doubt = 0
        self.in_doubt_and_there = 0
        self.refused = 0
        self.states: dict[str, int] = {}
        self.faults: Counter[str] = Counter()
        self.violations: dict[str, int] = {}
        self.settled = 0.0
        self.clues = ""

    def __str__(self) -> str:
        faults = ", ".join(
            f"{name.replace('_', ' ')} {amount}" for name, amount in sorted(self.faults.items())
        )
        lines = [
            f"seed {self.seed}: {self.jobs:,} jobs {self.states}, settled {self.settled:.1f} s after the last fault",
            f"  {self.in_doubt} enqueues in doubt, of which {self.in_doubt_and_there} have made a job; {self.refused} stale reports refused",
            f"  {sum(self.faults.values())} faults of {len(self.faults)} kinds: {faults}",
            f"  {sum(self.violations.values())} violations",
        ]
        lines += [f"  VIOLATION {name}: {amount} jobs" for name, amount in self.violations.items()]
        if self.violations:
            lines.append(
                f"  repeat it: python -m tests.faults.torture --seed {self.seed} --jobs {self.asked} --faults {self.asked_faults}"
            )
            lines.append(self.clues)
        return "\n".join(lines)


def settle(place: Arena) -> float:
    """Wait until all jobs have ended; how long after the last fault."""
    fault_at = time.monotonic()
    while time.monotonic() - fault_at < SETTLED_WITHIN:
        if place.replace_the_dead():
            fault_at = time.monotonic()
        with contextlib.suppress(psycopg.Error):
            if place.ask("select count(*) from holdfast.job") == [(0,)]:
                break
        time.sleep(0.1)
    return time.monotonic() - fault_at


def clues(place: Arena) -> str:
    """Why jobs have not ended, what the server does, and where the workers are."""
    return "\n".join(
        [
            *(f"  job {row}" for row in place.ask(UNFINISHED)),
            *(f"  worker {row}" for row in place.ask(REGISTERED)),
            *(f"  backend {row}" for row in place.ask(BACKENDS)),
            place.ask_the_workers(),
        ]
    )


def check(place: Arena, producer: Producer, verdict: Verdict) -> None:
    if verdict.settled > SETTLED_WITHIN:
        verdict.clues = clues(place)
    known = {ticket for (ticket,) in place.ask("select headers ->> 'ticket' from holdfast.jobs")}
    verdict.jobs = len(producer.acknowledged)
    verdict.in_doubt = len(producer.in_doubt)
    verdict.in_doubt_and_there = len(producer.in_doubt & known)
    verdict.faults = place.faults
    verdict.states = dict(
        place.ask("select state, count(*) from holdfast.jobs group by state order by state")
    )
    found = {name: len(place.ask(question)) for name, question in VIOLATIONS.items()}
    found["an acknowledged job is lost"] = len(producer.acknowledged - known)
    notes = Counter(place.notes.read_text().splitlines())
    verdict.refused = sum(amount for note, amount in notes.items() if note.startswith("refused"))
    found["a job that may run once ran twice"] = sum(
        amount > 1 for note, amount in notes.items() if note.startswith("ran")
    )
    # One that finds no server when it starts may say so and end; whoever was at work may not.
    at_work = {pid for (pid,) in place.ask("select pid from holdfast.worker where heartbeat_at > started_at")}
    found["a worker gave up by itself"] = len(at_work.intersection(place.given_up))
    found["the producer did not get through"] = max(0, verdict.asked - verdict.jobs)
    found["not all jobs have ended in time"] = int(verdict.settled > SETTLED_WITHIN)
    log = place.log()
    found["a deadlock in the server's log"] = log.count(" 40P01 ERROR:")
    found["an internal error in the server's log"] = len(re.findall(r" XX\d{3} (?:ERROR|FATAL|PANIC):", log))
    verdict.violations = {name: amount for name, amount in found.items() if amount}
