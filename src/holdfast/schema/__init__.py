"""Installs and upgrades the schema, checks that it fits this release, and prints it for a DBA.

    plan      the SQL files of this release, in their order
    records   the files that the database has recorded
    steps     the SQL around the files of one transaction
    apply     runs the missing files
    verify    checks the database against the plan
    print     writes the same as a script for psql

The table `holdfast.migration` holds the records.
"""

from holdfast.schema.apply import MigrationFailed, apply, pending
from holdfast.schema.plan import MigrationEdited, Plan, Record, load
from holdfast.schema.print import print_sql
from holdfast.schema.records import installed
from holdfast.schema.verify import verify

__all__ = [
    "MigrationEdited",
    "MigrationFailed",
    "Plan",
    "Record",
    "apply",
    "installed",
    "load",
    "pending",
    "print_sql",
    "verify",
]
