"""Arguments that must never be shown: passwords, tokens, card numbers.

    @hf.task()
    async def charge(card: Secret[str]) -> None:
        await bank.charge(card.reveal())

    charge.enqueue(card=Secret("4111 1111 1111 1111"))

The payload stores the value as `{"$secret": …}`. So everything that shows a payload (CLI, pages, logs) can
recognise and `mask` it without knowing the task. `scrub` removes the values from exception texts. A secret is
hidden, not encrypted: a role that may read the table can read the value.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Generic, NoReturn, TypeVar
from urllib.parse import quote, quote_plus
from uuid import UUID

import msgspec

T_co = TypeVar("T_co", covariant=True)

MASK = "*****"
MARK = "$secret"

# A shorter secret is only replaced where it stands alone. Replacing a three-digit code inside every longer
# number would make the text unreadable and hide nothing.
_LONG_ENOUGH = 4


# A struct, so that msgspec reads and writes it in C, like any other argument.
class Secret(msgspec.Struct, Generic[T_co], frozen=True, eq=True):
    """A value that is only shown by `reveal()`.

    Printed, formatted, logged or shown in a traceback's locals, it is `*****`. Two secrets are equal if their
    values are. They have no hash, since the hash of a short value reveals it. A pickle holds the plain value,
    as the payload does, because a handler in another process needs it.
    """

    _value: T_co = msgspec.field(name=MARK)

    def reveal(self) -> T_co:
        """Return the plain value. From here on, hiding it is up to you."""
        return self._value

    def __repr__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []

    def __hash__(self) -> NoReturn:
        raise TypeError("a Secret has no hash; compare it with ==")


def mask(payload: Any) -> Any:
    """Return the payload with `*****` instead of every secret."""
    match payload:
        case Secret():
            return MASK
        case dict():
            return MASK if MARK in payload else {key: mask(value) for key, value in payload.items()}
        case list() | tuple():
            return [mask(value) for value in payload]
        case _:
            return payload


def hide(value: Any, secrets: Sequence[str]) -> Any:
    """Return a JSON value with `*****` instead of these secrets and of every marked one."""
    match value:
        case str():
            return scrub(value, secrets)
        case dict() if MARK not in value:
            return {scrub(str(key), secrets): hide(item, secrets) for key, item in value.items()}
        case list() | tuple():
            return [hide(item, secrets) for item in value]
        case int() | float() if not isinstance(value, bool) and str(value) in secrets:
            return MASK
        case _:
            return mask(value)


def secrets_in(payload: Any) -> list[str]:
    """Return the texts that must not be shown, from a payload or from a handler's decoded arguments.

    Everything inside a secret counts: strings, numbers, dates, UUIDs, bytes, and the keys of objects. `true`,
    `false`, `null` and empty strings reveal nothing and are left out.
    """
    plain = msgspec.to_builtins(payload, builtin_types=_LEAVES, enc_hook=_nothing)
    return [text for text in dict.fromkeys(_texts(plain, inside=False)) if text]


def scrub(text: str, secrets: Iterable[str]) -> str:
    """Return the text with `*****` instead of each secret, as it is or escaped (Python, JSON, URL).

    Scrub before cutting a text to length, because half a secret is not found. Secrets of fewer than four
    characters are only replaced where they stand alone, not inside a longer word or number.
    """
    forms = {form for secret in secrets if secret for form in _forms(secret)}
    if not forms:
        return text
    longest_first = sorted(forms, key=len, reverse=True)
    return re.sub("|".join(map(_pattern, longest_first)), MASK, text)


def mask_dsn(dsn: str) -> str:
    """Return the connection string without its passwords, in both of libpq's notations."""
    if re.match(r"\s*[\w+.-]+://", dsn):
        # Up to the last "@": if a password was not escaped, too much is hidden instead of too little.
        dsn = re.sub(r"(?<=://)([^:@/]*):.*@", rf"\1:{MASK}@", dsn, flags=re.DOTALL)
        return re.sub(r"((?:ssl)?password=)[^&]*", rf"\1{MASK}", dsn)
    value = r"'(?:\\.|[^'\\])*(?:'|$)|(?:\\.|[^\s\\])+"
    return re.sub(rf"((?:ssl)?password\s*=\s*)(?:{value})", rf"\1{MASK}", dsn, flags=re.DOTALL)


def hide_passwords(text: str) -> str:
    """Return a text that may quote a connection string, without the passwords in it."""
    if "://" in text:
        text = re.sub(r"(?<=://)([^\s:@/]*):[^\s@]+@", rf"\1:{MASK}@", text)
    if "password" in text:
        text = re.sub(r"(\b(?:ssl)?password\s*=\s*)('(?:\\.|[^'\\])*'|[^\s&'\"]+)", rf"\1{MASK}", text)
    return text


_LEAVES = (bytes, bytearray, datetime, date, time, timedelta, Decimal, UUID)


def _nothing(_value: object) -> None:
    # An object that JSON does not know (a context, a connection) cannot come from the payload.
    return None


def _texts(value: Any, *, inside: bool) -> Iterator[str]:
    match value:
        case dict():
            hidden = inside or MARK in value
            for key, item in value.items():
                if inside:  # a key in a secret is as secret as its value
                    yield from _texts(key, inside=True)
                yield from _texts(item, inside=hidden)
        case list() | tuple() | set() | frozenset():
            for item in value:
                yield from _texts(item, inside=inside)
        case None | bool():
            return
        case bytes() | bytearray() if inside:
            yield repr(bytes(value))[2:-1]
            yield bytes(value).decode("utf-8", "replace")
            yield msgspec.json.encode(value).decode()[1:-1]
        case _ if inside:
            yield str(value)


def _forms(secret: str) -> Iterator[str]:
    yield secret
    yield repr(secret)[1:-1]
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret.encode("utf-8", "surrogatepass"))[2:-1]
    yield quote(secret, safe="", errors="replace")
    yield quote_plus(secret, errors="replace")


def _pattern(form: str) -> str:
    return re.escape(form) if len(form) >= _LONG_ENOUGH else rf"(?<!\w){re.escape(form)}(?!\w)"
