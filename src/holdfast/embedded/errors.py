"""The errors of the embedded PostgreSQL: one branch of the tree in `holdfast.errors`."""
# ruff: noqa: N818 - as there, a name says what went wrong

from holdfast.values.errors import HoldfastError


class EmbeddedError(HoldfastError):
    """The embedded PostgreSQL cannot be used."""


class BinariesNotFound(EmbeddedError):
    """There is no PostgreSQL to start."""


class HomeUnusable(EmbeddedError):
    """The embedded server's directory cannot be used as it is."""


class ServerNotStarted(EmbeddedError):
    """The embedded server does not come up; the message ends with the last lines of its log."""


class WrongVersion(EmbeddedError):
    """The data directory belongs to another major version of PostgreSQL."""

    data_version: str | None = None
    binaries_version: str | None = None
