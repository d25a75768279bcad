"""What is exposed: documented, bounded, and read from another thread as a whole."""

import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from berth_operator.metrics import gauges
from berth_operator.metrics.gauges import FAMILIES, GAUGES
from tests import metric_names
from tests.metric_names import Series

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
RULES = ROOT / "manifests" / "components" / "monitoring" / "rules.yaml"
ROW = re.compile(r"^\| `(?P<name>[a-z_]+)` \| (?P<type>\w+) \|(?P<labels>[^|]*)\|", re.MULTILINE)


def documented() -> dict[str, Series]:
    own = PAGE.read_text().partition("## The operator's series")[2].partition("\n## ")[0]
    rows = (Series(row["name"], row["type"], tuple(re.findall(r"`(\w+)`", row["labels"]))) for row in ROW.finditer(own))
    return {row.name: row for row in rows}


def test_the_page_has_every_series_of_the_operator_with_its_type_and_labels() -> None:
    assert documented() == metric_names.of_operator()


@pytest.fixture
def shown() -> str:
    GAUGES.shown = {family: {("x",) * len(family.labels): 1.0} for family in FAMILIES}
    try:
        return generate_latest().decode()
    finally:
        GAUGES.shown = {}


def test_gauges_over_the_state_are_exposed_together(shown: str) -> None:
    assert [family.name for family in FAMILIES if f"\n{family.name}" not in shown] == []
    assert 'scheduler_queue_incoming_pods_total{event="x",queue="x"} 1.0' in shown


def test_a_replica_that_does_not_lead_has_no_gauges_over_the_state() -> None:
    exposed = generate_latest().decode()
    assert not any(family.name in exposed for family in FAMILIES)
    assert gauges.QUEUED.name


def test_the_page_has_every_alert_with_its_severity() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    rows = re.findall(r"^\| `(Berth\w+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [(rule["alert"], rule["labels"]["severity"]) for rule in alerts]
