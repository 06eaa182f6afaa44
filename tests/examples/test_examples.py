"""Every example runs, and prints what it is for."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.pages import ROOT

EXAMPLES = {
    "first_task": """
        enqueued: pending
        completed: welcome, user 7
    """,
    "transactional_order": """
        Grace's order was rolled back, and its confirmation with it
        sent: dear Ada, we received your order over 30
    """,
    "user_and_backfill": """
         151  of-a-paying-user.png
         150  just-uploaded.png
         100  found-missing.png
          30  old-0.png
          30  old-1.png
          30  old-2.png
    """,
    "long_job_progress": """
        running:   0 %  download
        running:  33 %  transcode
        running:  66 %  upload
        completed: 100 %  {'stored': 'holiday.mp4'}
    """,
    "sql_consumer": """
        done: {'text': 'hello'} -> {'length': 5}
        failed: {'txet': 'oops'}
        woken: holdfast_letters letters
        done: {'text': 'wake up'} -> {'length': 7}
    """,
}


def test_every_example_is_run() -> None:
    in_a_browser = {"web_app"}  # test_web_app.py
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == EXAMPLES.keys() | in_a_browser


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_promises(name: str, holdfast_dsn: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / f"{name}.py"],
        env={**os.environ, "HOLDFAST_DSN": holdfast_dsn},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.strip() for line in done.stdout.splitlines()] == [
        line.strip() for line in EXAMPLES[name].strip().splitlines()
    ]


def test_the_tests_of_the_example_project_pass(tmp_path: Path, holdfast_server: str) -> None:
    project = shutil.copytree(ROOT / "examples" / "testing", tmp_path / "testing")
    # Around it is a project whose settings need a plugin that the reader may not have.
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nno_such_setting = 120\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "testing"],
        env={**os.environ, "HOLDFAST_TEST_DSN": holdfast_server},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tests = (project / "test_shop.py").read_text().count("\ndef test_")
    # One of them runs twice.
    assert re.search(rf"^{tests + 1} passed", done.stdout, re.MULTILINE), done.stdout
