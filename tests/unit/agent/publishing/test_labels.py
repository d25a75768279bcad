"""The labels of GPU Feature Discovery: every one, with its exact value."""

from collections.abc import Mapping
from typing import Any

import pytest

from berth_agent.vendors.nvidia import labels
from berth_agent.vendors.nvidia.labels import CardFacts, Facts, family, sanitised
from berth_api.allocation import REPLICAS
from berth_api.device import DeviceInfo, DeviceSpec, Mig, MigInstance, MigStrategy

PARTS = {
    "multiprocessors": 14,
    "slices.gi": 1,
    "slices.ci": 1,
    "engines.copy": 1,
    "engines.decoder": 0,
    "engines.encoder": 0,
    "engines.jpeg": 0,
    "engines.ofa": 0,
}
AMPERE = CardFacts(compute=(8, 0), pci_class="0x030200")
A100 = "NVIDIA A100-SXM4-80GB"


PRODUCT = "NVIDIA-A100-SXM4-80GB"


def gpu(minor: int = 0, *, model: str = A100, memory: str = "80Gi", replicas: int = 1) -> DeviceInfo:
    resources: dict[str, str | int] = {"kubernetes.io/gpu-memory": memory}
    card = DeviceInfo(type="gpu", minor=minor, id=f"GPU-{minor}", health=True, model=model, resources=resources)
    return card if replicas == 1 else card.model_copy(update={"replicas": replicas})


def divided(minor: int, *profiles: str, model: str = A100, replicas: int = 1) -> DeviceInfo:
    same: dict[str, Any] = {"compute_instance": 0, "memory": "9728Mi", "replicas": replicas}
    instances = [
        MigInstance(id=f"MIG-{minor}-{at}", profile=profile, gpu_instance=at, **same)
        for at, profile in enumerate(profiles)
    ]
    return gpu(minor, model=model).model_copy(update={"mig": Mig(enabled=True, instances=instances)})


def labelled(
    *gpus: DeviceInfo,
    strategy: MigStrategy = "mixed",
    renamed: bool = False,
    facts: Mapping[str, CardFacts] | None = None,
) -> dict[str, str]:
    """Return the labels of a node, without their prefix."""
    spec = DeviceSpec(driver_version="570.133.20", cuda_version="12.8", mig_strategy=strategy, devices=list(gpus))
    parts = {gpu.id: {one.id: PARTS for one in gpu.mig.instances} if gpu.mig else {} for gpu in gpus}
    values = {gpu.id: CardFacts(compute=(8, 0), pci_class="0x030200", parts=parts[gpu.id]) for gpu in gpus} | dict(
        facts or {}
    )
    node_labels = labels.of(spec, Facts(machine="DGXA100 920-23687-2530-000", cards=values), renamed=renamed)
    assert all(key.startswith("nvidia.com/") for key in node_labels)
    return {key.removeprefix("nvidia.com/"): value for key, value in node_labels.items()}


def test_a_node_of_equal_cards_has_exactly_these_labels() -> None:
    assert labelled(gpu(0), gpu(1)) == {
        "cuda.driver.major": "570",
        "cuda.driver.minor": "133",
        "cuda.driver.rev": "20",
        "cuda.driver-version.major": "570",
        "cuda.driver-version.minor": "133",
        "cuda.driver-version.revision": "20",
        "cuda.driver-version.full": "570.133.20",
        "cuda.runtime.major": "12",
        "cuda.runtime.minor": "8",
        "cuda.runtime-version.major": "12",
        "cuda.runtime-version.minor": "8",
        "cuda.runtime-version.full": "12.8",
        "gpu.machine": "DGXA100-920-23687-2530-000",
        "gpu.mode": "compute",
        "gpu.product": "NVIDIA-A100-SXM4-80GB",
        "gpu.count": "2",
        "gpu.memory": "81920",
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "gpu.family": "ampere",
        "gpu.compute.major": "8",
        "gpu.compute.minor": "0",
        "mig.capable": "false",
        "mig.strategy": "mixed",
        "mps.capable": "false",
        "vgpu.present": "false",
    }


def test_a_node_without_gpus_has_none() -> None:
    nic = DeviceInfo(type="rdma", minor=0, id="0000:1a:00.0")
    assert labels.of(DeviceSpec(driver_version="570.1", devices=[nic]), Facts(machine="x"), renamed=False) == {}


