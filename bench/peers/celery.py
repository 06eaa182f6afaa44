"""celery on Redis."""

from collections.abc import Mapping
from typing import ClassVar

from bench.in_redis import RedisPeer
from bench.redis import Redis

_REDIS = "it is not in PostgreSQL"


class Celery(RedisPeer):
    name = "celery"
    # For many short tasks the prefetch multiplier should be large, "say 64 or 128". The solo pool runs
    # jobs in the process itself, which is fastest where they do nothing; where they wait, gevent.
    settings = (
        "pool solo, prefetch multiplier 128, results ignored, no events, gossip, mingle or heartbeat; "
        "gevent with 100 greenlets for the 1 ms job"
    )
    source = "docs.celeryq.dev: userguide/optimizing, userguide/concurrency"
    agent = "celery_agent.py"
    loading = "from celery import Celery"
    concurrency = 1
    cannot: ClassVar[Mapping[str, str]] = {
        "enqueue_bulk": "it has no bulk call",
        "flood": "its priorities on Redis are separate lists, polled in turn",
        **dict.fromkeys(("backlog", "backlog_unknown", "snapshot", "footprint"), _REDIS),
    }

    def left(self, redis: Redis) -> int:
        return int(redis.ask("llen", "bench"))
