"""Each volume filter passes the right nodes, explains why others fail, and wakes pods on the right changes."""

from dataclasses import replace
from typing import Any

import pytest

from berth_operator.core import filters
from berth_operator.core.decision.policy import Policy
from berth_operator.core.filters import (
    volume_affinity,
    volume_binding,
    volume_claims,
    volume_conflicts,
    volume_in_use,
    volume_limits,
    volume_zones,
)
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.mounts import Disk, Mounts
from berth_operator.core.values.request import NodeTerm, PodRequest, Taint
from berth_operator.core.values.storage import READ_WRITE_ONCE_POD, StorageClass
from berth_operator.core.values.verdict import Change
from tests.objects.builders import GI, add, asks, charge, label, node_info
from tests.objects.volumes import DRIVER, MADE, bound, capacity, claim, csi, holds, put, volume, wants, zoned
from tests.unit.core.filters.test_filters import passing, reasons

NODES = {"x": {"zone": "x"}, "y": {"zone": "y"}, "bare": {}}
EVERYWHERE = {"x", "y", "bare"}
NO_VOLUME, NO_SPACE = volume_binding.NO_VOLUME, volume_binding.NO_SPACE


def world(*objects: object, **fields: Any) -> Fleet:
    fleet = Fleet()
    for name, labels in NODES.items():
        add(fleet, node_info(name, labels=labels))
    return put(fleet, *objects, **fields)


# --- claims that are not in order -------------------------------------------------------------------------------

CLAIM, NOT_THERE = wants("claim"), 'persistentvolumeclaim "claim" not found'
OWN = wants(own={"claim": "me"})
DELETED = 'persistentvolumeclaim "claim" is being deleted'
LOST = 'persistentvolumeclaim "claim" bound to non-existent persistentvolume "gone"'
OTHER_NOT_THERE = 'persistentvolumeclaim "other" not found'
NOT_YET = 'waiting for ephemeral volume controller to create the persistentvolumeclaim "claim"'
NOT_OWNER = 'persistentvolumeclaim "claim" was not created for the pod (pod is not owner)'


@pytest.mark.parametrize(
    ("request_", "objects", "reason"),
    [
        pytest.param(CLAIM, [claim()], "", id="waits for its first consumer"),
        pytest.param(CLAIM, [bound()], "", id="bound"),
        pytest.param(CLAIM, [], NOT_THERE, id="not there"),
        pytest.param(CLAIM, [bound(deleting=True)], DELETED, id="being deleted"),
        pytest.param(CLAIM, [bound(to="gone", lost=True)], LOST, id="lost"),
        pytest.param(CLAIM, [claim(storage_class="at-once")], volume_claims.UNBOUND, id="immediate"),
        pytest.param(CLAIM, [claim(storage_class="")], volume_claims.UNBOUND, id="of no class"),
        pytest.param(CLAIM, [claim(storage_class="none")], volume_claims.UNBOUND, id="of a class not there"),
        pytest.param(CLAIM, [claim(volume="volume")], volume_claims.UNBOUND, id="wants a volume of its own"),
        pytest.param(wants("claim", "other"), [claim(storage_class="")], OTHER_NOT_THERE, id="not there, and unbound"),
        pytest.param(OWN, [claim(owner="me")], "", id="an ephemeral volume's"),
        pytest.param(OWN, [], NOT_YET, id="an ephemeral volume's, not there yet"),
        pytest.param(OWN, [claim(owner="other")], NOT_OWNER, id="an ephemeral volume's, of somebody else"),
    ],
)
def test_a_claim_that_is_not_in_order_keeps_the_pod_from_every_node(
    request_: PodRequest, objects: list[object], reason: str
) -> None:
    fleet = world(*objects)
    assert passing(volume_claims, fleet, request_) == (set() if reason else EVERYWHERE)
    assert reasons(volume_claims, fleet, request_) == ({reason: 3} if reason else {})


