"""The audit finds nothing in a sound cluster, and names each planted fault: nothing more, nothing less."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from demo.audit import Fault, FaultKind, audit

ALLOCATION = "scheduling.koordinator.sh/device-allocated"
VISIBLE = "main.devices.berth.dev/visible"

Manifest = dict[str, Any]
World = dict[str, dict[str, Manifest]]


def gpu(minor: int, *, model: str = "NVIDIA A100-SXM4-80GB", memory: str = "80Gi") -> Manifest:
    resources = {
        "kubernetes.io/gpu-core": 100,
        "kubernetes.io/gpu-memory": memory,
        "kubernetes.io/gpu-memory-ratio": 100,
    }
    return {"type": "gpu", "minor": minor, "id": f"GPU-{minor}", "model": model, "health": True, "resources": resources}


def grant(minor: int, *, core: int | None = None, memory: str, ratio: int) -> Manifest:
    amounts = {"gpu-core": core, "gpu-memory": memory, "gpu-memory-ratio": ratio}
    resources = {f"kubernetes.io/{name}": str(amount) for name, amount in amounts.items() if amount is not None}
    return {"minor": minor, "id": f"GPU-{minor}", "resources": resources}


def pod(name: str, requests: dict[str, str], *cards: Manifest, **annotations: str) -> Manifest:
    allocation = {ALLOCATION: json.dumps({"gpu": list(cards)}), VISIBLE: ",".join(card["id"] for card in cards)}
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "labels": {},
            "annotations": {"berth.dev/epoch": "7", **(allocation if cards else {}), **annotations},
        },
        "spec": {
            "schedulerName": "berth-scheduler",
            "nodeName": "node",
            "containers": [{"name": "main", "resources": {"requests": requests, "limits": requests}}],
        },
        "status": {"phase": "Running"},
    }


def sound() -> World:
    """One node with two A100 and a T4, each kind of pod, and what must not be counted."""
    nic = {"type": "rdma", "minor": 0, "id": "0000:1f:00.0", "health": True, "resources": {"kubernetes.io/rdma": 100}}
    cards = [gpu(0), gpu(1), gpu(2, model="Tesla T4", memory="15360Mi"), gpu(3), nic]
    device = {"metadata": {"name": "node"}, "spec": {"devices": cards}}
    node = {"metadata": {"name": "node"}, "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "10"}}}
    pods = [
        pod("whole", {"nvidia.com/gpu": "1", "cpu": "1500m"}, grant(0, core=100, memory="80Gi", ratio=100)),
        pod("half", {"koordinator.sh/gpu": "50"}, grant(1, core=50, memory="40Gi", ratio=50)),
        pod("memory", {"kubernetes.io/gpu-memory": "20Gi"}, grant(1, memory="20Gi", ratio=25)),
        # Of 15360Mi, 33 % are 5068.8Mi: cut to whole bytes.
        pod("small", {"kubernetes.io/gpu": "33"}, grant(2, core=33, memory="5315022028", ratio=33)),
        pod("plain", {"cpu": "2", "memory": "1Gi"}),
        pod("done", {"nvidia.com/gpu": "1"}, grant(0, core=100, memory="80Gi", ratio=100)),
        pod("waiting", {"nvidia.com/gpu": "9"}),
        pod("elsewhere", {"nvidia.com/gpu": "1"}),
    ]
    world: World = {
        "pods": {pod["metadata"]["name"]: pod for pod in pods},
        "nodes": {"node": node},
        "devices": {"node": device},
    }
    world["pods"]["done"]["status"]["phase"] = "Succeeded"
    del world["pods"]["waiting"]["spec"]["nodeName"]
    # A node without a Device is none of ours.
    world["nodes"]["other"] = {
        "metadata": {"name": "other"},
        "status": {"allocatable": {"nvidia.com/gpu": "8", "pods": "9"}},
    }
    world["pods"]["elsewhere"]["spec"] |= {"schedulerName": "default-scheduler", "nodeName": "other"}
    return world


def audited(world: World) -> list[Fault]:
    pods, nodes, devices = (list(world[kind].values()) for kind in ("pods", "nodes", "devices"))
    return audit(pods=pods, nodes=nodes, devices=devices)


def test_a_sound_cluster_has_no_findings() -> None:
    assert audited(sound()) == []


# --- planted faults -----------------------------------------------------------------------------------------

Plant = Callable[[World], None]


def annotate(name: str, key: str, value: str | None) -> Plant:
    def plant(world: World) -> None:
        annotations = world["pods"][name]["metadata"]["annotations"]
        annotations.pop(key) if value is None else annotations.update({key: value})

    return plant


def allocate(name: str, *cards: Manifest) -> Plant:
    return annotate(name, ALLOCATION, json.dumps({"gpu": list(cards)}))


def spec(name: str, **fields: Any) -> Plant:
    def plant(world: World) -> None:
        world["pods"][name]["spec"] |= fields

    return plant


def set_requests(name: str, **amounts: str) -> Plant:
    stated = {key.replace("_", "-"): value for key, value in amounts.items()}
    return spec(name, containers=[{"name": "main", "resources": {"requests": stated}}])


def add(*pods: Manifest, **fields: Any) -> Plant:
    def plant(world: World) -> None:
        for pod in copy.deepcopy(pods):
            world["pods"][pod["metadata"]["name"]] = pod
            pod["spec"] |= fields

    return plant


def offers(name: str, amount: str) -> Plant:
    def plant(world: World) -> None:
        world["nodes"]["node"]["status"]["allocatable"][name] = amount

    return plant


WHOLE = grant(0, core=100, memory="80Gi", ratio=100)
HALF = grant(1, core=50, memory="40Gi", ratio=50)

FAULTS = [
    pytest.param(
        add(pod("twin", {"nvidia.com/gpu": "1"}, WHOLE)),
        {FaultKind.BOOKED_TWICE: ("card node/gpu 0", "ns/twin and ns/whole have it whole")},
        id="a minor booked twice by whole-card pods",
    ),
    pytest.param(
        add(pod("bytes", {"kubernetes.io/gpu-memory": "20481Mi"}, grant(1, memory="20481Mi", ratio=25))),
        {FaultKind.OVERBOOKED: ("card node/gpu 1", "80.001Gi of gpu-memory are taken, of 80Gi")},
        id="one MiB more than a card has",
    ),
    pytest.param(
        annotate("half", ALLOCATION, None),
        {FaultKind.MISSING_ALLOCATION: ("pod ns/half", f"has no {ALLOCATION}")},
        id="a missing annotation",
    ),
    pytest.param(
        annotate("half", ALLOCATION, "{gpu: 1}"),
        {FaultKind.MALFORMED_ALLOCATION: ("pod ns/half", ALLOCATION)},
        id="an annotation that is not JSON",
    ),
    pytest.param(
        allocate("half", {**HALF, "id": "GPU-99"}),
        {
            FaultKind.WRONG_ID: ("pod ns/half", "calls card node/gpu 1 GPU-99, its Device GPU-1"),
            FaultKind.WRONG_VISIBLE: ("pod ns/half", "names GPU-1, not of its allocation"),
        },
        id="a wrong UUID",
    ),
    pytest.param(
        allocate("whole", {**WHOLE, "minor": 8}),
        {FaultKind.UNKNOWN_CARD: ("pod ns/whole", "card node/gpu 8, which no Device has")},
        id="a minor that the node does not have",
    ),
    pytest.param(
        allocate("half", grant(1, core=40, memory="40Gi", ratio=50)),
        {FaultKind.WRONG_AMOUNT: ("pod ns/half", "given 40 % of gpu-core; its request comes to 50 %")},
        id="less core than asked for",
    ),
    pytest.param(
        add(pod("two", {"nvidia.com/gpu": "2"}, grant(3, core=100, memory="80Gi", ratio=100))),
        {FaultKind.WRONG_COUNT: ("pod ns/two", "asks for 2 gpu device(s), but was given 1")},
        id="one card instead of two",
    ),
    pytest.param(
        set_requests("half", gpu_core="50"),
        {FaultKind.UNREADABLE: ("pod ns/half", "gpu-core cannot be combined")},
        id="a bound pod with an invalid request",
    ),
    pytest.param(
        spec("whole", schedulerName="default-scheduler"),
        {FaultKind.FOREIGN_POD: ("pod ns/whole", "of scheduler default-scheduler, but carries an allocation on node")},
        id="a foreign pod with an allocation",
    ),
    pytest.param(
        allocate("waiting", grant(3, core=100, memory="80Gi", ratio=100)),
        {FaultKind.NOT_BOUND: ("pod ns/waiting", "an allocation, but no node")},
        id="an allocation on a pod that waits",
    ),
    pytest.param(
        annotate("whole", VISIBLE, "GPU-0,GPU-3"),
        {FaultKind.WRONG_VISIBLE: ("pod ns/whole", "names GPU-3, not of its allocation")},
        id="a container that sees another pod's card",
    ),
    pytest.param(
        annotate("plain", "berth.dev/epoch", None),
        {FaultKind.MISSING_EPOCH: ("pod ns/plain", "does not name the term")},
        id="a pod bound without a term",
    ),
    pytest.param(
        annotate("small", "berth.dev/gpu-model", "*a100*, *h100*"),
        {FaultKind.WRONG_MODEL: ("pod ns/small", "is a Tesla T4, which its berth.dev/gpu-model does not allow")},
        id="a model that no glob matches",
    ),
    pytest.param(
        offers("cpu", "3"),
        {FaultKind.NODE_FULL: ("node node", "its pods request 3.5 of cpu; it offers 3")},
        id="more cpu than the node has",
    ),
    pytest.param(
        spec("plain", nodeName="gone"),
        {FaultKind.UNKNOWN_NODE: ("pod ns/plain", "bound to gone, which does not exist")},
        id="a node that does not exist",
    ),
]


@pytest.mark.parametrize(("plant", "expected"), FAULTS)
def test_each_planted_fault_is_named_and_no_other(plant: Plant, expected: dict[FaultKind, tuple[str, str]]) -> None:
    check(sound(), plant, expected)


def check(world: World, plant: Plant, expected: dict[FaultKind, tuple[str, str]]) -> None:
    plant(world)
    faults = {fault.kind: fault for fault in audited(world)}
    assert faults.keys() == expected.keys()
    for kind, (place, words) in expected.items():
        assert faults[kind].object == place
        assert words in faults[kind].text


# --- cards that are allocated as subdevices ---------------------------------------------------------------------------

MIG_1G, MIG_3G, SLICES = "nvidia.com/mig-1g.10gb.me", "nvidia.com/mig-3g.40gb", "nvidia.com/gpu.shared"


def divided(minor: int, *profiles: str) -> Manifest:
    instances = [{"id": f"MIG-{minor}-{number}", "profile": profile} for number, profile in enumerate(profiles)]
    return {**gpu(minor), "mig": {"enabled": True, "instances": instances}}


def instance(minor: int, number: int, resource: str) -> Manifest:
    return {"minor": minor, "id": f"MIG-{minor}-{number}", "resources": {resource: "1"}}


def piece(minor: int, number: int, *, core: int = 33, memory: str = "28633115306", shared: str = "1") -> Manifest:
    """Return a grant, by default of a third of a card."""
    granted = grant(minor, core=core, memory=memory, ratio=33)
    return {**granted, "id": f"GPU-{minor}::{number}", "resources": {**granted["resources"], SLICES: shared}}


def device(world: World, name: str, *cards: Manifest, **fields: Any) -> None:
    world["devices"][name] = {"metadata": {"name": name}, "spec": {"devices": list(cards), **fields}}
    allocatable = {"cpu": "8", "pods": "10"}
    world["nodes"][name] = {"metadata": {"name": name}, "status": {"allocatable": allocatable}}


def in_subdevices() -> World:
    """A node with a card in MIG mode, a sliced and a plain one, and two where MIG is a GPU each, or none."""
    world: World = {"pods": {}, "nodes": {}, "devices": {}}
    device(world, "node", divided(0, "1g.10gb+me", "3g.40gb", "1g.10gb+me"), {**gpu(1), "replicas": 3}, gpu(2))
    device(world, "single", divided(0, "3g.40gb", "3g.40gb"), migStrategy="single")
    device(world, "none", divided(0, "3g.40gb"), migStrategy="none")
    seen = {VISIBLE: "GPU-1"}
    pods = [
        pod("small", {MIG_1G: "1"}, instance(0, 0, MIG_1G)),
        pod("several", {MIG_1G: "1", MIG_3G: "1"}, instance(0, 2, MIG_1G), instance(0, 1, MIG_3G)),
        pod("slot", {"nvidia.com/gpu": "1"}, piece(1, 0), **seen),
        pod("slices", {SLICES: "2"}, piece(1, 1), piece(1, 2), **seen),
        pod("whole", {"nvidia.com/gpu": "1"}, grant(2, core=100, memory="80Gi", ratio=100)),
    ]
    world["pods"] = {pod["metadata"]["name"]: pod for pod in pods}
    under_single = pod("single", {"nvidia.com/gpu": "2"}, instance(0, 0, MIG_3G), instance(0, 1, MIG_3G))
    add(under_single, nodeName="single")(world)
    add(pod("none", {"nvidia.com/gpu": "1"}, grant(0, core=100, memory="80Gi", ratio=100)), nodeName="none")(world)
    return world


def test_a_sound_cluster_with_subdevices_has_no_findings() -> None:
    assert audited(in_subdevices()) == []


def drop(name: str) -> Plant:
    def plant(world: World) -> None:
        del world["pods"][name]

    return plant


def both(*plants: Plant) -> Plant:
    def plant(world: World) -> None:
        for plant in plants:
            plant(world)

    return plant


FAULTS_OF_PIECES = [
    pytest.param(
        add(pod("twin", {MIG_1G: "1"}, instance(0, 0, MIG_1G))),
        {
            FaultKind.BOOKED_TWICE: ("card node/gpu 0", "MIG-0-0 is held by ns/small and ns/twin"),
            FaultKind.OVERBOOKED: ("card node/gpu 0", f"3 of {MIG_1G} are taken, of 2"),
        },
        id="an instance booked twice",
    ),
    pytest.param(
        both(drop("slices"), add(pod("twin", {SLICES: "1"}, piece(1, 0), **{VISIBLE: "GPU-1"}))),
        {FaultKind.BOOKED_TWICE: ("card node/gpu 1", "GPU-1::0 is held by ns/slot and ns/twin")},
        id="a slice booked twice",
    ),
    pytest.param(
        allocate("slices", piece(1, 1), piece(1, 3)),
        {FaultKind.WRONG_ID: ("pod ns/slices", "card node/gpu 1 has no slice GPU-1::3")},
        id="a slice beyond the last",
    ),
    pytest.param(
        both(allocate("small", instance(0, 7, MIG_1G)), annotate("small", VISIBLE, "MIG-0-7")),
        {FaultKind.WRONG_ID: ("pod ns/small", "card node/gpu 0 has no instance MIG-0-7")},
        id="an instance that is not there",
    ),
    pytest.param(
        both(drop("several"), add(pod("card", {"nvidia.com/gpu": "1"}, grant(0, core=100, memory="80Gi", ratio=100)))),
        {
            FaultKind.WRONG_FORM: ("pod ns/card", "given card node/gpu 0 as card; its Device gives no plugin unit"),
            FaultKind.MIXED: ("card node/gpu 0", "held as card by ns/card and as instance by ns/small"),
        },
        id="a whole card in MIG mode",
    ),
    pytest.param(
        both(drop("whole"), add(pod("shared", {SLICES: "1"}, piece(2, 0), **{VISIBLE: "GPU-2"}))),
        {FaultKind.WRONG_FORM: ("pod ns/shared", "given card node/gpu 2 as slice; its Device gives no slice")},
        id="a slice of a card that has none",
    ),
    pytest.param(
        allocate("slot", piece(1, 0, core=50)),
        {
            FaultKind.WRONG_AMOUNT: ("pod ns/slot", "given 50 % of gpu-core; its request comes to 33 %"),
            FaultKind.OVERBOOKED: ("card node/gpu 1", "116 % of gpu-core are taken"),
        },
        id="more core than a slice has",
    ),
]


@pytest.mark.parametrize(("plant", "expected"), FAULTS_OF_PIECES)
def test_each_fault_of_subdevices_is_named_and_no_other(
    plant: Plant, expected: dict[FaultKind, tuple[str, str]]
) -> None:
    check(in_subdevices(), plant, expected)


# --- requests and quantities, read without the shared language -----------------------------------------------
