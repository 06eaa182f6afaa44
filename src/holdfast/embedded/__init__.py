"""A private PostgreSQL that nobody had to install: found, started, shared and stopped.

    home/
      data/         the cluster, owned by the user that the server runs as
      socket/       its unix socket (a link to a shorter path where this one is too long)
      binaries/     a copy of PostgreSQL, only where that user cannot read the original
      earlier       an empty file, only while the home of release 0.1.0 still holds jobs
      server.log    what the server said since it was started (server.log.1: the time before)
      start.lock    held by whoever starts or leaves, one at a time
      users.lock    shared by everyone who uses the server; who leaves and finds it free was the last
      server.lock   inherited by each process of the server; free once all of them are gone

The locks are flocks: the kernel drops them with their holder, so kill -9 of any process on either side
leaves nothing that would have to be believed or cleaned up. Who listens on the socket is asked of the
kernel too. A pid read from a file is never trusted, let alone signalled.

There are no passwords: only their owner (and root) can enter `data/` and `socket/`, which is all the
authentication there is. `peer` would say the same but fail for root, whose server runs as another user.
Root's home stays root's own, so that the server's user cannot plant links where root writes. As with any
PostgreSQL, the home has to be on a local disk.
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
