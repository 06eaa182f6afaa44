"""The types of the functions that the fixtures of these tests give."""

import subprocess
from collections.abc import Callable

from holdfast import schema

NewDsn = Callable[..., str]
MakePlan = Callable[..., schema.Plan]
RunPsql = Callable[[str, str], subprocess.CompletedProcess[str]]
Catalog = Callable[[str], list[str]]
