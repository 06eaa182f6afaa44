"""Take away one guard at a time, and see whether a test notices: `make mutants`.

Each mutant is one change to one SQL function, and names the tests that must fail of it; only those run. A
mutant that lives is a promise that nobody watches.
"""
# ruff: noqa: T201, E501 - a script for the terminal, which quotes SQL as it stands

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HOUSE = Path(__file__).parent.parent
SQL = Path("src/holdfast/sql/functions")
ABREAST = 2


class Mutant(NamedTuple):
    name: str
    file: str
    guard: str
    instead: str
    tests: str


# What a claim of many writes after the attempt, in either way.
_CLAIMED = (
    "            claimed_at = case when greatest(j.run_at, j.created_at) > now_at then holdfast.clock() else now_at end,\n"
    "            changed_at = now_at\n"
)
MUTANTS = [
    Mutant(
        "finish: completes under any lease",
        "finish.sql",
        "        and j.lease = r.lease\n        and (r.outcome is null",
        "        and (r.outcome is null",
        "sql/test_sql_leases.py",
    ),
    Mutant(
        "finish: a job may be reported twice",
        "finish.sql",
        "    elsif locked then\n      perform holdfast.refuse_doubles(ids);\n",
        "    elsif locked then\n",
        "sql/test_sql_finish.py",
    ),
    Mutant(
        "give_back: accepts a failure under any lease",
        "finish.sql",
        "where j.id = r.id and j.lease = r.lease offset 0) j\n  join holdfast.lane",
        "where j.id = r.id offset 0) j\n  join holdfast.lane",
        "sql/test_sql_leases.py",
    ),
    Mutant(
        "finish: does not lock before a second look",
        "finish.sql",
        " where j.id = r.id and (j.lease = r.lease or j.lease is null) for update\n",
        " where j.id = r.id and (j.lease = r.lease or j.lease is null) offset 0\n",
        "sql/test_sql_races.py",
    ),
    Mutant(
        "finish: locks rows that others hold",
        "finish.sql",
        " where j.id = r.id and (j.lease = r.lease or j.lease is null) for update\n",
        " where j.id = r.id for update\n",
        "sql/test_sql_races.py::test_a_report_does_not_wait_for_a_job_that_another_holds_by_now",
    ),
    Mutant(
        "finish: waits for a locked job where it was told to skip it",
        "finish.sql",
        "        order by j.id\n        for update skip locked\n",
        "        order by j.id\n        for update\n",
        "sql/test_sql_skip_locked.py",
    ),
    Mutant(
        "finish: takes a locked job for one that was reported",
        "finish.sql",
        "        or (skip_locked and v.state = 'claimed'); -- still held, so it was skipped\n",
        ";\n",
        "sql/test_sql_skip_locked.py",
    ),
    Mutant(
        "finish: tells everybody that a job is locked",
        "finish.sql",
        "  locked boolean := mixed or skip_locked;\n",
        "  locked boolean := mixed or skip_locked; skip_locked constant boolean := true;\n",
        "sql/test_sql_skip_locked.py::test_only_a_caller_that_asks_for_it_is_told_that_a_job_is_locked",
    ),
    Mutant(
        "finish: gives back what it skipped",
        "finish.sql",
        "          select case when r.place is not null then r.lease end\n",
        "          select r.lease\n",
        "sql/test_sql_skip_locked.py",
    ),
    Mutant(
        "finish: skipping, locks rows that others hold",
        "finish.sql",
        "          and j.lease = any(array(select distinct l from unnest(leases) l))\n",
        "",
        "sql/test_sql_skip_locked.py::test_a_job_that_another_holds_by_now_is_not_locked_by_a_late_report",
    ),
    Mutant(
        "start: waits for a locked job where it was told to skip it",
        "progress.sql",
        " for update skip locked\n",
        " for update\n",
        "sql/test_sql_skip_locked.py",
    ),
    Mutant(
        "start: does not see who writes what hangs on the job",
        "progress.sql",
        " for update skip locked\n",
        " for key share skip locked\n",
        "sql/test_sql_skip_locked.py::test_a_transaction_that_says_something_of_a_job_holds_up_no_report",
    ),
    Mutant(
        "start: takes a locked job for one that is lost",
        "progress.sql",
        "    select r.id, exists (select from holdfast.live j where j.id = r.id and j.lease = r.lease offset 0)\n",
        "    select r.id, false\n",
        "sql/test_sql_skip_locked.py",
    ),
    Mutant(
        "progress: of locked jobs is written",
        "progress.sql",
        "    and r.id <> all(others);\n",
        ";\n",
        "sql/test_sql_skip_locked.py",
    ),
    Mutant(
        "disown: waits for what others have locked",
        "worker.sql",
        ", skip_locked => true);",
        ");",
        "sql/test_sql_skip_locked.py::test_a_worker_disowns_what_nobody_has_locked",
    ),
    Mutant(
        "finish: a wish to cancel is forgotten",
        "finish.sql",
        "        when j.cancel_requested_at is not null then 'cancelled'\n",
        "",
        "sql/test_sql_finish.py",
    ),
    Mutant(
        "give_back: attempts are not counted",
        "finish.sql",
        "(r.retry is false or x.once or j.attempt >= j.max_attempts)",
        "(r.retry is false or x.once)",
        "sql/test_sql_finish.py",
    ),
    Mutant(
        "give_back: a retry that was forbidden is tried",
        "finish.sql",
        "(r.retry is false or x.once or j.attempt >= j.max_attempts)",
        "(x.once or j.attempt >= j.max_attempts)",
        "sql/test_sql_finish.py",
    ),
    Mutant(
        "put_back: returned jobs in any order",
        "finish.sql",
        "      order by j.seq\n    ) b",
        "      order by random()\n    ) b",
        "sql/test_sql_finish.py sql/test_sql_recover.py",
    ),
    Mutant(
        "claim: waits for what others have locked",
        "claim.sql",
        "          for update skip locked",
        "          for update",
        "sql/test_sql_claim.py",
    ),
    Mutant(
        "claim: locks nothing",
        "claim.sql",
        "          for update skip locked",
        "",
        "sql/test_sql_claim_together.py sql/test_sql_claim.py",
    ),
    Mutant(
        "claim: counts no attempt where jobs lie in order",
        "claim.sql",
        f"            attempt = j.attempt + 1,\n{_CLAIMED}          where j.ctid = any(",
        f"{_CLAIMED}          where j.ctid = any(",
        "sql/test_sql_claim_one_lane.py",
    ),
    Mutant(
        "claim: counts no attempt where they do not",
        "claim.sql",
        f"            attempt = j.attempt + 1,\n{_CLAIMED}          from unnest(",
        f"{_CLAIMED}          from unnest(",
        "sql/test_sql_claim_one_lane.py",
    ),
    Mutant(
        "claim: hands out what has no attempts left",
        "claim.sql",
        "            and j.attempt < j.max_attempts\n",
        "",
        "sql/test_sql_claim.py",
    ),
    Mutant(
        "claim: in any order",
        "claim.sql",
        "          order by j.seq\n          limit wanted",
        "          order by random()\n          limit wanted",
        "sql/test_sql_claim.py",
    ),
    Mutant(
        "claim: does not look behind what others have locked",
        "claim.sql",
        "      exit when cut = 9223372036854775807; -- there are no more\n",
        "      exit;\n",
        "sql/test_sql_claim_order.py",
    ),
    Mutant(
        "claim: takes from behind the oldest jobs of other lanes",
        "claim.sql",
        "            and j.seq between l.first and cut\n            and j.attempt",
        "            and j.seq >= l.first\n            and j.attempt",
        "sql/test_sql_claim_order.py",
    ),
    Mutant(
        "claim: those of several lanes not by age",
        "claim.sql",
        "      if picked.is_mixed then",
        "      if false then",
        "sql/test_sql_claim_order.py",
    ),
    Mutant(
        "reach: looks into each lane once",
        "claim.sql",
        "    exit when ids is null;\n",
        "    exit;\n",
        "sql/test_sql_claim_order.py",
    ),
    Mutant(
        "reach: forgets what it saw before it looked further",
        "claim.sql",
        "(select unnest(ahead) as seq union all ",
        "(select 0::bigint as seq where false union all ",
        "sql/test_sql_claim_order.py",
    ),
    Mutant(
        "claim from one lane: waits for what others have locked",
        "claim.sql",
        "limit claim.amount\n        for update skip locked",
        "limit claim.amount\n        for update",
        "sql/test_sql_claim_one_lane.py",
    ),
    Mutant(
        "claim from one lane: locks nothing",
        "claim.sql",
        "limit claim.amount\n        for update skip locked",
        "limit claim.amount",
        "sql/test_sql_claim_one_lane.py",
    ),
    Mutant(
        "claim from one lane: counts no attempt",
        "claim.sql",
        "\n      attempt = j.attempt + 1,\n",
        "\n",
        "sql/test_sql_claim_one_lane.py",
    ),
    Mutant(
        "claim from one lane: hands out what has no attempts left",
        "claim.sql",
        "\n          and j.attempt < j.max_attempts\n",
        "\n",
        "sql/test_sql_claim_one_lane.py",
    ),
    Mutant(
        "claim from one lane: in any order",
        "claim.sql",
        "order by j.seq\n        limit claim.amount",
        "order by random()\n        limit claim.amount",
        "sql/test_sql_claim_one_lane.py",
    ),
    Mutant(
        "claim from one lane: without end in bytes",
        "claim.sql",
        "      and p.total <= room -- else below, where they are looked at one by one\n",
        "",
        "sql/test_sql_claim_one_lane.py",
    ),
    Mutant(
        "claim: bytes as they are stored",
        "claim.sql",
        "when pg_column_compression(payload) is null then",
        "when true then",
        "sql/test_sql_claim_one_lane.py",
    ),
    Mutant(
        "advance: a clock that was set back does not matter",
        "advance.sql",
        "set_back := coalesce(now_at < watch.at, false)",
        "set_back := false",
        "sql/test_sql_due_from.py",
    ),
    Mutant(
        "resume: no lock by which a sleeper knows of it",
        "operate.sql",
        "  lock table holdfast.live in row exclusive mode;\n",
        "",
        "sql/test_sql_notify.py",
    ),
    Mutant(
        "claim from one lane: suspects as others",
        "claim.sql",
        "      where l.kind <> 2\n        and (select",
        "      where (select",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "claim from one lane: although there are others",
        "claim.sql",
        "\n        and (select count(*) from lanes) = 1\n",
        "\n",
        "sql/test_sql_claim_one_lane.py",
    ),
    Mutant(
        "claim from one lane: for a worker that is not attending",
        "claim.sql",
        "      from holdfast.attending(consumer, now_at)\n      cross join lanes l\n",
        "      from lanes l\n",
        "sql/test_sql_workers.py",
    ),
    Mutant(
        "claim: less urgent first",
        "claim.sql",
        "    order by l.priority desc, l.kind desc\n  loop",
        "    order by l.priority, l.kind desc\n  loop",
        "sql/test_sql_claim.py",
    ),
    Mutant(
        "claim: from paused queues too",
        "claim.sql",
        "    and not exists (select from holdfast.queue q where q.name = l.queue and q.paused_at is not null)\n",
        "",
        "sql/test_sql_claim.py",
    ),
    Mutant(
        "claim: many suspects at a time",
        "claim.sql",
        "    continue when is_suspect and not holdfast.may_take_suspect(consumer, now_at);\n",
        "",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "claim: a suspect's start is not on record",
        "claim.sql",
        "        perform holdfast.start_suspect(consumer, new_lease, level.ids, now_at);\n",
        "",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "claim: for a worker that was declared lost",
        "worker.sql",
        "  elsif known.lost_at is not null or known.left_at is not null then\n",
        "  elsif false then\n",
        "sql/test_sql_workers.py",
    ),
    Mutant(
        "recover: the old lease still counts",
        "recover.sql",
        "    lease = gen_random_uuid(),\n",
        "",
        "sql/test_sql_leases.py sql/test_sql_races.py",
    ),
    Mutant(
        "recover: judges after an outage",
        "recover.sql",
        "greatest(s.heartbeat_at, s.graced_at) + s.lease_time < now_at",
        "s.heartbeat_at + s.lease_time < now_at",
        "sql/test_sql_recover.py",
    ),
    Mutant(
        "recover: waits for a report under way",
        "recover.sql",
        "where j.id = h.id and j.lease = h.lease for update skip locked\n",
        "where j.id = h.id and j.lease = h.lease for update\n",
        "sql/test_sql_races.py",
    ),
    Mutant(
        "recover: an end that is not committed is the last word",
        "recover.sql",
        " filter (where age(w.xmin) > 0)",
        "",
        "sql/test_sql_recover.py",
    ),
    Mutant(
        "recover: settles beside a job that was stepped over",
        "recover.sql",
        "then g.id <> all(unsettled) else",
        "then true else",
        "sql/test_sql_recover.py",
    ),
    Mutant(
        "recover: stops at those that are locked",
        "recover.sql",
        "        and j.id <> all(stepped_over)\n      limit 5000\n    ) j;",
        "      limit 5000\n    ) j;",
        "sql/test_sql_recover.py",
    ),
    Mutant(
        "recover: awaits those who come later",
        "recover.sql",
        "where w.awaits is null or o = any(w.awaits) or o like 'prepared %')",
        "where true)",
        "sql/test_sql_recover.py",
    ),
    Mutant(
        "recover: forgets what is prepared",
        "recover.sql",
        " or o like 'prepared %')",
        ")",
        "sql/test_sql_recover.py",
    ),
    Mutant(
        "recover: who left is looked after only when somebody ends",
        "recover.sql",
        "else '{its end}'::text[] end\n",
        "else '{}' end\n",
        "sql/test_sql_recover.py",
    ),
    Mutant(
        "recover: looks again and again",
        "recover.sql",
        "else g.awaits is null end",
        "else true end",
        "sql/test_sql_recover.py",
    ),
    Mutant(
        "recover: does not look when one of several has ended",
        "recover.sql",
        "else not w.awaits <@ writers end);",
        "else not w.awaits && writers end);",
        "sql/test_sql_recover.py",
    ),
    Mutant(
        "claim: a worker that was lost meanwhile is taken for alive",
        "worker.sql",
        "    if not found then -- declared lost meanwhile\n",
        "    if false then\n",
        "sql/test_sql_recover.py",
    ),
    Mutant(
        "duty: two sessions may do one at a time",
        "duty.sql",
        "lock table holdfast.%I in share update exclusive mode nowait",
        "lock table holdfast.%I in row exclusive mode nowait",
        "sql/test_sql_duties.py",
    ),
    Mutant(
        "duty: a reader is taken for its holder",
        "duty.sql",
        "      and k.mode = 'ShareUpdateExclusiveLock'\n",
        "",
        "sql/test_sql_duties.py",
    ),
    Mutant(
        "duty: every session that does one is named",
        "duty.sql",
        "  where h.since < now_at - interval '1 minute'\n",
        "",
        "sql/test_sql_duties.py",
    ),
    Mutant(
        "why: a duty stands in the way of jobs that do not wait for it",
        "why.sql",
        "\n        where not exists (select from holdfast.live_workers(now_at) a where a.id = job.worker_id);",
        ";",
        "sql/test_sql_duties.py",
    ),
    Mutant(
        "duty: the log hears of the same error each time",
        "duty.sql",
        "  if known.error is distinct from note_duty.error or now_at not between known.error_at and known.error_at + interval '1 minute' then\n",
        "  if true then\n",
        "sql/test_sql_duties.py",
    ),
    Mutant(
        "duty: a worker may write what it likes to the table of duties",
        "duty.sql",
        "  if report_duty.duty is null or report_duty.duty <> all('{fire,promote,recover,advance,fold_stats,upkeep,sweep}') then\n",
        "  if false then\n",
        "sql/test_sql_duties.py",
    ),
    Mutant(
        "doctor: workers that have just started are blamed for upkeep",
        "doctor_work.sql",
        "      and coalesce((select min(w.started_at) from holdfast.live_workers(now_at) w) < now_at - interval '3 minutes', true);\n",
        ";\n",
        "sql/test_sql_duties.py",
    ),
    Mutant(
        "doctor: a duty that was never done is not missed",
        "doctor_work.sql",
        "coalesce(o.done_at, (select min(m.applied_at) from holdfast.migration m))",
        "o.done_at",
        "sql/test_sql_duties.py",
    ),
    Mutant(
        "upkeep: the number of events of a dead letter is forgotten before them",
        "upkeep.sql",
        "'event_count', 'last_at', oldest, '{live,dead_letter}')",
        "'event_count', 'last_at', oldest, '{live}')",
        "sql/test_sql_events.py",
    ),
    Mutant(
        "promote: does not see that the clock was set back under a schedule",
        "promote.sql",
        "case when holdfast.planned_ahead(s, now_at) then now_at else s.next_at end",
        "s.next_at",
        "sql/test_sql_schedule.py",
    ),
    Mutant(
        "fire: a schedule that never fired waits out a clock that was set back",
        "schedule.sql",
        "    and holdfast.planned_ahead(s, now_at);\n",
        "    and s.last_at > now_at + interval '1 minute';\n",
        "sql/test_sql_schedule.py",
    ),
    Mutant(
        "upkeep: orphans only before all known workers",
        "upkeep.sql",
        "coalesce(lag(w.id) over (order by w.id), '00000000-0000-0000-0000-000000000000') as after,",
        "'00000000-0000-0000-0000-000000000000'::uuid as after,",
        "sql/test_sql_recover.py",
    ),
    Mutant(
        "upkeep: looks behind the heads each time",
        "upkeep.sql",
        "    continue when part = 'check_heads' and",
        "    continue when false and",
        "sql/test_sql_upkeep.py",
    ),
    Mutant(
        "recover: charges the innocent",
        "recover.sql",
        "  from judged g\n  where g.started\n",
        "  from judged g\n",
        "sql/test_sql_recover.py sql/test_sql_suspects.py",
    ),
    Mutant(
        "claim: two claims of one worker take a suspect each",
        "claim.sql",
        "  return found and not holdfast.has_uncleared_suspect(may_take_suspect.worker, now_at);\n",
        "  return found;\n",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "claim: that a suspect was cleared is not on record",
        "claim.sql",
        "  set heartbeat_at = greatest(w.heartbeat_at, now_at)\n",
        "  set heartbeat_at = w.heartbeat_at\n",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "claim: a suspect is cleared after 5 seconds in any case",
        "claim.sql",
        "greatest(interval '5 seconds', 2 * clearing_time.longest)",
        "interval '5 seconds'",
        "sql/test_sql_suspects.py faults/test_killed_workers.py::test_a_suspect_that_kills_later_than_any_other_would_start_kills_alone",
    ),
    Mutant(
        "claim: a suspect is cleared as soon as it begins",
        "claim.sql",
        "greatest(interval '5 seconds', 2 * clearing_time.longest)",
        "2 * clearing_time.longest",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "recover: whatever ran pays for a first death",
        "recover.sql",
        "g.ends or g.uncleared or who_pays.reason is not null, g.ends",
        "true, g.ends",
        "sql/test_sql_suspects.py faults/test_killed_workers.py::test_a_job_that_kills_its_process_late_costs_its_neighbours_nothing",
    ),
    Mutant(
        "recover: a timeout is free of charge",
        "recover.sql",
        "g.ends or g.uncleared or who_pays.reason is not null, g.ends",
        "g.ends or g.uncleared, g.ends",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "recover: a suspect pays although it was cleared",
        "recover.sql",
        " and h.alive_at - h.claimed_at < holdfast.clearing_time(h.longest) as uncleared",
        " as uncleared",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "recover: only a heartbeat is a sign of life",
        "recover.sql",
        "max(greatest(w.heartbeat_at, j.claimed_at, x.changed_at)) over (partition by j.worker_id)",
        "w.heartbeat_at",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "recover: dies of another one's death",
        "recover.sql",
        "\n        and (s.uncleared or not bool_or(s.uncleared) over (partition by s.worker_id)) as ends",
        " as ends",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "recover: the culprit of one worker speaks for all",
        "recover.sql",
        "bool_or(s.uncleared) over (partition by s.worker_id)",
        "bool_or(s.uncleared) over ()",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "recover: deaths have no end",
        "recover.sql",
        "        and s.deaths > s.max_attempts\n",
        "        and false\n",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "recover: a death before the start does not count",
        "recover.sql",
        "case when l.kind = 2 then 1 else 0 end",
        "0",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "recover: takes the last sign of life for the death",
        "recover.sql",
        " + coalesce(g.lease_time, interval '30 seconds') / 3",
        "",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "recover: forgets longer runs",
        "recover.sql",
        "longest = greatest(d.longest, excluded.longest)",
        "longest = excluded.longest",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "recover: a timeout is a death",
        "recover.sql",
        "  if take_back.reason is null then\n",
        "  if true then\n",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "put_back: a suspect that never began is none any more",
        "finish.sql",
        "(select greatest(l.kind, 1) from",
        "(select 1 from",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "replay: deaths of before count",
        "dead.sql",
        "  delete from holdfast.death d where d.job_id = any(revived);\n",
        "",
        "sql/test_sql_suspects.py",
    ),
    Mutant(
        "recover: who is not to blame begins anew",
        "recover.sql",
        "  where j.id = any(spared);",
        "  where false;",
        "sql/test_sql_steps.py",
    ),
    Mutant(
        "recover: does not say what happened",
        "recover.sql",
        "  left join holdfast.worker w on w.id = j.worker_id\n  where j.id = any(charged);\n",
        "  left join holdfast.worker w on w.id = j.worker_id\n  where false;\n",
        "faults/test_killed_workers.py::test_a_job_that_kills_its_process_dies_alone",
    ),
    Mutant(
        "recover: takes its time",
        "recover.sql",
        "greatest(s.heartbeat_at, s.graced_at) + s.lease_time < now_at",
        "greatest(s.heartbeat_at, s.graced_at) + s.lease_time + interval '10 seconds' < now_at",
        "faults/test_killed_workers.py::test_with_100_000_jobs_waiting_those_of_a_dead_worker_are_back_in_time_and_go_first",
    ),
    Mutant(
        "recover: what was lost goes to the end of the queue",
        "recover.sql",
        "array(select i from unnest(waiting) i where i <> all(charged)), 2, now_at)",
        "array(select i from unnest(waiting) i where i <> all(charged)), 0, now_at)",
        "faults/test_killed_workers.py::test_with_100_000_jobs_waiting_those_of_a_dead_worker_are_back_in_time_and_go_first",
    ),
    Mutant(
        "recover: what may run once runs again",
        "recover.sql",
        "(j.attempt >= j.max_attempts or j.id = any(started.ended))",
        "(j.attempt >= j.max_attempts)",
        "sql/test_sql_once.py",
    ),
    Mutant(
        "recover: no deadline",
        "recover.sql",
        "where x.deadline_at < now_at - interval '5 seconds'",
        "where false",
        "sql/test_sql_once.py",
    ),
    Mutant(
        "cancel: decides without the lock",
        "operate.sql",
        "where j.id = any(mine) order by j.id for update) j;",
        "where j.id = any(mine)) j;",
        "sql/test_sql_races.py sql/test_sql_cancel.py",
    ),
    Mutant(
        "cancel: what came back meanwhile is not seen",
        "operate.sql",
        "    exit when cardinality(waiting || held) = ",
        "    exit when true or cardinality(waiting || held) = ",
        "sql/test_sql_cancel.py",
    ),
    Mutant(
        "cancel_matching: calls off what is no longer in that state",
        "operate.sql",
        "  if cancel_matching.state is not null then\n",
        "  if false then\n",
        "sql/test_sql_cancel.py",
    ),
    Mutant(
        "give_back: what may run once is tried again",
        "finish.sql",
        "(r.retry is false or x.once or ",
        "(r.retry is false or ",
        "sql/test_sql_once.py",
    ),
    Mutant(
        "start: a deadline gives way to a start without one",
        "progress.sql",
        "      or excluded.deadline_at is not null\n      or excluded.once;",
        "      ;",
        "sql/test_sql_once.py",
    ),
    Mutant(
        "report: one that is repeated counts whatever was written before it",
        "report.sql",
        "  if pg_current_xact_id_if_assigned() is null then",
        "  if true then",
        "sql/test_sql_transactions.py",
    ),
    Mutant(
        "report: a repetition does not wait for the first",
        "report.sql",
        "j.lease = refuse_repetition.lease for update;",
        "j.lease = refuse_repetition.lease;",
        "sql/test_sql_transactions.py",
    ),
    Mutant(
        "recover: waits for a worker that leaves",
        "recover.sql",
        "      for update skip locked);\n\n  -- The lease is replaced",
        "      for update);\n\n  -- The lease is replaced",
        "sql/test_sql_races.py",
    ),
    Mutant(
        "cancel: the worker is not told",
        "operate.sql",
        "  where c.worker_id = cancels.worker\n",
        "  where false\n",
        "sql/test_sql_cancel.py",
    ),
    Mutant(
        "replay: attempts go on",
        "dead.sql",
        "for update;\n  if not found or holdfast.revive(array[replay.id], holdfast.clock(), replay.start_over) = 0 then",
        "for update;\n  if not found or holdfast.revive(array[replay.id], holdfast.clock(), replay.start_over) > 0 then",
        "sql/test_sql_dead.py",
    ),
    Mutant(
        "replay: a live job's letter is thrown away",
        "dead.sql",
        "  delete from holdfast.dead_letter d where d.id = any(revived);\n",
        "  delete from holdfast.dead_letter d where d.id = any(ids);\n",
        "sql/test_sql_dead.py",
    ),
    Mutant(
        "start: for whoever asks",
        "progress.sql",
        "where j.id = r.id and j.lease = r.lease for key share) j;\n",
        "where j.id = r.id for key share) j;\n",
        "sql/test_sql_progress.py",
    ),
    Mutant(
        "promote: waits for a job that is being changed",
        "promote.sql",
        "      limit promote.amount\n      for update skip locked",
        "      limit promote.amount\n      for update",
        "sql/test_sql_promote.py",
    ),
    Mutant(
        "guard: any change of state",
        "guard.sql",
        "  where o.state <> n.state\n",
        "  where false\n",
        "sql/test_sql_states.py",
    ),
    Mutant(
        "guard: a place that a head has passed",
        "guard.sql",
        "  where n.seq < o.seq\n    or (",
        "  where (",
        "sql/test_sql_states.py",
    ),
    Mutant(
        "guard: a job becomes another one",
        "guard.sql",
        "  from (select id from before except select id from after) o\n",
        "  from (select id from before where false) o\n",
        "sql/test_sql_states.py",
    ),
    Mutant(
        "guard: whatever comes in by hand",
        "guard.sql",
        "  if not welcome then\n",
        "  if false then\n",
        "sql/test_sql_states.py",
    ),
    Mutant(
        "check_places: a place before the old one",
        "guard.sql",
        " from holdfast.job_seq s) s on s.next <= j.seq\n",
        " from holdfast.job_seq s) s on s.next < j.seq\n",
        "sql/test_sql_heads.py",
    ),
    Mutant(
        "put_back: a place before the old one",
        "finish.sql",
        "  perform holdfast.check_places(ids);\n",
        "",
        "sql/test_sql_heads.py",
    ),
    Mutant(
        "make_pending: a place before the old one",
        "promote.sql",
        "  perform holdfast.check_places(ids);\n",
        "",
        "sql/test_sql_heads.py",
    ),
    Mutant(
        "advance: overlooks who names job",
        "advance.sql",
        "k.relation in ('holdfast.job'::regclass, 'holdfast.live'::regclass)",
        "k.relation = 'holdfast.live'::regclass",
        "sql/test_sql_heads.py",
    ),
    Mutant(
        "advance: overlooks who writes live",
        "advance.sql",
        "k.relation in ('holdfast.job'::regclass, 'holdfast.live'::regclass)",
        "k.relation = 'holdfast.job'::regclass",
        "sql/test_sql_heads.py",
    ),
    Mutant(
        "sleep: overlooks who names job",
        "worker.sql",
        "k.relation in ('holdfast.job'::regclass, 'holdfast.live'::regclass)",
        "k.relation = 'holdfast.live'::regclass",
        "sql/test_sql_heads.py",
    ),
    Mutant(
        "guard: jobs leave by hand",
        "guard.sql",
        "before delete on holdfast.job\nfor each statement when (current_setting('holdfast.door', true) is distinct from 'open')",
        "before delete on holdfast.job\nfor each statement when (false)",
        "sql/test_sql_states.py",
    ),
    Mutant(
        "enqueue: the same id twice is two jobs",
        "enqueue.sql",
        "    on conflict (id) do nothing;\n    if found then",
        "    on conflict (id) do update set used_at = excluded.used_at;\n    if found then",
        "sql/test_sql_caller_ids.py",
    ),
    Mutant(
        "advance: does not wait for open writers",
        "advance.sql",
        "coalesce(min(w.since), s) as proven",
        "s as proven",
        "sql/test_sql_heads.py sql/test_sql_late_commits.py",
    ),
    Mutant(
        "advance: passes a large transaction at once",
        "advance.sql",
        "filter (where w.seen_at > now_at - patience)",
        "filter (where false)",
        "sql/test_sql_heads.py",
    ),
    Mutant(
        "advance: leaves behind many that come late",
        "advance.sql",
        "from late where late.are_many group by",
        "from late where false group by",
        "sql/test_sql_heads.py",
    ),
    Mutant(
        "advance: takes a prepared transaction for one that came just now",
        "advance.sql",
        "case when o.writer like 'prepared %' then 0 else coalesce(w.since, watch.seq, 0) end as since",
        "coalesce(w.since, watch.seq, 0) as since",
        "sql/test_sql_heads.py sql/test_sql_late_commits.py",
    ),
    Mutant(
        "advance: wakes nobody for those that came late",
        "advance.sql",
        "from late;\n  if lanes is not null then",
        "from late;\n  if false then",
        "sql/test_sql_notify.py",
    ),
    Mutant(
        "advance: moves heads as often beside an old snapshot",
        "advance.sql",
        ", pg_stat_get_dead_tuples('holdfast.lane'::regclass))",
        ", 0)",
        "sql/test_sql_heads.py",
    ),
    Mutant(
        "check_heads: wakes nobody for those behind a head",
        "advance.sql",
        "  select (select count(*) from noted), (select array_agg(m.id) from moved m) into repaired, lanes;",
        "  select (select count(*) from noted) into repaired;",
        "sql/test_sql_notify.py",
    ),
    Mutant(
        "schedule: a tick may have two jobs",
        "schedule.sql",
        " on conflict do nothing;\n      if found then\n        due.last_job",
        " on conflict do nothing;\n      if true then\n        due.last_job",
        "sql/test_sql_schedule.py",
    ),
    Mutant(
        "schedule: two look at the same one",
        "schedule.sql",
        "    limit 1000\n    for update skip locked\n",
        "    limit 1000\n",
        "sql/test_sql_schedule.py",
    ),
    Mutant(
        "schedule: the next tick is not moved on",
        "schedule.sql",
        "  set next_at = moment, last_at",
        "  set last_at",
        "sql/test_sql_schedule.py",
    ),
    Mutant(
        "schedule: a lock that passes costs a tick",
        "schedule.sql",
        "in ('40', '53', '55', '57', '58') then",
        "in ('40') then",
        "sql/test_sql_schedule.py",
    ),
    Mutant(
        "schedule: code changes what is an operator's",
        "schedule.sql",
        "case when known.declared then holdfast.replace_schedule",
        "case when true then holdfast.replace_schedule",
        "sql/test_sql_schedule.py",
    ),
    Mutant(
        "schedule: catching up knows no end",
        "schedule.sql",
        "    exit when clock_timestamp() > deadline;\n  end loop;\n  update",
        "  end loop;\n  update",
        "sql/test_sql_schedule.py",
    ),
    Mutant(
        "promote: what stops schedules stops delayed jobs",
        "promote.sql",
        "    exception when others then\n      next_tick := now_at + interval '1 second'; -- jobs do not wait for what stops it",
        "    exception when division_by_zero then\n      next_tick := now_at + interval '1 second';",
        "sql/test_sql_schedule.py",
    ),
    Mutant(
        "reschedule: the time is read before the job is locked",
        "operate.sql",
        "  now_at := holdfast.clock();\n  due_at := holdfast.due_time(reschedule.run_at",
        "  now_at := due_at - interval '1 second';\n  due_at := holdfast.due_time(reschedule.run_at",
        "sql/test_sql_reschedule.py",
    ),
    Mutant(
        "reschedule: takes a job that does not wait",
        "operate.sql",
        "if known.state is distinct from 'scheduled' then\n    perform holdfast.refuse_transition",
        "if known.state is null then\n    perform holdfast.refuse_transition",
        "sql/test_sql_reschedule.py",
    ),
    Mutant(
        "step: kept by whoever comes",
        "step.sql",
        "  perform holdfast.check_held(keep_step.id, keep_step.lease, 'step');\n",
        "",
        "sql/test_sql_steps.py",
    ),
    Mutant(
        "step: the last one wins",
        "step.sql",
        "  on conflict (job_id, name) do nothing;",
        "  on conflict (job_id, name) do update set result = excluded.result;",
        "sql/test_sql_steps.py",
    ),
    Mutant(
        "step: that of an older job with the same id counts",
        "step.sql",
        "    and s.job_created_at <> (select j.created_at from holdfast.live j where j.id = keep_step.id);",
        "    and false;",
        "sql/test_sql_steps.py",
    ),
    Mutant(
        "checkpoint: kept by whoever comes",
        "step.sql",
        "  perform holdfast.check_held(keep_checkpoint.id, keep_checkpoint.lease, 'checkpoint');\n",
        "",
        "sql/test_sql_steps.py",
    ),
    Mutant(
        "events: published by whoever comes",
        "event.sql",
        "  perform holdfast.check_held(publish.id, publish.lease, 'event');\n",
        "",
        "sql/test_sql_events.py",
    ),
    Mutant(
        "events: what is sent again is written again",
        "event.sql",
        "    where e.number > h.published\n",
        "",
        "sql/test_sql_events.py",
    ),
    Mutant(
        "events: those that commit late are missed",
        "event.sql",
        "(e.xid >= pg_snapshot_xmax(old_seen) or e.xid = any(array(select pg_snapshot_xip(old_seen))))",
        "e.xid >= pg_snapshot_xmax(old_seen)",
        "sql/test_sql_events.py sql/test_sql_event_storm.py",
    ),
    Mutant(
        "events: a page ends anywhere",
        "event.sql",
        "        and e.id > from_id\n        and pg_visible_in_snapshot(e.xid, new_seen)\n      order by e.id\n      limit events_between.amount;\n  else",
        "        and pg_visible_in_snapshot(e.xid, new_seen)\n      order by e.id\n      limit events_between.amount;\n  else",
        "sql/test_sql_events.py",
    ),
    Mutant(
        "waiters: a dead job tells nobody",
        "finish.sql",
        "  delete from holdfast.running x where x.job_id = any(ids);\n  if exists (select from holdfast.waiter) then\n    perform holdfast.tell_waiters(ids);\n  end if;\n  return buried;",
        "  delete from holdfast.running x where x.job_id = any(ids);\n  return buried;",
        "sql/test_sql_waiters.py",
    ),
    Mutant(
        "fold_stats: counts what it leaves",
        "stat.sql",
        "      delete from holdfast.stat_delta d where d.ctid = any(places) returning d.*\n",
        "      select d.* from holdfast.stat_delta d where d.ctid = any(places)\n",
        "sql/test_sql_statistics.py",
    ),
    Mutant(
        "drop_partitions: before they were exported",
        "dispose.sql",
        "      and (disposal <> 'export' or exists (select from holdfast.exported e where e.partition = p.partition))\n",
        "",
        "sql/test_sql_retention.py",
    ),
    Mutant(
        "drop_partitions: of days that are kept",
        "dispose.sql",
        "      and p.high < now_at - keep\n",
        "",
        "sql/test_sql_retention.py sql/test_sql_upkeep.py",
    ),
    Mutant(
        "sweep: events of jobs that live",
        "retention.sql",
        "      'and not exists (select from holdfast.live j where j.id = o.job_id offset 0)\n       and not",
        "      'and not",
        "sql/test_sql_retention.py",
    ),
    Mutant(
        "sweep: steps of a job that lives under the same id",
        "retention.sql",
        "    where not exists (select from holdfast.live j where j.id = i.id offset 0)\n      and not",
        "    where not",
        "sql/test_sql_retention.py",
    ),
    Mutant(
        "configure: writes nothing to the audit log",
        "configure.sql",
        "    perform holdfast.note('configure', configure.queue, changed);\n",
        "    null;\n",
        "sql/test_sql_settings.py",
    ),
    Mutant(
        "cover: shows redacted keys",
        "mask.sql",
        "case when lower(e.key) = any(keys) then mask else",
        "case when false then mask else",
        "sql/test_sql_masking.py",
    ),
    Mutant(
        "pause: the queue of somebody else",
        "operate.sql",
        "  perform holdfast.check_queue(pause.queue);\n",
        "",
        "sql/test_sql_tenants.py",
    ),
    Mutant(
        "list_jobs: of queues of others",
        "list.sql",
        "      and (unrestricted or holdfast.in_reach(l.queue)));\n",
        ");\n",
        "sql/test_sql_tenants.py",
    ),
    Mutant(
        "job: in a queue of others",
        "jobs.sql",
        "  where (select holdfast.unrestricted()) or holdfast.in_reach(j.queue)\n",
        "",
        "sql/test_sql_tenants.py",
    ),
    Mutant(
        "enqueue: believes a lane that has not seen the latest policies",
        "enqueue.sql",
        "      and (attempts is not null or l.policies_seen = (select w.changes from holdfast.policy_watch w))\n",
        "",
        "sql/test_sql_attempts.py",
    ),
    Mutant(
        "set_retry_policy: changes in any order",
        "policy.sql",
        "  if not set_retry_policy.declared then\n    perform from holdfast.queue q where q.name = '*' for update;\n",
        "  if false then\n    perform from holdfast.queue q where q.name = '*' for update;\n",
        "sql/test_sql_attempts.py",
    ),
    Mutant(
        "set_retry_policy: declarations in any order",
        "policy.sql",
        "  end if;\n  perform from holdfast.policy_watch w for update;\n",
        "  end if;\n",
        "sql/test_sql_attempts.py",
    ),
    Mutant(
        "settle_lanes: believes what was changed past the triggers",
        "policy.sql",
        "\n        or o.max_attempts is distinct from holdfast.max_attempts(o.task, o.queue))",
        ")",
        "sql/test_sql_attempts.py",
    ),
    Mutant(
        "set_retry_policy: two that declare write it twice",
        "policy.sql",
        "    where (p.declared or not excluded.declared)\n      and ",
        "    where (p.declared or not excluded.declared) or ",
        "sql/test_sql_attempts.py",
    ),
    Mutant(
        "claim: by the job's own time, though the clock was set back",
        "claim.sql",
        "\n      claimed_at = case when greatest(j.run_at, j.created_at) > now_at then holdfast.clock() else now_at end,",
        "\n      claimed_at = greatest(now_at, j.run_at, j.created_at),",
        "sql/test_sql_claim.py",
    ),
    Mutant(
        "settle_lanes: waits for a lane that is being written",
        "policy.sql",
        "    for update skip locked));",
        "    for update));",
        "sql/test_sql_attempts.py",
    ),
    Mutant(
        "claim: by a time before the job's own",
        "claim.sql",
        "\n      claimed_at = case when greatest(j.run_at, j.created_at) > now_at then holdfast.clock() else now_at end,",
        "\n      claimed_at = now_at,",
        "sql/test_sql_claim.py",
    ),
    Mutant(
        "enqueue: what the code declares wins over an operator",
        "policy.sql",
        "where p.task = is_operated.task and not p.declared);",
        "where p.task = is_operated.task and not p.declared and false);",
        "worker/test_declared_attempts.py::test_an_operators_policy_wins_over_it",
    ),
    Mutant(
        "enqueue: what an earlier release declared wins over the code",
        "policy.sql",
        "where p.task = is_operated.task and not p.declared);",
        "where p.task = is_operated.task);",
        "worker/test_declared_attempts.py::test_the_code_of_today_wins_over_what_an_earlier_release_declared",
    ),
    Mutant(
        "enqueue_many: what the code declares is forgotten",
        "enqueue.sql",
        "coalesce(g.max_attempts, case when not p.operated then g.declared_attempts end, p.max_attempts)",
        "coalesce(g.max_attempts, p.max_attempts)",
        "worker/test_declared_attempts.py::test_it_holds_for_a_bulk_enqueue",
    ),
    Mutant(
        "replace_function: rights that were given by hand are lost",
        "replace.sql",
        "where p.oid = old\n",
        "where p.oid = old and false\n",
        "schema/test_schema_released.py::test_a_role_that_was_granted_enqueue_by_hand_keeps_it",
    ),
    Mutant(
        "enqueue: a payload that Python cannot read",
        "enqueue.sql",
        "    if not holdfast.is_readable(enqueue.payload, said) then\n",
        "    if false then\n",
        "sql/test_sql_bad_input.py",
    ),
    Mutant(
        "guard: a payload that Python cannot read",
        "guard.sql",
        "  if come.size >= 300 then",
        "  if false then",
        "sql/test_sql_bad_input.py",
    ),
    Mutant(
        "is_readable: any depth",
        "check.sql",
        "      jsonb_path_exists(value, 'strict $.**{201}')\n      or (",
        "      (",
        "sql/test_sql_bad_input.py",
    ),
    Mutant(
        "is_readable: any number of digits",
        "check.sql",
        "said ~ '\\d{40}' and",
        "false and",
        "sql/test_sql_bad_input.py",
    ),
    Mutant(
        "finish: a result that Python cannot read",
        "finish.sql",
        "  if results is not null then\n    perform holdfast.check_json",
        "  if false then\n    perform holdfast.check_json",
        "sql/test_sql_bad_input.py",
    ),
    Mutant(
        "check_event: data that Python cannot read",
        "event.sql",
        "  perform holdfast.check_json('data', data);\n",
        "",
        "sql/test_sql_bad_input.py",
    ),
    Mutant(
        "keep_step: a result that Python cannot read",
        "step.sql",
        "  perform holdfast.check_json('result', keep_step.result);\n",
        "",
        "sql/test_sql_bad_input.py",
    ),
    Mutant(
        "check_checkpoint: a state that Python cannot read",
        "step.sql",
        "  perform holdfast.check_json('state', state);\n",
        "",
        "sql/test_sql_bad_input.py",
    ),
    Mutant(
        "check_schedule: a payload that Python cannot read",
        "schedule.sql",
        "  perform holdfast.check_json('payload', given.payload);\n",
        "",
        "sql/test_sql_bad_input.py",
    ),
    Mutant(
        "enqueue: any headers",
        "enqueue.sql",
        "  if enqueue.headers is not null and",
        "  if false and",
        "sql/test_sql_headers.py",
    ),
    Mutant(
        "guard: any headers",
        "guard.sql",
        "    and (new.headers is null or holdfast.are_headers(new.headers))\n",
        "",
        "sql/test_sql_headers.py",
    ),
    Mutant(
        "are_headers: of any size",
        "check.sql",
        "    and octet_length(headers::text) <= 8192\n",
        "",
        "sql/test_sql_headers.py",
    ),
    Mutant(
        "are_headers: names of our own",
        "check.sql",
        "    and not headers ?| '{resumes,schedule,tick}'\n",
        "",
        "sql/test_sql_headers.py",
    ),
    Mutant(
        "claim from one lane: headers have no size",
        "claim.sql",
        "      cross join lateral (\n        select j.ctid as place, holdfast.bytes_at_most(j.payload) + coalesce(holdfast.bytes_at_most(j.headers), 0) as bytes",
        "      cross join lateral (\n        select j.ctid as place, holdfast.bytes_at_most(j.payload) as bytes",
        "sql/test_sql_headers.py",
    ),
    Mutant(
        "claim: headers have no size",
        "claim.sql",
        "          select j.ctid as place, j.seq, holdfast.bytes_at_most(j.payload) + coalesce(holdfast.bytes_at_most(j.headers), 0) as bytes",
        "          select j.ctid as place, j.seq, holdfast.bytes_at_most(j.payload) as bytes",
        "sql/test_sql_headers.py",
    ),
]


