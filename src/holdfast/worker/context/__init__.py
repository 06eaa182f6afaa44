"""The handler's view of its job.

    context    `Context`: cancellation, progress, steps, transactions
    notes      notes and events of a handler, until the keeper writes them
    tracking   `ctx.track(items)`: progress by counting

A handler gets a `Context` by annotating a parameter with it.
"""

from holdfast.worker.context.context import Context

__all__ = ["Context"]
