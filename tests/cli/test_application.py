"""The app that a worker is asked to run: found, or a clear word why not."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.cli.application import AppNotFound, app_directories, load_app
from tests.waiting import Told


@pytest.fixture(autouse=True)
def _in_the_app(app: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the app's directory, with nothing of it left imported afterwards."""
    monkeypatch.chdir(app)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def _error(name: str) -> str:
    with pytest.raises(AppNotFound) as caught:
        load_app(name)
    assert caught.value.app == name
    return str(caught.value)


def test_an_app_is_found_in_the_current_directory() -> None:
    assert "whoami" in load_app("app:hf").tasks


def test_an_app_may_be_an_attribute_of_something_in_a_package(app: Path) -> None:
    (app / "shop").mkdir()
    (app / "shop" / "__init__.py").touch()
    (app / "shop" / "jobs.py").write_text("import app\nclass box:\n    hf = app.hf\n")
    assert "whoami" in load_app("shop.jobs:box.hf").tasks


def test_the_directories_of_an_app_are_known_without_importing_it(
    app: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.syspath_prepend(elsewhere)
    (elsewhere / "shop").mkdir()
    (elsewhere / "shop" / "__init__.py").write_text("1 / 0")
    assert app_directories("shop.jobs:hf") == [elsewhere / "shop"]
    assert app_directories("app:hf") == [app]
    assert app_directories("nowhere.at.all:hf") == []
    assert sys.modules.keys().isdisjoint({"app", "shop"})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("app", "'app' does not name an app. Write module:attribute, such as app:hf."),
        ("app:", "does not name an app"),
        ("app.py:hf", "app.py is a file; a module is meant. Did you mean app:hf?"),
        ("./shop/jobs.py:hf", "Did you mean shop.jobs:hf?"),
        ("ap:hf", "there is no module 'ap' in "),
        ("ap:hf", "Did you mean 'app'?"),
        ("app.jobs:hf", "there is no module 'app.jobs' in "),
        ("nowhere.at.all:hf", "there is no module 'nowhere' in "),
        ("app:hff", "app has no 'hff'. Did you mean 'hf'?"),
        ("app:number", "app:number is a int, not a Holdfast. Did you mean app:hf?"),
    ],
)
def test_an_app_that_is_not_there_is_answered_with_what_was_meant(name: str, said: str) -> None:
    assert said in _error(name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import app\n\n1 / 0\n", "importing broken failed: ZeroDivisionError: division by zero ("),
        ("import app\n\nimport not_installed\n", "ModuleNotFoundError: No module named 'not_installed' ("),
        ("import app\n\nx = (\n", "SyntaxError: "),
        ("import app\n\napp.hf.task(queue='BAD')(print)\n", "queue 'BAD' is not a valid name ("),
    ],
)
def test_a_mistake_in_an_app_is_shown_where_it_is(app: Path, text: str, said: str) -> None:
    (app / "broken.py").write_text(text)
    error = _error("broken:hf")
    assert said in error
    assert 'python -c "import broken" shows the whole traceback.' in error
    if "BAD" not in text:
        assert "broken.py, line 3)" in error


def test_a_lazy_object_beside_the_app_is_not_woken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lazy_app.py").write_text(
        "from holdfast import Holdfast\n\n"
        "class Lazy:\n"
        "    @property\n"
        "    def __class__(self):\n"
        "        raise RuntimeError('settings are not configured')\n\n"
        "settings = Lazy()\n"
        "hf = Holdfast()\n"
    )
    monkeypatch.chdir(tmp_path)
    assert type(load_app("lazy_app:hf")) is Holdfast
    with pytest.raises(AppNotFound, match="is a Lazy"):
        load_app("lazy_app:settings")


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("hello.enqueue()\nhf.enqueue_many([hello.call()])", "it enqueues jobs while it is imported"),
        ("hf.enqueue_many([hello.call()])", "it enqueues jobs while it is imported"),
        ("hf.worker(queues=['none']).run(drain=True)", "it runs a worker while it is imported"),
    ],
)
def test_an_app_that_does_something_while_it_is_imported_is_warned_once(
    app: Path,
    does: str,
    reason: str,
    told: Told,
    hf: Holdfast,
    holdfast_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_DSN", holdfast_dsn)
    declares = "from holdfast import Holdfast\nhf = Holdfast()\n@hf.task\ndef hello(): ...\n"
    (app / "eager.py").write_text(declares + does)
    with load_app("eager:hf") as eager:
        (warning,) = told.named("app.doubted")
        assert warning["reason"] == reason
        assert 'if __name__ == "__main__":' in warning["hint"]
        assert eager.tasks.around_enqueue is None
        eager.enqueue("later")
    assert len(told.named("app.doubted")) == 1


def test_an_app_that_only_declares_is_not_warned(app: Path, told: Told) -> None:
    (app / "guarded.py").write_text("import app\nhf = app.hf\nif __name__ == '__main__': hf.enqueue('x')\n")
    load_app("guarded:hf")
    assert told.named("app.doubted") == []
