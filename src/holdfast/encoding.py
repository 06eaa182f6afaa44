"""Python values as JSON text that PostgreSQL can store, or the place where they cannot be.

JSON text and `jsonb` are not the same: PostgreSQL refuses NUL characters, nothing can carry a lone
surrogate, and msgspec writes NaN and infinity as `null`. All of these are found here, before a job is
enqueued or an outcome is written, at the price of two substring searches for a value without them.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import msgspec


class Unstorable(Exception):  # noqa: N818 - never leaves the package: it becomes a BadPayload or a BadResult
    """The value cannot be JSON in PostgreSQL, because of `reason` at `path` ("" is the value itself)."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason


def to_json(value: Any) -> bytes:
    """The JSON text of a value, safe to store; raises `Unstorable`.

    Beyond what JSON knows: dates, times, UUIDs, decimals, enums, bytes (base64), sets, dataclasses, attrs
    classes, msgspec structs, pydantic models.
    """
    try:
        text = _encoder.encode(value)
    except RecursionError:
        raise Unstorable("", "it is nested too deeply, or contains itself") from None
    except Exception as error:  # whatever a foreign object's own conversion raises
        raise _first_trouble(value, foreign=True) or Unstorable("", str(error)) from error
    # An escaped NUL, or the null that NaN became; both may also be innocent text.
    if b"\\u0000" in text or b"null" in text:
        trouble = _first_trouble(msgspec.to_builtins(value, enc_hook=_as_plain))
        if trouble:
            raise trouble
    return text


def from_hook(kind: Any, value: Any) -> Any:
    """The decoding hook: what msgspec itself cannot read, if the type knows how to (pydantic does)."""
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
            return str.__str__(value)  # a subclass, as of a template library
        case int():
            return int(value)
        case float():
            return float(value)
        case bytes():
            return bytes(value)
    raise TypeError(f"{type(value).__qualname__} cannot be JSON")


_encoder = msgspec.json.Encoder(enc_hook=_as_plain)


def _first_trouble(value: Any, path: str = "", *, foreign: bool = False) -> Unstorable | None:
    match value:
        case str():
            return _trouble_with_text(value, path)
        case float():
            return None if math.isfinite(value) else Unstorable(path, f"JSON has no {value}")
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
    except Exception as error:  # noqa: BLE001 - told as the reason
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
