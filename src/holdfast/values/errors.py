"""All errors of Holdfast, as one tree: catch a branch or a leaf.

    HoldfastError
    ├── BadInput               the input cannot be used; change the call
    │   ├── BadArguments       the arguments do not fit the task
    │   ├── BadName            HF005  a queue, task or worker name breaks the rules
    │   ├── BadPayload         the payload cannot be stored as JSON
    │   ├── BadResult          the handler's result cannot be stored as JSON
    │   ├── BadValue           HF008  a value is out of its range
    │   ├── IdConflict         HF007  the id was used for another job
    │   ├── PayloadTooLarge    HF004
    │   ├── TooManyLanes       HF019  the queue has reached its limit of lanes
    │   ├── UnknownMethod      with the line to write instead
    │   ├── UnknownOption      with a suggestion
    │   └── UnknownTask        with a suggestion
    ├── Refused                the job or worker is no longer what the caller believes
    │   ├── IllegalTransition  HF010
    │   ├── JobNotFound        HF002
    │   ├── LeaseLost          HF001
    │   ├── NotHeld            HF003
    │   └── WorkerLost         HF006
    ├── NotReady               the database cannot serve this call in its present state
    │   ├── Collision
    │   ├── DatabaseUnavailable
    │   │   └── TooManyConnections
    │   ├── SchemaMissing
    │   ├── SchemaOutdated
    │   ├── SchemaTooNew
    │   └── WrongIsolation     HF009
    ├── NotAllowed             42501  the role may not do this
    ├── UnexpectedError        PostgreSQL refused for another reason
    └── Unsuccessful           a job that was waited for ended without a result
        ├── JobCancelled
        └── JobFailed

Holdfast's SQL functions raise `HFxxx` with a message, a HINT, and a DETAIL that is a JSON object with the
fields of the class. `from_sqlstate` is the one place where a code becomes a class.
"""
# ruff: noqa: N818 - a name says what went wrong (LeaseLost); "Error" would add nothing to it

import difflib
import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self
from uuid import UUID

from holdfast.values.secret import mask_dsn


class HoldfastError(Exception):
    """Something that Holdfast refused or could not do.

    Fields are attributes, `None` if nothing is known. `hint` says what to do next and is part of
    `str(error)`. Without a message, the first line of the class's docstring is the message.
    """

    sqlstate: str | None = None
    hint: str | None = None

    fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.fields += tuple(name for name in inspect.get_annotations(cls) if name not in cls.fields)

    def __init__(self, message: str = "", *, hint: str | None = None, **fields: Any) -> None:
        super().__init__(message or _first_line(type(self)))
        unknown = fields.keys() - set(self.fields)
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {unknown.pop()!r}; it has {self.fields}")
        if hint is not None:
            self.hint = hint
        for name, value in fields.items():
            setattr(self, name, value)

    @property
    def message(self) -> str:
        return str(self.args[0])

    def __str__(self) -> str:
        if not self.hint:
            return self.message
        stop = "" if self.message.endswith((".", "!", "?")) else "."
        return f"{self.message}{stop} {self.hint}"


class BadInput(HoldfastError):
    """The input cannot be used. Nothing was stored; change the call and try again."""


class BadArguments(BadInput):
    """The arguments do not fit the task. Compare the named argument with the handler's signature."""

    task: str | None = None
    argument: str | None = None


class BadName(BadInput):
    """A name breaks the rules: 1 to 100 of the characters a-z 0-9 _ . : and -."""

    sqlstate = "HF005"
    field: str | None = None
    value: Any = None


class BadPayload(BadInput):
    """The payload cannot be stored as JSON in PostgreSQL.

    JSON there has no NUL characters, lone surrogates, NaN or infinities. Remove them, or send bytes, which
    are stored as base64.
    """

    task: str | None = None
    path: str | None = None


class BadResult(BadInput):
    """The handler's result cannot be stored as JSON, so the attempt failed.

    Return plain values, dates, UUIDs, decimals, enums, dataclasses or msgspec structs. Store anything larger
    or of another type elsewhere, and return its location.
    """

    task: str | None = None
    path: str | None = None


class BadValue(BadInput):
    """A value is out of its range. The message names the field, the value and the limit."""

    sqlstate = "HF008"
    field: str | None = None
    value: Any = None


class IdConflict(BadInput):
    """This id was already used for another job: another task or another payload.

    The same id with the same job is allowed and enqueues once. Choose a new id for a new job.
    """

    sqlstate = "HF007"
    id: UUID | None = None
    field: str | None = None


class PayloadTooLarge(BadInput):
    """The payload is over the limit. Store the data elsewhere and enqueue its location."""

    sqlstate = "HF004"
    size: int | None = None
    limit: int | None = None


class TooManyLanes(BadInput):
    """The queue has as many lanes as its `lane_limit` allows. Move varying values into the payload."""

    sqlstate = "HF019"
    queue: str | None = None
    lanes: int | None = None
    limit: int | None = None


class UnknownOption(BadInput):
    """There is no such option. `suggestion` is the nearest known one."""

    option: str | None = None
    suggestion: str | None = None

    @classmethod
    def check(
        cls, options: Iterable[str], known: Collection[str], *, owner: str, also: Sequence[str] = ()
    ) -> None:
        """Raise the error for the first option that is not known. A hint may name those in `also`."""
        for option in options:
            if option not in known:
                raise cls.among(option, [*known, *also], owner=owner)

    @classmethod
    def among(cls, option: str, known: Iterable[str], *, owner: str, hint: str | None = None) -> Self:
        """Return the error for an `option` that `owner` does not have, with a hint."""
        names = sorted(known)
        return cls(
            f"{owner} has no option {option!r}",
            hint=hint or suggest(option, names),
            option=option,
            suggestion=nearest(option, names),
        )


