"""A database of an earlier release is upgraded while its producers, consumers and workers go on."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from holdfast import Holdfast, schema
from tests.fixtures import Until
from tests.schema import released
from tests.schema.plans import Catalog, NewDsn

RELEASES = released.releases()

# Functions of each release that an upgrade leaves in place for calls that began before it. A migration of the
# next release drops them.
LEFT_FOR_CALLS_UNDER_WAY: dict[str, set[str]] = {
    "0.1.0": {
        "advance_eagerly(bigint)",
        "arrival()",
        "birth()",
        "bury(uuid[],text[],timestamp with time zone)",
        "bury_spent(uuid[],timestamp with time zone)",
        "call_off(uuid[],timestamp with time zone)",
        "drop_partitions(timestamp with time zone)",
        "duty_lock(text)",
        "give_back(uuid[],uuid[],text[],text[],text[],boolean[],interval[],timestamp with time zone)",
        "has_fresh_suspect(uuid,timestamp with time zone)",
        "look(timestamp with time zone)",
        "make_partitions(timestamp with time zone)",
        "note_proof(bigint,text[],bigint)",
        "put_back(uuid[],text[],uuid[],integer,timestamp with time zone)",
        "sibling(integer,integer)",
        "take_back(uuid[],timestamp with time zone)",
        "use_id(uuid,text,jsonb,timestamp with time zone)",
        "wake(integer[])",
    },
    "0.2.0": {
        "advance_eagerly(bigint,xid8)",
        "advance_safely(bigint,xid8)",
        "arrival()",
        "birth()",
        "bury(uuid[],text[],timestamp with time zone)",
        "bury_spent(uuid[],timestamp with time zone)",
        "call_off(uuid[],timestamp with time zone)",
        "came_by(holdfast.worker)",
        (
            "give_back(uuid[],uuid[],text[],text[],text[],boolean[],interval[],timestamp with time zone,"
            "double precision[])"
        ),
        "hurry(uuid,timestamp with time zone)",
        "is_bound(name)",
        "is_newborn(holdfast.job)",
        "is_operated(text)",
        "lasting(interval)",
        "lives_of(uuid)",
        "log_given_back(uuid[],text[],text[],interval[],timestamp with time zone)",
        "look(timestamp with time zone)",
        "put_back(uuid[],text[],uuid[],integer,timestamp with time zone)",
        "reach(integer[],bigint[],integer)",
        "refuse_arrival(holdfast.job)",
        "refuse_birth(uuid,text)",
        "refuse_leaving()",
        "revive(uuid[],timestamp with time zone,boolean)",
        "sibling(integer,integer)",
        "sleepers(text,text,integer)",
        "take_in_late(bigint)",
        "wake(text,boolean,boolean)",
        "wake_lanes(integer[])",
        "welcome(integer,text,text,integer)",
        "who_pays(uuid[],timestamp with time zone,text)",
    },
    "0.3.0": {
        "accept_jobs(integer,text,text,integer)",
        "sleepers(text,text,integer)",
        "wake(text,boolean,boolean)",
        "wake_lanes(integer[])",
    },
}

# Each function that another one calls in its body, with these callers. `tick` calls each duty in an exception
# block, so it needs none of them. A hint of `refuse_worker` names `register`.
CALLERS = r"""
select called.proname, array_agg(distinct caller.proname::text)
from pg_proc called
join pg_proc caller on caller.prosrc ~ ('holdfast\.' || called.proname || '\(')
where called.pronamespace = 'holdfast'::regnamespace
  and caller.pronamespace = 'holdfast'::regnamespace
  and caller.proname not in ('tick', called.proname)
  and (caller.proname, called.proname) <> ('refuse_worker', 'register')
group by 1"""

SIGNATURES = """
select format('%s(%s)', proname, array_to_string(array(
  select format_type(type, null) from unnest(proargtypes) with ordinality a (type, n) order by n
), ','))
from pg_proc where pronamespace = 'holdfast'::regnamespace"""

APP = """
from holdfast import Context, Holdfast

hf = Holdfast()

@hf.task(name="flaky")
async def flaky(number: int, ctx: Context) -> int:
    if ctx.attempt == 1 and number % 5 == 0:
        raise ValueError("once")
    return number
