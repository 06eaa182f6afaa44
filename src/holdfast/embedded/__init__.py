"""A private PostgreSQL that needs no installation: found, started, shared and stopped.

    home/
      data/         the cluster, owned by the user that the server runs as
      socket/       its unix socket (a link to a shorter path if this one is too long)
      binaries/     a copy of PostgreSQL, only if that user cannot read the original
      earlier       an empty file, which exists while the home of release 0.1.0 still holds jobs
      server.log    the server's log since it was started (server.log.1: the log before that)
      start.lock    held by the process that starts or stops the server
      users.lock    shared by all processes that use the server; the last one finds it free and stops it
      server.lock   inherited by each process of the server; free once all of them are gone

The locks are flocks. The kernel drops them with their holder, so kill -9 of any process leaves nothing to
clean up. The kernel also knows the process that listens on the socket. A pid read from a file is never
trusted or signalled.

There are no passwords. The file system limits access: only root and the owner of `data/` and `socket/` can
enter them. The method `peer` would check the same, but it would fail for root, whose server runs as another
user. Root's home belongs to root, so that the server's user cannot plant links where root writes. As with any
PostgreSQL, the home must be on a local disk.
"""

from holdfast.embedded.binaries import find_binaries, find_psql
from holdfast.embedded.errors import (
    BinariesNotFound,
    EmbeddedError,
    HomeUnusable,
    ServerNotStarted,
    WrongVersion,
)
from holdfast.embedded.project import start_for_project
from holdfast.embedded.server import Server, start

__all__ = [
    "BinariesNotFound",
    "EmbeddedError",
    "HomeUnusable",
    "Server",
    "ServerNotStarted",
    "WrongVersion",
    "find_binaries",
    "find_psql",
    "start",
    "start_for_project",
]
