"""Declare, enqueue and run a first task.

    python examples/first_task.py

Without HOLDFAST_DSN it starts a private PostgreSQL, whose data is kept for the next run.
"""

from holdfast import Holdfast

hf = Holdfast()


@hf.task(queue="mail", max_attempts=5)
def welcome(user_id: int) -> str:
    return f"welcome, user {user_id}"


def main() -> None:
    job = welcome.enqueue(user_id=7)
    print("enqueued:", job.refresh().state)
    hf.worker().run(drain=True)
    done = job.refresh()
    print(f"{done.state}: {done.result}")


if __name__ == "__main__":
    with hf:
        main()
