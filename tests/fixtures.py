"""The types of what the fixtures of `conftest.py` and `holdfast.testing` give to tests."""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from holdfast import JobSnapshot, Task
from tests.waiting import Work

Until = Callable[..., Any]
Ask = Callable[..., list[tuple[Any, ...]]]
Login = Callable[..., str]
Counts = Callable[[], dict[str, int]]
StartWorker = Callable[..., Work]

Drain = Callable[..., None]
ADrain = Callable[..., Coroutine[Any, Any, None]]
AssertEnqueued = Callable[..., list[JobSnapshot]]
AAssertEnqueued = Callable[..., Awaitable[list[JobSnapshot]]]
RefuteEnqueued = Callable[..., None]
ARefuteEnqueued = Callable[..., Awaitable[None]]
Inline = Callable[..., AbstractContextManager[None]]

R = TypeVar("R")
AsyncTask = Task[..., Coroutine[Any, Any, R]]  # a task whose handler is a coroutine function