class UnknownMethod(BadInput, AttributeError):
    """There is no such method; another queue or an earlier release has it. The hint names the one to call."""

    method: str | None = None


class UnknownTask(BadInput):
    """No task of this name is registered here. Import the module that declares it."""

    name: str | None = None
    suggestion: str | None = None


class Refused(HoldfastError):
    """The job or worker is no longer what the caller believes it to be."""


class IllegalTransition(Refused):
    """A job cannot change from its state to that one. The table `holdfast.state` lists what is allowed."""

    sqlstate = "HF010"
    id: UUID | None = None
    from_state: str | None = None
    to_state: str | None = None


class JobNotFound(Refused):
    """There is no job with this id: never enqueued, rolled back, or past its retention."""

    sqlstate = "HF002"
    id: UUID | None = None


class LeaseLost(Refused):
    """The job was given to another worker: the lease shown is not the current one.

    The report was not recorded. Stop working on the job; the holder of the current lease runs it.
    """

    sqlstate = "HF001"
    id: UUID | None = None
    shown: UUID | None = None
    current: UUID | None = None


class NotHeld(Refused):
    """No worker holds this job, so nothing can be reported about it. Claim it first, unless it has ended."""

    sqlstate = "HF003"
    id: UUID | None = None
    state: str | None = None


class WorkerLost(Refused):
    """The worker was declared lost or was never known. Register again, under a new id."""

    sqlstate = "HF006"
    worker: UUID | None = None


class NotReady(HoldfastError):
    """The database cannot serve this call in its present state."""


class Collision(NotReady):
    """The transaction collided with another: a deadlock, a lock timeout or a failed serialization. Retry."""


class DatabaseUnavailable(NotReady):
    """The database does not answer. Check the DSN, and that PostgreSQL runs there.

    `dsn` never shows the password: it is masked when the error is made.
    """

    dsn: str | None = None

    def __init__(self, message: str = "", *, hint: str | None = None, dsn: str | None = None) -> None:
        super().__init__(message, hint=hint, dsn=mask_dsn(dsn) if dsn else None)


class TooManyConnections(DatabaseUnavailable):
    """The server, or the pooler before it, has no connection left for this process."""

    hint = (
        "Raise max_connections on the server, or run fewer workers: an idle worker holds 1, a busy one 3 and "
        "those of its handlers."
    )


class SchemaMissing(NotReady):
    """Holdfast is not installed in this database."""

    hint = "Run `holdfast migrate`, or call hf.migrate()."


class SchemaOutdated(NotReady):
    """The database's schema is older than this version of Holdfast needs."""

    hint = "Run `holdfast migrate`, or call hf.migrate()."
    found: int | None = None
    needed: int | None = None


class SchemaTooNew(NotReady):
    """The database's schema is newer than this version of Holdfast knows."""

    hint = "Upgrade the holdfast package here; schemas are never downgraded."
    found: int | None = None
    needed: int | None = None


class UnexpectedError(HoldfastError):
    """PostgreSQL refused a call for another reason. `code` is its SQLSTATE."""

    code: str | None = None


class WrongIsolation(NotReady):
    """This call only works in READ COMMITTED: with a frozen snapshot it would miss jobs."""

    sqlstate = "HF009"
    level: str | None = None


class NotAllowed(HoldfastError):
    """The role that this process logs in as may not do this."""

    sqlstate = "42501"
    hint = 'The guide "Security" lists what each of the holdfast_ roles may do. Some calls need the owner.'


class Unsuccessful(HoldfastError):
    """The job that was waited for has ended without a result."""


class JobCancelled(Unsuccessful):
    """The job was cancelled, so it has no result."""

    id: UUID | None = None
    reason: str | None = None


class JobFailed(Unsuccessful):
    """The job is dead: its attempts are used up. `error` is the last one."""

    id: UUID | None = None
    error: str | None = None


_BY_SQLSTATE: dict[str, type[HoldfastError]] = {
    leaf.sqlstate: leaf
    for branch in (BadInput, Refused, NotReady)
    for leaf in branch.__subclasses__()
    if leaf.sqlstate
}
_UUID_FIELDS = frozenset({"id", "shown", "current", "worker"})


def from_sqlstate(
    sqlstate: str, message: str, detail: Mapping[str, Any], hint: str | None
) -> HoldfastError | None:
    """Return the error for one of Holdfast's SQLSTATEs, or `None` for any other code.

    A code of a newer schema becomes a plain `HoldfastError`. Unknown keys of `detail` are dropped, and
    missing ones are `None`.
    """
    if not sqlstate.startswith("HF"):
        return None
    kind = _BY_SQLSTATE.get(sqlstate, HoldfastError)
    known = {name: _typed(name, value) for name, value in detail.items() if name in kind.fields}
    error = kind(message, hint=hint or None, **known)
    error.sqlstate = sqlstate
    return error


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """Return the most similar candidate, if any is similar."""
    matches = difflib.get_close_matches(word, list(candidates), n=1)
    return matches[0] if matches else None


def suggest(word: str, candidates: Iterable[str]) -> str:
    """Return a sentence that suggests the most similar candidate, or lists all of them.

    >>> suggest("prioritty", ["priority", "queue"])
    "Did you mean 'priority'?"
    """
    known = sorted(candidates)
    if near := nearest(word, known):
        return f"Did you mean {near!r}?"
    return f"Known: {', '.join(known)}." if known else "None are known."


def _first_line(kind: type[HoldfastError]) -> str:
    return (kind.__doc__ or kind.__name__).partition("\n")[0]


def _typed(name: str, value: Any) -> Any:
    if name in _UUID_FIELDS and isinstance(value, str):
        try:
            return UUID(value)
        except ValueError:
            return value
    return value