def main() -> int:
    wanted = sys.argv[1:]
    begun = time.monotonic()
    mutants = [each for each in MUTANTS if not wanted or any(word in each.name for word in wanted)]
    for mutant in mutants:
        _without_guard(mutant, (HOUSE / SQL / mutant.file).read_text())
    if fails(None, sorted({test for mutant in mutants for test in mutant.tests.split()})):
        raise SystemExit("a test fails although nothing was taken away: that proves nothing")
    print(
        f"control {time.monotonic() - begun:5.1f} s  with every guard in its place, all tests pass",
        flush=True,
    )
    # A test mostly waits for its server, so two of them share two cores.
    with ThreadPoolExecutor(ABREAST) as pool:
        survived = sum(pool.map(survives, mutants))
    print(f"{len(mutants)} mutants, {survived} alive, in {time.monotonic() - begun:.0f} s")
    return bool(survived)


def survives(mutant: Mutant) -> bool:
    """Whether all its tests pass although its guard is gone."""
    since = time.monotonic()
    caught = fails(mutant, mutant.tests.split())
    print(
        f"{'caught' if caught else 'ALIVE ':7} {time.monotonic() - since:5.1f} s  {mutant.name}", flush=True
    )
    return not caught


def fails(mutant: Mutant | None, tests: Sequence[str]) -> bool:
    """Whether one of the tests fails, on a copy without the mutant's guard."""
    with tempfile.TemporaryDirectory(prefix="hf-mutant-") as directory:
        shutil.copytree(HOUSE / "src", Path(directory, "src"), ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            file = Path(directory) / SQL / mutant.file
            file.write_text(_without_guard(mutant, file.read_text()))
        run = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"),
                *(str(HOUSE / "tests" / test) for test in tests),
            ],
            cwd=HOUSE,
            # Whoever waits for a lock that should have been stepped over has failed.
            env={**os.environ, "PYTHONPATH": str(Path(directory, "src")), "PGOPTIONS": "-c lock_timeout=5s"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        summary = run.stdout.strip().splitlines()[-1]
        if run.returncode not in (0, 1) or " error" in summary or "SyntaxError" in run.stdout:
            # It could not be installed, or not be read: that proves nothing.
            raise SystemExit(f"{mutant and mutant.name}:\n{run.stdout[-3000:]}\n{run.stderr}")
        if mutant is None and run.returncode:
            print(run.stdout[-3000:])
        return run.returncode == 1


def _without_guard(mutant: Mutant, text: str) -> str:
    if text.count(mutant.guard) != 1:
        raise SystemExit(f"{mutant.name}: {mutant.file} has its guard {text.count(mutant.guard)} times")
    return text.replace(mutant.guard, mutant.instead)


if __name__ == "__main__":
    sys.exit(main())
