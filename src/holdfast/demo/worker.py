"""A worker process of the demo: the same that `holdfast worker holdfast.demo.jobs:hf` starts."""

import os
import signal
import sys
import threading

from holdfast.demo.crew import CONCURRENCY, LEASE_TIME
from holdfast.demo.jobs import QUEUES, hf


def main(name: str) -> None:
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    hf.worker(name=name, queues=QUEUES, concurrency=CONCURRENCY, lease_time=LEASE_TIME, grace=2.0).run()


def _end_with_the_demo() -> None:
    sys.stdin.read()  # the demo holds the other end: this returns when the demo is gone for any reason
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1])
