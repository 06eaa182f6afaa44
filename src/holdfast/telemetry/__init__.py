"""Observability of Holdfast itself: code calls `emit`, and subscribers log, count or trace.

    subscribers   `emit`, `subscribe`, and the subscriber that writes to the logger "holdfast"
    logs          log records as JSON lines
    metrics/      counts and gauges for Prometheus

Other code never logs, counts or traces.
"""

from holdfast.telemetry.subscribers import Counted, emit, subscribe

__all__ = ["Counted", "emit", "subscribe"]
