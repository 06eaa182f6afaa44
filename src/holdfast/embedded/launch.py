"""Starts a server in a home without a running one."""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from holdfast.embedded.account import Account, choose_account, run
from holdfast.embedded.binaries import Binaries, find_binaries, installed_servers, major_of, readable, version
from holdfast.embedded.errors import EmbeddedError, HomeUnusable, ServerNotStarted, WrongVersion
from holdfast.embedded.home import PORT, SOCKET, SUPERUSER, Home, shared_lock

_SOCKET_PATH_LIMIT = 103 if sys.platform == "darwin" else 107  # bytes in sun_path, less its NUL
_DEFAULTS = {"max_connections": "200", "log_checkpoints": "off"}


def launch(home: Home, bin_directory: Path | None, settings: Mapping[str, str]) -> None:
    """Start a server. It may not accept connections yet when this returns."""
    account = choose_account(home)
    binaries = readable(_choose_binaries(home, bin_directory), home, account)
    if not home.data.exists():
        _create_cluster(home, binaries, account, durable=settings.get("fsync") != "off")
    _make_socket_directory(home, account)
    _remove_leftovers(home)
    _spawn(home, binaries, account, settings)


def _choose_binaries(home: Home, explicit: Path | None) -> Path:
    """Return binaries of the version that created the data, from any source on this machine."""
    if not home.data.exists():
        return find_binaries(explicit)
    needed = read_text(home.data / "PG_VERSION").strip()
    if not needed:
        hint = "Move it away, or set HOLDFAST_HOME to another place."
        raise HomeUnusable(f"{home.data} is not a PostgreSQL data directory", hint=hint)
    chosen = find_binaries(explicit, major=major_of(needed))
    found = version(chosen)
    if major_of(found) != major_of(needed):
        raise WrongVersion(
            f"{home.data} was made by PostgreSQL {needed}, but {chosen} holds PostgreSQL {found}",
            hint=_steps_to_move(home, needed, Binaries(chosen, found)),
            data_version=needed,
            binaries_version=found,
        )
    return chosen


def _steps_to_move(home: Home, old: str, new: Binaries) -> str:
    """Return the commands to type, with the path of the old binaries if they are on this machine."""
    known = next((each.directory for each in installed_servers() if each.major == major_of(old)), None)
    old_bin = known or Path(f"/usr/lib/postgresql/{old}/bin")
    dump = f"{shlex.quote(str(old_bin / 'pg_dump'))} --clean --if-exists --file jobs.sql"
    install = "" if known else f" Install PostgreSQL {old} first; the lines expect it in {old_bin}."
    return "\n".join(
        [
            f"To stay on PostgreSQL {old}, type the first two lines.{install}",
            f"To move the jobs to PostgreSQL {new.version}, type all of them:",
            shlex.join(["export", f"HOLDFAST_HOME={home.path}"]),
            shlex.join(["export", f"HOLDFAST_PG_BIN={old_bin}"]),
            shlex.join(["holdfast", "psql", "-c", f"\\! {dump}"]),
            shlex.join(["mv", str(home.data), f"{home.data}-{old}"]),
            shlex.join(["export", f"HOLDFAST_PG_BIN={new.directory}"]),
            "holdfast psql --quiet --file jobs.sql",
        ]
    )


def _create_cluster(home: Home, binaries: Path, account: Account | None, *, durable: bool) -> None:
    # Use a new directory, because an initdb whose parent was killed may still be writing to the old one.
    for abandoned in home.path.glob("data.new-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    side = Path(tempfile.mkdtemp(prefix="data.new-", dir=home.path))
    if account:
        os.chown(side, *account)
    options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions"]
    if not durable:
        options.append("--no-sync")
    made = run([binaries / "initdb", "-D", side, "-U", SUPERUSER, *options], account)
    if made.returncode:
        shutil.rmtree(side, ignore_errors=True)
        raise EmbeddedError(f"initdb failed in {home.path}:\n{made.stdout[-2000:]}")
    side.rename(home.data)
    directory = os.open(home.path, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def _make_socket_directory(home: Home, account: Account | None) -> None:
    if home.socket.is_symlink():
        home.socket.unlink()  # made by an earlier server; its target may now belong to another user
    if _fits(home.socket):
        home.socket.mkdir(mode=0o700, exist_ok=True)
    else:
        home.socket.symlink_to(_short_directory())
    if account:
        os.chown(home.socket, *account)


def _short_directory() -> Path:
    for base in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 - mkdtemp makes a private directory in it
        if _fits(Path(base, "holdfast-12345678")):
            return Path(tempfile.mkdtemp(prefix="holdfast-", dir=base))
    raise HomeUnusable(
        f"no place has a path short enough for a unix socket ({_SOCKET_PATH_LIMIT} bytes)",
        hint="Set HOLDFAST_HOME or TMPDIR to a directory with a shorter path.",
    )


def _fits(directory: Path) -> bool:
    # To libpq and the server, a comma would separate two directories.
    return len(os.fsencode(directory / SOCKET)) <= _SOCKET_PATH_LIMIT and "," not in str(directory)


def _remove_leftovers(home: Home) -> None:
    """Remove a killed server's pid files, which PostgreSQL trusts even if the pid is reused."""
    if servers := _servers_in(home.data):
        raise ServerNotStarted(
            f"PostgreSQL runs in {home.data} (pid {', '.join(servers)}), but Holdfast did not start it",
            hint="Stop it first.",
        )
    for leftover in (home.data / "postmaster.pid", *home.socket.resolve().glob(f"{SOCKET}*")):
        leftover.unlink(missing_ok=True)


def _servers_in(data: Path) -> list[str]:
    """Return the pids of all servers that run in this directory.

    Without /proc (macOS), PostgreSQL's own check of the shared memory is the only one.
    """
    processes = Path("/proc").glob("[0-9]*")
    return [
        each.name for each in processes if read_text(each / "comm") == "postgres\n" and _works_in(data, each)
    ]


def _works_in(data: Path, process: Path) -> bool:
    try:
        return (process / "cwd").readlink() == data
    except PermissionError:  # root in a container may not read that; anyone may read the command line
        return str(data) in read_text(process / "cmdline").split("\0")
    except OSError:
        return False


def _spawn(home: Home, binaries: Path, account: Account | None, settings: Mapping[str, str]) -> None:
    ours = {
        "listen_addresses": "",
        "port": PORT,
        "unix_socket_directories": home.socket.resolve(),
        "holdfast.embedded": "on",  # for the doctor: a private server with one role
    }
    options = [f"--{name}={value}" for name, value in {**_DEFAULTS, **settings, **ours}.items()]
    # A shell starts the server, so that it is not a child of this process: code that waits for all children
    # would wait for it. It has its own session, because Ctrl-C must not reach it while a worker drains.
    server = ["/bin/sh", "-c", '"$@" &', "sh", str(binaries / "postgres"), "-D", str(home.data), *options]
    with suppress(FileNotFoundError):
        home.log.replace(home.log.with_name("server.log.1"))
    home.log.touch(mode=0o600)  # it may quote statements, and with them payloads
    server_lock = shared_lock(home.server_lock)
    try:
        with home.log.open("wb") as log:
            run(server, account, output=log, pass_fds=[server_lock], start_new_session=True)
    finally:
        os.close(server_lock)


def read_text(path: Path) -> str:
    """Return the text of a file, or an empty text if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