# --- bound volumes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objects", "expected", "reason"),
    [
        pytest.param([volume()], EVERYWHERE, "", id="reached from everywhere"),
        pytest.param([volume(on=["x"])], {"x"}, volume_affinity.MISMATCH, id="from a zone"),
        pytest.param([volume(on=["x", "y"])], {"x", "y"}, volume_affinity.MISMATCH, id="from two"),
        pytest.param(
            [volume(affinity=(*zoned(["x"]), NodeTerm(labels=(label("zone", "DoesNotExist"),))))],  # type: ignore[misc]
            {"x", "bare"},
            volume_affinity.MISMATCH,
            id="one of two terms",
        ),
        pytest.param([volume(affinity=())], set(), volume_affinity.MISMATCH, id="no term"),
        pytest.param([], set(), volume_affinity.GONE, id="gone"),
    ],
)
def test_the_node_reaches_bound_volumes(objects: list[object], expected: set[str], reason: str) -> None:
    fleet = world(bound(), *objects)
    assert passing(volume_affinity, fleet, wants("claim")) == expected
    assert reasons(volume_affinity, fleet, wants("claim")) == ({reason: 3 - len(expected)} if reason else {})


def test_all_bound_volumes_are_reached() -> None:
    fleet = world(bound("a", "va"), bound("b", "vb"), volume("va", on=["x", "y"]), volume("vb", on=["y"]))
    assert passing(volume_affinity, fleet, wants("a", "b")) == {"y"}


def test_what_is_reached_follows_labels() -> None:
    fleet = world(bound(), volume(on=["x"]))
    assert passing(volume_affinity, fleet, wants("claim")) == {"x"}
    add(fleet, node_info("new", labels={"zone": "x"}))
    fleet.put_node(node_info("x", labels={"zone": "z"}))
    assert passing(volume_affinity, fleet, wants("claim")) == {"new"}


OLD_ZONE, OLD_REGION = volume_zones.OLDER
ZONE_NODES = {
    "none": {},
    "new": {volume_zones.ZONE: "a"},
    "old": {OLD_ZONE: "a"},
    "other": {volume_zones.ZONE: "b"},
    "region": {volume_zones.REGION: "r"},
    "both": {volume_zones.ZONE: "a", volume_zones.REGION: "r"},
    "mixed": {OLD_ZONE: "b", volume_zones.ZONE: "a"},
}


@pytest.mark.parametrize(
    ("zones", "expected"),
    [
        pytest.param([], set(ZONE_NODES), id="no labels"),
        pytest.param([(volume_zones.ZONE, ("a",))], {"none", "new", "both", "mixed"}, id="a zone"),
        pytest.param([(OLD_ZONE, ("a",))], {"none", "new", "old", "both"}, id="an older label matches newer ones"),
        pytest.param(
            [(volume_zones.ZONE, ("a", "b"))], {"none", "new", "other", "both", "mixed"}, id="one of two zones"
        ),
        pytest.param([(volume_zones.ZONE, ("a",)), (volume_zones.REGION, ("r",))], {"none", "both"}, id="and a region"),
        pytest.param([(OLD_REGION, ("r",))], {"none", "region", "both"}, id="an older region"),
    ],
)
def test_zones_of_bound_volumes(zones: list[tuple[str, tuple[str, ...]]], expected: set[str]) -> None:
    fleet = Fleet()
    for name, labels in ZONE_NODES.items():
        add(fleet, node_info(name, labels=labels))
    put(fleet, bound(owner="me"), volume(zones=tuple(zones)))
    assert passing(volume_zones, fleet, wants("claim")) == expected
    rest = len(ZONE_NODES) - len(expected)
    assert reasons(volume_zones, fleet, wants("claim")) == ({volume_zones.REASON: rest} if rest else {})
    assert passing(volume_zones, fleet, wants(own={"claim": "me"})) == set(ZONE_NODES)


# --- claims that wait for their first consumer ------------------------------------------------------------------


