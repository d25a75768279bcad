"""Each alert has a runbook with all of its parts, and names it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.documents.console import commands

ROOT = Path(__file__).parents[2]
PAGE = "docs/runbooks.md"
TEXT = (ROOT / PAGE).read_text()
PARTS = ("**Meaning:**", "**Users notice:**", "**Action:**", "**Over when**")
MAX_LINES = 250
RULES = yaml.safe_load((ROOT / "manifests" / "components" / "monitoring" / "rules.yaml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]


def runbooks() -> dict[str, str]:
    """Return the text of each runbook by its heading."""
    _, *parts = re.split(r"^## (\w+)$", TEXT, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_runbooks_are_those_of_the_alerts_in_their_order() -> None:
    assert list(runbooks()) == [rule["alert"] for rule in ALERTS]


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_an_alert_names_its_runbook(rule: dict[str, Any]) -> None:
    assert rule["annotations"]["runbook"] == f"{PAGE}#{rule['alert'].lower()}"


@pytest.mark.parametrize("alert", runbooks())
def test_a_runbook_has_all_parts_in_order_and_commands(alert: str) -> None:
    text = " ".join(runbooks()[alert].split())
    places = [text.find(part) for part in PARTS]
    assert -1 not in places
    assert places == sorted(places)
    assert commands(runbooks()[alert])


def test_the_page_stays_readable() -> None:
    assert len(TEXT.splitlines()) <= MAX_LINES
