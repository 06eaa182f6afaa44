"""What a handler sees of its job.

context    `Context`: cancellation, progress, steps, transactions
notes      checks and stores what a handler says, until the keeper writes it
tracking   `ctx.track(items)`: progress by counting
"""

from holdfast.worker.context.context import Context

__all__ = ["Context"]
