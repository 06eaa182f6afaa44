"""A worker process of the demo. It does the same as `holdfast worker holdfast.demo.tasks:hf`."""

import os
import signal
import sys
import threading

from holdfast.demo.tasks import QUEUES, hf
from holdfast.demo.worker_processes import CONCURRENCY, LEASE_TIME


def main(name: str) -> None:
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    hf.worker(name=name, queues=QUEUES, concurrency=CONCURRENCY, lease_time=LEASE_TIME, grace=2.0).run()


def _end_with_the_demo() -> None:
    sys.stdin.read()  # returns when the demo, which holds the other end, has ended for any reason
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1])
