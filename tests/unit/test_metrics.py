"""Exposed metrics are documented, bounded, and read from another thread as a whole."""

import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from berth_operator.metrics import gauges
from berth_operator.metrics.gauges import FAMILIES, GAUGES
from tests.harness import metric_names

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
RULES = ROOT / "manifests" / "components" / "monitoring" / "rules.yaml"
RUNBOOKS = ROOT / "docs" / "runbooks.md"
ROW = re.compile(r"^\| `(?P<label>[a-z_]+)` \| (?P<names>`[^|]*`) \|", re.MULTILINE)


def test_the_page_explains_labels_that_its_series_have() -> None:
    labels = {name: series.labels for name, series in metric_names.of_operator().items()}
    rows = [
        (row["label"], name) for row in ROW.finditer(PAGE.read_text()) for name in re.findall(r"`(\w+)`", row["names"])
    ]
    assert rows
    assert [row for row in rows if row[0] not in labels.get(row[1], ())] == []


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


def test_the_runbooks_have_every_alert_with_its_severity() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    alerts = {
        rule["alert"]: rule["labels"]["severity"] for group in groups for rule in group["rules"] if "alert" in rule
    }
    sentence = re.search(
        r"(?P<critical>.*?)\sare\scritical,(?P<info>.*?)\shave\sthe\sseverity\sinfo", RUNBOOKS.read_text(), re.DOTALL
    )
    assert sentence is not None
    named = {
        name: severity for severity, text in sentence.groupdict().items() for name in re.findall(r"`(Berth\w+)`", text)
    }
    assert {name: named.get(name, "warning") for name in alerts} == alerts
    assert named.keys() <= alerts.keys()
