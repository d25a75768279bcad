"""No physical device is given out twice, whatever becomes of its minor under running pods: audited by id."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api import names
from berth_operator.core import record
from berth_operator.core.cycle import Placement, decide
from berth_operator.core.policy import Policy
from berth_operator.state import pods
from berth_operator.state.cluster import Cluster
from tests.builders import FPGA, GPU, NVIDIA, RDMA, device, entry, gpu_pod, hints, lease, node, pod

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
"""All devices that were ever in the node's slots: of those that are there, the driver numbers each type from 0."""


def numbered(devices: Sequence[Raw]) -> list[Raw]:
    """Return devices with minors in this order."""
    counts: Counter[str] = Counter()
    found = []
    for each in devices:
        found.append({**each, "minor": counts[each["type"]]})
        counts[each["type"]] += 1
    return found


class World:
    """One node, its Device and its pods as the API server has them, and an operator that may restart at any time."""

    def __init__(self) -> None:
        self.device = device("node", *numbered(MACHINE))
        self.bound: dict[str, Raw] = {}
        self.gpu_pods: dict[str, Raw] = {}
        self.binds = 0
        self.cluster = self.started([])

    def started(self, order: Sequence[int]) -> Cluster:
        """Return an operator's state, read from lists in some order."""
        cluster = Cluster(grace=1e9, clock=lambda: 0.0)
        events: list[Callable[[], object]] = [
            lambda: cluster.put_node(node()),
            lambda: cluster.put_device(self.device),
            *(lambda raw=raw: cluster.put_bound(raw) for raw in self.bound.values()),  # type: ignore[misc]
            *(lambda raw=raw: cluster.put_gpu_pod(raw) for raw in self.gpu_pods.values()),  # type: ignore[misc]
        ]
        random.Random(repr(order)).shuffle(events)  # noqa: S311 - no secret
        for each in events:
            each()
        cluster.put_lease(lease())
        return cluster

    def restart(self, seed: int) -> None:
        self.cluster = self.started([seed])

    def publish(self, devices: Sequence[Raw]) -> None:
        """The node came back with these devices, in this order."""
        self.device = device("node", *numbered(devices), generation=self.device["metadata"]["generation"] + 1)
        self.cluster.put_device(self.device)

    def bind(self, requests: Mapping[str, str], annotations: Mapping[str, str]) -> None:
        """Decide a pod and bind it, if it fits."""
        self.binds += 1
        waiting = pod(f"p{self.binds}", requests, annotations=annotations)
        outcome = decide(self.cluster.fleet, pods.pending(waiting, self.cluster.kinds), Policy())
        if not isinstance(outcome, Placement):
            return
        self.cluster.assume(outcome)
        told = record.binding(outcome, 1, "lease")["metadata"]
        raw = pod(
            f"p{self.binds}",
            requests,
            on="node",
            annotations={**annotations, **told["annotations"]},
            labels=told["labels"],
        )
        self.bound[raw["metadata"]["uid"]] = raw
        self.cluster.put_bound(raw)
        self.audit()

    def admit(self, uid: str) -> None:
        """kubelet gives a pod what it was allocated, and the node's agent tells so by the minors of now."""
        held = allocated(self.bound[uid]).get("gpu", [])
        known = {each["id"]: each["minor"] for each in self.device["spec"]["devices"]}
        if not any(name.startswith("nvidia.com/") for name in requested(self.bound[uid])):
            return
        name = self.bound[uid]["metadata"]["name"]
        raw = gpu_pod(name)
        raw["spec"]["containers"][0]["devices"] = [
            {"type": "gpu", "minor": known.get(parent(each), 0), "id": each["id"]} for each in held
        ]
        self.gpu_pods[uid] = raw
        self.cluster.put_gpu_pod(raw)

    def touch(self, uid: str) -> None:
        """A pod changes in a way that says nothing of devices."""
        self.cluster.put_bound({**self.bound[uid], "status": {"phase": "Running"}})

    def end(self, uid: str) -> None:
        del self.bound[uid]
        self.cluster.remove_bound(uid)
        if (raw := self.gpu_pods.pop(uid, None)) is not None:
            self.cluster.remove_gpu_pod(f"ns/{raw['metadata']['name']}")

    def audit(self) -> None:
        """Check by the ids in the annotations of all bound pods that nothing is held twice."""
        taken: defaultdict[str, Counter[str]] = defaultdict(Counter)
        modes: defaultdict[str, set[str]] = defaultdict(set)
        named: Counter[str] = Counter()
        for raw in self.bound.values():
            for kind, each in entries(raw):
                taken[parent(each)].update({name: int(value) for name, value in shares(kind, each)})
                modes[parent(each)].add("parts" if parent(each) != each["id"] else "card")
                named.update([each["id"]] if parent(each) != each["id"] else [])
                named.update(function["busID"] for function in each.get("extension", {}).get("vfs", ()))
        booked_twice = {
            name: amounts for name, amounts in taken.items() if any(amount > 100 for amount in amounts.values())
        }
        assert not booked_twice
        assert max(named.values(), default=1) == 1, named
        assert all(len(each) == 1 for each in modes.values()), modes

    def check_charges(self) -> None:
        """Check that nothing but what pods hold is charged, and all of that, and that all is given back in the end."""
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
    found: Mapping[str, str] = raw["spec"]["containers"][0]["resources"]["requests"]
    return found


def allocated(raw: Raw) -> dict[str, list[Raw]]:
    found: dict[str, list[Raw]] = orjson.loads(raw["metadata"]["annotations"][names.ALLOCATED])
    return found


def entries(raw: Raw) -> Iterator[tuple[str, Raw]]:
    for kind, found in allocated(raw).items():
        for each in found:
            yield kind, each


def parent(each: Raw) -> str:
    """Return the id of the physical device that an entry is of."""
    if each["id"].startswith("MIG-"):
        return str(each["id"].removeprefix("MIG-").rpartition("-")[0])
    return str(each["id"].partition("::")[0])


def shares(kind: str, each: Raw) -> Iterator[tuple[str, str]]:
    for name, value in each["resources"].items():
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


@settings(max_examples=400)
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
