"""Fixtures for tests that hold up a handler."""

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Handlers wait here until the test lets them go."""
    gate = threading.Event()
    yield gate
    gate.set()
