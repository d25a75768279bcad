"""Each alert has a runbook with all of its parts, and names it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.documents.console import commands

ROOT = Path(__file__).parents[2]
PAGES = ("docs/runbooks.md", "docs/backup.md")
PARTS = ("**Meaning:**", "**Users notice:**", "**Action:**", "**Over when**")
MAX_LINES = 250
RULES = yaml.safe_load((ROOT / "manifests" / "components" / "monitoring" / "rules.yaml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]


def runbooks(*pages: str) -> dict[str, str]:
    """Return the text of each runbook by its heading."""
    found: dict[str, str] = {}
    for page in pages or PAGES:
        _, *parts = re.split(r"^## (.+)$", (ROOT / page).read_text(), flags=re.MULTILINE)
        sections = dict(zip(parts[::2], parts[1::2], strict=True))
        found |= {title: text for title, text in sections.items() if re.fullmatch(r"Berth[A-Z]\w+", title)}
    return found


def test_the_runbooks_are_those_of_the_alerts_in_their_order() -> None:
    assert sorted(runbooks()) == sorted(rule["alert"] for rule in ALERTS)
    for page in PAGES:
        order = runbooks(page)
        assert list(order) == [rule["alert"] for rule in ALERTS if rule["alert"] in order]


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_an_alert_names_its_runbook(rule: dict[str, Any]) -> None:
    [page] = (page for page in PAGES if rule["alert"] in runbooks(page))
    assert rule["annotations"]["runbook"] == f"{page}#{rule['alert'].lower()}"


@pytest.mark.parametrize("alert", runbooks())
def test_a_runbook_has_all_parts_in_order_and_commands(alert: str) -> None:
    text = " ".join(runbooks()[alert].split())
    places = [text.find(part) for part in PARTS]
    assert -1 not in places
    assert places == sorted(places)
    assert commands(runbooks()[alert])


@pytest.mark.parametrize("page", PAGES)
def test_the_page_stays_readable(page: str) -> None:
    assert len((ROOT / page).read_text().splitlines()) <= MAX_LINES
