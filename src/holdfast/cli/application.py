"""Load the app that a worker runs. It is named `module:attribute`, as in other tools."""

import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from holdfast.client import Holdfast
from holdfast.task import Registry, Sending
from holdfast.telemetry import emit, subscribe
from holdfast.values.errors import BadInput, HoldfastError, nearest, suggest
from holdfast.values.job import NewJob


class AppNotFound(HoldfastError):  # noqa: N818 - as in holdfast.errors
    """The app that a worker should run cannot be loaded."""

    app: str | None = None


class AppMisnamed(AppNotFound, BadInput):
    """The argument does not name an app. Write module:attribute."""


def load_app(name: str) -> Holdfast:
    """Return the Holdfast that `module:attribute` names; the current directory is searched first."""
    module_name, attribute = _parts(name)
    _search_current_directory()
    with _doubting(name):
        return _holdfast_in(_module(name, module_name), name, attribute)


def app_directories(name: str) -> list[Path]:
    """Return the directories of the package or module that holds the app, without importing it."""
    module_name, _ = _parts(name)
    _search_current_directory()
    try:
        spec = importlib.util.find_spec(module_name.partition(".")[0])
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(place) for place in spec.submodule_search_locations]
    return [Path(spec.origin).parent] if spec.origin and spec.has_location else []


def _parts(name: str) -> tuple[str, str]:
    """Split `module:attribute`."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise AppMisnamed(
            f"{name!r} does not name an app", hint="Write module:attribute, such as app:hf.", app=name
        )
    if module_name.endswith(".py") or "/" in module_name:
        plain = module_name.removesuffix(".py").strip("./").replace("/", ".")
        hint = f"Did you mean {plain}:{attribute}?"
        raise AppMisnamed(f"{module_name} is a file; a module is meant", hint=hint, app=name)
    return module_name, attribute


def _search_current_directory() -> None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


@contextmanager
def _doubting(app: str) -> Iterator[None]:
    """Warn once if the app enqueues jobs or runs a worker while it is imported."""
    doubted = False

    def note_unknown(what: str) -> None:
        nonlocal doubted
        if not doubted:
            doubted = True
            hint = f'Each worker process does so again. Put it under if __name__ == "__main__": in {app}.'
            emit("app.doubted", app=app, reason=f"it {what} while it is imported", hint=hint)

    @contextmanager
    def enqueuing(jobs: Iterable[NewJob]) -> Iterator[Sending]:
        note_unknown("enqueues jobs")
        yield Sending(jobs)

    def tell(event: str, _fields: Mapping[str, Any]) -> None:
        if event == "worker.started":
            note_unknown("runs a worker")

    unsubscribe = subscribe(tell)
    Registry.around_enqueue = staticmethod(enqueuing)
    try:
        yield
    finally:
        Registry.around_enqueue = None
        unsubscribe()


def _module(name: str, module_name: str) -> ModuleType:
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise _no_module(name, module_name, error.name) from error
        raise _broken(name, module_name, error) from error
    except Exception as error:
        raise _broken(name, module_name, error) from error


def _no_module(name: str, module_name: str, missing: str) -> AppNotFound:
    modules = [path.stem for path in Path.cwd().glob("*.py")]
    modules += [path.parent.name for path in Path.cwd().glob("*/__init__.py")]
    near = nearest(module_name, modules)
    hint = f"Did you mean {near!r}?" if near else "Run this where your app is, or install it."
    return AppNotFound(f"there is no module {missing!r} in {Path.cwd()} or installed", hint=hint, app=name)


def _broken(name: str, module_name: str, error: Exception) -> AppNotFound:
    """Describe an error in the app's own code, with its file and line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    file, line = frame.filename, frame.lineno
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno
    what = error.message if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
    return AppNotFound(
        f"importing {module_name} failed: {what} ({file}, line {line})",
        hint=f'python -c "import {module_name}" shows the whole traceback.',
        app=name,
    )


def _holdfast_in(module: ModuleType, name: str, attribute: str) -> Holdfast:
    found: object = module
    known = [key for key, value in vars(module).items() if _is_holdfast(value)]
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            hint = suggest(attribute, known) if known else f"Write hf = Holdfast() in {module.__name__}."
            raise AppNotFound(f"{module.__name__} has no {attribute!r}", hint=hint, app=name) from None
    if not _is_holdfast(found):
        hint = f"Did you mean {module.__name__}:{known[0]}?" if known else "It must be a Holdfast(…)."
        raise AppNotFound(f"{name} is a {type(found).__name__}, not a Holdfast", hint=hint, app=name)
    return cast("Holdfast", found)


def _is_holdfast(value: object) -> bool:
    """Tell from the type alone whether the value is a Holdfast.

    `isinstance` would also read the value's `__class__`, which sets up a lazy object such as Django's
    settings.
    """
    return issubclass(type(value), Holdfast)
