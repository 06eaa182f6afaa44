"""While a report is open, nothing that was done since can be cleaned up; the heads step over it."""

from tests.sql.sessions import Connect, Session


def test_claims_do_not_walk_over_what_was_done_since_an_old_snapshot(sql: Session, connect: Connect) -> None:
    report = connect()
    report("begin isolation level repeatable read")
    report("select 1")

    def blocks_of_a_claim() -> int:
        explain = "explain (analyze, buffers, timing off, format json)"
        plan = sql.one(f"{explain} select * from holdfast.claim(queues => '{{old}}')")[0]["Plan"]
        return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]

    def flow(amount: int) -> None:
        for _ in range(0, amount, 1000):
            sql.enqueue_many(1000, queues=["old"] * 1000)
            sql.finish(sql.claim_all(queues=["old"]))
            sql.value("advance")

    flow(1000)
    few = blocks_of_a_claim()
    flow(10_000)
    assert blocks_of_a_claim() <= few + 50
    sql("update holdfast.lane set head = 0, safe_head = 0 where queue = 'old'")
    assert blocks_of_a_claim() > 10 * few, "without the head it would"
    report("rollback")
