"""Objects of the agent in which one optional field is set to None: the API server refuses an object with a null."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

from pydantic import BaseModel

from berth_agent.readings import NodeUse
from berth_api.device import (
    ClaimedDevice,
    Condition,
    DeviceInfo,
    DeviceSpec,
    ExceedingUse,
    ForeignUse,
    HeldByContainer,
    HeldDevice,
    Link,
    Mig,
    MigInstance,
    RunningPod,
    Topology,
    UnheldUse,
    VirtualFunction,
    VirtualFunctionGroup,
)
from berth_api.objects.gpupod import ContainerDevices, GpuPodSpec, HeldCard

M = TypeVar("M", bound=BaseModel)

_POD: Final = {"namespace": "default", "pod": "p", "pod_uid": "u"}
_HELD: Final = HeldDevice(type="gpu", minor=0, id="GPU-0")
CONDITION: Final = Condition(
    type="Healthy",
    status="False",
    reason="Xid79",
    message="fallen off the bus",
    last_transition_time="2026-01-01T00:00:00Z",
    observed_generation=1,
)
SPEC: Final = DeviceSpec(
    driver_version="570",
    cuda_version="12.8",
    mig_strategy="mixed",
    replica_choice="scheduler",
    boot_id="b",
    devices=[
        DeviceInfo(
            type="gpu",
            minor=0,
            id="GPU-0",
            module_id=1,
            health=False,
            model="NVIDIA H100",
            resources={"kubernetes.io/gpu-core": 100},
            multiprocessors=132,
            memory_bandwidth="2039040M",
            encoders=0,
            decoders=7,
            topology=Topology(socket_id=0, node_id=0, pcie_id="0000:00:01.0", bus_id="0000:3b:00.0"),
            links=[Link(minor=1, type="NVLink", count=12, peer_to_peer=True)],
            labels={"a": "b"},
            vf_groups=[VirtualFunctionGroup(labels={"a": "b"}, vfs=[VirtualFunction(minor=0, bus_id="0000:3b:00.1")])],
            mig=Mig(
                enabled=True,
                instances=[
                    MigInstance(id="MIG-0", profile="1g.10gb", gpu_instance=1, compute_instance=0, memory="10Gi")
                ],
            ),
            conditions=[CONDITION],
        )
    ],
)
USE: Final = NodeUse(
    boot_id="b",
    held=(HeldByContainer(**_POD, container="main", devices=[_HELD]),),
    withheld=(0,),
    foreign=(ForeignUse(type="gpu", minor=0, processes=1, memory="1Gi"),),
    claimed=(ClaimedDevice(namespace="default", claim="c", driver="gpu.berth.dev", pool="a", device="gpu-0"),),
    exceeding=(ExceedingUse(type="gpu", minor=0, memory="2Gi", limit="1Gi", **_POD),),
    unheld=(UnheldUse(type="gpu", minor=0, id="GPU-0", memory="2Gi", **_POD),),
    uncertain=(0,),
    running=(RunningPod(**_POD, devices=[_HELD]),),
    stopped=("v",),
)
GPU_POD: Final = GpuPodSpec(
    node_name="a",
    pod_uid="u",
    containers=[ContainerDevices(name="main", devices=[_HELD])],
    allocated=[_HELD],
    cards=[HeldCard(minor=0, id="GPU-0", model="NVIDIA H100", bus_id="0000:3b:00.0")],
    devices="GPU 0",
    ids="GPU-0",
    memory="40Gi",
    core=50,
)


def without_each(model: M) -> Iterator[tuple[str, M]]:
    """Yield the model once for each optional field in it, which is None then, with the path of the field."""
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        if info.default is None and not info.is_required():
            assert value is not None, f"the example leaves {name} out"
            yield name, model.model_copy(update={name: None})
        if isinstance(value, BaseModel):
            for path, changed in without_each(value):
                yield f"{name}.{path}", model.model_copy(update={name: changed})
        if isinstance(value, list):
            for number, item in enumerate(value):
                if isinstance(item, BaseModel):
                    for path, changed in without_each(item):
                        items = [*value[:number], changed, *value[number + 1 :]]
                        yield f"{name}[].{path}", model.model_copy(update={name: items})


def nulls(value: object, path: str = "") -> Iterator[str]:
    """Yield the paths of the nulls in an object."""
    if value is None:
        yield path
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from nulls(part, f"{path}.{key}")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            yield from nulls(part, f"{path}[]")
