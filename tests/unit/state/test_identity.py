"""No physical device is allocated twice, even if its minor changes under running pods: audited by id."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_api import names
from berth_operator.controllers.reconcile import status, sums
from berth_operator.core.decision import record
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.views import GpuPodView, StatusKind
from berth_operator.state.objects import pods
from tests.objects.builders import FPGA, GPU, NVIDIA, RDMA, device, entry, gpu_pod, hints, lease, node, pod

Raw = dict[str, Any]

MIG: Final = "nvidia.com/mig-1g.10gb"
SHARED: Final = "nvidia.com/gpu.shared"
REQUESTS: Final[Sequence[tuple[Mapping[str, str], Mapping[str, str]]]] = (
    ({NVIDIA: "1"}, {}),
    ({NVIDIA: "2"}, {}),
    ({GPU: "100"}, {}),
    ({GPU: "50"}, {}),
    ({GPU: "30"}, {}),
    ({SHARED: "1"}, {}),
    ({MIG: "1"}, {}),
    ({RDMA: "100"}, {}),
    ({RDMA: "1"}, hints(rdma={"vfSelector": {}})),
    ({FPGA: "100"}, {}),
    ({GPU: "100", RDMA: "50"}, {}),
)


def plain(name: str) -> Raw:
    return entry(id=name)


def sliced(name: str) -> Raw:
    return entry(id=name, replicas=2)


def divided(name: str) -> Raw:
    instances = [
        {
            "id": f"MIG-{name}-{number}",
            "profile": "1g.10gb",
            "gpuInstance": number,
            "computeInstance": 0,
            "memory": "10Gi",
        }
        for number in range(2)
    ]
    return entry(id=name, mig={"enabled": True, "instances": instances})


def nic(name: str) -> Raw:
    functions = [{"minor": number, "busID": f"{name}.{number + 1}"} for number in range(2)]
    return {"type": "rdma", "id": name, "health": True, "resources": {RDMA: "100"}, "vfGroups": [{"vfs": functions}]}


def fpga(name: str) -> Raw:
    return {"type": "fpga", "id": name, "health": True, "resources": {FPGA: "100"}}


MACHINE: Final[tuple[Raw, ...]] = (
    *map(plain, ("GPU-a", "GPU-b", "GPU-c", "GPU-d")),
    *map(sliced, ("GPU-s", "GPU-t")),
    *map(divided, ("GPU-m", "GPU-n")),
    *map(nic, ("0000:1f:00", "0000:2f:00")),
    *map(fpga, ("0000:3f:00", "0000:4f:00")),
)
"""All devices that were ever in the node's slots; the driver numbers those that are present by type, from 0."""


def numbered(devices: Sequence[Raw]) -> list[Raw]:
    """Return devices with minors in this order."""
    counts: Counter[str] = Counter()
    result = []
    for raw in devices:
        result.append({**raw, "minor": counts[raw["type"]]})
        counts[raw["type"]] += 1
    return result


