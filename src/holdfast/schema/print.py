"""Prints the statements of `apply` as a script for psql, for a DBA to read and run."""

from collections.abc import Iterable, Sequence

from holdfast.schema.plan import File, Plan, Record, load
from holdfast.schema.steps import (
    CREATE_ROLES,
    LANES_FIRST,
    LOCK,
    LOCK_TIMEOUT,
    PATIENCE,
    SETTINGS,
    as_owner,
    closing,
    in_transactions,
    session_settings,
)


def print_sql(plan: Plan | None = None, *, installed: Iterable[Record] = (), roles: bool = False) -> str:
    """Return the statements of `apply` as a script for psql, without the files that are `installed`."""
    plan = plan or load()
    head = f"-- Holdfast {plan.version}, for psql --set ON_ERROR_STOP=1\n"
    steps = in_transactions(plan.todo(installed))
    scripts = [_script(plan, step) for step in steps]
    if roles:
        opening = f"begin;\n{session_settings('local', LOCK_TIMEOUT)}\nselect pg_advisory_xact_lock({LOCK});"
        scripts.append(f"{opening}\n\n-- The roles of its users.\n{CREATE_ROLES};\ncommit;\n")
    if not scripts:
        return f"{head}-- Nothing is missing.\n"
    return "\n".join([f"{head}set client_encoding = 'UTF8';\n", *scripts])


def _script(plan: Plan, step: Sequence[File]) -> str:
    files = "\n".join(f"-- {file.name}.sql\n{file.text}" for file in step)
    if all(file.transactional for file in step):
        opening = f"begin;\n{session_settings('local', LOCK_TIMEOUT)}\nselect pg_advisory_xact_lock({LOCK});"
        opening += f"\n{as_owner('local')}"
        if any(file.with_functions for file in step):
            opening += f"\n{LANES_FIRST};"
        ending = "commit;"
    else:
        stop = "\\set ON_ERROR_STOP on"
        opening = f"{stop}\n{session_settings('session', PATIENCE)}\nselect pg_advisory_lock({LOCK});"
        opening += f"\n{as_owner('session')}"
        ending = f"select pg_advisory_unlock({LOCK});\n"
        ending += "\n".join(f"reset {name};" for name in ("role", *SETTINGS))
    return f"{opening}\n\n{files}\n{closing(plan, step)}{ending}\n"
