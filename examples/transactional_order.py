"""Write an order and enqueue its confirmation in one transaction: both exist or neither does.

    python examples/transactional_order.py

The job is enqueued on the connection that writes the order. There is no outbox and no second phase, and
nothing to clean up when the transaction fails half way.
"""

from uuid import UUID

import psycopg

from holdfast import Holdfast

hf = Holdfast()


@hf.task(queue="mail")
def confirm(order_id: int) -> str:
    with psycopg.connect(hf.dsn) as conn:
        row = conn.execute("select customer, total from shop_order where id = %s", [order_id]).fetchone()
    if row is None:
        raise LookupError(f"there is no order {order_id}")
    customer, total = row
    return f"dear {customer}, we received your order over {total}"


class OutOfStock(Exception):  # noqa: N818 - the name that a shop would use
    pass


def place_order(customer: str, total: int, *, in_stock: bool = True) -> UUID:
    with psycopg.connect(hf.dsn) as conn:  # commits at the end, rolls back on an exception
        row = conn.execute(
            "insert into shop_order (customer, total) values (%s, %s) returning id", [customer, total]
        ).fetchone()
        assert row is not None  # noqa: S101 - an insert that returns has a row
        job = confirm.on(conn).enqueue(order_id=row[0])
        if not in_stock:
            raise OutOfStock
    return job.id


def main() -> None:
    with psycopg.connect(hf.dsn) as conn:
        conn.execute("drop table if exists shop_order")
        conn.execute("create table shop_order (id bigserial primary key, customer text, total integer)")

    confirmation = place_order("Ada", 30)
    try:
        place_order("Grace", 9, in_stock=False)
    except OutOfStock:
        print("Grace's order was rolled back, and its confirmation with it")

    hf.worker(queues=["mail"]).run(drain=True)
    print("sent:", hf.job(confirmation).refresh().result)


if __name__ == "__main__":
    with hf:
        main()
