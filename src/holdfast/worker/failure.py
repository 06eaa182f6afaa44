"""Turns an exception into a text that can be stored and shown: no secrets, valid characters, not too long."""

import contextlib
import traceback
from dataclasses import replace
from pathlib import Path

import msgspec

from holdfast.operations.claiming import Claimed
from holdfast.task import Registry
from holdfast.values.job import Failed
from holdfast.values.secret import MARK, scrub, secrets_in

ERROR_LENGTH = 5_000
TRACEBACK_LENGTH = 10_000
_HERE = Path(__file__).parent


def failure(error: BaseException, secrets: list[str]) -> Failed:
    """Return the outcome of an attempt that raised this error. Never raises, even if the error's text
    does."""
    name = type(error).__name__
    try:
        trace = _truncated(scrub(_trace(error), secrets), TRACEBACK_LENGTH)
        return Failed(
            storable(scrub(_message(error), secrets), ERROR_LENGTH), name, storable(trace, len(trace))
        )
    except Exception:  # noqa: BLE001 - an error without a text must still end the attempt
        return Failed(name, name)


def failure_of(job: Claimed, error: BaseException, registry: Registry) -> Failed:
    """Return the outcome of this job's attempt, final if its task gives up on such an error."""
    outcome = failure(error, secrets_of(job, registry))
    return replace(outcome, final=registry.settings(job.task).gives_up_on(error))


def secrets_of(job: Claimed, registry: Registry) -> list[str]:
    """Return the texts of this job that must not be shown.

    They are read again from the payload, raw and decoded, because the handler may have changed its arguments.
    """
    if MARK not in job.payload:
        return []
    found = secrets_in(msgspec.json.decode(job.payload))
    with contextlib.suppress(Exception):  # arguments that do not fit are reported elsewhere
        found += secrets_in(registry.get(job.task).decode(job.payload))
    return found


def storable(text: str, length: int) -> str:
    """Return a text that PostgreSQL can store: no NUL, no lone surrogates, not too long."""
    cut = text if len(text) <= length else text[: length - 1] + "…"
    return cut.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as worse:  # noqa: BLE001 - an exception whose __str__ raises
        text = f"(its text could not be read: {type(worse).__name__})"
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def _trace(error: BaseException) -> str:
    frames = error.__traceback__
    while frames and frames.tb_next and Path(frames.tb_frame.f_code.co_filename).parent == _HERE:
        frames = frames.tb_next  # the reader looks for the handler
    try:
        return "".join(traceback.format_exception(type(error), error, frames))
    except Exception:  # noqa: BLE001 - as above
        return "".join(traceback.format_tb(error.__traceback__))


def _truncated(text: str, length: int) -> str:
    """Keep the beginning and the end: one may hold the frames, the other the error."""
    return text if len(text) <= length else f"{text[: length // 2]}\n…\n{text[-length // 2 :]}"
