"""Cards by name, by claim, and both ways: no order of events gives a card twice or makes a running pod's unhealthy."""

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_agent.dra import slices
from berth_agent.dra.driver import ClaimDriver
from berth_agent.readings import Reading
from berth_agent.vendor import RefusedError
from berth_api.allocation import visible
from berth_api.names import CARDS_KEY
from tests.unit.agent.dra.test_driver import Pods, start
from tests.unit.agent.dra.test_preparation import machine

pytestmark = pytest.mark.looptime

BOTH: Final[Mapping[str, Any]] = {"device_plugin": True, "dra": True, "dra_own_pools": True}
CARDS: Final = {"GPU-0": "GPU-0", "GPU-1": "GPU-1", "GPU-2": "GPU-2", "MIG-2-0": "GPU-2", "MIG-2-1": "GPU-2"}
"""Card by the id of a card or instance."""
CLAIMS: Final = {"a": ("gpu-0",), "b": ("mig-2-0",), "c": ("mig-2-1", "gpu-0")}


UNITS: Final = ("GPU-0", "GPU-0::1", "MIG-2-0")
GIVE: Final = [*(("name", unit) for unit in UNITS), *(("prepare", claim) for claim in CLAIMS)]
OTHERS: Final = [
    *(("label", mode) for mode in ("name", "claims", "both", "other")),
    *(("end", unit) for unit in UNITS),
    *(("unprepare", claim) for claim in CLAIMS),
    *(("update", ""), ("restart", ""), ("kubelet", "")),
]
STEPS: Final = st.lists(st.one_of(st.sampled_from(GIVE), st.sampled_from(OTHERS)), min_size=4, max_size=12)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
async def test_no_order_of_names_and_claims_gives_a_card_twice(steps: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, pods, labels = Path(name), Pods(), dict[str, str]()
        driver, node, plugin = start(folder, pods, **BOTH)
        for step, what in [("update", ""), *steps]:
            if step == "label":
                labels[CARDS_KEY] = what
            elif step == "name":
                # Also of what is withheld: kubelet may not have heard of it.
                with contextlib.suppress(RefusedError):
                    await plugin.allocate("nvidia.com/gpu", [what])
            elif step == "end":
                pods.held = (pods.held or frozenset()) - {visible(what)}
            elif step == "prepare":
                with contextlib.suppress(RefusedError):
                    await driver.claims.prepare(node.allocate(what, *CLAIMS[what]))
            elif step == "unprepare":
                await driver.claims.unprepare(node.allocate(what, *CLAIMS[what]))
            elif step == "kubelet":
                pods.is_current = not pods.is_current
            elif step == "restart":
                driver, node, plugin = start(folder, pods, **BOTH)
            if step == "update":
                await driver.update(Reading(spec=machine(), findings=()), labels)
                # An agent that is killed writes nothing after the start of the next one.
                for task in filter(None, (driver.claims.saving, driver.claims.renewing)):
                    await task
                if pods.is_current:
                    assert_shown(driver, by_name(pods), labels.get(CARDS_KEY, ""))
            claimed = {device.card for claim in node.recorded().values() for device in claim.devices}
            assert not claimed & by_name(pods)
            # A pod whose card turns unhealthy can neither be restarted nor admitted again.
            assert not driver.withheld() & by_name(pods)


def by_name(pods: Pods) -> set[str]:
    """Return the cards of which pods have any part."""
    return {CARDS[unit] for unit in pods.held or ()}


def assert_shown(driver: ClaimDriver, held: set[str], label: str) -> None:
    """Check what slices list, and that a card which they list as free is no pod's."""
    listed = {device.card: device for device in driver.shown}
    assert {card for card, device in listed.items() if not device.by_name}.isdisjoint(held)
    assert set(listed) == {
        "claims": {"GPU-0", "GPU-1", "GPU-2"} - held,
        # The third card is divided: its instances are given by name.
        "both": {"GPU-0", "GPU-1"},
    }.get(label, set())
    claimed = driver.claims.cards()
    assert claimed is not None
    # kubelet's device API gives what is left.
    assert driver.withheld() == (set(CARDS.values()) - held if label == "claims" else claimed)


@pytest.mark.parametrize(
    ("options", "kept", "message"),
    [
        pytest.param({}, True, "", id="possible"),
        pytest.param({"device_plugin": False}, True, "the agent does not offer the node's cards", id="another plugin"),
        pytest.param(
            {"dra_own_pools": False}, True, "the pools of gpu.berth.dev are not Berth's", id="another scheduler"
        ),
        pytest.param({}, False, "the API server drops taints of devices", id="Kubernetes 1.35"),
        pytest.param({}, None, "it is not known whether the API server keeps taints", id="no answer"),
    ],
)
async def test_cards_are_given_in_both_ways_only_where_berth_alone_gives_them(
    tmp_path: Path, options: Mapping[str, Any], kept: bool | None, message: str
) -> None:
    pods = Pods()
    pods.held = frozenset({"GPU-1"})
    driver, node, _ = start(tmp_path, pods, **{**BOTH, **options})
    node.keeps_taints = kept
    reading = Reading(spec=machine(), findings=())
    await driver.update(reading, {CARDS_KEY: "both"})
    shown = slices.by_card(driver.shown, with_taints=True)
    taint = {"key": "gpu.berth.dev/by-name", "effect": "NoSchedule"}
    taints = {card: device.get("taints") for card, [device] in shown.items()}
    assert taints == ({} if message else {"gpu-0": None, "gpu-1": [taint]})
    assert driver.refusal.startswith(message)
    # As soon as it is possible, it is done.
    node.keeps_taints = True
    await driver.update(reading, {CARDS_KEY: "both"})
    assert bool(driver.refusal) == (bool(message) and kept is not None)


async def test_while_the_api_server_does_not_say_whether_it_keeps_taints_slices_stay(tmp_path: Path) -> None:
    driver, node, _ = start(tmp_path, Pods(), **BOTH)
    reading = Reading(spec=machine(), findings=())
    await driver.update(reading, {CARDS_KEY: "claims"})
    listed = [device.id for device in driver.shown]
    node.keeps_taints = None
    await driver.update(reading, {CARDS_KEY: "both"})
    assert [device.id for device in driver.shown] == listed != []
    node.keeps_taints = False
    await driver.update(reading, {CARDS_KEY: "both"})
    assert driver.shown == []