INVALID = {
    "gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-INVALID",
    "gpu.count": "0",
    "gpu.replicas": "0",
    "gpu.memory": "0",
    "gpu.sharing-strategy": "",
}
SINGLE = {
    "gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
    "gpu.count": "3",
    "gpu.replicas": "1",
    "gpu.sharing-strategy": "none",
    "gpu.memory": "9728",
    "gpu.multiprocessors": "14",
    "gpu.slices.gi": "1",
    "gpu.slices.ci": "1",
    "gpu.engines.copy": "1",
    "gpu.engines.decoder": "0",
    "gpu.engines.encoder": "0",
    "gpu.engines.jpeg": "0",
    "gpu.engines.ofa": "0",
    "gpu.family": "ampere",
    "mig.strategy": "single",
    "mig.capable": "true",
}
MIXED = {
    "mig-1g.10gb.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
    "mig-1g.10gb.count": "2",
    "mig-1g.10gb.replicas": "1",
    "mig-1g.10gb.sharing-strategy": "none",
    "mig-1g.10gb.memory": "9728",
    "mig-1g.10gb.multiprocessors": "14",
    "mig-1g.10gb.slices.gi": "1",
    "mig-1g.10gb.slices.ci": "1",
    "mig-1g.10gb.engines.copy": "1",
    "mig-1g.10gb.engines.ofa": "0",
    "mig-1g.10gb.me.count": "1",
    "mig-1g.10gb.me.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gbme",
    "gpu.count": "2",
    "gpu.product": "NVIDIA-A100-SXM4-80GB",
    "gpu.replicas": "1",
    "mig.strategy": "mixed",
}


