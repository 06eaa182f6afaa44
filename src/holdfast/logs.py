"""Log records as JSON lines: the public name of `holdfast.telemetry.logs`."""

from holdfast.telemetry.logs import JsonFormatter

__all__ = ["JsonFormatter"]
