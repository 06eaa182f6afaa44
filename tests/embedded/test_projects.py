"""Each project has a home of its own, and its user is told where."""

import json
import logging
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest

from holdfast import Holdfast, embedded
from holdfast.cli import main
from holdfast.embedded import home as homes, project
from tests.embedded.watching import QUICK, ask
from tests.waiting import Told

RELEASED = Path(__file__).parents[1] / "schema" / "released" / "0.1.0.sql"


@pytest.fixture
def data(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for all homes of a user who has no home yet and has not set up logging."""
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    monkeypatch.delenv("HOLDFAST_DSN", raising=False)
    for module in (homes, project):
        monkeypatch.setattr(module, "user_data", lambda: place / "data" / "holdfast")
    monkeypatch.setattr(project, "start", partial(embedded.start, settings=QUICK))
    # The handlers are pytest's.
    monkeypatch.setattr(logging.getLogger("holdfast"), "hasHandlers", lambda: False, raising=False)
    return place / "data"


@pytest.fixture
def directory(place: Path) -> Callable[..., Path]:
    """`directory("shop/src", mark="shop/.git")`: a directory, with a mark of a project somewhere."""

    def make(path: str, *, mark: str | None = None) -> Path:
        (place / path).mkdir(parents=True, exist_ok=True)
        if mark:
            (place / mark).touch()
        return place / path

    return make


@pytest.mark.parametrize("mark", ["pyproject.toml", "manage.py", ".git"])
def test_all_directories_of_a_project_have_one_home(
    mark: str, data: Path, directory: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for path in ("shop", "shop/src/web", "shop/workers"):
        monkeypatch.chdir(directory(path, mark=f"shop/{mark}"))
        found.add(homes.default_home())
    (only,) = found
    assert only.parent == data / "holdfast/projects"
    assert only.name.startswith("shop-")


def test_the_nearest_project_counts_and_no_two_share_a_home(
    data: Path, directory: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    paths = ("shop", "shop/vendored/tool", "elsewhere/shop", "no-project", "no-project/below")
    for mark in ("shop/pyproject.toml", "shop/vendored/tool/.git", "elsewhere/shop/manage.py"):
        directory(str(Path(mark).parent), mark=mark)
    for path in paths:
        monkeypatch.chdir(directory(path))
        found.add(homes.default_home())
    assert len(found) == len(paths)


def test_the_worker_of_one_project_does_not_run_the_jobs_of_another(
    data: Path, directory: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def queue(path: str) -> Holdfast:
        monkeypatch.chdir(directory(path, mark=f"{path}/pyproject.toml"))
        hf = Holdfast()

        @hf.task(name="tidy")
        def tidy() -> None:
            ran.append(path)

        assert hf.dsn
        return hf

    with queue("shop") as shop, queue("blog") as blog:
        shop.enqueue("tidy")
        blog.worker().run(drain=True)
        assert ran == []
        shop.worker().run(drain=True)
        assert ran == ["shop"]


def test_the_web_process_and_the_worker_of_a_project_meet(
    data: Path, directory: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    monkeypatch.chdir(directory("shop", mark="shop/pyproject.toml"))
    with Holdfast() as web:
        web.enqueue("tidy")
        monkeypatch.chdir(directory("shop/workers"))
        with Holdfast() as hf:

            @hf.task(name="tidy")
            def tidy() -> None:
                ran.append(1)

            hf.worker().run(drain=True)
    assert ran == [1]


@pytest.mark.parametrize("name", ["läden, 'söhne' & co", "x" * 200, "..."])
def test_a_project_may_have_any_name(
    name: str, data: Path, directory: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory(f"{name}/{'deeper/' * 20}", mark=f"{name}/.git"))
    home = homes.default_home()
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,24}-[0-9a-f]{8}", home.name)
    assert home.name[0] not in ".-"


def test_a_socket_has_a_short_path_where_the_home_has_a_long_one(
    data: Path, directory: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = data / ("long" * 20) / ("path" * 20)
    for module in (homes, project):
        monkeypatch.setattr(module, "user_data", lambda: long)
    monkeypatch.chdir(directory("shop", mark="shop/.git"))
    with embedded.start_for_project() as server:
        assert ask(server.dsn, "select 1") == 1
        assert server.data_directory.is_relative_to(long)
        assert len(ask(server.dsn, "show unix_socket_directories") + "/.s.PGSQL.5432") <= 107


def test_the_place_is_told_once(
    data: Path,
    directory: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(directory("shop", mark="shop/.git"))
    with Holdfast() as hf:
        assert hf.jobs.list() == []
    home = homes.default_home()
    assert capsys.readouterr() == (
        "",
        f"Holdfast keeps the jobs of {Path.cwd()} in {home}. HOLDFAST_HOME chooses another place.\n",
    )
    with Holdfast() as hf:
        assert hf.jobs.list() == []
    assert capsys.readouterr() == ("", "")


def test_the_place_never_gets_into_the_answer_of_a_command(
    data: Path,
    directory: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(directory("shop", mark="shop/.git"))
    monkeypatch.setattr("sys.argv", ["holdfast", "dsn", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    answer, said = capsys.readouterr()
    assert not ended.value.code
    assert json.loads(answer)["source"] == "embedded"
    assert said.startswith("Holdfast keeps the jobs of")


def test_a_home_that_was_chosen_needs_no_word(
    data: Path,
    place: Path,
    directory: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(place / "mine"))
    monkeypatch.chdir(directory("shop", mark="shop/.git"))
    with embedded.start_for_project() as server:
        assert server.data_directory == place / "mine/data"
    assert capsys.readouterr() == ("", "")


def test_whoever_has_set_up_logging_reads_it_there(
    data: Path,
    directory: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    told: Told,
) -> None:
    monkeypatch.delattr(logging.getLogger("holdfast"), "hasHandlers")
    monkeypatch.chdir(directory("shop", mark="shop/.git"))
    with embedded.start_for_project():
        pass
    ((fields),) = told.named("embedded.created")
    assert fields["home"] == str(homes.default_home())
    assert capsys.readouterr() == ("", "")


def test_a_home_of_the_first_release_is_named_as_long_as_it_holds_jobs(
    data: Path,
    directory: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    earlier = data / "holdfast"
    with embedded.start(earlier, settings=QUICK) as server, psycopg.connect(server.dsn) as connection:
        connection.execute(RELEASED.read_bytes())
        connection.execute("select holdfast.enqueue('mail.welcome')")
    monkeypatch.chdir(directory("shop", mark="shop/.git"))
    line = f"still holds 1 job. To go on with it: export HOLDFAST_HOME={earlier}\n"
    for _ in range(2):
        with embedded.start_for_project(), embedded.start_for_project():
            pass
        said = capsys.readouterr().err
        assert said.endswith(line)
        assert said.count("still holds") == 1

    monkeypatch.setenv("HOLDFAST_HOME", str(earlier))  # as the line says
    with Holdfast() as hf:
        (job,) = hf.jobs.list()
        assert hf.job(job.id).cancel()
    monkeypatch.delenv("HOLDFAST_HOME")
    for _ in range(2):
        with embedded.start_for_project():
            pass
        assert capsys.readouterr().err == ""
    assert not (homes.default_home() / "earlier").exists()


def test_a_home_of_the_first_release_that_cannot_be_looked_into_is_named(
    data: Path,
    directory: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    earlier = data / "holdfast"
    (earlier / "data").mkdir(parents=True)
    (earlier / "data/PG_VERSION").write_text("9\n")
    earlier.chmod(0o711)
    monkeypatch.chdir(directory("shop", mark="shop/.git"))
    with embedded.start_for_project():
        assert f"may hold jobs. To go on with it: export HOLDFAST_HOME={earlier}\n" in capsys.readouterr().err