"""


class Load:
    """Producers and consumers that speak plain SQL as of release 0.1.0, each in a thread."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._threads: list[threading.Thread] = []
        self._producing = threading.Event()
        self._consuming = threading.Event()
        self._news = threading.Condition()
        self.errors: list[BaseException] = []
        self.enqueued: set[UUID] = set()
        self.completed: Counter[UUID] = Counter()

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Within the block; at its end nothing more comes in, and all that came is worked off."""
        self._producing.set()
        self._consuming.set()
        for step in (self._produce, self._produce, self._consume, self._consume, self._tick):
            self._threads.append(threading.Thread(target=self._main, args=(step,)))
            self._threads[-1].start()
        try:
            yield
            self._producing.clear()
            for producer in self._threads[:2]:
                producer.join(30)  # what it is about to enqueue belongs to them
            self.wait_until(lambda: set(self.completed) == self.enqueued)
        finally:
            self._producing.clear()
            self._consuming.clear()
            for thread in self._threads:
                thread.join(30)

    def wait_until(self, fact: Callable[[], bool]) -> None:
        with self._news:
            came_true = self._news.wait_for(lambda: self.errors or fact(), 60)
        if self.errors:
            raise self.errors[0]
        assert came_true, f"{len(self.enqueued)} came, {len(self.completed)} were completed"

    def _main(self, step: Callable[[psycopg.Connection[Any]], None]) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                step(connection)
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            self._tell(partial(self.errors.append, error))

    def _tell(self, change: Callable[[], Any]) -> None:
        with self._news:
            change()
            self._news.notify_all()

    def _produce(self, connection: psycopg.Connection[Any]) -> None:
        for number in itertools.count():
            if not self._producing.is_set():
                return
            if number % 3:
                call = "select holdfast.enqueue(task => 'work', payload => %s, queue => 'q', delay => %s)"
                rows = connection.execute(call, ["{}", "10 milliseconds" if number % 2 else None]).fetchall()
            else:
                call = "select holdfast.enqueue_many(tasks => %s, queues => %s, ids => %s)"
                rows = connection.execute(
                    call, [["work"] * 5, ["q"] * 5, [uuid4() for _ in range(5)]]
                ).fetchall()
            ids = {row[0] for row in rows}
            self._tell(partial(self.enqueued.update, ids))

    def _consume(self, connection: psycopg.Connection[Any]) -> None:
        worker = connection.execute("select holdfast.register(name => 'old', queues => '{q}')").fetchall()[0][
            0
        ]
        while self._consuming.is_set():
            lease = uuid4()
            jobs = connection.execute(
                "select id, attempt from holdfast.claim("
                "worker => %s, lease => %s, queues => '{q}', amount => 10)",
                [worker, lease],
            ).fetchall()
            if not jobs:
                self._consuming.wait(0)
                continue
            # One in seven fails at first, and comes back at once.
            fails = [attempt == 1 and job_id.int % 7 == 0 for job_id, attempt in jobs]
            refused = connection.execute(
                "select id from holdfast.finish(ids => %s, leases => %s, outcomes => %s, delays => %s)",
                [
                    [job_id for job_id, _ in jobs],
                    [lease] * len(jobs),
                    ["failed" if failed else "completed" for failed in fails],
                    ["0 seconds" if failed else None for failed in fails],
                ],
            ).fetchall()
            assert refused == []
            done = [job_id for (job_id, _), failed in zip(jobs, fails, strict=True) if not failed]
            self._tell(partial(self.completed.update, done))
        connection.execute("select holdfast.leave(%s)", [worker])

    def _tick(self, connection: psycopg.Connection[Any]) -> None:
        while self._consuming.is_set():
            call = "select error from holdfast.tick() where error is not null"
            errors = [error for (error,) in connection.execute(call)]
            # A duty waits for a second. Where the upgrade has a table for longer, on a slow machine, this
            # tick has gone on amid the upgrade: the next one counts.
            assert any("lock timeout" in error for error in errors) or errors == []


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")[:3]]


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return request.param


def test_the_schema_of_a_release_is_stored() -> None:
    assert "0.1.0" in RELEASES


def test_sql_that_changed_since_the_last_release_has_a_newer_version() -> None:
    """Otherwise `migrate` of that release would put its own functions over the newer ones."""
    changed = _changed_since(RELEASES[-1])
    assert changed == [] or _numbers(schema.load().version) > _numbers(RELEASES[-1])


def _changed_since(release: str) -> list[str]:
    """Return the names of the SQL files that are new or changed since a release."""
    known = released.text(release)
    return [file.name for file in schema.load().files if f"'{file.checksum}'" not in known]


def _prepare_old_worker(release: str, dsn: str, directory: Path) -> Path:
    """Install the release's schema, write an app, and return the release's code. Skip the test without it."""
    code = released.source(release, directory)
    if code is None:
        pytest.skip(
            f"NOT TESTED: workers of release {release} beside the new schema. This checkout lacks commit "
            f"{released.commit(release)}: run git fetch --unshallow"
        )
    released.install(release, dsn)
    (directory / "app.py").write_text(APP)
    return code


def _upgrade(connection: psycopg.Connection, release: str) -> None:
    """Upgrade from a release. Just after that release there is nothing to apply yet."""
    assert bool(schema.apply(connection)) == bool(_changed_since(release))


def test_an_upgraded_schema_equals_a_fresh_one(release: str, new_dsn: NewDsn, catalog: Catalog) -> None:
    upgraded, fresh = new_dsn(), new_dsn()
    released.install(release, upgraded)
    with psycopg.connect(upgraded, autocommit=True) as connection:
        _upgrade(connection, release)
        schema.verify(connection)
    with psycopg.connect(fresh, autocommit=True) as connection:
        assert schema.apply(connection)
        schema.verify(connection)
    left = _functions(upgraded) - _functions(fresh)
    assert left == LEFT_FOR_CALLS_UNDER_WAY.get(release, set())
    with psycopg.connect(upgraded) as connection:
        for function in left:
            connection.execute(f"drop function holdfast.{function}")
    assert catalog(upgraded) == catalog(fresh)


def _functions(dsn: str) -> set[str]:
    """The signatures of all functions of the schema, as `name(types)`."""
    with psycopg.connect(dsn) as connection:
        return {signature for (signature,) in connection.execute(SIGNATURES)}


def test_a_call_under_way_finds_every_function_of_its_old_body(release: str, empty_dsn: str) -> None:
    """An old body that runs while the functions change must not miss one that it calls."""
    released.install(release, empty_dsn)
    with psycopg.connect(empty_dsn) as connection:
        before = _functions(empty_dsn)
        callers: dict[str, Any] = dict(connection.execute(CALLERS).fetchall())
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        schema.apply(connection)
    gone = before - _functions(empty_dsn)
    missed = {name: callers[name] for name in (it.split("(")[0] for it in gone) if name in callers}
    # Public functions cannot keep two signatures with defaults: a call would be ambiguous. Their callers may
    # miss them only between the planning of one statement and its start.
    assert set(missed) == {"0.1.0": {"finish", "start"}}.get(release, set())


def test_an_upgrade_under_load_loses_nothing_and_runs_nothing_twice(release: str, empty_dsn: str) -> None:
    released.install(release, empty_dsn)
    load = Load(empty_dsn)
    with load.going_on():
        load.wait_until(lambda: len(load.completed) > 200)
        before = len(load.completed)
        with psycopg.connect(empty_dsn, autocommit=True) as installer:
            _upgrade(installer, release)
            meanwhile = len(load.completed)
            assert schema.apply(installer) == []
        load.wait_until(lambda: len(load.completed) > meanwhile + 200)
    assert meanwhile > before, "jobs went on while it was upgraded"
    assert set(load.completed) == load.enqueued
    assert set(load.completed.values()) == {1}
    with psycopg.connect(empty_dsn) as connection:
        states = connection.execute("select state, count(*) from holdfast.jobs group by 1").fetchall()
        assert states == [("completed", len(load.enqueued))]
        assert connection.execute("select * from holdfast.check_heads()").fetchall() == [(0,)]


def test_a_role_that_was_granted_enqueue_by_hand_keeps_it(release: str, empty_dsn: str) -> None:
    role = f"hf_producer_{uuid4().hex[:8]}"
    with psycopg.connect(empty_dsn, autocommit=True) as superuser:
        superuser.execute(f"create role {role}")
        try:
            released.install(release, empty_dsn)
            superuser.execute(f"grant usage on schema holdfast to {role}")
            superuser.execute(f"grant execute on function holdfast.enqueue, holdfast.enqueue_many to {role}")
            schema.apply(superuser)
            superuser.execute(f"set role {role}")
            superuser.execute("select holdfast.enqueue('mail'), holdfast.enqueue_many('{mail}')")
        finally:
            superuser.execute("reset role")
            superuser.execute(f"drop owned by {role}")
            superuser.execute(f"drop role {role}")


def test_rights_on_jobs_that_somebody_gave_stay_what_they_were(release: str, empty_dsn: str) -> None:
    role, friend = (f"hf_{kind}_{uuid4().hex[:8]}" for kind in ("importer", "friend"))
    with psycopg.connect(empty_dsn, autocommit=True) as superuser:
        superuser.execute(f"create role {role}")
        superuser.execute(f"create role {friend}")
        try:
            released.install(release, empty_dsn)
            superuser.execute(f"grant insert (lane_id, task) on holdfast.job to {role}")
            superuser.execute(f"grant select on holdfast.job to {role} with grant option")
            superuser.execute(f"grant usage on schema holdfast to {role}")
            superuser.execute("grant references on holdfast.job to public")
            superuser.execute(f"set role {role}")
            superuser.execute(f"grant select on holdfast.job to {friend}")
            superuser.execute("reset role")
            schema.apply(superuser)
            rights = superuser.execute(
                "select t, has_table_privilege(%(role)s, t, 'select'), "
                "has_column_privilege(%(role)s, t, 'task', 'insert'), "
                "has_column_privilege(%(role)s, t, 'state', 'insert') "
                "from unnest(array['holdfast.job', 'holdfast.live']) t",
                {"role": role},
            ).fetchall()
            assert rights == [("holdfast.job", True, True, False), ("holdfast.live", False, False, False)]
            passed_on = "select has_table_privilege(%s, t, 'select') from unnest(%s::text[]) t"
            tables = ["holdfast.job", "holdfast.live"]
            assert superuser.execute(passed_on, [friend, tables]).fetchall() == [(True,), (False,)]
            everybodys = "select has_table_privilege('public', t, 'references') from unnest(%s::text[]) t"
            assert superuser.execute(everybodys, [tables]).fetchall() == [(True,), (False,)]
            grantable = superuser.execute(
                "select has_table_privilege(%s, 'holdfast.job', 'select with grant option')", [role]
            )
            assert grantable.fetchone() == (True,)
        finally:
            superuser.execute("drop schema holdfast cascade")
            superuser.execute(f"drop role {role}")
            superuser.execute(f"drop role {friend}")


def test_a_superuser_upgrades_for_the_owner_and_a_stranger_does_not(release: str, empty_dsn: str) -> None:
    if not _changed_since(release):
        pytest.skip(f"no SQL has changed since {release}, so there is nothing to upgrade")
    owner, stranger = (f"hf_{kind}_{uuid4().hex[:8]}" for kind in ("owner", "stranger"))
    with psycopg.connect(empty_dsn, autocommit=True) as superuser:
        for role in (owner, stranger):
            superuser.execute(f"create role {role} login")
        try:
            superuser.execute(f"grant create on database {superuser.info.dbname} to {owner}, {stranger}")
            released.install(release, make_conninfo(empty_dsn, user=owner))
            superuser.execute(f"grant select on holdfast.migration to {stranger}")
            superuser.execute(f"grant usage on schema holdfast to {stranger}")
            with (
                psycopg.connect(empty_dsn, user=stranger, autocommit=True) as connection,
                pytest.raises(schema.MigrationFailed, match=f"belongs to role {owner}") as error,
            ):
                schema.apply(connection)
            assert error.value.hint == f"Migrate as {owner}, or as a superuser."
            assert schema.apply(superuser)
            assert superuser.execute("select current_user = session_user").fetchone() == (True,)
            owners = superuser.execute(
                "select distinct relowner::regrole::text from pg_class "
                "where relnamespace = 'holdfast'::regnamespace union "
                "select distinct proowner::regrole::text from pg_proc "
                "where pronamespace = 'holdfast'::regnamespace"
            ).fetchall()
            assert owners == [(owner,)]
            with psycopg.connect(empty_dsn, user=owner, autocommit=True) as connection:
                connection.execute("select holdfast.enqueue('task')")
                assert len(connection.execute("select * from holdfast.claim()").fetchall()) == 1
                assert [row[1] for row in connection.execute("select * from holdfast.tick()")].count(None) > 5
        finally:
            superuser.execute("drop schema holdfast cascade")
            superuser.execute(f"drop owned by {owner}, {stranger}")
            superuser.execute(f"drop role {owner}, {stranger}")


def test_workers_of_the_release_go_on_through_an_upgrade_and_beside_new_ones(
    release: str, empty_dsn: str, tmp_path: Path, until: Until
) -> None:
    code = _prepare_old_worker(release, empty_dsn, tmp_path)
    workers = [released.OldWorker(code, tmp_path, empty_dsn) for _ in range(2)]
    numbers = itertools.count()
    with psycopg.connect(empty_dsn, autocommit=True) as connection:

        def enqueue(amount: int) -> None:
            payloads = [f'{{"number": {next(numbers)}}}' for _ in range(amount)]
            call = "select holdfast.enqueue_many(tasks => %s, payloads => %s::jsonb[])"
            connection.execute(call, [["flaky"] * amount, payloads])

        def done() -> dict[str, int]:
            return dict(connection.execute("select state, count(*) from holdfast.jobs group by 1").fetchall())

        try:
            connection.execute("select holdfast.set_retry_policy(task => 'flaky', base => '0 seconds')")
            enqueue(300)
            # A worker that starts after the upgrade would be refused.
            until(
                lambda: all("worker.started" in it.said for it in workers),
                say=lambda: [it.said for it in workers],
            )
            until(lambda: done().get("completed", 0) >= 100, say=lambda: [it.said for it in workers])
            enqueue(3000)
            _upgrade(connection, release)
            enqueue(300)
            until(lambda: done() == {"completed": 3600}, say=done)
            if _changed_since(release):
                late = released.OldWorker(code, tmp_path, empty_dsn)
                assert (late.wait(), "Upgrade the holdfast package" in late.said) == (1, True)

            with Holdfast(empty_dsn) as hf:

                @hf.task(name="fresh")
                async def fresh() -> None: ...

                enqueue(300)
                fresh.enqueue()
                hf.worker(queues=["default"]).run(drain=True)
                until(lambda: done() == {"completed": 3901}, say=done)
            assert all(worker.lives for worker in workers), [worker.said for worker in workers]
        finally:
            codes = [worker.end() for worker in workers]
    said = "".join(worker.said for worker in workers)
    assert codes == [0, 0]
    assert said.count("worker.stopped") == 2
    assert ".broken" not in said, said


@pytest.mark.parametrize("release", RELEASES[-1:])
def test_where_only_old_workers_run_schedules_fire_and_statistics_fold(
    release: str, empty_dsn: str, tmp_path: Path, until: Until
) -> None:
    """Workers of 0.2 call promote() and recover(), and rely on them for both."""
    code = _prepare_old_worker(release, empty_dsn, tmp_path)
    worker = released.OldWorker(code, tmp_path, empty_dsn)
    with psycopg.connect(empty_dsn, autocommit=True) as connection:

        def one(query: str) -> Any:
            return connection.execute(query).fetchall()[0][0]

        try:
            until(lambda: one("select count(*) from holdfast.worker") == 1, say=lambda: worker.said)
            _upgrade(connection, release)
            connection.execute(
                "select holdfast.add_schedule("
                "name => 'often', task => 'flaky', every => '1 second', payload => '{\"number\": 1}')"
            )
            until(lambda: one("select count(*) from holdfast.finished") >= 2, say=lambda: worker.said)
            folded = "select coalesce(sum(completed), 0) from holdfast.stat where span = 'minute'"
            until(lambda: one(folded) >= 2, say=lambda: worker.said)
            assert worker.lives
        finally:
            worker.end()


@pytest.mark.parametrize("release", RELEASES[-1:])
def test_an_old_worker_that_sleeps_is_woken_beside_the_new_schema(
    release: str, empty_dsn: str, tmp_path: Path, until: Until
) -> None:
    """It has no channel of its own, and listens on those of queues."""
    code = _prepare_old_worker(release, empty_dsn, tmp_path)
    worker = released.OldWorker(code, tmp_path, empty_dsn)
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        sleepers = "select from holdfast.worker where asleep"
        try:
            until(lambda: connection.execute(sleepers).fetchall(), say=lambda: worker.said)
            _upgrade(connection, release)
            until(lambda: connection.execute(sleepers).fetchall(), say=lambda: worker.said)
            connection.execute('listen "holdfast_*"')
            connection.execute('listen "holdfast_default"')
            connection.execute("select holdfast.enqueue('flaky', '{\"number\": 1}')")
            assert [it.payload for it in connection.notifies(timeout=0)] == ["default"]
            ended = "select from holdfast.finished"
            until(lambda: connection.execute(ended).fetchall(), say=lambda: worker.said)
        finally:
            worker.end()
