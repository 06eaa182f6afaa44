"""Write docs/reference/python.md: the public names of Python, from their signatures and docstrings.

    .venv/bin/python docs/generate_python_reference.py

Signatures are shown as they are written in the source, so the page is the same under every Python. A test
compares the page with the output of this script.
"""
# ruff: noqa: INP001 - a script beside the pages, not a package

import ast
import dataclasses
import functools
import importlib
import inspect
import json
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from holdfast import Context, Holdfast, HoldfastError, Job, JobSnapshot, Task, errors, operations
from holdfast.operations.base import operation, stream
from holdfast.operations.dead import Dead
from holdfast.operations.jobs import Jobs
from holdfast.values.options import TaskKeywords
from holdfast.worker.worker import Worker

PAGE = Path(__file__).parent / "reference" / "python.md"
WIDTH = 88

INTRODUCTION = """\
# Python

```python
from holdfast import Event, Holdfast, Job, JobSnapshot, JobState, NewJob, Task  # asking and knowing
from holdfast import Context, Priority, Schedule, Secret, subscribe
from holdfast import Cancel, Done, GiveUp, Retry, RetryPolicy, Snooze, Stop  # ending an attempt
```

Everything public is in the package `holdfast`. Four modules below it are public too: `holdfast.errors`,
`holdfast.testing`, `holdfast.embedded` and `holdfast.contrib.opentelemetry`. All other modules are internal
and may change in any release. The package is typed throughout (`py.typed`).

**Every method that talks to the database has an async twin** with the prefix `a`, such as
`await hf.dead.areplay(…)`. This page shows each pair once. The descriptions are the first paragraphs of the
docstrings; `help()` shows the rest.
`with Holdfast() as hf:` and `async with` close the connections at the end.
"""
TESTING = """\
## Testing

`holdfast.testing` has the [fixtures](../guides/testing.md) for pytest, and the same as functions and classes:
`Clock(dsn)`, `drain_queue(hf)`, `assert_enqueued(hf, task, …)`, `refute_enqueued(hf, task, …)`, `inline(hf)`,
`HandlerFailed`, `Crashes(hf)`, `Crash`. `holdfast.embedded.start()` starts or shares a
[private PostgreSQL](../guides/embedded.md).
"""

# The guide to each namespace, in the order of the page. A namespace that is missing here comes last.
NAMESPACES = {
    "jobs": "[Inspecting and changing jobs](../guides/looking-after-jobs.md), "
    "[Results](../guides/results.md)",
    "dead": "[Dead letters](../guides/dead-letters.md)",
    "queues": "[Pausing queues](../guides/pausing-queues.md)",
    "schedules": "[Schedules](../guides/schedules.md)",
    "events": "[Events](../guides/events.md)",
    "workers": "[Workers](../guides/workers.md), [Duties without a worker](../operations/duties.md)",
    "stats": "[Statistics and health](../operations/statistics.md)",
    "health": "[Statistics and health](../operations/statistics.md#health), "
    "[Troubleshooting](../operations/troubleshooting.md)",
    "settings": "[Settings](../operations/settings.md)",
    "policies": "[Retries](../guides/retries.md#the-policy)",
    "grants": "[Security](../operations/security.md#tenants)",
    "audit": "[Settings](../operations/settings.md#who-changed-what)",
    "retention": "[Retention](../operations/retention.md)",
}
# Public methods that only other parts of Holdfast call.
INTERNAL = {
    Holdfast: {"carrier", "database"},
    Job: {"carrier"},
    Context: {"restore", "receive", "has_notes", "final_report", "mark_cancelled"},
    Task: {"context", "decode", "encode_result", "decode_result"},
    Worker: set[str](),
}
INTERNAL_OPERATIONS = {"schedules.declare"}
# These come first in their class.
FIRST = ("task", "enqueue", "enqueue_many", "job", "worker")
# Where the rows are that operations return.
ROWS = ("holdfast.operations.", "holdfast.database.", "holdfast.telemetry.")
OUTCOMES = ("Done", "Retry", "Snooze", "Cancel", "GiveUp", "Stop")
VALUES = ("RetryPolicy", "Schedule", "Secret", "Priority", "JobState", "NewJob")


class Member(NamedTuple):
    """A public method or property: how it is called, its source, and whether it is a property."""

    name: str
    function: Callable[..., Any]
    is_property: bool


