"""A PostgreSQL of its own for a test, with few connections."""

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast import Holdfast, embedded
from holdfast.testing import SETTINGS
from holdfast.testing.homes import temporary_home


@contextmanager
def small_server(connections: int, **settings: str) -> Iterator[Holdfast]:
    """Start a server with so many connections, none of them reserved, and install Holdfast there."""
    limits = {"max_connections": str(connections), "superuser_reserved_connections": "0"}
    with (
        temporary_home() as home,
        embedded.start(home, settings={**SETTINGS, **limits, **settings}) as server,
        Holdfast(server.dsn) as hf,
    ):
        hf.migrate()
        yield hf
