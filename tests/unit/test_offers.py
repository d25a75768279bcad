"""The operator allocates what the agent offers to kubelet, unit by unit."""

from typing import Any

import pytest

from berth_agent.vendors.nvidia.hand_over import resources
from berth_api.device import DeviceSpec
from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.state.objects import devices
from devcluster.additions import device_plugins
from tests.objects.builders import add, node_info, waiting
from tests.objects.devices import GPU, options, spec

SMALL, SMALL_NAME, SHARED = "1g.10gb", "nvidia.com/mig-1g.10gb", f"{GPU}.shared"
WHOLE = spec(2)
SOME = spec(3, mig={0: (SMALL, "3g.40gb"), 1: (SMALL, "1g.10gb+me")})
PARTS = spec(2, mig={0: ("1c.3g.40gb", "1c.3g.40gb", SMALL), 1: ("7g.80gb",)})
ALIKE = spec(2, mig={0: (SMALL, SMALL), 1: (SMALL,)})
ALIKE_PARTS = spec(1, mig={0: ("1c.3g.40gb", "1c.3g.40gb")})
SHARINGS: list[dict[str, Any]] = [
    {},
    {"slices": 3},
    {"slices": 3, "rename": True},
    {"slices": 2, "of": SMALL_NAME},
    {"slices": 2, "of": SMALL_NAME, "rename": True},
]
LAYOUTS = {
    "none": [WHOLE, SOME, PARTS, ALIKE, ALIKE_PARTS],
    "single": [WHOLE, ALIKE, ALIKE_PARTS],
    "mixed": [WHOLE, SOME, PARTS, ALIKE, ALIKE_PARTS],
}
NAMES = (GPU, SHARED, SMALL_NAME, f"{SMALL_NAME}.shared", "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1c.3g.40gb")
CASES = [
    pytest.param(strategy, found, sharing, id=f"{strategy}-{place}-{sharing}")
    for strategy, layouts in LAYOUTS.items()
    for place, found in enumerate(layouts)
    for sharing in SHARINGS
]


@pytest.mark.parametrize(("strategy", "device_spec", "sharing"), CASES)
def test_what_is_offered_is_handed_out(strategy: str, device_spec: DeviceSpec, sharing: dict[str, Any]) -> None:
    chosen = options(mig_strategy=strategy, **sharing)
    offers = {each.resource: each for each in resources.offers(device_spec, chosen).offers}
    shown = resources.shown(device_spec, chosen)
    for name in NAMES:
        expected = sorted(unit.id for unit in offers[name].units) if name in offers else []
        if name == SHARED and any("MIG" in each for each in expected):
            # Slices of instances under `single` and another name: no pod requests those from the operator.
            expected = []
        assert sorted(handed_out(shown, name)) == expected


@pytest.mark.parametrize(("strategy", "device_spec", "sharing"), CASES)
def test_the_development_cluster_plays_what_is_offered(
    strategy: str, device_spec: DeviceSpec, sharing: dict[str, Any]
) -> None:
    chosen = options(mig_strategy=strategy, **sharing)
    sick = device_spec.model_copy(
        update={"devices": [each.model_copy(update={"health": each.minor > 0}) for each in device_spec.devices]}
    )
    raw = {"metadata": {}, "spec": resources.shown(sick, chosen).model_dump(mode="json", by_alias=True)}
    offered = {each.resource: each.units for each in resources.offers(sick, chosen).offers}
    played = device_plugins.plugin_resources(raw)
    assert played.capacity == {name: len(units) for name, units in offered.items()}
    assert played.allocatable == {name: sum(each.healthy for each in units) for name, units in offered.items()}


def handed_out(shown: DeviceSpec, name: str) -> list[str]:
    """Return the ids that pods of one unit each get, until none is left."""
    raw = {"metadata": {"name": "node", "uid": "u"}, "spec": shown.model_dump(mode="json", by_alias=True)}
    record = devices.record(raw)
    assert record.problems == ()
    empty = Fleet()
    add(empty, node_info("node"), record.inventory)
    ids: list[str] = []
    while isinstance(outcome := decide(empty, waiting(f"pod-{len(ids)}", {name: 1}), Policy()), Placement):
        empty.charge(outcome.charge)
        ids += [each.id for each in outcome.grants]
    return ids


def test_slices_are_of_one_instance_after_the_other() -> None:
    shown = resources.shown(ALIKE, options(mig_strategy="mixed", slices=2, of=SMALL_NAME))
    assert handed_out(shown, SMALL_NAME) == [
        "MIG-0-0::0",
        "MIG-0-1::0",
        "MIG-0-0::1",
        "MIG-0-1::1",
        "MIG-1-0::0",
        "MIG-1-0::1",
    ]
