"""An environment for each peer, installed on demand by name and version; see versions.toml."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENTS = HERE / ".envs"
OLDEST_NODE = 22


class NotInstalled(Exception):  # noqa: N818 - it says what is the case
    """A peer's environment cannot be had; the message says why."""


def pinned() -> dict[str, dict[str, list[str]]]:
    """Which packages each environment holds."""
    return tomllib.loads((HERE / "versions.toml").read_text())


class Environment:
    """A virtual environment or a node_modules directory of a peer's own."""

    def __init__(self, name: str) -> None:
        self.path = ENVIRONMENTS / name
        [(self._kind, self._packages)] = pinned()[name].items()

    @property
    def version(self) -> str:
        """Of the peer itself, which stands last in npm's list and first in PyPI's."""
        package = self._packages[0 if self._kind == "python" else -1]
        return package.replace("==", "@").rpartition("@")[2]

    def install(self) -> None:
        """Make it unless it is there already, as pinned."""
        stamp = self.path / "installed.json"
        wanted = json.dumps({"packages": self._packages, "python": sys.version_info[:2]})
        if stamp.exists() and stamp.read_text() == wanted:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        if self._kind == "python":
            _run([sys.executable, "-m", "venv", self.path])
            _run([self.path / "bin" / "pip", "install", "--quiet", *self._packages])
        else:
            self._install_node()
        stamp.write_text(wanted)

    def _install_node(self) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise NotInstalled("npm is not on the PATH")
        (self.path / "package.json").write_text('{"private": true}')
        _run([npm, "install", "--prefix", self.path, "--no-audit", "--no-fund", "--no-save", *self._packages])
        said = _run([self.interpreter, "--version"]).strip()
        if int(said.removeprefix("v").partition(".")[0]) < OLDEST_NODE:
            raise NotInstalled(f"Node {OLDEST_NODE} or newer is needed, the npm package brought {said}")

    @property
    def interpreter(self) -> Path:
        """The Python or Node that runs in it."""
        inside = "bin/python" if self._kind == "python" else "node_modules/.bin/node"
        return self.path / inside


def _run(command: list[str | Path]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NotInstalled(said[-1] if said else f"it ended with {done.returncode}")
    return done.stdout
