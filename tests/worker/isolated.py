"""Tasks that run in processes of their own: a child imports them from here."""

import ctypes
import os
import time

from holdfast import Cancel, Context, GiveUp, Holdfast, Secret

hf = Holdfast("host=nowhere.invalid")


@hf.task(name="where", isolation="process")
def where(ctx: Context) -> list[int]:
    return [os.getpid(), ctx.attempt]


@hf.task(name="later", isolation="process")
async def later(n: int) -> dict[str, int]:
    return {"n": n}


@hf.task(name="die", isolation="process")
def die(how: str) -> None:
    if how == "exit":
        os._exit(7)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "raise":
        raise ValueError("no")
    raise SystemExit(3)


@hf.task(name="tell", isolation="process")
def tell(kind: str, secret: Secret[str]) -> Cancel | GiveUp:
    if kind == "cancel":
        return Cancel("no need")
    if kind == "give up":
        return GiveUp("no use")
    raise ValueError(f"the password is {secret.reveal()}")


@hf.task(name="spin", isolation="process", timeout=1)
def spin() -> None:
    while True:
        pass


@hf.task(name="swell", isolation="process", memory_limit=200 * 2**20)
def swell() -> None:
    held = []
    while True:
        held.append(b"x" * 2**20)
        time.sleep(0.001)


@hf.task(name="progress", isolation="process")
def progress(ctx: Context) -> None:
    ctx.progress(40, stage="rendering")
    while True:
        time.sleep(0.01)


@hf.task(name="move", isolation="process")
def move(ctx: Context) -> None:
    with ctx.transaction() as conn:
        conn.execute("insert into moved values (1)")
        ctx.set_result("moved")
    raise ValueError("too late")


@hf.task(name="climb", isolation="process")
def climb(ctx: Context) -> list[str]:
    ctx.event("begun", {"attempt": ctx.attempt})
    first = ctx.step("first", lambda: f"by {ctx.attempt}")
    ctx.checkpoint({"row": ctx.state.get("row", 0) + 1})
    if ctx.attempt == 1:
        raise ValueError("the rope broke")
    return [first, str(ctx.state["row"])]
