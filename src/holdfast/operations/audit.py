"""The audit log: `hf.audit`."""

from datetime import datetime
from typing import Any, NamedTuple

from holdfast.operations.base import Namespace, operation, twin
from holdfast.values import limits
from holdfast.values.call import Call, function

_audit_log = function(
    "audit_log",
    "amount integer, target text, action text, who text, since timestamptz",
    "id, at, who, action, target, detail",
)


class AuditRow(NamedTuple):
    """One change to a queue, job or schedule, with its author and time."""

    id: int
    at: datetime
    who: str
    action: str
    target: str | None
    detail: Any


class Audit(Namespace):
    """The changes that people and programs have made."""

    called = "list(…)"

    @operation
    def list(
        self,
        *,
        target: str | None = None,
        action: str | None = None,
        who: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
    ) -> Call["list[AuditRow]"]:
        """Return the changes that match, the latest first.

        `target` is the name of a queue or schedule, or the id of a job.
        """
        return _audit_log(
            lambda rows: [AuditRow._make(row) for row in rows],
            limits.integer("limit", limit, range(1, 100_001)),
            target,
            action,
            who,
            None if since is None else limits.moment("since", since),
        )

    alist = twin(list)
