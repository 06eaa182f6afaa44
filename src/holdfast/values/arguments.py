"""A function's signature as a codec: arguments ↔ the JSON object that is the payload.

    caller:  welcome.enqueue(7)  ─ bind ─ fit to the types ─ write ─ read back ─►  {"user_id":7}
    worker:  {"user_id":7}       ─ read by the types ─►  welcome(**{"user_id": 7}, ctx=…)

A payload is read back at once with the worker's decoder, so a payload that does not fit the handler fails in
the caller. (Numbers, strings and booleans need no such test.) Arguments that are not given are not stored:
the job gets the handler's default when it runs.

If nothing is wrong, only msgspec's C code runs (under 2 µs for two arguments). If it raises, the arguments
are checked one by one to name the wrong one.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from types import GenericAlias, NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from holdfast.values.encoding import Unstorable, from_hook, to_json
from holdfast.values.errors import BadArguments, BadInput, BadPayload, nearest, suggest
from holdfast.values.secret import Secret

_Parameter = inspect.Parameter
_SCALARS = (bool, int, float, str, NoneType)
# Reads the arguments in a payload as values of their types.
_Reader = Callable[[bytes | str], dict[str, Any]]


class Arguments:
    """The arguments of one task. Types are resolved at first use, so they may be declared later."""

    def __init__(
        self, task: str, function: Callable[..., Any], *, options: Mapping[str, str] | None = None
    ) -> None:
        """`options` maps words that may be given as arguments by mistake to the option that is meant."""
        self.task = task
        self._function = function
        self._options = options or {}
        self._parameters = inspect.signature(function).parameters
        for parameter in self._parameters.values():
            self._refuse_nameless(parameter)

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the payload for a call with these arguments; raises `BadArguments` or `BadPayload`."""
        signature = self.signature
        given = self._bind(args, kwargs) if args else kwargs
        if signature.secrets:
            given = signature.seal(given)
        try:
            text = to_json(signature.fit(given))
            if not signature.scalar:
                signature.read(text)
        except Exception as error:
            raise self._explain(given, error, _check_given) from error
        return text.decode()

    def decode(self, payload: bytes | str) -> dict[str, Any]:
        """Return the typed keyword arguments in a payload; raises `BadArguments` if it does not fit."""
        try:
            return self.signature.read(payload)
        except Exception as error:
            raise self._explain(self._as_object(payload), error, _check_read) from error

    @property
    def context(self) -> str | None:
        """The name of the parameter that the worker fills in, if there is one."""
        return self.signature.context

    @cached_property
    def signature(self) -> "Signature":
        hints = {name: self._hint(parameter) for name, parameter in self._parameters.items()}
        contexts = [name for name, hint in hints.items() if _is_context(hint)]
        if len(contexts) > 1:
            raise self._bad(contexts[1], f"is a second Context beside {contexts[0]!r}", hint="Remove one.")
        for name, hint in hints.items():
            if name not in contexts:
                self._refuse_unreadable(name, hint)
        return Signature(self._parameters, hints)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        names = self.signature.positional
        if len(args) > len(names):
            by_name = [f"{name}=…" for name in self.signature.hints if name not in names]
            ending = "" if len(names) == 1 else "s"
            raise BadArguments(
                f"{self.task} takes {len(names)} positional argument{ending}, got {len(args)}",
                hint=f"It takes {', '.join(names + by_name)}." if names or by_name else None,
                task=self.task,
            )
        given = dict(zip(names, args, strict=False))
        if kwargs:
            for name in given:
                if name in kwargs:
                    raise self._bad(name, "is given twice")
            given.update(kwargs)
        return given

    def _explain(
        self, given: Mapping[str, Any], error: Exception, check: Callable[[Any, Any], None]
    ) -> BadInput:
        signature = self.signature
        for name in given:
            if name == signature.context:
                return self._bad(name, "is filled in by the worker and cannot be given")
            if name not in signature.hints and not signature.takes_more:
                return self._bad(name, "does not exist", hint=self._instead(name, sent=check is _check_given))
        for name in signature.required:
            if name not in given:
                return self._bad(name, "is missing")
        for name, value in given.items():
            hint = signature.hints.get(name, signature.more)
            try:
                check(hint, value)
            except Unstorable as trouble:
                path = name + trouble.path
                return BadPayload(
                    f"{self.task}: argument {path!r}: {trouble.reason}", task=self.task, path=path
                )
            except Exception as trouble:  # noqa: BLE001 - it becomes the reason
                return self._bad(
                    name, f"must be {_shown(hint)}: {_reason(name, trouble)}", hint=_advice(hint)
                )
        return BadArguments(f"{self.task}: {error}", task=self.task)

    def _instead(self, name: str, *, sent: bool) -> str:
        known = self.signature.hints
        if sent and name in self._options and not nearest(name, known):
            option = self._options[name]
            return f"It is an option: {self.task.rpartition('.')[2]}.options({option}=…).enqueue(…)."
        return suggest(name, known)

    def _as_object(self, payload: bytes | str) -> dict[str, msgspec.Raw]:
        try:
            return msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
        except msgspec.DecodeError as error:
            raise BadArguments(
                f"{self.task}: the payload is not an object of arguments: {error}",
                hint='Enqueue it as {"argument": value}.',
                task=self.task,
            ) from error

    def _hint(self, parameter: _Parameter) -> Any:
        if parameter.annotation is _Parameter.empty:
            return Any
        name = parameter.name
        names = getattr(inspect.unwrap(self._function), "__globals__", {})
        try:
            # One at a time, so that the error can name the parameter.
            annotated = SimpleNamespace(__annotations__={name: parameter.annotation})
            return get_type_hints(annotated, globalns=names, include_extras=True)[name]
        except Exception as error:
            raise self._bad(
                name,
                f"has a type that cannot be resolved: {error}",
                hint="Import it at run time as well, not only under TYPE_CHECKING.",
            ) from error

    def _refuse_nameless(self, parameter: _Parameter) -> None:
        if parameter.kind is _Parameter.VAR_POSITIONAL:
            raise self._bad(
                parameter.name, "is *variadic: arguments travel by name", hint="Take a list instead."
            )
        if parameter.kind is _Parameter.POSITIONAL_ONLY:
            raise self._bad(
                parameter.name, "is positional-only: arguments travel by name", hint='Remove the "/".'
            )

    def _refuse_unreadable(self, name: str, hint: Any) -> None:
        try:
            msgspec.json.Decoder(hint, dec_hook=from_hook)
        except TypeError as error:
            raise self._bad(name, f"has a type that JSON cannot tell apart: {error}") from error

    def _bad(self, argument: str, what: str, *, hint: str | None = None) -> BadArguments:
        return BadArguments(
            f"{self.task}: argument {argument!r} {what}", hint=hint, task=self.task, argument=argument
        )


