"""The example web app in a real browser: a form starts a job, and its page shows it at work."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.examples.pages import ROOT

CHROMIUM = next(
    filter(
        None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))
    ),
    None,
)
PATIENCE = 30_000  # milliseconds; only a broken test waits that long

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="THERE IS NO CHROMIUM HERE, so no page was looked at: apt-get install chromium"
)


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


@pytest.fixture
def site(holdfast_dsn: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The app, served; a page of a film takes so many seconds."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, ROOT / "examples" / "web_app.py"],
        env={
            **os.environ,
            "HOLDFAST_DSN": holdfast_dsn,
            "PORT": str(port),
            "SECONDS_PER_PAGE": str(getattr(request, "param", 0.1)),
        },
    )
    try:
        deadline = time.monotonic() + PATIENCE / 1000
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert process.poll() is None, "the app has ended"
                assert time.monotonic() < deadline
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def page() -> Iterator[Page]:
    with sync_playwright() as play:
        # As root, a container has no other way than without its sandbox.
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 720, "height": 460})
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        troubles: list[str] = []
        page.on("pageerror", lambda error: troubles.append(str(error)))
        yield page
        assert troubles == []
        browser.close()


def begin(page: Page, site: str, *, pages: int) -> None:
    page.goto(site)
    page.get_by_label("Title").fill("The Sea <& the Stars>")
    page.get_by_label("Pages").fill(str(pages))
    page.get_by_role("button", name="Render").click()


def test_a_film_is_rendered_before_ones_eyes(page: Page, site: str, tmp_path: Path) -> None:
    begin(page, site, pages=40)
    expect(page.get_by_role("heading", name="The Sea <& the Stars>")).to_be_visible()
    expect(page.locator("#stage")).to_have_text("rendering")
    expect(page.locator("#percent")).to_have_text(re.compile(r"[1-9]\d? %"))
    expect(page.locator("#left")).to_have_text(re.compile(r"about \d+ s left"))
    picture = Path(os.environ.get("HOLDFAST_SCREENSHOTS", tmp_path)) / "web-app.png"
    page.screenshot(path=picture)
    assert picture.stat().st_size > 1000
    page.reload()
    expect(page.locator("#stage")).to_have_text("rendering")
    expect(page.locator("#state")).to_have_text("completed")
    expect(page.locator("#message")).to_have_text("The Sea <& the Stars>, 40 pages")
    assert page.locator("#bar").evaluate("bar => bar.value") == 100
    expect(page.locator("#cancel")).to_be_disabled()
    page.reload()
    expect(page.locator("#state")).to_have_text("completed")


def test_a_film_can_be_called_off(page: Page, site: str) -> None:
    begin(page, site, pages=1000)
    expect(page.locator("#stage")).to_have_text("rendering")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#state")).to_have_text("cancelled")
    expect(page.locator("#cancel")).to_be_disabled()


def test_what_is_not_there_or_not_right_is_told(page: Page, site: str) -> None:
    answer = page.request.get(f"{site}/films/01890a5d-ac96-774b-bcce-b302099a8057/progress")
    assert answer.status == 404
    assert page.request.get(f"{site}/films/x").status == 404
    assert page.request.post(f"{site}/films", form={"title": "", "pages": "0"}).status == 422