def page() -> str:
    """Return the reference of the public names of Python."""
    for module in pkgutil.iter_modules(operations.__path__, f"{operations.__name__}."):
        importlib.import_module(module.name)  # so that the rows that operations return can be found
    return "\n".join(
        [
            INTRODUCTION,
            *_section(
                "Holdfast",
                Holdfast,
                "hf",
                "[Tasks](../guides/tasks.md), [Enqueueing](../guides/enqueueing.md)",
            ),
            *_namespaces(),
            *_section(
                "Task", Task, "task", "[Tasks](../guides/tasks.md), [Enqueueing](../guides/enqueueing.md)"
            ),
            *_section("Job", Job, "job", "[Inspecting and changing jobs](../guides/looking-after-jobs.md)"),
            *_fields_of(JobSnapshot),
            *_fields_of(holdfast.Event),
            *_section(
                "Context",
                Context,
                "ctx",
                "[Progress](../guides/progress.md), [Events](../guides/events.md), "
                "[Steps](../guides/steps.md), [Exactly once](../guides/exactly-once.md)",
            ),
            "## Outcomes",
            "",
            "Guide: [Retries](../guides/retries.md#ending-an-attempt-on-purpose).",
            "",
            *_classes(OUTCOMES),
            "## Values",
            "",
            *_classes(VALUES),
            *_section("Worker", Worker, "worker", "[Workers](../guides/workers.md)"),
            "## Telemetry",
            "",
            "Guide: [Observability](../operations/observability.md#telemetry-events).",
            "",
            *_method("subscribe", holdfast.subscribe),
            *_errors(),
            TESTING,
        ]
    )


# --- Sections ------------------------------------------------------------------------------------


def _section(title: str, kind: type, handle: str, guide: str) -> Iterator[str]:
    members = [member for member in members_of(kind) if member.name not in INTERNAL[kind]]
    members.sort(key=lambda member: FIRST.index(member.name) if member.name in FIRST else len(FIRST))
    yield from (f"## {title}", "", _first_paragraph(kind), "", f"Guide: {guide}.", "")
    if kind is Holdfast:
        yield from _fenced(_signature("Holdfast", Holdfast.__init__))
    properties = [member for member in members if member.is_property]
    if properties:
        yield from (_property(handle, member) for member in properties)
        yield ""
    for member in members:
        if not member.is_property:
            yield from _method(f"{handle}.{member.name}", member.function)


def _namespaces() -> Iterator[str]:
    with Holdfast("postgresql://nobody@127.0.0.1:1/nowhere") as client:  # never connects
        kinds = {
            name: type(getattr(client, name))
            for name, value in vars(Holdfast).items()
            if type(value).__name__ == "_namespace"
        }
    for name in [*NAMESPACES, *sorted(kinds.keys() - NAMESPACES)]:
        kind = kinds[name]
        yield from (f"## hf.{name}", "", _first_paragraph(kind), "")
        if name in NAMESPACES:
            yield from (f"Guide: {NAMESPACES[name]}.", "")
        members = [it for it in members_of(kind) if f"{name}.{it.name}" not in INTERNAL_OPERATIONS]
        for member in members:
            yield from _method(f"hf.{name}.{member.name}", member.function)
        yield from _rows_of(member.function for member in members)


def members_of(kind: type) -> Iterator[Member]:
    """Yield the public members of a class in the order of the source, without async twins."""
    for name, value in vars(kind).items():
        if name.startswith("_") or (name.startswith("a") and name[1:] in vars(kind)):
            continue
        if isinstance(value, operation | stream):
            yield Member(name, _original(kind, value), is_property=False)
        elif isinstance(value, property):
            assert value.fget is not None  # noqa: S101 - there is no other kind here
            yield Member(name, value.fget, is_property=True)
        elif inspect.isfunction(value):
            yield Member(name, value, is_property=False)


def _original(kind: type, made: operation[Any, Any, Any] | stream[Any, Any, Any]) -> Callable[..., Any]:
    """Return the function that a person wrote; most of a job's are derived from those of a namespace."""
    name = made.build.__name__
    if kind is not Job or name not in {**vars(Jobs), **vars(Dead)}:
        return made.build
    return vars(Jobs).get(name, vars(Dead).get(name)).build  # type: ignore[union-attr]


