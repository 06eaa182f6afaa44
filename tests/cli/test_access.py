"""Roles and tenants from the command line, and a secret that must be seen nowhere."""

import logging
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast import Context, Holdfast, JobState, Secret
from holdfast.values.errors import HoldfastError
from tests.cli.programs import Command
from tests.fixtures import Login


def test_roles_are_made_and_kept_to_queues(
    holdfast: Command, holdfast_dsn: str, login: Login, tmp_path: Path
) -> None:
    assert "select holdfast.create_roles();" in holdfast("migrate", "--roles", "--print").out
    rights = (
        "holdfast_producer, holdfast_worker, holdfast_viewer and holdfast_operator have their rights there."
    )
    assert rights in holdfast("migrate", "--roles").out.splitlines()
    assert holdfast("migrate", "--roles", "--json").json["roles"][0] == "holdfast_producer"
    dsn = login("viewer", "operator")
    role = conninfo_to_dict(dsn)["user"]

    assert holdfast("access", "list").out.split() == ["ROLE", "QUEUES", "GRANTED_BY", "GRANTED_AT"]
    assert f"Role {role} sees and uses acme.*" in holdfast("access", "grant", role, "acme.*").out
    assert [row["queues"] for row in holdfast("access", "list", "--json").json] == ["acme.*"]
    for queue in ("acme.mail", "other"):
        holdfast("enqueue", "task", "--queue", queue)
    assert [job["queue"] for job in holdfast("--dsn", dsn, "jobs", "--json").json] == ["acme.mail"]
    answer = holdfast("--dsn", dsn, "queue", "pause", "other")
    assert (answer.code, answer.err.splitlines()[0]) == (1, f"Error: role {role} may not use queue other")
    answer = holdfast("--dsn", dsn, "enqueue", "task")
    assert answer.code == 1
    assert 'Error: permission denied for function enqueue\nHint: The guide "Security" lists' in answer.err
    assert holdfast("access", "revoke", role).code == 2
    assert holdfast("access", "revoke", role, "acme.*").code == 2
    assert holdfast("access", "revoke", role, "--all").out == f"Role {role} may use every queue.\n"
    assert len(holdfast("--dsn", dsn, "jobs", "--json").json) == 2


def test_a_secret_is_in_no_log_no_view_no_output_and_no_statistics(
    hf: Holdfast, holdfast: Command, login: Login, caplog: pytest.LogCaptureFixture
) -> None:
    canary = f"canary-{uuid4().hex}"
    caplog.set_level(logging.DEBUG)
    hf.migrate(roles=True)
    viewer_dsn = login("viewer", password=canary)
    with_password = make_conninfo(hf.dsn, password=canary)

    with Holdfast(with_password) as app:

        @app.task(name="leak", max_attempts=2)
        async def leak(ctx: Context, word: Secret[str], fail: bool) -> dict[str, str]:
            plain = word.reveal()
            ctx.progress(10, stage=plain[:100], message=f"now {plain}")
            ctx.event("told", {"word": plain, plain: 1})
            ctx.checkpoint({"word": plain})
            await ctx.astep(f"step {plain}", keep, plain)
            if fail:
                try:
                    dict[str, str]()[plain]
                except KeyError as error:
                    raise ValueError(f"refused {plain!r}") from error
            return {"word": plain}

        async def keep(word: str) -> str:
            return word

        app.schedules.add("leaky", leak.call(word=Secret(canary), fail=True), cron="0 9 * * *")
        jobs = [leak.enqueue(word=Secret(canary), fail=fail) for fail in (True, False)]
        app.enqueue("leak", {"word": {"$secret": canary}, "fail": True}, delay=3600)
        app.worker().run(drain=True)
        jobs[0].run_now()
        app.worker().run(drain=True)
        assert [job.refresh().state for job in jobs] == [JobState.DEAD, JobState.COMPLETED]
        shown = [
            repr(app),
            repr(jobs),
            repr(app.stats.count()),
            repr(app.jobs.list()),
            str(leak.call(word=Secret(canary), fail=True)),
        ]
        shown += [repr(job.errors()) + repr(job.steps()) + repr(job.checkpoint()) for job in jobs]

    with (
        pytest.raises(HoldfastError) as unreachable,
        Holdfast(f"host=nowhere.invalid password={canary}") as lost,
    ):
        lost.stats.count()
    shown += [str(unreachable.value), repr(unreachable.value)]

    ids = [str(job.id) for job in jobs]
    commands = [
        ["jobs"],
        ["dead"],
        ["stats"],
        ["queue", "list"],
        ["events"],
        ["workers"],
        ["schedule", "list"],
        ["dsn"],
    ]
    commands += [[name, job_id] for name in ("job", "watch", "events", "result") for job_id in ids]
    for dsn in (with_password, viewer_dsn):
        for command in commands:
            for form in ([], ["--json"]):
                answer = holdfast(*command, *form, "--dsn", dsn)
                shown += [answer.out, answer.err]
    shown += [holdfast("job", job_id, "--tracebacks", "--dsn", with_password).out for job_id in ids]

    with psycopg.connect(viewer_dsn) as viewer:
        views = viewer.execute(
            "select table_name from information_schema.role_table_grants where table_schema = 'holdfast' "
            "and privilege_type = 'SELECT' and grantee = 'holdfast_viewer'"
        ).fetchall()
        assert ("jobs",) in views
        shown += [repr(viewer.execute(f"select * from holdfast.{name}").fetchall()) for (name,) in views]

    assert "refused" in caplog.text
    assert "refused" in "".join(shown)
    for text in (caplog.text, *(repr(record.__dict__) for record in caplog.records), *shown):
        assert canary not in text