class World:
    """One node, its Device and its pods as the API server has them, and an operator that may restart at any time."""

    def __init__(self) -> None:
        self.device = device("node", *numbered(MACHINE))
        self.bound: dict[str, Raw] = {}
        self.gpu_pods: dict[str, Raw] = {}
        self.binds = 0
        self.cluster = self.started([])

    def started(self, order: Sequence[int]) -> Cluster:
        """Return an operator's state, built from lists in some order."""
        cluster = Cluster(grace=1e9, clock=lambda: 0.0)
        events: list[Callable[[], object]] = [
            lambda: cluster.node_cache.put_node(node()),
            lambda: cluster.node_cache.put_device(self.device),
            *(lambda raw=raw: cluster.put_bound(raw) for raw in self.bound.values()),
            *(lambda raw=raw: cluster.allocations.put_gpu_pod(raw) for raw in self.gpu_pods.values()),
        ]
        random.Random(repr(order)).shuffle(events)
        for event in events:
            event()
        cluster.node_cache.put_lease(lease())
        return cluster

    def restart(self, seed: int) -> None:
        self.cluster = self.started([seed])

    def publish(self, devices: Sequence[Raw], **status: Any) -> None:
        """Publish the node's Device after a reboot, with these devices in this order."""
        generation = self.device["metadata"]["generation"] + 1
        self.device = device("node", *numbered(devices), generation=generation, status=status)
        self.cluster.node_cache.put_device(self.device)

    def bind(self, requests: Mapping[str, str], annotations: Mapping[str, str]) -> None:
        """Decide a pod and bind it, if it fits."""
        self.binds += 1
        waiting = pod(f"p{self.binds}", requests, annotations=annotations)
        outcome = decide(self.cluster.fleet, pods.pending(waiting, self.cluster.kinds), Policy())
        if not isinstance(outcome, Placement):
            return
        self.cluster.placements.assume(outcome)
        metadata = record.binding(outcome, 1, "lease", now=0)["metadata"]
        raw = pod(
            f"p{self.binds}",
            requests,
            on="node",
            annotations={**annotations, **metadata["annotations"]},
            labels=metadata["labels"],
        )
        self.bound[raw["metadata"]["uid"]] = raw
        self.cluster.put_bound(raw)
        self.audit()

    def admit(self, uid: str) -> None:
        """Make kubelet give a pod its allocation, and the agent report it by the current minors."""
        held = allocated(self.bound[uid]).get("gpu", [])
        known = {device["id"]: device["minor"] for device in self.device["spec"]["devices"]}
        if not any(name.startswith("nvidia.com/") for name in requested(self.bound[uid])):
            return
        name = self.bound[uid]["metadata"]["name"]
        raw = gpu_pod(name)
        raw["spec"]["containers"][0]["devices"] = [
            {"type": "gpu", "minor": known.get(parent(each), 0), "id": each["id"]} for each in held
        ]
        self.gpu_pods[uid] = raw
        self.cluster.allocations.put_gpu_pod(raw)

    def touch(self, uid: str) -> None:
        """Change a pod in a way that does not affect devices."""
        self.cluster.put_bound({**self.bound[uid], "status": {"phase": "Running"}})

    def end(self, uid: str) -> None:
        del self.bound[uid]
        self.cluster.remove_bound(uid)
        if (raw := self.gpu_pods.pop(uid, None)) is not None:
            self.cluster.allocations.remove_gpu_pod(f"ns/{raw['metadata']['name']}")

    def audit(self) -> None:
        """Check by the ids in the annotations of all bound pods that no device is held twice."""
        taken: defaultdict[str, Counter[str]] = defaultdict(Counter)
        modes: defaultdict[str, set[str]] = defaultdict(set)
        named: Counter[str] = Counter()
        for raw in self.bound.values():
            for kind, allocated_entry in entries(raw):
                taken[parent(allocated_entry)].update(
                    {name: int(value) for name, value in shares(kind, allocated_entry)}
                )
                modes[parent(allocated_entry)].add(
                    "parts" if parent(allocated_entry) != allocated_entry["id"] else "card"
                )
                named.update([allocated_entry["id"]] if parent(allocated_entry) != allocated_entry["id"] else [])
                named.update(function["busID"] for function in allocated_entry.get("extension", {}).get("vfs", ()))
        booked_twice = {
            name: amounts for name, amounts in taken.items() if any(amount > 100 for amount in amounts.values())
        }
        assert not booked_twice
        assert max(named.values(), default=1) == 1, named
        assert all(len(mode) == 1 for mode in modes.values()), modes

    def check_charges(self) -> None:
        """Check that exactly what pods hold is charged, and that all of it is released in the end."""
        held = {uid: sorted(each["id"] for _, each in entries(raw)) for uid, raw in self.bound.items()}
        charges = self.cluster.fleet.charges
        assert {uid: sorted(grant.id for grant in each.grants) for uid, each in charges.items()} == held
        for uid in list(self.bound):
            self.end(uid)
        for cards in self.cluster.fleet.cards.values():
            assert not cards.used.any()
            assert not cards.users.any()
            assert not cards.unlocated.any()
            assert not cards.taken