class Signature:
    """A signature with known types: the parameters, and the one that the worker fills in."""

    def __init__(self, parameters: Mapping[str, _Parameter], hints: Mapping[str, Any]) -> None:
        self.context = next((name for name, hint in hints.items() if _is_context(hint)), None)
        named = [
            parameter
            for parameter in parameters.values()
            if parameter.name != self.context and parameter.kind is not _Parameter.VAR_KEYWORD
        ]
        rest = [p.name for p in parameters.values() if p.kind is _Parameter.VAR_KEYWORD]
        self.hints = {parameter.name: hints[parameter.name] for parameter in named}
        self.required = [p.name for p in named if p.default is _Parameter.empty]
        self.positional = [p.name for p in named if p.kind is _Parameter.POSITIONAL_OR_KEYWORD]
        self.takes_more = bool(rest)
        self.more: Any = hints[rest[0]] if rest else Any
        self.more_fields: Any = GenericAlias(dict, (str, self.more))
        self.secrets = frozenset(name for name, hint in self.hints.items() if _is_secret(hint))
        self.fields = msgspec.defstruct(
            "Arguments",
            [
                (name, hint) if name in self.required else (name, hint, msgspec.UNSET)
                for name, hint in self.hints.items()
            ],
            kw_only=True,
            forbid_unknown_fields=not self.takes_more,
        )
        self.decoder = msgspec.json.Decoder(self.fields, dec_hook=from_hook)
        # Values of these types are always read back as the same value.
        self.scalar = not self.takes_more and all(
            kind in _SCALARS for hint in self.hints.values() for kind in alternatives(hint)
        )
        # Resolved once here, not for every job.
        simple = len(self.required) == len(self.hints) and not self.takes_more
        self.read: _Reader = _simple_reader(self.decoder) if simple else self._read

    def seal(self, given: dict[str, Any]) -> dict[str, Any]:
        """Wrap plain values in `Secret` where the signature says so."""
        if not self.secrets:
            return given
        return {
            name: _sealed(self.hints[name], value) if name in self.secrets else value
            for name, value in given.items()
        }

    def fit(self, given: dict[str, Any]) -> Any:
        """Return the arguments as values of their types, ready to be written."""
        fields = msgspec.convert(given, self.fields, dec_hook=from_hook)
        if not self.takes_more:
            return fields
        return self._known(fields) | self._more(given)

    def _read(self, text: bytes | str) -> dict[str, Any]:
        known = self._known(self.decoder.decode(text))
        return known | self._more(msgspec.json.decode(text)) if self.takes_more else known

    def _known(self, fields: msgspec.Struct) -> dict[str, Any]:
        values = msgspec.structs.asdict(fields).items()
        return {name: value for name, value in values if value is not msgspec.UNSET}

    def _more(self, given: dict[str, Any]) -> dict[str, Any]:
        more = {name: value for name, value in given.items() if name not in self.hints}
        if self.context in more:
            raise TypeError(f"{self.context} is filled in by the worker")
        converted: dict[str, Any] = msgspec.convert(more, self.more_fields, str_keys=True, dec_hook=from_hook)
        return converted


