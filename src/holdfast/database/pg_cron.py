"""The lines that let pg_cron do the duties, for a DBA to read and run."""

import re

from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import quote

from holdfast.database.pools import Database
from holdfast.schema.plan import SQL
from holdfast.values.errors import BadValue


def pg_cron_script(database: Database) -> str:
    """sql/pg_cron.sql for this database, which is only connected to where the DSN does not name it."""
    name = conninfo_to_dict(database.dsn).get("dbname") or _connected_to(database)
    if not str(name).isprintable():
        # It stands in comments too, and a line break would end one.
        raise BadValue(f"the database's name {name!r} cannot be printed", field="dsn")
    # A job's name is pg_cron's key: with the database in it, several can be served by one pg_cron.
    values = {"name": quote(f"holdfast {name}"), "database": quote(name)}
    script = (SQL / "pg_cron.sql").read_text(encoding="utf-8")
    return re.sub(r":'(\w+)'", lambda place: values[place[1]].strip(), script)


def _connected_to(database: Database) -> str:
    with database.connection() as connection:
        return connection.info.dbname