def _method(call: str, function: Callable[..., Any]) -> Iterator[str]:
    yield from (f"### {call}", "")
    yield from _fenced(_signature(call, function))
    if text := _first_paragraph(function):
        yield from (text, "")
    if keywords := _keywords(function):
        yield from (f"Options: {', '.join(f'`{name}`' for name in keywords)}.", "")


def _property(handle: str, member: Member) -> str:
    returns = _annotation(_definition(member.function).returns, member.function)
    text = _first_paragraph(member.function)
    return f"- `{handle}.{member.name}: {returns}`" + (f": {text}" if text else "")


def _classes(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        kind = getattr(holdfast, name)
        yield from (f"### {name}", "")
        if issubclass(kind, Enum):
            yield from _fenced("\n".join(f"{name}.{it.name} = {json.dumps(it.value)}" for it in kind))
        else:
            yield from _fenced(_constructor(kind))
        if text := _first_paragraph(kind):
            yield from (text, "")
        if properties := [member for member in members_of(kind) if member.is_property]:
            yield from (_property(name, member) for member in properties)
            yield ""


def _fields_of(kind: type) -> Iterator[str]:
    fields = ", ".join(f"`{name}`" for name in _fields(kind))
    yield from (f"### {kind.__name__}", "", _first_paragraph(kind), "", f"Fields: {fields}.", "")


def _rows_of(functions: Iterable[Callable[..., Any]]) -> Iterator[str]:
    """List the fields of the rows that these functions return."""
    known: dict[str, type] = {}
    for function in functions:
        for name in re.findall(r"\w+", _annotation(_definition(function).returns, function)):
            found = _find(name)
            if found is not None and found not in {JobSnapshot, holdfast.Event} and name not in known:
                known[name] = found
    for name, kind in known.items():
        fields = ", ".join(f"`{field}`" for field in _fields(kind))
        text = _first_paragraph(kind)
        yield f"{'An' if name[0] in 'AEIOU' else 'A'} `{name}` has {fields}." + (f" {text}" if text else "")
        yield ""


def _errors() -> Iterator[str]:
    branches = [kind for kind in HoldfastError.__subclasses__() if kind.__subclasses__()]
    yield from (
        "## Errors",
        "",
        "All are in `holdfast.errors`, and the most frequent ones in `holdfast` too.",
    )
    yield from ("[Errors and SQLSTATEs](../operations/errors.md) says what to do about each.", "")
    yield from ("| error | branch | SQLSTATE | meaning |", "|---|---|---|---|")
    for name in errors.__all__:
        kind = getattr(errors, name)
        branch = next((it.__name__ for it in branches if issubclass(kind, it) and kind is not it), "")
        state = kind.sqlstate or ""
        yield f"| `{name}` | {branch and f'`{branch}`'} | {state} | {_first_paragraph(kind)} |"
    yield ""


# --- Signatures, as they are written in the source -------------------------------------------------


def _signature(call: str, function: Callable[..., Any]) -> str:
    definition = _definition(function)
    returns = _annotation(definition.returns, function)
    if any("contextmanager" in ast.unparse(decorator) for decorator in definition.decorator_list):
        returns = returns.replace("Iterator[", "ContextManager[", 1)
    silent = returns in {"", "None", "Any"}
    return _broken(call, _parameters(definition.args, call, function), "" if silent else f" → {returns}")


def _parameters(arguments: ast.arguments, call: str, function: Callable[..., Any]) -> list[str]:
    def shown(argument: ast.arg, default: ast.expr | None) -> str:
        said = "" if argument.annotation is None else f": {_annotation(argument.annotation, function)}"
        return argument.arg + said + _default(default)

    positional = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    pairs = zip(positional, [*missing, *arguments.defaults], strict=True)
    # A job's operations are those of `hf.jobs` and `hf.dead` with its id filled in.
    filled_in = {"self", "job"} if call.startswith("job.") else {"self"}
    parameters = [shown(argument, default) for argument, default in pairs if argument.arg not in filled_in]
    if arguments.vararg is not None:
        parameters.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        parameters.append("*")
    parameters += map(shown, arguments.kwonlyargs, arguments.kw_defaults)
    # `unknown` is only there to name an unknown option in an error.
    if arguments.kwarg is not None and arguments.kwarg.arg != "unknown":
        parameters.append(f"**{arguments.kwarg.arg}")
    return parameters


def _annotation(node: ast.expr | None, function: Callable[..., Any]) -> str:
    """Return an annotation in full: without quotes, aliases, and the call that an operation builds."""
    if node is None:
        return ""
    text = re.sub(r"""['"]([^'"]*\[[^'"]*|[A-Z]\w*)['"]""", r"\1", ast.unparse(node))
    # `Call[int]` and `Steps[int]` are what an operation builds; its caller gets the int.
    inner = re.fullmatch(r"(?:Call|Steps)\[(.*?)\](?: \| Steps\[.*\])?", text)
    text = inner[1] if inner else re.sub(r"^Stream\[", "Iterator[", text)
    aliases = _aliases(inspect.unwrap(function).__module__)
    text = re.sub(r"\w+", lambda word: aliases.get(word[0], word[0]), text)
    text = re.sub(r"\b(?:typing|datetime|msgspec|os)\.(?=[A-Z])", "", text).replace("'", '"')
    return text.replace("Task[P, R_co]", "Task").replace("R_co", "R")


@functools.cache
def _aliases(module: str) -> dict[str, str]:
    """Return the names that a module gives to unions and literals, with what they stand for."""
    found = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("holdfast.operations."):
            theirs = _aliases(node.module or "")
            found |= {it.name: theirs[it.name] for it in node.names if it.name in theirs}
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if (
            isinstance(target, ast.Name)
            and target.id[:1].isupper()
            and isinstance(value, ast.Subscript | ast.BinOp)
        ):
            found[target.id] = ast.unparse(value)
    return {name: text for name, text in found.items() if not name.isupper()}


def _broken(call: str, parameters: list[str], returns: str) -> str:
    line = f"{call}({', '.join(parameters)}){returns}"
    if len(line) <= WIDTH:
        return line
    return f"{call}(\n" + "".join(f"  {parameter},\n" for parameter in parameters) + f"){returns}"


def _constructor(kind: type) -> str:
    tree = _class(kind)
    if "__init__" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
        return _signature(kind.__name__, vars(kind)["__init__"])
    fields = [
        f"{node.target.id.removeprefix('_')}: {ast.unparse(node.annotation)}" + _default(node.value)
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    made_by = [*tree.bases, *tree.keywords, *tree.decorator_list]
    keyword_only = any("kw_only=True" in ast.unparse(node) for node in made_by)
    return _broken(kind.__name__, [*(["*"] if keyword_only else []), *fields], "").replace("R_co", "R")


def _default(value: ast.expr | None) -> str:
    text = "" if value is None else ast.unparse(value).replace("'", '"')
    if not text or "field(" in text:
        return ""
    return " = …" if text == "msgspec.UNSET" else f" = {text}"


def _keywords(function: Callable[..., Any]) -> list[str]:
    """Return the names of the options that a function takes as `**options: Unpack[…]`."""
    if function is vars(Holdfast)["task"]:
        return [*TaskKeywords.__annotations__]
    keywords = _definition(function).args.kwarg
    written = "" if keywords is None or keywords.annotation is None else ast.unparse(keywords.annotation)
    named = re.match(r"Unpack\[(\w+)\]", written)
    return [] if named is None else [*inspect.unwrap(function).__globals__[named[1]].__annotations__]


# --- Sources ---------------------------------------------------------------------------------------


def _definition(function: Callable[..., Any]) -> ast.FunctionDef | ast.AsyncFunctionDef:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)  # noqa: S101 - it is a function
    return node


def _class(kind: type) -> ast.ClassDef:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)  # noqa: S101 - it is a class
    return node


def _find(name: str) -> type | None:
    """Return the row of this name: a named tuple or a dataclass of the operations."""
    for module_name, module in sorted(sys.modules.items()):
        found = getattr(module, name, None) if module_name.startswith(ROWS) else None
        if isinstance(found, type) and (hasattr(found, "_fields") or dataclasses.is_dataclass(found)):
            return found
    return None


def _fields(kind: type) -> list[str]:
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return [*kind._fields]  # type: ignore[attr-defined]


def _first_paragraph(thing: Any) -> str:
    """Return the first paragraph of its own docstring on one line."""
    if isinstance(thing, type):
        text = ast.get_docstring(_class(thing)) or ""
    else:
        text = inspect.getdoc(inspect.unwrap(thing)) or ""
    return " ".join(text.split("\n\n")[0].split())


def _fenced(text: str) -> Iterator[str]:
    yield from ("```", text, "```", "")


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