def ephemeral_class(**fields: Any) -> StorageClass:
    return replace(MADE, **fields)


ELSEWHERE = volume("free", on=["x"])
IN_X = ephemeral_class(topologies=zoned(["x"]))

BINDING_CASES: dict[str, tuple[list[object], set[str]]] = {
    "no volume": ([claim()], set()),
    "being deleted": ([claim(), volume(deleting=True)], set()),
    "a block device": ([claim(), volume(volume_mode="Block")], set()),
    "both block devices": ([claim(volume_mode="Block"), volume(volume_mode="Block")], EVERYWHERE),
    "other attributes": ([claim(attributes_class="gold"), volume()], set()),
    "the same attributes": ([claim(attributes_class="gold"), volume(attributes_class="gold")], EVERYWHERE),
    "set aside for it, whatever its modes": (
        [claim(), volume(claim="ns/claim", available=False, modes=frozenset()), ELSEWHERE],
        EVERYWHERE,
    ),
    "set aside for it, elsewhere": ([claim(), volume(claim="ns/claim", on=["y"]), ELSEWHERE], {"y"}),
    "set aside for it, but too small": ([claim(), volume(claim="ns/claim", on=["y"], size=1), ELSEWHERE], {"x"}),
    "made": ([claim(storage_class="made")], EVERYWHERE),
    "made in a zone": ([claim(storage_class="made"), IN_X], {"x"}),
    "by no provisioner": ([claim(storage_class="made"), ephemeral_class(provisioner="")], set()),
    "being made for a node": (
        [claim(storage_class="made", selected_node="y"), volume(storage_class="made", on=["x"])],
        {"y"},
    ),
    "without a provisioner that runs": ([claim(selected_node="y"), volume()], set()),
}


@pytest.mark.parametrize(("objects", "expected"), BINDING_CASES.values(), ids=BINDING_CASES)
def test_delayed_claims(objects: list[object], expected: set[str]) -> None:
    fleet, left = world(*objects), 3 - len(expected)
    assert passing(volume_binding, fleet, wants("claim")) == expected
    assert reasons(volume_binding, fleet, wants("claim")) == ({NO_VOLUME: left} if left else {})


def test_a_volume_serves_one_claim_of_a_pod() -> None:
    fleet = world(claim("a"), claim("b"), volume("v", on=["x", "y"]), volume("w", on=["y"]))
    assert passing(volume_binding, fleet, wants("a", "b")) == {"y"}
    assert passing(volume_binding, fleet, wants("a", "a")) == {"x", "y"}


def test_bound_and_immediate_claims_choose_nothing() -> None:
    fleet = world(bound(), claim("other", storage_class="at-once"))
    assert passing(volume_binding, fleet, wants("claim", "other", "none")) == EVERYWHERE


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param([], set(), id="nothing said"),
        pytest.param([capacity(10 * GI, "x")], {"x"}, id="just enough"),
        pytest.param([capacity(10 * GI - 1, "x")], set(), id="too little"),
        pytest.param([capacity(None, "x")], set(), id="unknown"),
        pytest.param([capacity(10 * GI, "x", "at-once")], set(), id="of another class"),
        pytest.param([capacity(10 * GI, "x"), volume(storage_class="made", on=["y"])], {"x", "y"}, id="or a volume"),
    ],
)
def test_capacity_of_drivers_that_report_it(objects: list[object], expected: set[str]) -> None:
    fleet = world(claim(storage_class="made"), *objects)
    assert passing(volume_binding, fleet, wants("claim")) == EVERYWHERE
    fleet.volumes.tracked.add(DRIVER)
    assert passing(volume_binding, fleet, wants("claim")) == expected
    assert reasons(volume_binding, fleet, wants("claim")) == {NO_SPACE: 3 - len(expected)}


