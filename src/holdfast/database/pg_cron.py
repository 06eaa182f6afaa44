"""Writes the script that lets pg_cron run the duties, for a DBA to read and run."""

import re

from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import quote

from holdfast.database.pools import Database
from holdfast.schema.plan import SQL
from holdfast.values.errors import BadValue


def pg_cron_script(database: Database) -> str:
    """Return sql/pg_cron.sql for this database. Connects only if the DSN does not name the database."""
    name = conninfo_to_dict(database.dsn).get("dbname") or _connected_to(database)
    if not str(name).isprintable():
        # The script has the name in comments too, and a line break would end a comment.
        raise BadValue(f"the database's name {name!r} cannot be printed", field="dsn")
    # The job's name is the key in pg_cron. It contains the database, so one pg_cron can serve several.
    values = {"name": quote(f"holdfast {name}"), "database": quote(name)}
    script = (SQL / "pg_cron.sql").read_text(encoding="utf-8")
    return re.sub(r":'(\w+)'", lambda place: values[place[1]].strip(), script)


def _connected_to(database: Database) -> str:
    with database.connection() as connection:
        return connection.info.dbname
