"""Run a task for a waiting user before a backfill of the same task, by its priority.

    python examples/user_and_backfill.py

The backfill was enqueued first. The later job has a higher priority and runs first.
"""

from holdfast import Context, Holdfast, Priority

hf = Holdfast()


@hf.task(queue="thumbnails", priority=Priority.BACKFILL)
def thumbnail(ctx: Context, picture: str) -> None:
    print(f"{ctx.priority:>4}  {picture}")


def main() -> None:
    hf.enqueue_many(thumbnail.call(picture=f"old-{n}.png") for n in range(3))
    thumbnail.options(priority=Priority.USER).enqueue(picture="just-uploaded.png")
    thumbnail.options(priority=Priority.SYSTEM).enqueue(picture="found-missing.png")
    thumbnail.options(priority=Priority.USER + 1).enqueue(picture="of-a-paying-user.png")

    hf.worker(concurrency=1).run(drain=True)  # one at a time, to show the order


if __name__ == "__main__":
    with hf:
        main()
