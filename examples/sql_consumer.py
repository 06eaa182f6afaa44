"""Consume jobs with plain SQL, as a worker in any other language does.

    python examples/sql_consumer.py

register, claim, heartbeat, complete or fail, sleep, listen, leave. Python's Holdfast is used once, to get a
database; everything after that is a statement that any driver can send.
"""

import json
import os
from uuid import UUID, uuid4

import psycopg
from psycopg import Connection, sql
from psycopg.rows import DictRow, dict_row

from holdfast import Holdfast

QUEUE = "letters"


def handle(payload: dict[str, str]) -> dict[str, int]:
    return {"length": len(payload["text"])}


def work_off(conn: Connection[DictRow], worker: UUID) -> None:
    """Claim and report until no job is left."""
    while True:
        # The consumer makes the lease, so that it can ask holdfast.claimed(worker, lease) after a lost reply.
        claim = "select * from holdfast.claim(worker => %s, lease => %s, queues => %s, amount => 10)"
        jobs = conn.execute(claim, [worker, uuid4(), [QUEUE]]).fetchall()
        if not jobs:
            return
        for job in jobs:
            report(conn, job)
        # In a long loop, a thread sends this every few seconds.
        conn.execute("select holdfast.heartbeat(%s)", [worker])


def report(conn: Connection[DictRow], job: DictRow) -> None:
    try:
        result = handle(job["payload"])
    except Exception as error:  # noqa: BLE001 - whatever went wrong, the job failed
        conn.execute(
            "select holdfast.fail(id => %s, lease => %s, error => %s, retry => false)",
            [job["id"], job["lease"], repr(error)],
        )
        print(f"failed: {job['payload']}")
    else:
        conn.execute(
            "select holdfast.complete(id => %s, lease => %s, result => %s)",
            [job["id"], job["lease"], json.dumps(result)],
        )
        print(f"done: {job['payload']} -> {result}")


def main(dsn: str) -> None:
    # Autocommit: each statement is a transaction of its own, at READ COMMITTED.
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        enqueue = "select holdfast.enqueue(task => 'letter.measure', payload => %s, queue => %s)"
        conn.execute(enqueue, ['{"text": "hello"}', QUEUE])
        conn.execute(enqueue, ['{"txet": "oops"}', QUEUE])

        register = "select holdfast.register(name => 'sql-consumer', queues => %s, host => %s) as worker"
        worker = conn.execute(register, [[QUEUE], os.uname().nodename]).fetchone()["worker"]  # type: ignore[index]
        channel = conn.execute("select holdfast.channel(%s) as name", [QUEUE]).fetchone()["name"]  # type: ignore[index]
        conn.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        work_off(conn, worker)

        # No job is left: declare it, look once more (a job in between sent no notification), then wait.
        conn.execute("select holdfast.sleep(%s)", [worker])
        work_off(conn, worker)
        with psycopg.connect(dsn, autocommit=True) as producer:
            producer.execute(enqueue, ['{"text": "wake up"}', QUEUE])
        for notification in conn.notifies(timeout=10, stop_after=1):
            print(f"woken: {notification.channel} {notification.payload}")
        work_off(conn, worker)

        conn.execute("select holdfast.leave(%s)", [worker])


if __name__ == "__main__":
    with Holdfast() as hf:
        main(hf.dsn)
