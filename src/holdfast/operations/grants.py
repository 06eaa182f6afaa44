"""Roles that may use only some queues: `hf.grants`.

    hf.grants.grant("acme", ["acme.*"])     the role may see and use only these queues
    hf.grants.list()

`hf.migrate(roles=True)` creates the PostgreSQL roles that decide what a role may do: produce, work, view or
operate. Only the owner of the schema may change grants.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from holdfast.operations.base import Namespace, operation, twin
from holdfast.values import limits
from holdfast.values.call import Call, function, nothing, one

_grant_queues = function("grant_queues", "role text, queues text[]")
_revoke_queues = function("revoke_queues", "role text, queues text[]")
_list_grants = function("list_grants")


class GrantRow(NamedTuple):
    """A role that may use only some queues. `queues` is a name, or the start of names and a star."""

    role: str
    queues: str
    granted_by: str
    granted_at: datetime


class Grants(Namespace):
    """The roles of one database that may use only some queues."""

    @operation
    def grant(self, role: str, queues: Sequence[str]) -> Call[None]:
        """Restrict a role to these queues and the ones that it was granted before.

        `acme.*` stands for every queue whose name starts with `acme.`. A role without grants may use all
        queues.
        """
        return _grant_queues(nothing, limits.text("role", role), _names(queues))

    agrant = twin(grant)

    @operation
    def revoke(self, role: str, queues: Sequence[str] | None = None) -> Call[int]:
        """Remove grants of a role, and return their number. Without `queues` it may use all queues again."""
        return _revoke_queues(one, limits.text("role", role), None if queues is None else _names(queues))

    arevoke = twin(revoke)

    @operation
    def list(self) -> Call["list[GrantRow]"]:
        """Return the roles that may use only some queues, with these queues."""
        return _list_grants(lambda rows: [GrantRow._make(row) for row in rows])

    alist = twin(list)


def _names(queues: Sequence[str]) -> list[str]:
    if isinstance(queues, str):
        raise limits.refused("queues", queues, "must be a list of queues", hint=f"Write [{queues!r}].")
    return [limits.text("queues", queue) for queue in queues]
