"""What can be counted, in the words of Prometheus.

    exposition   families of samples, and their text form
    process      what this process has done: one subscriber of the events
    database     what stands in the database: jobs, queues, workers, for all processes together

Names follow its conventions: `holdfast_` in front, base units (seconds), `_total` for what only grows.
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
