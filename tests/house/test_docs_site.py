"""The documentation site is complete, has no dead link, and needs no other host."""

import importlib.util
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

HOUSE = Path(__file__).parents[2]
SCRIPT = HOUSE / "docs" / "build_site.py"
CHROMIUM = next(
    filter(
        None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))
    ),
    None,
)
ELSEWHERE = re.compile(r"(?:https?:)?//")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("zensical") is None,
    reason="ZENSICAL IS NOT INSTALLED HERE, so the documentation site was not built: make lint installs it",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    subprocess.run([sys.executable, SCRIPT, "--into", folder], check=True, capture_output=True)
    return folder


class Requests(HTMLParser):
    """The addresses that a browser requests when it shows a page: not the links, which a reader follows."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.found += [values[name] for name in ("src", "srcset", "poster", "data") if name in values]
        if tag == "link" and values.get("rel") not in {"canonical", "prev", "next"}:
            self.found.append(values["href"])
        self.found += re.findall(r"url\(['\"]?([^'\")]+)", values.get("style", ""))


def requests_of(file: Path) -> list[str]:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".css":
        return re.findall(r"(?:url\(|@import\s+)['\"]?([^'\");]+)", text)
    page = Requests()
    page.feed(text)
    return page.found


def test_no_page_or_style_sheet_requests_anything_from_another_host(built: Path) -> None:
    files = [file for file in (built / "site").rglob("*") if file.suffix in {".html", ".css", ".svg"}]
    requests = {request for file in files for request in requests_of(file)}
    assert any(request.endswith(".css") for request in requests)
    assert [request for request in requests if ELSEWHERE.match(request)] == []


@pytest.mark.skipif(CHROMIUM is None, reason="THERE IS NO CHROMIUM HERE, so no page was opened")
def test_the_search_works_from_disk_and_requests_no_other_host(built: Path) -> None:
    with sync_playwright() as play:
        # As root, a container has no other way than without its sandbox.
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(30_000)
        requested: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        page.goto((built / "site" / "index.html").as_uri())
        page.keyboard.press("Control+k")
        page.keyboard.type("dead letters")
        expect(page.get_by_text(re.compile(r"^[1-9]\d* results$"))).to_be_visible(timeout=30_000)
        browser.close()
    assert any("search" in url for url in requested)
    assert [url for url in requested if not url.startswith("file:")] == []


def test_a_link_to_a_missing_file_is_refused() -> None:
    script = runpy.run_path(str(SCRIPT))
    page = HOUSE / "docs" / "guides" / "retries.md"
    with pytest.raises(
        script["DeadLinkError"], match=r"docs/guides/retries.md:2: ../nowhere.md does not exist"
    ):
        script["relinked"](page, "# A page\n[a link](../nowhere.md#anchor)")


def test_a_link_to_a_missing_anchor_is_refused(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    with (tmp_path / "pages" / "tutorial.md").open("a") as page:
        page.write("\n[a link](concepts/jobs.md#nowhere)\n")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file"]
    done = subprocess.run([*command, tmp_path / "zensical.toml"], check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert "anchor does not exist" in done.stderr


def test_every_page_is_in_the_navigation(built: Path) -> None:
    navigation = tomllib.loads((built / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    docs = HOUSE / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    assert pages - set(entries(navigation)) == set()


def entries(navigation: list[dict[str, object]]) -> Iterator[str]:
    for item in navigation:
        for target in item.values():
            if isinstance(target, list):
                yield from entries(target)
            else:
                yield str(target)
