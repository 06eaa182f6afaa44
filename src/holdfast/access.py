"""Which roles are kept to which queues: `hf.access`.

    hf.access.grant("acme", ["acme.*"])     from now on the role sees and uses these queues alone
    hf.access.list()

What a role may do at all (produce, work, look, operate) is PostgreSQL's to say, by the roles that
`hf.migrate(roles=True)` makes. Only the owner of the schema may change who is kept to what.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from holdfast.calls import Call
from holdfast.calls.access import GrantRow, grant_queues, list_grants, revoke_queues
from holdfast.values import limits

T = TypeVar("T")
GrantRows = list[GrantRow]


class Carrier(Protocol):
    """Who carries calls to the database."""

    def run(self, call: Call[T], *, conn: Any = None) -> T: ...
    async def arun(self, call: Call[T], *, conn: Any = None) -> T: ...


class Access:
    """The roles of one database that are kept to some queues."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier

    def grant(self, role: str, queues: Sequence[str]) -> None:
        """Keep a role to these queues, besides those that it was granted before.

        `acme.*` stands for all queues that begin so. A role that was granted none may use them all.
        """
        self._carrier.run(grant_queues(limits.text("role", role), _queues(queues)))

    async def agrant(self, role: str, queues: Sequence[str]) -> None:
        await self._carrier.arun(grant_queues(limits.text("role", role), _queues(queues)))

    def revoke(self, role: str, queues: Sequence[str] | None = None) -> int:
        """Take queues away from a role; how many. Without queues it may use all of them again."""
        return self._carrier.run(_revoke(role, queues))

    async def arevoke(self, role: str, queues: Sequence[str] | None = None) -> int:
        return await self._carrier.arun(_revoke(role, queues))

    def list(self) -> GrantRows:
        """Which roles are kept to which queues."""
        return self._carrier.run(list_grants())

    async def alist(self) -> GrantRows:
        return await self._carrier.arun(list_grants())


def _revoke(role: str, queues: Sequence[str] | None) -> Call[int]:
    return revoke_queues(limits.text("role", role), None if queues is None else _queues(queues))


def _queues(queues: Sequence[str]) -> Sequence[str]:
    if isinstance(queues, str):
        raise limits.refused("queues", queues, "must be a list of queues", hint=f"Write [{queues!r}].")
    return [limits.text("queues", queue) for queue in queues]
