"""`holdfast completion SHELL` prints a script that a shell can use."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.programs import Command


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(run: Command, shell: str) -> None:
    answer = run("completion", shell)
    assert (answer.code, answer.err) == (0, "")
    assert f"_HOLDFAST_COMPLETE={shell}_complete" in answer.out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=answer.out, text=True, check=True)


def test_the_script_completes_commands_and_options(run: Command) -> None:
    script = run("completion", "bash").out
    asked = [("holdfast", "sch"), ("holdfast", "worker", "--dra"), ("holdfast", "queue", "pau")]
    lines = [
        f"COMPREPLY=(); COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
        '_holdfast_completion holdfast; echo "${COMPREPLY[@]}"'
        for words in asked
    ]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    answer = subprocess.run(
        ["bash", "-c", "\n".join([script, *lines])],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.splitlines() == ["schedule", "--drain", "pause"]


def test_an_unknown_shell_is_refused(run: Command) -> None:
    answer = run("completion", "tcsh")
    assert answer.code == 2
    assert "'bash', 'zsh', 'fish'" in answer.err
