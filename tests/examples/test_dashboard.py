"""What the dashboard and the page on observability name is what is exported, and the other way round."""

import json
import re
from collections import Counter
from datetime import UTC, datetime

import pytest

from holdfast import Holdfast
from holdfast.telemetry.metrics import Metrics, Overview, families_of, questions
from holdfast.worker.monitor import health, pages
from tests.examples.pages import ROOT

OPERATIONS = ROOT / "docs" / "operations"
NAME = re.compile(r"\b(?:holdfast|process)_[a-z_]+\b")


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """Every name that can be queried."""
    condition = health.Condition("w", None, "0", False, False, 30.0, 0.0, None, 1, 0, 0, Counter())
    database = Overview(datetime.now(UTC), [], [], [], [])
    families = [
        *Metrics().families(),
        *health.families_of(condition, 0.0),
        *pages._process(0.0),
        *families_of(database),
    ]
    names = {f"holdfast_{gauge}" for gauge in ("notify_queue_usage", "heads_lag_places")}
    names |= {"holdfast_oldest_writer_seconds", "holdfast_duties_failed", "holdfast_clock_offset_seconds"}
    for family in families:
        suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        names |= {family.name + suffix for suffix in suffixes}
    return names


def bare(names: set[str]) -> set[str]:
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def test_every_query_of_the_dashboard_names_metrics_that_exist(exported: set[str]) -> None:
    dashboard = json.loads((OPERATIONS / "grafana-dashboard.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    queries += [it["query"]["query"] for it in dashboard["templating"]["list"] if it["type"] == "query"]
    named = {name for query in queries for name in NAME.findall(query)}
    assert named - exported == set()
    # And all that is exported is to be seen, but for what says when a process began.
    assert bare(exported) - bare(named) == {"process_start_time_seconds"}
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}


def test_the_page_names_every_metric_and_no_other(exported: set[str]) -> None:
    text = (OPERATIONS / "observability.md").read_text()
    named = set(NAME.findall(text))
    assert bare(named) - bare(exported) == set()
    assert bare(exported) - bare(named) == set()


def test_the_gauges_of_the_database_are_those_named_here(hf: Holdfast, exported: set[str]) -> None:
    gauges = hf.carrier.run(questions()[-1])
    assert {f"holdfast_{gauge.name}" for gauge in gauges} <= exported
