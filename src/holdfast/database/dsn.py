"""Connection strings as people have them."""

import re


def without_driver(dsn: str) -> str:
    """The DSN as libpq reads it: SQLAlchemy writes `postgresql+psycopg://`.

    >>> without_driver("postgresql+psycopg://app@db/shop")
    'postgresql://app@db/shop'
    """
    return re.sub(r"^\s*(postgres(?:ql)?)\+\w+://", r"\1://", dsn)
