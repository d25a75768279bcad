"""Parsers of the shared API: quantities, annotations, selectors and custom resources."""

from typing import Any, Final

import orjson
from hypothesis import strategies as st
from pydantic import ValidationError

from berth_api import allocation, names, request, words
from berth_api.allocation import device_ids, partitions
from berth_api.device import Device, Model
from berth_api.objects.gpupod import GpuPod
from berth_api.objects.leader_lease import LeaderLease
from berth_api.objects.podgroup import PodGroup
from berth_api.request import model
from berth_api.resources import quantity
from berth_api.values import selectors
from berth_api.words import WordPlace
from tests.fuzz import inputs
from tests.fuzz.target import Target
from tests.objects.builders import (
    condition,
    device,
    entry,
    gpu_pod,
    held,
    instance,
    pod_group,
    replica,
    whole,
    with_functions,
)

_ALLOCATIONS: Final = (
    whole(0, 1),
    *(
        orjson.loads(allocation.render(grants))
        for grants in ([instance()], [replica()], [with_functions(0, "0000:1f:00.2")])
    ),
    {"gpu": [{**whole(0)["gpu"][0], "extension": {"exclusivePolicy": "DeviceLevel", "parent": "GPU-0"}}]},
)
_TABLE: Final = {"2": [{"minors": [0, 1], "gpuLinkType": "NVLink", "ringBusBandwidth": "400Gi", "allocationScore": 1}]}
_SELECTOR: Final = {
    "matchLabels": {"a": "b"},
    "matchExpressions": [{"key": "k", "operator": "In", "values": ["v", "w"]}],
}
ANNOTATIONS: Final = {
    names.ALLOCATE_HINT: {
        "gpu": {"selector": _SELECTOR, "exclusivePolicy": "DeviceLevel", "requiredTopologyScope": "PCIe"},
        "rdma": {"vfSelector": _SELECTOR, "allocateStrategy": "ApplyForAll"},
    },
    names.JOINT_ALLOCATE: {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"},
    names.PARTITION_SPEC: {"allocatePolicy": "Restricted", "ringBusBandwidth": "200Gi"},
    names.MIN_GPU_MEMORY: "20Gi",
    names.GPU_TOPOLOGY: "nvlink",
    names.GPU_TOPOLOGY_POLICY: "preferred",
    names.GPU_SUBDEVICES: "never",
    names.MIXED_GPUS: "true",
    names.MODEL_EXACT: "NVIDIA A100-SXM4-80GB",
    names.MODEL_GLOBS: "*A100*, *H100*",
}
"""All annotations that are read from a waiting pod; objects are JSON in the annotation."""
LABELS: Final = {names.MODEL_REGEX: "A100.*", names.GENIUS_NUMBER: "2", names.GENIUS_MEMORY_EACH: "1024"}
_TOTAL: Final = {
    "kubernetes.io/gpu": 200,
    "nvidia.com/gpu": 1,
    "kubernetes.io/gpu-memory": 2**30,
    "kubernetes.io/rdma": 100,
}

DEVICE: Final = device(
    "node",
    entry(
        0,
        links=[{"minor": 1, "type": "NVLink", "count": 12, "peerToPeer": True}],
        topology={"socketID": 0, "nodeID": 0, "pcieID": "0000:3a:00.0", "busID": "0000:3b:00.0"},
        labels={"a": "b"},
        multiprocessors=108,
        memoryBandwidth="2039040M",
        conditions=[condition("Healthy", "False")],
    ),
    entry(
        1,
        mig={
            "enabled": True,
            "instances": [
                {"id": "MIG-1-0", "profile": "1g.10gb", "gpuInstance": 1, "computeInstance": 0, "memory": "10Gi"}
            ],
        },
    ),
    entry(2, replicas=4, replicaResource="nvidia.com/gpu.shared"),
    {
        **entry(
            0, resources={"kubernetes.io/rdma": 100}, vfGroups=[{"labels": {}, "vfs": [{"minor": 0, "busID": "0:1"}]}]
        ),
        "type": "rdma",
        "id": "0000:1f:00.0",
    },
    status={
        "held": [held("pod", "GPU-0")],
        "bootID": "boot",
        "withheld": [0],
        "foreign": [{"type": "gpu", "minor": 0, "processes": 1, "memory": "1Gi"}],
        "conditions": [condition("Ready", "True")],
    },
)
"""A Device with all that an agent may write."""
GPU_POD: Final = {
    **gpu_pod("pod", "GPU-0"),
    "status": {"conditions": [condition("Consistent", "True")]},
}
LEASE: Final = {
    "spec": {
        "term": 7,
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00Z",
        "renewTime": "2026-01-01T00:00:00Z",
    }
}


def _quantity(text: str) -> None:
    amount = quantity.parse(text)
    assert -quantity.MAX <= amount <= quantity.MAX
    assert quantity.parse(quantity.format_bytes(abs(amount))) == abs(amount)
    assert quantity.parse(quantity.shortest_bytes(abs(amount))) == abs(amount)
    assert quantity.parse(quantity.exact_text(text)) == amount
    assert -(-quantity.parse_milli(text) // 1000) == amount or abs(quantity.parse_milli(text)) == quantity.MAX


def _allocation(text: str) -> None:
    grants = allocation.parse(text)
    by_type = tuple(sorted(grants, key=lambda grant: grant.type))
    assert allocation.parse(allocation.render(by_type)) == by_type
    assert all(device_ids.problem(each.type, each.visible) == "" for each in grants if each.id)


def _request(given: dict[str, Any]) -> None:
    made = request.of_pod(_amounts(given.get("total")), strings(given.get("annotations")), strings(given.get("labels")))
    assert all(part.count >= 1 for part in made.parts)
    model.of_pod(strings(given.get("annotations")), strings(given.get("labels"))).accepts("NVIDIA A100")


def _words(given: dict[str, Any]) -> None:
    container = {"name": "main", "resources": {"requests": strings(given.get("requests"))}}
    annotations, labels = strings(given.get("annotations")), strings(given.get("labels"))
    reading = words.read({"containers": [container]}, annotations, labels)
    again = words.read(reading.spec, reading.annotations, reading.labels)
    assert (again.spec, again.annotations) == (reading.spec, reading.annotations)
    words.gang(annotations, labels)


def strings(given: Any) -> dict[str, str]:
    """Return annotations as the API server has them: other values than texts are JSON."""
    fields = given if isinstance(given, dict) else {}
    return {name: value if isinstance(value, str) else orjson.dumps(value).decode() for name, value in fields.items()}


def _amounts(given: Any) -> dict[str, int]:
    fields = given if isinstance(given, dict) else {}
    return {name: value for name, value in fields.items() if isinstance(value, int) and 0 < value <= quantity.MAX}


def _model(kind: type[Model], raw: Any) -> None:
    read = kind.model_validate(raw)
    assert kind.model_validate_json(read.model_dump_json(by_alias=True)) == read


def _decoded(content: bytes) -> str:
    return content.decode(errors="replace")


def _of_kind(kind: type[Model], example: Any) -> Target:
    return Target(
        name=kind.__name__,
        inputs=inputs.near(example),
        parse=lambda raw: _model(kind, raw),
        errors=(ValidationError,),
    )


def _of_system(system: words.System, place: WordPlace) -> dict[str, dict[str, str]]:
    """Return an input with all words of a system in one place, except those that are refused."""
    readable = (each for each in system.words if each.place == place and each.role != words.Role.REFUSED)
    held = {word.name: next(iter(word.choices), "2") for word in readable}
    empty: dict[str, dict[str, str]] = {each: {} for each in ("requests", "annotations", "labels")}
    return {**empty, "requests" if place == WordPlace.RESOURCE else f"{place}s": held}


_AMOUNT: Final = st.tuples(
    st.sampled_from(("", "+", "-")),
    st.text("0123456789.", max_size=90),
    st.sampled_from(("", "Ki", "Ei", "E", "e", "m", "n", "ki", "e999", "E-999", "e+1", "e3000", "e-3000")),
).map("".join)
_REQUEST: Final = {"total": _TOTAL, "annotations": ANNOTATIONS, "labels": {}}

TARGETS: Final = (
    Target(
        name="quantity",
        inputs=st.one_of(_AMOUNT, inputs.texts),
        parse=_quantity,
        errors=(quantity.QuantityError,),
    ),
    Target(
        name="allocation",
        inputs=inputs.as_json(inputs.near(*_ALLOCATIONS)).map(_decoded),
        parse=_allocation,
        errors=(allocation.AllocationError,),
    ),
    Target(
        name="partitions",
        inputs=inputs.as_json(inputs.near(_TABLE)).map(_decoded),
        parse=partitions.parse,
        errors=(partitions.PartitionError,),
    ),
    Target(
        name="request",
        inputs=inputs.objects(
            _REQUEST,
            *(
                {
                    "total": {"kubernetes.io/gpu": 200, "kubernetes.io/rdma": 1},
                    "annotations": {name: value},
                    "labels": {},
                }
                for name, value in ANNOTATIONS.items()
            ),
            {"total": {}, "annotations": {}, "labels": LABELS},
        ),
        parse=_request,
        errors=(request.RequestError, model.ModelError),
    ),
    Target(
        name="words",
        inputs=inputs.objects(
            *(_of_system(system, place) for system in words.TABLE.systems for place in WordPlace),
            {
                **_of_system(words.TABLE.systems[0], WordPlace.ANNOTATION),
                "requests": {"nvidia.com/gpumem": "3000"},
            },
        ),
        parse=_words,
        errors=(request.RequestError,),
    ),
    Target(
        name="selector",
        inputs=inputs.near(_SELECTOR),
        parse=selectors.read,
        errors=(selectors.SelectorError,),
    ),
    _of_kind(Device, DEVICE),
    _of_kind(GpuPod, GPU_POD),
    _of_kind(LeaderLease, LEASE),
    _of_kind(PodGroup, pod_group("g", 2, timeout=10)),
)