def requested(raw: Raw) -> Mapping[str, str]:
    requests: Mapping[str, str] = raw["spec"]["containers"][0]["resources"]["requests"]
    return requests


def allocated(raw: Raw) -> dict[str, list[Raw]]:
    grants: dict[str, list[Raw]] = orjson.loads(raw["metadata"]["annotations"][names.ALLOCATED])
    return grants


def entries(raw: Raw) -> Iterator[tuple[str, Raw]]:
    for kind, grants in allocated(raw).items():
        for grant in grants:
            yield kind, grant


def parent(allocated_entry: Raw) -> str:
    """Return the id of the physical device that an entry belongs to."""
    if allocated_entry["id"].startswith("MIG-"):
        return str(allocated_entry["id"].removeprefix("MIG-").rpartition("-")[0])
    return str(allocated_entry["id"].partition("::")[0])


def shares(kind: str, allocated_entry: Raw) -> Iterator[tuple[str, str]]:
    for name, value in allocated_entry["resources"].items():
        if name.partition("/")[2] in ("gpu-core", "gpu-memory-ratio", kind):
            yield name, value


OPERATIONS: Final = st.one_of(
    st.tuples(st.just("bind"), st.sampled_from(REQUESTS)),
    st.tuples(st.just("bind"), st.sampled_from(REQUESTS)),
    st.tuples(
        st.just("publish"), st.permutations(MACHINE).flatmap(lambda all_: st.integers(4, 12).map(lambda n: all_[:n]))
    ),
    st.tuples(st.sampled_from(["end", "touch", "admit"]), st.integers(0, 9)),
    st.tuples(st.just("restart"), st.integers(0, 99)),
)


@given(st.lists(OPERATIONS, min_size=5, max_size=30))
def test_no_device_is_given_out_twice_whatever_its_minor_becomes(operations: list[tuple[str, Any]]) -> None:
    world = World()
    for name, argument in operations:
        if name == "bind":
            world.bind(*argument)
        elif name in ("publish", "restart"):
            getattr(world, name)(argument)
        elif world.bound:
            getattr(world, name)(list(world.bound)[argument % len(world.bound)])
    world.check_charges()


# --- allocations of devices that change, case by case -------------------------------------------------------------


def fits(world: World, requests: Mapping[str, str], **annotations: str) -> list[str]:
    """Return the ids that a pod would get; none if it does not fit."""
    waiting = pods.pending(pod("asks", requests, annotations=annotations), world.cluster.kinds)
    outcome = decide(world.cluster.fleet, waiting, Policy())
    return [grant.id for grant in outcome.grants] if isinstance(outcome, Placement) else []


def holding(requests: Mapping[str, str], *devices: Raw) -> tuple[World, list[str]]:
    """Return a node of these devices with one pod, and the ids that the pod got."""
    world = World()
    world.publish(devices)
    world.bind(requests, {})
    [raw] = world.bound.values()
    return world, [each["id"] for _, each in entries(raw)]


def test_a_card_that_is_gone_keeps_its_holder_until_the_pod_ends() -> None:
    world, ids = holding({GPU: "100"}, plain("GPU-a"))
    assert ids == ["GPU-a"]
    world.publish([plain("GPU-x")])
    assert fits(world, {GPU: "100"}) == ["GPU-x"]
    world.publish([plain("GPU-x"), plain("GPU-a")])
    assert fits(world, {NVIDIA: "2"}) == []
    world.end("uid-p1")
    assert fits(world, {NVIDIA: "2"}) == ["GPU-x", "GPU-a"]