@pytest.mark.parametrize(
    ("gpus", "strategy", "expected"),
    [
        pytest.param([divided(0, "1g.10gb", "1g.10gb"), divided(1, "1g.10gb")], "single", SINGLE, id="single"),
        pytest.param([divided(0, "1g.10gb"), divided(1)], "single", INVALID, id="single, one card empty"),
        pytest.param([divided(0, "1g.10gb"), gpu(1)], "single", INVALID, id="single, one card whole"),
        pytest.param(
            [gpu(0)], "single", {"mig.strategy": "single", "gpu.count": "1", "gpu.memory": "81920"}, id="single, no MIG"
        ),
        pytest.param([divided(0, "1g.10gb", "1g.10gb", "1g.10gb+me"), gpu(1)], "mixed", MIXED, id="mixed"),
        pytest.param(
            [divided(0, "1g.10gb"), gpu(1)],
            "none",
            {"gpu.count": "2", "gpu.product": "NVIDIA-A100-SXM4-80GB", "mig.capable": "true"},
            id="none",
        ),
    ],
)
def test_labels_follow_the_strategy_and_the_cards(
    gpus: list[DeviceInfo], strategy: MigStrategy, expected: dict[str, str]
) -> None:
    values = labelled(*gpus, strategy=strategy)
    assert {key: values.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("strategy", "renamed", "name", "product"),
    [
        ("mixed", False, "mig-1g.10gb", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED"),
        ("mixed", True, "mig-1g.10gb", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"),
        ("single", False, "gpu", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED"),
    ],
)
def test_replicas_of_instances_are_labelled_with_them(
    strategy: MigStrategy, name: str, product: str, *, renamed: bool
) -> None:
    node_labels = labelled(divided(0, "1g.10gb", replicas=3), strategy=strategy, renamed=renamed)
    values = [node_labels[f"{name}.{suffix}"] for suffix in ("product", "count", "replicas", "sharing-strategy")]
    assert values == [product, "1", "3", "time-slicing"]


@pytest.mark.parametrize(
    ("resource", "product"), [("", f"{PRODUCT}-SHARED"), ("nvidia.com/gpu", f"{PRODUCT}-SHARED"), (REPLICAS, PRODUCT)]
)
def test_a_product_is_shared_unless_its_replicas_have_a_name_of_their_own(resource: str, product: str) -> None:
    card = gpu(replicas=4).model_copy(update={"replica_resource": resource})
    assert labelled(card)["gpu.product"] == product


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (["0x030200"], "compute"),
        (["0x030000"], "graphics"),
        (["0x030000", "0x030200"], "unknown"),
        ([""], "unknown"),
        (["0x030200", "0x030200"], "compute"),
    ],
)
def test_the_mode_is_the_pci_class(classes: list[str], expected: str) -> None:
    facts = {f"GPU-{at}": CardFacts(compute=(8, 0), pci_class=pci_class) for at, pci_class in enumerate(classes)}
    assert labelled(*map(gpu, range(len(classes))), facts=facts)["gpu.mode"] == expected


def test_a_vgpu_is_labelled() -> None:
    facts = {"GPU-0": CardFacts(compute=(8, 0), pci_class="0x030000", is_vgpu=True)}
    assert labelled(gpu(0), facts=facts)["vgpu.present"] == "true"


@pytest.mark.parametrize(
    ("driver", "cuda", "expected"),
    [
        ("570.133.20", "12.8", ("570", "133", "20", "570.133.20", "12", "8", "12.8")),
        ("535.54", "12.2", ("535", "54", "", "535.54", "12", "2", "12.2")),
        ("570", "12", (None,) * 7),
        ("", "", (None,) * 7),
        ("1.2.3.4", "12.8", (None, None, None, None, "12", "8", "12.8")),
    ],
)
def test_versions_are_taken_apart(driver: str, cuda: str, expected: tuple[str | None, ...]) -> None:
    spec = DeviceSpec(driver_version=driver, cuda_version=cuda, devices=[gpu(0)])
    values = labels.of(spec, Facts(cards={"GPU-0": AMPERE}), renamed=False)
    parts = [f"driver-version.{part}" for part in ("major", "minor", "revision", "full")]
    parts += [f"runtime-version.{part}" for part in ("major", "minor", "full")]
    assert tuple(values.get(f"nvidia.com/cuda.{part}") for part in parts) == expected
    old = [f"driver.{part}" for part in ("major", "minor", "rev")] + ["runtime.major", "runtime.minor"]
    assert tuple(values.get(f"nvidia.com/cuda.{part}") for part in old) == (*expected[:3], *expected[4:6])


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        ((1, 3), "tesla"),
        ((2, 0), "fermi"),
        ((3, 7), "kepler"),
        ((5, 2), "maxwell"),
        ((6, 0), "pascal"),
        ((7, 0), "volta"),
        ((7, 2), "volta"),
        ((7, 5), "turing"),
        ((8, 0), "ampere"),
        ((8, 6), "ampere"),
        ((8, 9), "ada-lovelace"),
        ((9, 0), "hopper"),
        ((10, 0), "blackwell"),
        ((10, 3), "blackwell"),
        ((12, 0), "blackwell"),
        ((13, 0), "rubin"),
        ((4, 0), "undefined"),
        ((11, 0), "undefined"),
        ((99, 0), "undefined"),
    ],
)
def test_the_family_follows_from_the_compute_capability(compute: tuple[int, int], expected: str) -> None:
    assert family(compute) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("NVIDIA RTX 6000 (Ada)", "NVIDIA-RTX-6000-Ada"),
        ("Quadro  RTX   8000", "Quadro-RTX-8000"),
        (" PowerEdge R750xa ", "PowerEdge-R750xa"),
        ("NVIDIA DGX™ H100", "NVIDIA-DGX-H100"),
        ("-x-", "x"),
        ("(none)", "none"),
        ("", ""),
        ("y" * 62 + ".z", "y" * 62),
        ("1g.10gb+me", "1g.10gbme"),
    ],
)
def test_names_become_values_of_labels(text: str, expected: str) -> None:
    assert sanitised(text) == expected


def test_a_machine_without_a_name_is_unknown() -> None:
    values = labels.of(DeviceSpec(devices=[gpu(0)]), Facts(cards={"GPU-0": AMPERE}), renamed=False)
    assert values["nvidia.com/gpu.machine"] == "unknown"


def test_a_card_of_which_nothing_is_known_does_not_count() -> None:
    values = labels.of(DeviceSpec(devices=[gpu(0), gpu(1)]), Facts(cards={"GPU-0": AMPERE}), renamed=False)
    assert values["nvidia.com/gpu.count"] == "1"
