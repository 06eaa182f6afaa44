"""Run a long media job with stages, and watch it.

    python examples/long_job_progress.py

`ctx.progress` only touches memory, so it may stand in a tight loop: the worker writes the newest report of
each job twice a second. Python, SQL and the command line read it from the view `holdfast.jobs`.
"""

import asyncio
from uuid import UUID

from holdfast import Context, Holdfast

hf = Holdfast()

STAGES = ["download", "transcode", "upload"]
seen = {stage: asyncio.Event() for stage in STAGES}


@hf.task(queue="media")
async def convert(ctx: Context, video: str) -> dict[str, str]:
    for done, stage in enumerate(STAGES):
        ctx.progress(100 * done / len(STAGES), stage=stage, message=video)
        # A real job would work for an hour here. In this example a stage lasts until the watcher has seen it.
        await seen[stage].wait()
    return {"stored": video.replace(".mov", ".mp4")}


async def watch(job_id: UUID) -> None:
    job = hf.job(job_id)
    stage = None
    while not (now := await job.arefresh()).state.final:
        if now.stage and now.stage != stage:
            stage = now.stage
            print(f"{now.state}: {now.progress:>3} %  {stage}")
            seen[stage].set()
        await asyncio.sleep(0.05)
    print(f"{now.state}: {now.progress:>3} %  {now.result}")


async def main() -> None:
    job = await convert.aenqueue(video="holiday.mov")
    worker = hf.worker(queues=["media"])
    async with asyncio.TaskGroup() as group:
        group.create_task(watch(job.id))
        group.create_task(worker.arun(drain=True))
    await hf.aclose()


if __name__ == "__main__":
    asyncio.run(main())
