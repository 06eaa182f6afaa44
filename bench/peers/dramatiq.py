"""dramatiq on Redis."""

from collections.abc import Mapping
from typing import ClassVar

from bench.in_redis import RedisPeer
from bench.redis import Redis

_REDIS = "it is not in PostgreSQL"


class Dramatiq(RedisPeer):
    name = "dramatiq"
    # Eight threads are its default; the prefetch is raised, since its documentation ties it to throughput.
    settings = (
        "8 threads in one process, dramatiq_queue_prefetch 512, AsyncIO middleware; "
        "100 threads for the 1 ms job"
    )
    source = "dramatiq.io: guide (workers), advanced (prefetch limits)"
    agent = "dramatiq_agent.py"
    loading = "from dramatiq.brokers.redis import RedisBroker"
    concurrency = 8
    environ: ClassVar[Mapping[str, str]] = {"dramatiq_queue_prefetch": "512"}
    cannot: ClassVar[Mapping[str, str]] = {
        "enqueue_bulk": "it has no bulk call",
        "flood": "its priorities only order what a worker has prefetched",
        **dict.fromkeys(("backlog", "backlog_unknown", "snapshot", "footprint"), _REDIS),
    }

    def left(self, redis: Redis) -> int:
        return int(redis.ask("llen", "dramatiq:bench")) + int(redis.ask("llen", "dramatiq:bench.DQ"))
