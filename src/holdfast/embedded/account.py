"""The user account of the server's processes: the current user, or an ordinary user instead of root."""

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from holdfast.embedded.errors import EmbeddedError, HomeUnusable
from holdfast.embedded.home import Home


class Account(NamedTuple):
    """The user account of root's server, because PostgreSQL refuses to run as root."""

    uid: int
    gid: int


def choose_account(home: Home) -> Account | None:
    """Return the account for root's server, or None for an ordinary user, whose own account is used."""
    if os.geteuid() != 0:
        return None
    account = _owner(home.data) or _ordinary_user()
    if run(["/bin/sh", "-c", 'cd "$0"', home.path], account).returncode:
        raise HomeUnusable(
            f"user {account.uid}, the account of root's server, cannot reach {home.path}",
            hint="Set HOLDFAST_HOME to a directory that every user can enter.",
        )
    return account


def _owner(data: Path) -> Account | None:
    # A cluster that belongs to the user nobody keeps this owner, even if a user postgres is added later.
    return Account(data.stat().st_uid, data.stat().st_gid) if data.exists() else None


def _ordinary_user() -> Account:
    import pwd  # noqa: PLC0415 - Windows has no such module

    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            user = pwd.getpwnam(name)
            return Account(user.pw_uid, user.pw_gid)
    raise EmbeddedError(
        "PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody to run it",
        hint="Add one of them, or start as an ordinary user.",
    )


def run(
    command: Sequence[str | Path],
    account: Account | None = None,
    *,
    output: int | IO[bytes] = subprocess.PIPE,
    **options: Any,
) -> "subprocess.CompletedProcess[str]":
    """Run a command as the account, in a directory that it can enter, and with a small environment.

    The full environment may hold secrets, and PG* variables that change the server's behaviour.
    """
    if account:
        options |= {"user": account.uid, "group": account.gid, "extra_groups": []}
    keep = ("PATH", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    return subprocess.run(  # noqa: S603 - the commands are constants, given as lists
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd="/",
        umask=0o077,
        env={"LC_ALL": "C"} | {name: os.environ[name] for name in keep if name in os.environ},
        **options,
    )
