"""What a type checker must refuse. An ignore that is not needed is an error, so each line is proved."""

from typing import Any

from holdfast import Context, Holdfast

hf = Holdfast()
conn: Any = None


@hf.task
def plain(user_id: int) -> str:
    return str(user_id)


@hf.task(queue="mail")
async def remind(ctx: Context, user_id: int) -> None: ...


@hf.task(quue="mail")  # type: ignore
def misspelled() -> None: ...


# A wrong argument: sync and async, with and without a context, after `options` and `on`.

plain.enqueue("seven")  # type: ignore
plain.enqueue(user="seven")  # type: ignore
plain.enqueue()  # type: ignore
plain.call("seven")  # type: ignore
plain.options(delay=60).enqueue("seven")  # type: ignore
plain.on(conn).enqueue("seven")  # type: ignore
remind.enqueue(user_id="seven")  # type: ignore
remind.call(user_id="seven")  # type: ignore
remind.options(delay=60).enqueue(user_id="seven")  # type: ignore
remind.on(conn).enqueue(user_id="seven")  # type: ignore


async def enqueue_async(ctx: Context) -> None:
    await plain.aenqueue("seven")  # type: ignore
    await plain.options(delay=60).on(conn).aenqueue("seven")  # type: ignore
    await remind.aenqueue(user_id="seven")  # type: ignore
    await remind.on(conn).options(delay=60).aenqueue(user_id="seven")  # type: ignore
    remind.enqueue(ctx, user_id=7)  # type: ignore
    await hf.dead.areplay(7)  # type: ignore


# A wrong option.

plain.options(dellay=60)  # type: ignore
plain.options(conn=conn)  # type: ignore
hf.enqueue("mail.remind", {"user_id": 7}, quue="mail")  # type: ignore
hf.worker(queue=["mail"])  # type: ignore
hf.worker(concurrency="many")  # type: ignore
hf.dead.replay("id", over=True)  # type: ignore
hf.settings.configure("mail", retension=60)  # type: ignore
hf.job("id").cancel("now")  # type: ignore