def test_a_virtual_function_is_enough_to_know_the_nic() -> None:
    world = World()
    world.publish([nic("n0"), nic("n1")])
    entry_of_n1 = {"minor": 0, "resources": {RDMA: "100"}, "extension": {"vfs": [{"minor": 0, "busID": "n1.1"}]}}
    world.cluster.put_bound(bound("old", {RDMA: "100"}, {"rdma": [entry_of_n1]}))
    assert fits(world, {RDMA: "100"}) == ["n0"]


# --- entries without an id ----------------------------------------------------------------------------------------


def bound(name: str, requests: Mapping[str, str], allocation: Mapping[str, Any]) -> Raw:
    """Return a bound pod with an allocation that another scheduler wrote."""
    return pod(name, requests, on="node", allocated=allocation)


def older(*minors: int) -> dict[str, Any]:
    """Return the allocation of whole cards as older Koordinator versions wrote it: without ids."""
    amounts = {"kubernetes.io/gpu-core": "100", "kubernetes.io/gpu-memory-ratio": "100"}
    return {"gpu": [{"minor": minor, "resources": amounts} for minor in minors]}


@pytest.mark.parametrize("pod_first", [False, True])
def test_an_entry_without_an_id_stays_with_the_card_that_its_minor_was(*, pod_first: bool) -> None:
    world, raw = World(), bound("old", {GPU: "100"}, older(0))
    if pod_first:
        world.publish([])
        world.cluster.put_bound(raw)
    world.publish([plain("GPU-a"), plain("GPU-b")])
    world.cluster.put_bound(raw)
    world.publish([plain("GPU-b"), plain("GPU-a")])
    # Read once more, it has the same minor, which is another card now.
    world.cluster.put_bound({**raw, "status": {"phase": "Running"}})
    assert fits(world, {GPU: "100"}) == ["GPU-b"]
    world.publish([plain("GPU-b")])
    assert fits(world, {GPU: "100"}) == ["GPU-b"]
    world.cluster.remove_bound("uid-old")
    world.cluster.put_bound(raw)
    assert fits(world, {GPU: "100"}) == []


# --- duplicate ids ------------------------------------------------------------------------------------------------


def test_of_two_cards_with_one_id_none_is_given_out() -> None:
    world, _ = holding({GPU: "50"}, plain("GPU-a"), plain("GPU-b"))
    world.publish([plain("GPU-a"), plain("GPU-a"), plain("GPU-b")])
    assert fits(world, {NVIDIA: "1"}) == ["GPU-b"]
    assert fits(world, {NVIDIA: "2"}) == []
    problems = world.cluster.node_cache.devices["node"].problems
    assert problems[0] == "spec.devices[0].id: GPU-a is used more than once among the gpu devices"
    world.publish([plain("GPU-b"), plain("GPU-a")])
    assert fits(world, {GPU: "60"}) == ["GPU-b"]


# --- instances ----------------------------------------------------------------------------------------------------


def without_parents(raw: Raw) -> Raw:
    """Return a pod whose allocation does not name parents, as before they were recorded."""
    kinds = {
        kind: [{name: value for name, value in grant.items() if name != "extension"} for grant in found]
        for kind, found in allocated(raw).items()
    }
    annotations = {**raw["metadata"]["annotations"], names.ALLOCATED: orjson.dumps(kinds).decode()}
    return {**raw, "metadata": {**raw["metadata"], "annotations": annotations}}


def redivided(name: str) -> Raw:
    """Return a card in MIG mode whose instances were all created again."""
    card = divided(name)
    instances = [
        {**instance, "id": f"MIG-again-{name}-{instance['gpuInstance']}"} for instance in card["mig"]["instances"]
    ]
    return {**card, "mig": {"enabled": True, "instances": instances}}


