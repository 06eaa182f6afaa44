"""Metrics in the format of Prometheus.

    exposition   families of samples, and their text form
    process      counts of this process: a subscriber of telemetry
    database     gauges of the database: jobs, queues and workers of all processes

Names follow its conventions: they begin with `holdfast_`, use base units (seconds), and end in `_total` if
they only grow.
"""

from holdfast.telemetry.metrics.database import (
    Overview as Overview,
    families_of as families_of,
    questions as questions,
)
from holdfast.telemetry.metrics.exposition import (
    CONTENT_TYPE as CONTENT_TYPE,
    Family as Family,
    exposition as exposition,
)
from holdfast.telemetry.metrics.process import Metrics as Metrics
