"""A small shop for the tests: an order is paid and confirmed, and a week later its customer is asked.

    pip install 'holdfast[embedded]' pytest
    pytest examples/testing

The tests use a database of their own. Outside of them, this module uses the database in HOLDFAST_DSN.
"""

from datetime import timedelta
from uuid import UUID

from holdfast import Context, Holdfast

hf = Holdfast()

# These represent a bank, which takes a key with each payment, and a mail server.
payments: dict[UUID, int] = {}
letters: list[str] = []


class CardError(Exception):
    """The bank refuses the card."""


def pay(amount: int, *, key: UUID) -> None:
    if amount > 1000:
        raise CardError(f"{amount} is too much")
    payments[key] = amount


async def send(letter: str) -> None:
    letters.append(letter)


@hf.task(name="shop.charge", max_attempts=2)
def charge(ctx: Context, order: int, amount: int) -> None:
    pay(amount, key=ctx.job_id)
    confirm.enqueue(order=order)


@hf.task(name="shop.confirm", queue="mail")
async def confirm(order: int) -> None:
    await send(f"Your order {order} is on its way.")


@hf.task(name="shop.ask", queue="mail")
async def ask(order: int) -> None:
    await send(f"How did you like order {order}?")


def place(order: int, amount: int) -> None:
    charge.enqueue(order=order, amount=amount)
    ask.options(delay=timedelta(weeks=1)).enqueue(order=order)


async def aplace(order: int, amount: int) -> None:
    await charge.aenqueue(order=order, amount=amount)
    await ask.options(delay=timedelta(weeks=1)).aenqueue(order=order)
