"""The SQL around the files: the beginning and the end of each transaction of an installation."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import takewhile
from typing import Literal

from psycopg import sql

from holdfast.schema.plan import File, Plan

# Shorter than deadlock_timeout, which is 1 s by default. So in a deadlock the installer gives way and tries
# again, unless the other session, such as an enqueue, has waited for half a second longer.
LOCK_TIMEOUT = timedelta(milliseconds=500)
PATIENCE = timedelta(minutes=1)
LOCK = int.from_bytes(b"holdfast")

# Moving the heads locks lanes first and then jobs. A migration that locks both uses the same order, to avoid
# a deadlock.
LANES_FIRST = """\
do $$ begin
  if to_regclass('holdfast.lane') is not null then
    lock table holdfast.lane in share mode;
  end if;
end $$"""


def in_transactions(files: Sequence[File]) -> list[list[File]]:
    """Group the files into transactions."""
    first = list(takewhile(lambda file: file.kind == "migration" and not file.with_functions, files))
    rest = files[len(first) :]
    alone = [*first, *(file for file in rest if file.alone)]
    together = [file for file in rest if not file.alone]
    return [*([file] for file in alone), *([together] if together else [])]


SETTINGS = {
    "lock_timeout": "0",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "client_min_messages": "warning",
    "search_path": "pg_catalog, pg_temp",
    "standard_conforming_strings": "on",
    "check_function_bodies": "off",  # functions may name each other in any order
}


def session_settings(scope: Literal["local", "session"], lock_timeout: timedelta) -> str:
    """Return the settings that make a file run the same for every role and database."""
    chosen = SETTINGS | {"lock_timeout": str(max(1, lock_timeout // timedelta(milliseconds=1)))}
    isolation = ["set transaction isolation level read committed, read write;"] if scope == "local" else []
    return "\n".join([*isolation, *(f"set {scope} {name} = {value};" for name, value in chosen.items())])


def as_owner(scope: Literal["local", "session"]) -> str:
    """Return SQL that creates objects as the owner of the existing ones: definer functions need one owner."""
    return _AS_OWNER.replace("SCOPE", scope)


def closing(plan: Plan, step: Sequence[File]) -> str:
    """Return SQL that records the files, forgets functions that no longer exist, and revokes default rights.

    A forgotten function stays in the database, because an older worker may still call it.
    """
    row = sql.SQL("({}, {}, {}, {})")
    rows = [row.format(file.name, file.kind, file.checksum, plan.version) for file in step]
    functions = [file.name for file in plan.files if file.kind == "function"]
    has_functions = any(file.kind == "function" for file in step)
    forget = [_FORGET.format(functions)] if has_functions else []
    grant = [_GRANT] if has_functions and "roles" in functions else []
    remember = _REMEMBER.format(sql.SQL(",\n  ").join(rows))
    return sql.Composed([remember, *forget, _REVOKE, *grant]).as_string()


_REMEMBER = sql.SQL("""\
insert into holdfast.migration (name, kind, checksum, version) values
  {}
on conflict (name) do update
set checksum = excluded.checksum, version = excluded.version, applied_at = excluded.applied_at;
""")

_FORGET = sql.SQL("""\
delete from holdfast.migration
where kind = 'function'
  and name <> all ({});
""")

_AS_OWNER = """\
do $$
declare
  owner name := (
    select pg_get_userbyid(c.relowner)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'holdfast'
      and c.relname = 'migration'
  );
begin
  if owner <> current_user then
    execute format('set SCOPE role %I', owner);
  end if;
exception when insufficient_privilege then
  raise exception using
    errcode = 'insufficient_privilege',
    message = format('Holdfast belongs to role %s here, and %s is not a member of it', owner, current_user),
    hint = format('Migrate as %s, or as a superuser.', owner);
end
$$;"""

# Default privileges cannot do this. For one schema they only add to EXECUTE for PUBLIC, and for the role they
# would change other functions too.
_REVOKE = sql.SQL("""\
revoke all on all routines in schema holdfast from public;
""")

# A function that was dropped and created again has lost its rights, and a new one has none yet.
_GRANT = sql.SQL("""\
select holdfast.grant_rights();
""")

CREATE_ROLES = "select holdfast.create_roles()"
