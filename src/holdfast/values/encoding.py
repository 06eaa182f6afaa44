"""Python values as JSON text that PostgreSQL can store.

JSON text and `jsonb` differ: PostgreSQL refuses NUL characters, no encoding has lone surrogates, and msgspec
writes NaN and infinity as `null`. Python also writes values that it cannot read: its decoders fail at a
certain depth and number of digits. All of this is found here, before a job is enqueued or an outcome is
written. For other values, the checks are only a few substring searches.

The database checks again (`sql/functions/core/check.sql`). For values that were stored before it checked,
`shown` returns a note instead.
"""

import dataclasses
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

# Half of what Python's recursion allows in every framework, because some functions use two frames a level.
LEVELS = 200
_TOO_DEEP = f"it is nested more than {LEVELS} levels deep"
_TOO_LONG = "a number has too many digits"
# An integer that a double cannot hold has 309 digits or more.
_LONG_ENOUGH = 300
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_MANY_DIGITS = b"0" * 309


class Unstorable(Exception):  # noqa: N818 - never leaves the package: it becomes a BadPayload or a BadResult
    """The value cannot be JSON in PostgreSQL, because of `reason` at `path` ("" is the value itself)."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason


def to_json(value: Any) -> bytes:
    """Return the JSON text of a value, safe to store; raises `Unstorable`.

    Types beyond JSON: dates, times, UUIDs, decimals, enums, bytes (base64), sets, dataclasses, attrs classes,
    msgspec structs, pydantic models.
    """
    try:
        text = _encoder.encode(value)
    except RecursionError:
        raise Unstorable("", f"{_TOO_DEEP}, or contains itself") from None
    except Exception as error:  # a foreign object's own conversion may raise anything
        raise _first_trouble(value, foreign=True) or Unstorable("", str(error)) from error
    is_long = len(text) >= _LONG_ENOUGH
    # A possible NUL, NaN or long number. The same characters may also be harmless text.
    if b"\\u0000" in text or b"null" in text or (is_long and _has_many_digits(text)):
        trouble = _first_trouble(msgspec.to_builtins(value, enc_hook=_as_plain))
        if trouble:
            raise trouble
    if is_long and _is_deep(text, lambda: msgspec.to_builtins(value, enc_hook=_as_plain)):
        raise Unstorable("", _TOO_DEEP)
    return text


def from_json(text: str) -> Any:
    """Return the value of stored JSON text; raises `Unstorable` if it would not be stored today."""
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        raise Unstorable("", _TOO_DEEP) from None
    except msgspec.DecodeError:  # PostgreSQL has read it as JSON, so only a number can be wrong
        raise Unstorable("", _TOO_LONG) from None
    if len(text) < _LONG_ENOUGH:
        return value
    plain = text.encode()
    if _is_deep(plain, lambda: value):
        raise Unstorable("", _TOO_DEEP)
    if _has_many_digits(plain) and (trouble := _first_trouble(value)):
        raise trouble
    return value


def shown(text: str | None) -> Any:
    """Return the value of stored JSON text for a list, or a note if it cannot be read."""
    try:
        return None if text is None else from_json(text)
    except Unstorable as trouble:
        return f"(cannot be shown: {trouble.reason})"


def from_hook(kind: Any, value: Any) -> Any:
    """Decode what msgspec cannot, if the type has a method for it (pydantic does)."""
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise TypeError(f"a {getattr(kind, '__name__', kind)} cannot be made from JSON")


def _as_plain(value: Any) -> Any:
    # Recognised by its method, so that pydantic need not be installed.
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json")
    match value:
        case str():
            return str.__str__(value)  # a subclass, such as that of a template library
        case int():
            return int(value)
        case float():
            return float(value)
        case bytes():
            return bytes(value)
    raise TypeError(f"{type(value).__qualname__} cannot be JSON")


_encoder = msgspec.json.Encoder(enc_hook=_as_plain)


def _has_many_digits(text: bytes) -> bool:
    return _MANY_DIGITS in text.translate(_AS_ZEROS)


def _is_deep(text: bytes, value: Callable[[], Any]) -> bool:
    """Return whether a JSON value is too deep to be read. Calls `value` only if it may be."""
    if text.count(b"[") + text.count(b"{") <= LEVELS:
        return False
    containers = _containers([value()])
    for _ in range(LEVELS):
        containers = _containers(
            child for each in containers for child in (each.values() if isinstance(each, dict) else each)
        )
    return any(containers)


def _containers(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, dict | list | tuple)]


def _first_trouble(value: Any, path: str = "", *, foreign: bool = False) -> Unstorable | None:
    match value:
        case str():
            return _trouble_with_text(value, path)
        case float():
            return None if math.isfinite(value) else Unstorable(path, f"JSON has no {value}")
        case int() if abs(value) > sys.float_info.max:
            return Unstorable(path, _TOO_LONG)
    for step, child in _children(value):
        if trouble := _first_trouble(child, path + step, foreign=foreign):
            return trouble
    return _trouble_with_type(value, path) if foreign else None


def _trouble_with_text(text: str, path: str) -> Unstorable | None:
    if "\0" in text:
        return Unstorable(path, "PostgreSQL cannot store a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        return Unstorable(path, "a lone surrogate is not valid text")
    return None


def _trouble_with_type(value: Any, path: str) -> Unstorable | None:
    try:
        _encoder.encode(value)
    except Exception as error:  # noqa: BLE001 - it becomes the reason
        return Unstorable(path, str(error))
    return None


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    match value:
        case dict():
            for key, item in value.items():
                yield ".(key)", key
                yield f".{key}", item
        case list() | tuple() | set() | frozenset():
            for index, item in enumerate(value):
                yield f"[{index}]", item
        case msgspec.Struct():
            yield from ((f".{name}", getattr(value, name)) for name in value.__struct_fields__)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from ((f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value))