def test_a_node_out_of_reach_of_one_volume_and_without_space_for_another_has_both_reasons() -> None:
    fleet = world(bound("far"), volume(on=["x"]), claim("new", storage_class="made"), capacity(10 * GI, "y"))
    fleet.volumes.tracked.add(DRIVER)
    assert reasons(volume_affinity, fleet, wants("far", "new")) == {volume_affinity.MISMATCH: 2, NO_SPACE: 1}
    assert reasons(volume_binding, fleet, wants("far", "new")) == {NO_SPACE: 2}


def test_a_claim_without_a_size_needs_no_space() -> None:
    fleet = world(claim(storage_class="made", size=0, has_size=False))
    fleet.volumes.tracked.add(DRIVER)
    assert passing(volume_binding, fleet, wants("claim")) == EVERYWHERE


# --- claims and disks of one pod at a time ----------------------------------------------------------------------

ONCE = frozenset({READ_WRITE_ONCE_POD})


def test_a_claim_of_one_pod_is_refused_to_others() -> None:
    fleet = world(bound(modes=ONCE))
    assert passing(volume_in_use, fleet, wants("claim")) == EVERYWHERE
    fleet.charge(holds("holder", "claim", node="x"))
    assert passing(volume_in_use, fleet, wants("claim")) == set()
    assert reasons(volume_in_use, fleet, wants("claim")) == {volume_in_use.REASON: 3}
    assert passing(volume_in_use, fleet, wants("other")) == EVERYWHERE
    fleet.release("uid-holder")
    assert passing(volume_in_use, fleet, wants("claim")) == EVERYWHERE


def test_an_ephemeral_volumes_claim_is_its_pods_own() -> None:
    fleet = world(bound(modes=ONCE, owner="me"))
    fleet.charge(holds("holder", "claim", node="x"))
    assert passing(volume_in_use, fleet, wants(own={"claim": "me"})) == EVERYWHERE


def test_a_node_over_its_limit_takes_what_is_there() -> None:
    fleet = full()
    fleet.charge(holds("more", "c3", "c4", node="x"))
    assert passing(volume_limits, fleet, wants("c0")) == {"x", "bare"}


def test_other_claims_are_shared() -> None:
    fleet = world(bound())
    fleet.charge(holds("holder", "claim", node="x"))
    assert passing(volume_in_use, fleet, wants("claim")) == EVERYWHERE


def disk(kind: str, *, read_only: bool = False, id: str = "d") -> Disk:  # noqa: A002 - as the field
    return Disk(kind=kind, id=id, read_only=read_only)


@pytest.mark.parametrize(
    ("held", "wanted", "conflict"),
    [
        pytest.param(disk("gce"), disk("gce"), True, id="two writers"),
        pytest.param(disk("gce", read_only=True), disk("gce"), True, id="a reader and a writer"),
        pytest.param(disk("gce"), disk("gce", read_only=True), True, id="a writer and a reader"),
        pytest.param(disk("gce", read_only=True), disk("gce", read_only=True), False, id="two readers"),
        pytest.param(disk("gce"), disk("gce", id="e"), False, id="two disks"),
        pytest.param(disk("gce"), disk("iscsi"), False, id="two kinds"),
    ],
)
def test_disks_in_use(held: Disk, wanted: Disk, conflict: bool) -> None:
    fleet = world()
    fleet.charge(charge("holder", node="x", mounts=Mounts(disks=(held,))))
    request = wants(disks=[wanted])
    assert passing(volume_conflicts, fleet, request) == EVERYWHERE - ({"x"} if conflict else set())
    assert reasons(volume_conflicts, fleet, request) == ({volume_conflicts.REASON: 1} if conflict else {})
    fleet.release("uid-holder")
    assert passing(volume_conflicts, fleet, request) == EVERYWHERE


# --- limits -----------------------------------------------------------------------------------------------------