def _simple_reader(decoder: msgspec.json.Decoder[Any]) -> _Reader:
    """Return a reader for arguments that are all required."""
    decode, as_dict = decoder.decode, msgspec.structs.asdict
    return lambda text: as_dict(decode(text))


def _check_given(hint: Any, value: Any) -> None:
    text = to_json(msgspec.convert(value, hint, dec_hook=from_hook))
    msgspec.json.decode(text, type=hint, dec_hook=from_hook)


def _check_read(hint: Any, text: msgspec.Raw) -> None:
    msgspec.json.decode(text, type=hint, dec_hook=from_hook)


def _is_context(hint: Any) -> bool:
    # Recognised by an attribute, so that declaring a task does not import the worker.
    return any(getattr(_base(kind), "__holdfast_context__", False) for kind in alternatives(hint))


def _is_secret(hint: Any) -> bool:
    return any(_base(kind) is Secret for kind in alternatives(hint))


def _sealed(hint: Any, value: Any) -> Any:
    if isinstance(value, Secret) or (value is None and NoneType in alternatives(hint)):
        return value
    return Secret(value)


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the types that a value may have: the members of a union, otherwise the type itself."""
    if get_origin(hint) is Annotated:
        return alternatives(get_args(hint)[0])
    if get_origin(hint) in {Union, UnionType}:
        return tuple(kind for member in get_args(hint) for kind in alternatives(member))
    return (hint,)


def _base(kind: Any) -> Any:
    return get_origin(kind) or kind


def _shown(hint: Any) -> str:
    return inspect.formatannotation(hint)


def _reason(name: str, error: Exception) -> str:
    return str(error).replace("`$", f"`{name}")


def _advice(hint: Any) -> str | None:
    return 'In JSON a secret is written {"$secret": value}.' if _is_secret(hint) else None
