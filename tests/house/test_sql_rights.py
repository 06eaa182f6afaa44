"""Rights stand beside the SQL functions, and every public function has one."""

import re
import runpy
from pathlib import Path

HOUSE = Path(__file__).parents[2]
FILES = sorted((HOUSE / "src" / "holdfast" / "sql" / "functions").rglob("*.sql"))
DEFINER = re.compile(
    r"((?:--[^\n]*\n)*)create or replace function holdfast\.(\w+)\(((?:(?!\nas \$\$).)*)\nas \$\$", re.DOTALL
)
# Functions with their owner's rights that no role calls: triggers, and what other functions call.
INTERNAL = {"check_inserted", "count_policy_change", "note_duty", "set_first_state"}

generated = runpy.run_path(str(HOUSE / "docs" / "generate_rights.py"))


def test_the_rights_are_generated_from_the_lines_beside_the_functions() -> None:
    assert generated["FILE"].read_text(encoding="utf-8") == generated["rights_file"](), "Run make reference"


def test_every_public_function_says_which_role_may_call_it() -> None:
    texts = [file.read_text(encoding="utf-8") for file in FILES]
    public = {
        found[2]: found[1]
        for text in texts
        for found in DEFINER.finditer(text)
        if "security definer" in found[3]
    }
    without = {name for name, comment in public.items() if "-- holdfast: role " not in comment}
    assert without == INTERNAL
