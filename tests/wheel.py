"""Build the wheel, install it in an environment of its own, and run the demo from there: `make wheel`."""
# ruff: noqa: T201 - a script for the terminal

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

HOUSE = Path(__file__).parent.parent
SQL = HOUSE / "src" / "holdfast" / "sql"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="hf-wheel-") as directory:
        # An embedded server gives up its rights as root, and must reach the place.
        Path(directory).chmod(0o755)
        wheel = build(Path(directory))
        sql_files = check_sql(wheel)
        python = install(wheel, Path(directory, "env"))
        # From a directory without the source, so that only the wheel can be imported.
        demo = subprocess.run([python, "-m", "holdfast", "demo"], cwd=directory, check=False)
        if demo.returncode:
            print(f"wheel: the demo of {wheel.name} failed with exit code {demo.returncode}")
            return 1
        print(f"wheel: {wheel.name} holds all {sql_files} SQL files and ran the demo")
    return 0


def build(directory: Path) -> Path:
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(directory), str(HOUSE))
    (wheel,) = directory.glob("holdfast-*.whl")
    return wheel


def check_sql(wheel: Path) -> int:
    """Every SQL file of the source is in the wheel, as it is; how many there are."""
    files = sorted(SQL.rglob("*.sql"))
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        for file in files:
            name = f"holdfast/{file.relative_to(SQL.parent).as_posix()}"
            if name not in held or archive.read(name) != file.read_bytes():
                raise SystemExit(f"wheel: {wheel.name} lacks {name}, or has another text of it")
    return len(files)


def install(wheel: Path, environment: Path) -> str:
    venv.create(environment, with_pip=True)
    python = str(environment / "bin" / "python")
    pip(python, "install", "--constraint", str(HOUSE / "constraints.txt"), f"{wheel}[embedded]")
    return python


def pip(python: str, *arguments: str) -> None:
    subprocess.run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
