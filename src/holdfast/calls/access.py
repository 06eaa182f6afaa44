"""Calls about who may use which queue, and about what is hidden from view."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.calls.base import Call, function, nothing, one
from holdfast.values.encoding import shown

_grant_queues = function("grant_queues", "role text, queues text[]")
_revoke_queues = function("revoke_queues", "role text, queues text[]")
_list_grants = function("list_grants")
_stored_payload = function("stored_payload", "id uuid", "stored_payload::text")


class GrantRow(NamedTuple):
    """A role that is kept to some queues: one of their names, or how they begin and a star."""

    role: str
    queues: str
    granted_by: str
    granted_at: datetime


def grant_queues(role: str, queues: Sequence[str]) -> Call[None]:
    return _grant_queues(nothing, role, list(queues))


def revoke_queues(role: str, queues: Sequence[str] | None) -> Call[int]:
    """Answers with how many were taken; without queues, the role may use all from then on."""
    return _revoke_queues(one, role, None if queues is None else list(queues))


def list_grants() -> Call[list[GrantRow]]:
    return _list_grants(lambda rows: [GrantRow._make(row) for row in rows])


def stored_payload(job_id: UUID) -> Call[Any]:
    """The payload with its secrets in plain: for the owner."""
    return _stored_payload(lambda rows: shown(one(rows)), job_id)
