"""Every operation is complete: a twin, a command and a line in the documentation, and written only once."""

import inspect
from pathlib import Path
from typing import Any

import click
import pytest

from holdfast import Holdfast, Job
from holdfast.cli.root import root
from holdfast.client import MOVED
from holdfast.operations.base import Twin, operation, stream
from holdfast.task import Task
from holdfast.values.errors import UnknownMethod
from holdfast.values.options import WorkerKeywords
from holdfast.worker.worker import Worker

DOCS = Path(__file__).parents[2] / "docs"

# The command of an operation, if it is not "<noun> <verb>" as in `queue pause`.
COMMANDS = {
    "audit.list": "audit",
    "dead.list": "dead",
    "dead.purge": "purge",
    "dead.purge_many": "purge",
    "dead.replay": "replay",
    "dead.replay_many": "replay",
    "grants.grant": "access grant",
    "grants.list": "access list",
    "grants.revoke": "access revoke",
    "health.check": "health",
    "health.doctor": "doctor",
    "health.metrics": "metrics",
    "health.overview": "metrics",
    "jobs.cancel": "cancel",
    "jobs.cancel_many": "cancel",
    "jobs.cancel_matching": "cancel",
    "jobs.checkpoint": "job",
    "jobs.errors": "job",
    "jobs.get": "job",
    "jobs.give_up": "give-up",
    "jobs.list": "jobs",
    "jobs.reschedule": "reschedule",
    "jobs.run_now": "run-now",
    "jobs.steps": "job",
    "jobs.why": "why",
    "retention.due": "retention",
    "retention.export": "export",
    "retention.list": "retention",
    "schedules.in_words": "schedule next",
    "schedules.next_occurrence": "schedule next",
    "schedules.upcoming": "schedule show",
    "settings.configure": "queue configure",
    "settings.list": "queue settings",
    "stats.count": "stats",
    "stats.recent": "stats",
    "workers.list": "workers",
    "workers.recover": "recover",
    "workers.tick": "tick",
}
WRITTEN_BY_HAND = {
    "Holdfast.aclose",  # it needs no connection, which a derived twin would open
    "Jobs.agather",  # their overloads give them types that a derived twin could not have
    "Task.aenqueue",
}


@pytest.fixture(scope="module")
def namespaces() -> dict[str, type[Any]]:
    with Holdfast("postgresql://nobody@127.0.0.1:1/nowhere") as holdfast:
        names = [name for name, value in vars(Holdfast).items() if type(value).__name__ == "_namespace"]
        return {name: type(getattr(holdfast, name)) for name in names}


def usual_command(name: str) -> str:
    noun, verb = name.split(".")
    singular = noun.removesuffix("ies") + "y" if noun.endswith("ies") else noun.removesuffix("s")
    return f"{singular} {verb.replace('_', '-')}"


def operations_of(kind: type[Any]) -> dict[str, operation[Any, Any, Any]]:
    return {name: value for name, value in vars(kind).items() if isinstance(value, operation)}


def originals_of(kind: type[Any]) -> dict[str, operation[Any, Any, Any] | stream[Any, Any, Any]]:
    return {name: value for name, value in vars(kind).items() if isinstance(value, operation | stream)}


def test_every_operation_has_a_twin(namespaces: dict[str, type[Any]]) -> None:
    for kind in [*namespaces.values(), Job, Holdfast]:
        for name, original in originals_of(kind).items():
            derived = vars(kind).get(f"a{name}")
            assert isinstance(derived, Twin), f"write a{name} = twin({name}) in {kind.__name__}"
            assert derived.original is original, f"{kind.__name__}.a{name} is the twin of something else"


def test_every_operation_has_a_docstring(namespaces: dict[str, type[Any]]) -> None:
    for kind in [*namespaces.values(), Job, Holdfast]:
        assert [name for name, it in originals_of(kind).items() if not it.__doc__] == []


def test_every_operation_has_a_command(namespaces: dict[str, type[Any]]) -> None:
    names = {f"{noun}.{name}" for noun, kind in namespaces.items() for name in operations_of(kind)}
    assert COMMANDS.keys() <= names
    for name in names:
        command = COMMANDS.get(name, usual_command(name))
        found: Any = root
        for word in command.split():
            found = isinstance(found, click.Group) and found.get_command(click.Context(found), word)
            assert found, f"{name}: there is no command {command!r}; write it, or name it in COMMANDS"


def test_only_unusual_commands_are_listed() -> None:
    assert [name for name, command in COMMANDS.items() if command == usual_command(name)] == []


def test_every_operation_has_a_line_in_the_documentation(namespaces: dict[str, type[Any]]) -> None:
    text = "\n".join(page.read_text() for page in DOCS.rglob("*.md"))
    missing = [
        f"hf.{noun}.{name}"
        for noun, kind in namespaces.items()
        for name in operations_of(kind)
        if f"hf.{noun}.{name}(" not in text
    ]
    assert missing == []


def test_no_sync_and_async_pair_is_written_by_hand(namespaces: dict[str, type[Any]]) -> None:
    written = {
        f"{kind.__name__}.{name}"
        for kind in [*namespaces.values(), Job, Holdfast, Task]
        for name, value in vars(kind).items()
        if name.startswith("a")
        and not name.startswith("_")
        and inspect.isfunction(value)
        and name[1:] in vars(kind)
    }
    assert written == WRITTEN_BY_HAND


def test_the_client_has_at_most_thirty_public_names() -> None:
    with Holdfast("postgresql://nobody@127.0.0.1:1/nowhere") as holdfast:
        public = [name for name in {*dir(Holdfast), *vars(holdfast)} if not name.startswith("_")]
    assert len(public) <= 30, sorted(public)


def test_every_moved_method_is_answered_with_one_that_exists(namespaces: dict[str, type[Any]]) -> None:
    nouns = {noun: f"{noun}.{kind.called}" for noun, kind in namespaces.items()}
    with Holdfast("postgresql://nobody@127.0.0.1:1/nowhere") as holdfast:
        for old, line in (MOVED | nouns).items():
            found = holdfast
            for part in line.partition("(")[0].split("."):
                found = getattr(found, part)
            said = "is no longer a function" if old in nouns else f"has no method '{old}' any more"
            with pytest.raises(UnknownMethod, match=said) as refusal:
                getattr(holdfast, old)()
            assert refusal.value.hint == f"Write hf.{line}."
        with pytest.raises(UnknownMethod, match=r"Write await hf\.dead\.areplay_many\(…\)"):
            _ = holdfast.areplay  # type: ignore[attr-defined]
        with pytest.raises(UnknownMethod, match=r"Write await hf\.jobs\.alist\(…\)"):
            _ = holdfast.ajobs  # type: ignore[attr-defined]


def test_the_options_of_a_worker_are_typed() -> None:
    parameters = inspect.signature(Worker).parameters.values()
    options = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    assert WorkerKeywords.__annotations__.keys() == options