def test_an_instance_that_is_gone_is_charged_to_its_parent() -> None:
    world, ids = holding({MIG: "1"}, divided("GPU-m"))
    assert ids == ["MIG-GPU-m-0"]
    assert allocated(world.bound["uid-p1"])["gpu"][0]["extension"] == {"parent": "GPU-m"}
    world.publish([divided("GPU-n"), redivided("GPU-m")])
    assert len(fits(world, {MIG: "3"})) == 3
    assert fits(world, {MIG: "4"}) == []
    world.publish([divided("GPU-n")])
    assert len(fits(world, {MIG: "2"})) == 2


def test_an_instance_of_which_no_card_is_known_withholds_all_instances() -> None:
    world, _ = holding({MIG: "1"}, divided("GPU-m"), plain("GPU-a"))
    world.bound["uid-p1"] = without_parents(world.bound["uid-p1"])
    world.restart(0)
    assert fits(world, {MIG: "1"}) == ["MIG-GPU-m-1"]
    assert accounted(world) == ("True", "")
    world.publish([redivided("GPU-m"), plain("GPU-a")])
    outcome = decide(world.cluster.fleet, pods.pending(pod("asks", {MIG: "1"}), world.cluster.kinds), Policy())
    assert isinstance(outcome, Failure)
    assert "withhold MIG devices (pods hold MIG devices that the Device no longer lists)" in outcome.message
    assert fits(world, {NVIDIA: "1"}) == ["GPU-a"]
    status, message = accounted(world)
    assert status == "False"
    assert message.endswith("(delete the pods to end this): ns/p1 (MIG-GPU-m-0)")
    world.end("uid-p1")
    assert fits(world, {MIG: "1"}) == ["MIG-again-GPU-m-0"]
    assert accounted(world) == ("True", "")


def test_instances_of_a_failed_card_are_known() -> None:
    world, _ = holding({MIG: "1"}, divided("GPU-m"), divided("GPU-n"))
    world.bound["uid-p1"] = without_parents(world.bound["uid-p1"])
    world.publish([{**divided("GPU-m"), "health": False}, divided("GPU-n")])
    world.restart(0)
    assert len(fits(world, {MIG: "2"})) == 2


def accounted(world: World) -> tuple[str, str]:
    shown = status.wanted(world.cluster.node_cache.view("node"), lambda: "2026-01-01T00:00:00Z")
    [accounted] = [condition for condition in shown.conditions if condition.type == names.ACCOUNTED]
    return accounted.status, accounted.message


# --- what kubelet gave --------------------------------------------------------------------------------------------


def test_what_kubelet_gave_is_found_by_its_id() -> None:
    world, _ = holding({NVIDIA: "1"}, plain("GPU-a"), plain("GPU-b"))
    world.admit("uid-p1")
    world.publish([plain("GPU-b"), plain("GPU-a")])
    assert fits(world, {NVIDIA: "1"}) == ["GPU-b"]
    world.admit("uid-p1")
    assert fits(world, {NVIDIA: "1"}) == ["GPU-b"]
    view = world.cluster.view(StatusKind.GPU_POD, "ns/p1.node")
    assert isinstance(view, GpuPodView)
    assert view.consistency is not None
    assert view.consistency[0] == "True"


# --- status -------------------------------------------------------------------------------------------------------


def test_a_device_shows_holders_at_the_minor_of_now_and_cards_that_are_gone_by_id() -> None:
    world = World()
    world.publish([plain("GPU-a"), plain("GPU-b")])
    world.bind({GPU: "100"}, {})
    world.bind({GPU: "100"}, {})
    world.publish([plain("GPU-b"), plain("GPU-x")])
    shown = status.wanted(world.cluster.node_cache.view("node"), lambda: "2026-01-01T00:00:00Z").devices
    assert [(each.minor, each.id, [holder.name for holder in each.holders]) for each in shown] == [
        (0, None, ["p2"]),
        (1, None, []),
        (-1, "GPU-a", ["p1"]),
    ]
    # Never less than live pods request: the cards that are present, and in addition the card that is gone.
    assert sums.wanted(world.cluster.node_cache.view("node"))[GPU] == 300
