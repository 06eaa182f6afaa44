"""The front door: declare tasks, enqueue jobs, look after them.

    hf = Holdfast()          # an argument, else HOLDFAST_DSN, else an embedded PostgreSQL

    @hf.task(queue="mail")
    async def welcome(user_id: int) -> None: ...

    welcome.enqueue(user_id=7)
    hf.worker().run()

Methods that talk to the database have async twins with the prefix `a`.
"""

from holdfast.client.holdfast import Holdfast as Holdfast
from holdfast.client.job import Job as Job
