"""The console reads answers of the previous version's visibility API.

With a new version, put its operator's answers (`kubectl get --raw`) into `recorded/answers.json`.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from berth_api.objects.visibility import FleetNode, HoldingPod, PodExplanation, QueuedPod
from berth_kubectl.commands import devices, explaining, free, queue, top, who

ANSWERS = json.loads((Path(__file__).parent / "recorded/answers.json").read_text())
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def missing(value: Any, of: Any, path: str = "") -> list[str]:
    """Return the paths of fields that the contract requires and a value does not have."""
    if is_typeddict(of):
        lacking = [f"{path}.{name}" for name in of.__required_keys__ - value.keys()]
        fields = {name: field for name, field in get_type_hints(of).items() if name in value}
        return lacking + [each for name, field in fields.items() for each in missing(value[name], field, name)]
    inner = value if get_origin(of) is list else value.values() if get_origin(of) is dict else ()
    return [each for item in inner for each in missing(item, get_args(of)[-1], path)]


@pytest.mark.parametrize(
    ("resource", "of"),
    [("fleet", FleetNode), ("queue", QueuedPod), ("holders", HoldingPod), ("explanations", PodExplanation)],
)
def test_they_have_every_field_that_the_console_relies_on(resource: str, of: type) -> None:
    assert ANSWERS[resource]
    assert [path for answer in ANSWERS[resource] for path in missing(answer, of)] == []


def test_they_are_printed() -> None:
    fleet, holders = ANSWERS["fleet"], ANSWERS["holders"]
    assert [row[:2] for row in devices.report(fleet).rows] == [("n1", "Ready")] * 3 + [("n2", "Ready")] * 2
    assert [row[3:6] for row in free.report(fleet).rows] == [("5", "4", "2")]
    assert [row[1] for row in who.report(holders, now=NOW).rows] == ["holds"]
    assert [row[1] for row in top.of_pods((holders, fleet), idle=False, now=NOW).rows] == ["holds"]
    assert [row[2] for row in queue.report(ANSWERS["queue"]).rows] == ["waits", "member"]
    states = [explaining.text(each, wide=True)[1].split()[1] for each in ANSWERS["explanations"]]
    assert states == ["Active", "Waiting", "BackingOff", "Active", "Bound"]
