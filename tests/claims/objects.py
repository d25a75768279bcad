"""API objects of dynamic resource allocation for tests, and an allocation from them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from berth_operator.core.claims.allocation.allocator import allocate
from berth_operator.core.claims.allocation.results import Allocation
from berth_operator.core.claims.allocation.search import MAX_STEPS
from berth_operator.core.claims.objects import requests, slices
from berth_operator.core.claims.objects.allocated import Allocated
from berth_operator.core.claims.objects.nodes import TargetNode
from berth_operator.core.claims.pools.pools import NodePools, SliceIndex, gather

Object = dict[str, Any]

DRIVER: Final = "gpu.io"
NODE: Final = "node-0"
NOTHING: Final = Allocated()

MIG: Final = {"1g": (1, (0, 1, 2, 3, 4, 5, 6)), "2g": (2, (0, 2, 4)), "3g": (4, (0, 4)), "7g": (8, (0,))}
"""MIG profile -> its memory slices, and where its instances may begin."""


def device(name: str, *, model: str = "", memory: str = "", **fields: Any) -> Object:
    """Return a device; the fields are those of the API."""
    made: Object = {"name": name, **fields}
    if model:
        made["attributes"] = {"model": {"string": model}}
    if memory:
        made["capacity"] = {"memory": {"value": memory}}
    return made


def mig_gpu(name: str) -> tuple[list[Object], Object]:
    """Return the devices of a GPU that is divided on demand, as NVIDIA's driver lists them, and its counters.

    The model is the profile, or `whole`.
    """
    counters = {f"memory-slice-{number}": {"value": "1"} for number in range(8)} | {"sms": {"value": "7"}}

    def instance(profile: str, size: int, start: int) -> Object:
        used = {f"memory-slice-{number}": {"value": "1"} for number in range(start, start + size)}
        used["sms"] = {"value": profile.removesuffix("g")}
        consumes = [{"counterSet": name, "counters": used}]
        return device(f"{name}-{profile}-{start}", model=profile, consumesCounters=consumes)

    instances = [instance(profile, size, start) for profile, (size, starts) in MIG.items() for start in starts]
    whole = device(name, model="whole", consumesCounters=[{"counterSet": name, "counters": counters}])
    return [whole, *instances], {"name": name, "counters": counters}


def slice_of(*devices: Object, name: str = "slice-0", pool: str = NODE, count: int = 1, **spec: Any) -> Object:
    """Return a slice of a pool that is for NODE, if the spec does not say otherwise."""
    where = {"nodeName": NODE} if spec.keys().isdisjoint({"nodeName", "allNodes", "nodeSelector"}) else {}
    if "perDeviceNodeSelection" in spec:
        where = {}
    generation = spec.pop("generation", 1)
    pool_of = {"name": pool, "generation": generation, "resourceSliceCount": count}
    content = {"devices": list(devices)} if devices else {}
    return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "pool": pool_of, **where, **content, **spec}}


def request(name: str = "gpu", count: int = 1, **fields: Any) -> Object:
    """Return a request for devices of the class `gpu`."""
    return {"name": name, "exactly": exactly(count, **fields)}


def exactly(count: int = 1, **fields: Any) -> Object:
    """Return what is requested: also a subrequest, with a `name`."""
    expression = fields.pop("where", "")
    selectors = {"selectors": [{"cel": {"expression": expression}}]} if expression else {}
    mode = {"allocationMode": "All"} if count == 0 else {"allocationMode": "ExactCount", "count": count}
    return {"deviceClassName": "gpu", **mode, **selectors, **fields}


def first_available(name: str, *choices: Object) -> Object:
    """Return a request with subrequests `sub-0`, `sub-1` and so on."""
    return {"name": name, "firstAvailable": [{"name": f"sub-{each}"} | one for each, one in enumerate(choices)]}


def claim(*requested: Object, name: str = "claim-0", **devices: Any) -> Object:
    """Return a claim."""
    metadata = {"namespace": "ns", "name": name}
    return {"metadata": metadata, "spec": {"devices": {"requests": list(requested), **devices}}}


def pools_of(published: Sequence[Object], node: str = NODE, labels: Mapping[str, str] | None = None) -> NodePools:
    """Return the pools of a node."""
    return gather(SliceIndex.of(map(slices.read, published)), TargetNode(name=node, labels=labels or {}))


def allocation(
    published: Sequence[Object],
    *claims: Object,
    allocated: Allocated = NOTHING,
    classes: Sequence[Object] = ({"metadata": {"name": "gpu"}, "spec": {}},),
    max_steps: int = MAX_STEPS,
    max_narrowing: int = MAX_STEPS,
    labels: Mapping[str, str] | None = None,
) -> tuple[Allocation, ...] | None:
    """Return what claims get on NODE."""
    read = [requests.read_class(each) for each in classes]
    return allocate(
        [requests.read_claim(each) for each in claims],
        pools=pools_of(published, labels=labels),
        classes={each.name: each for each in read},
        allocated=allocated,
        new_share_id=lambda: "share",
        max_steps=max_steps,
        max_narrowing=max_narrowing,
    )


def chosen(*args: Any, **options: Any) -> list[list[str]] | None:
    """Return the names of the devices that each claim gets, as `request:device`."""
    got = allocation(*args, **options)
    if got is None:
        return None
    return [[f"{each.request.full_name}:{each.device.id.device}" for each in one.results] for one in got]