def full(**fields: Any) -> Fleet:
    """Return a world where node x has one of two places left, y none, and bare no limit."""
    volumes = [volume(f"v{i}", attachable=csi(f"h{i}"), csi=True) for i in range(6)]
    claims = [bound(f"c{i}", f"v{i}") for i in range(6)]
    fleet = world(*claims, *volumes, claim("new", storage_class="made"), limits={"x": 2, "y": 1}, **fields)
    fleet.charge(holds("on-x", "c0", node="x"))
    fleet.charge(holds("on-y", "c1", node="y"))
    fleet.charge(holds("on-bare", "c2", node="bare"))
    return fleet


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        pytest.param(["c3"], {"x", "bare"}, id="one more"),
        pytest.param(["c3", "c4"], {"bare"}, id="two more"),
        pytest.param(["c0"], {"x", "bare"}, id="one that is there"),
        pytest.param(["c1"], EVERYWHERE, id="one that is there, on a full node"),
        pytest.param(["c0", "c3"], {"x", "bare"}, id="one that is there and one more"),
        pytest.param(["c1", "c3"], {"bare"}, id="one that is there and one too many"),
        pytest.param(["new"], {"x", "bare"}, id="one to be made"),
    ],
)
def test_limits_of_volumes(claims: list[str], expected: set[str]) -> None:
    fleet = full()
    assert passing(volume_limits, fleet, wants(*claims)) == expected
    left = 3 - len(expected)
    assert reasons(volume_limits, fleet, wants(*claims)) == ({volume_limits.REASON: left} if left else {})


def test_a_volume_of_another_driver_has_no_limit() -> None:
    fleet = full()
    put(fleet, bound("c3", "v3"), volume("v3", attachable=csi("h3", "other.example"), csi=True))
    assert passing(volume_limits, fleet, wants("c3")) == EVERYWHERE


def test_disks_named_in_pods_count_for_their_driver() -> None:
    fleet = full()
    fleet.charge(charge("inline", node="x", mounts=Mounts(attachables=(csi("inline"),))))
    assert passing(volume_limits, fleet, wants("c3")) == {"bare"}
    wanted = replace(asks(), mounts=Mounts(attachables=(csi("inline"),)))
    assert passing(volume_limits, fleet, wanted) == {"x", "bare"}


def test_a_driver_may_have_to_be_on_the_node() -> None:
    fleet = full()
    fleet.volumes.required.add("csi.example")
    assert passing(volume_limits, fleet, wants("c3")) == {"x"}
    assert reasons(volume_limits, fleet, wants("c3")) == {
        volume_limits.REASON: 1,
        "csi.example CSI driver is not installed on the node": 1,
    }
    fleet.volumes.put_drivers("bare", {"csi.example": None})
    assert passing(volume_limits, fleet.copy(), wants("c3")) == {"x", "bare"}
    fleet.volumes.put_drivers("x", {"csi.other": None})
    # Also for a volume that is there.
    assert passing(volume_limits, fleet, wants("c0")) == {"bare"}
    assert passing(volume_limits, fleet, wants()) == EVERYWHERE


def test_a_zone_that_changes_and_a_disk_that_is_freed_wake() -> None:
    assert volume_zones.WAKES_ON & Change.NODE_LABELS
    assert volume_zones.WAKES_ON & Change.VOLUME
    assert volume_conflicts.WAKES_ON & Change.CAPACITY_FREED


def test_pods_without_volumes_are_asked_nothing_of_them() -> None:
    fleet = Fleet()
    add(fleet, node_info("node", cordoned=True, ready=False, cpu=0, taints=[Taint(key="a")]))
    of_volumes = [each for each in filters.ORDER if each.TRAITS.of_volumes]
    assert all(each in of_volumes for each in filters.ORDER if "Volume" in each.TRAITS.plugin)
    assert Policy().filters_of(asks()) == tuple(each for each in filters.ORDER if each not in of_volumes)
    assert all(each.passes(fleet, asks())[fleet.rows["node"]] for each in of_volumes)
    assert Policy().filters_of(wants("claim")) == filters.ORDER
