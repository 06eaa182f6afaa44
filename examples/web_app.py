"""Serve a page that starts a job and shows its stage, progress bar and time left, with a cancel button.

    pip install holdfast[embedded] starlette uvicorn
    python examples/web_app.py                      # then open http://127.0.0.1:8000

The form enqueues a job and leads to the page of that job. The page needs only its address: it can be
reloaded, bookmarked, or opened by another user. It follows the job over server-sent events. Here the worker
runs in the same process; in production it is `holdfast worker web_app:hf` in separate processes.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from html import escape
from urllib.parse import parse_qsl

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from holdfast import BadValue, Context, Holdfast, JobNotFound, JobSnapshot, Priority

hf = Holdfast()
SECONDS_PER_PAGE = float(os.environ.get("SECONDS_PER_PAGE", "0.2"))


@hf.task(name="render", queue="films", priority=Priority.USER)
async def render(ctx: Context, title: str, pages: int) -> str:
    await ctx.astep("write the script", asyncio.sleep, SECONDS_PER_PAGE)
    for page in ctx.track(range(1, pages + 1), stage="rendering", message=title):
        await asyncio.sleep(SECONDS_PER_PAGE)
        ctx.event("page_rendered", {"page": page})
    return f"{title}, {pages} pages"


# The pages.


async def start_page(_request: Request) -> Response:
    return _page(
        """
        <form method="post" action="/films">
          <label>Title <input name="title" required maxlength="60" value="The Sea"></label>
          <label>Pages <input name="pages" type="number" min="1" max="1000" value="30"></label>
          <button>Render</button>
        </form>
        """
    )


async def start(request: Request) -> Response:
    form = dict(parse_qsl((await request.body()).decode()))
    title, pages = form.get("title", "").strip(), form.get("pages", "")
    if not title.isprintable() or not title or not pages.isdecimal() or not 1 <= int(pages) <= 1000:  # noqa: PLR2004 - as the form says
        return HTMLResponse("A film has a title, and 1 to 1000 pages.", status_code=422)
    job = await render.aenqueue(title=title, pages=int(pages))
    return RedirectResponse(f"/films/{job.id}", status_code=303)


async def film(request: Request) -> Response:
    now = await hf.job(request.path_params["id"]).arefresh()
    if now.task != render.name:
        raise JobNotFound(id=now.id)
    return _page(
        f"""
        <h2>{escape(now.payload["title"])}</h2>
        <p><b id="state">{now.state}</b> <span id="stage"></span></p>
        <progress id="bar" max="100" value="{now.progress or 0}"></progress>
        <p><span id="percent"></span> <span id="left"></span></p>
        <p id="message"></p>
        <form method="post" action="/films/{now.id}/cancel"><button id="cancel">Cancel</button></form>
        <p><a href="/">Another one</a></p>
        <script>
          const show = (id, text) => document.getElementById(id).textContent = text || "";
          const events = new EventSource("/films/{now.id}/progress");
          events.onmessage = event => {{
            const job = JSON.parse(event.data);
            for (const id of ["state", "stage", "percent", "left", "message"]) show(id, job[id]);
            document.getElementById("bar").value = job.progress || 0;
            document.getElementById("cancel").disabled = job.over;
            if (job.over) events.close();
          }};
        </script>
        """
    )


async def progress(request: Request) -> Response:
    """Send the job whenever it has changed, until it has ended or the page is closed."""
    job = hf.job(request.path_params["id"])
    await job.arefresh()  # an unknown job raises before the stream begins

    async def stream() -> AsyncIterator[str]:
        async for now in job.awatch(poll=0.2):
            yield f"data: {json.dumps(_shown(now))}\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def cancel(request: Request) -> Response:
    job = hf.job(request.path_params["id"])
    await job.acancel()
    return RedirectResponse(f"/films/{job.id}", status_code=303)


def _shown(now: JobSnapshot) -> dict[str, object]:
    left = None if now.time_left is None else f"about {max(round(now.time_left.total_seconds()), 1)} s left"
    return {
        "state": now.state,
        "stage": now.stage or now.step,
        "progress": now.progress,
        "percent": None if now.progress is None else f"{now.progress} %",
        "left": left,
        "message": now.result or now.message,
        "over": now.state.final,
    }


def _page(body: str) -> HTMLResponse:
    return HTMLResponse(
        f"""<!doctype html>
        <html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
        <title>Films</title>
        <style>
          body {{ font: 17px/1.5 system-ui, sans-serif; max-width: 34rem; margin: 3rem auto; }}
          label {{ display: block; margin: .6rem 0; }}  input {{ font: inherit; padding: .2rem .4rem; }}
          button {{ font: inherit; padding: .3rem 1rem; }}  progress {{ width: 100%; height: 1.4rem; }}
          #stage, #left {{ color: #666; }}
        </style>
        <h1>Films</h1>{body}</html>"""
    )


async def _not_there(_request: Request, _error: Exception) -> Response:
    return HTMLResponse("There is no such film.", status_code=404)


@contextlib.asynccontextmanager
async def _working(_app: Starlette) -> AsyncIterator[None]:
    """Run a worker while the pages are served."""
    worker = await asyncio.to_thread(hf.worker, queues=["films"], grace=1)
    working = asyncio.create_task(worker.arun())
    try:
        yield
    finally:
        worker.stop()
        await working
        await hf.aclose()


app = Starlette(
    routes=[
        Route("/", start_page),
        Route("/films", start, methods=["POST"]),
        Route("/films/{id}", film),
        Route("/films/{id}/progress", progress),
        Route("/films/{id}/cancel", cancel, methods=["POST"]),
    ],
    exception_handlers={JobNotFound: _not_there, BadValue: _not_there},
    lifespan=_working,
)

if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")), log_level="warning")
