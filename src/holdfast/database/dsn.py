"""Connection strings in the forms that people use."""

import re


def without_driver(dsn: str) -> str:
    """Return the DSN as libpq reads it: SQLAlchemy writes `postgresql+psycopg://`.

    >>> without_driver("postgresql+psycopg://app@db/shop")
    'postgresql://app@db/shop'
    """
    return re.sub(r"^\s*(postgres(?:ql)?)\+\w+://", r"\1://", dsn)
