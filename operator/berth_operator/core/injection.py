"""How a container comes to see just the GPUs that it was given.

Of pods that ask for `nvidia.com/*` kubelet knows the devices, and hands them out. The containers of all others get a
variable that NVIDIA's container runtime reads. Its value is the annotation that comes with the Binding, by the
downward API; a container that asks for no GPU sees none, whatever its image says. The variable is put into pods as they
are created, by the API server (`manifests/base/injection.yaml`, which says in CEL what stands here) or by our webhook.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from berth_api import names, request

Object = Mapping[str, Any]

VARIABLE: Final = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES: Final = "void"
"""What the runtime takes for: no GPUs, nor anything of the driver."""
RESOURCES: Final = frozenset(
    prefix + name
    for prefix in (names.PREFIX, names.OTHER_PREFIX)
    for name in (names.GPU, names.GPU_SHARED, names.GPU_CORE, names.GPU_MEMORY, names.GPU_MEMORY_RATIO)
)
"""What a container requests to see GPUs of which kubelet knows nothing."""
_KINDS: Final = ("initContainers", "containers")
_NOTHING: Final = (None, "0")
"""How the API server writes an amount that is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A container, and the variable that it must have."""

    kind: str
    number: int
    """Its place in the list of its kind."""
    container: Object
    entry: Object
    """The variable, as it stands in the list `env`."""

    @property
    def env(self) -> list[Object]:
        """Give the container's variables with this one, in front: others may be made of it."""
        return [self.entry, *(each for each in self.container.get("env") or () if not is_variable(each))]

    @property
    def is_filled(self) -> bool:
        """Tell whether the container has the variable: of several the last one counts."""
        found = [each for each in self.container.get("env") or () if is_variable(each)]
        return bool(found) and _source(found[-1]) == _source(self.entry)


def is_variable(entry: object) -> bool:
    """Tell whether an entry of `env` is the variable's."""
    return isinstance(entry, Mapping) and entry.get("name") == VARIABLE


def places(spec: Object, labels: Mapping[str, str]) -> Iterator[Place]:
    """Give the containers of a pod that need the variable: all or none of them."""
    labelled = any(label in labels for label in request.LABELS)
    found = [(kind, *each) for kind in _KINDS for each in enumerate(spec.get(kind) or ())]
    if labelled or any(_asks(container) for _, _, container in found):
        for kind, number, container in found:
            entry = _entry(container.get("name", "")) if labelled or _asks(container) else _VOID
            yield Place(kind=kind, number=number, container=container, entry=entry)


def lacking(spec: Object, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Give the names of the containers that would not see what they are given, and nothing else."""
    return tuple(place.container.get("name", "") for place in places(spec, labels) if not place.is_filled)


def patch(pod: Object) -> list[dict[str, Any]]:
    """Give the JSON patch that puts the variable into a pod; nothing where all is well."""
    return [
        {"op": "add", "path": f"/spec/{place.kind}/{place.number}/env", "value": place.env}
        for place in places(pod["spec"], pod["metadata"].get("labels") or {})
        if place.env != place.container.get("env")
    ]


def injected(pod: Object) -> dict[str, Any]:
    """Give the pod with the variable put in."""
    spec = {**pod["spec"], **{kind: list(pod["spec"][kind]) for kind in _KINDS if pod["spec"].get(kind)}}
    for place in places(spec, pod["metadata"].get("labels") or {}):
        spec[place.kind][place.number] = {**place.container, "env": place.env}
    return {**pod, "spec": spec}


def _asks(container: Object) -> bool:
    requests = (container.get("resources") or {}).get("requests") or {}
    return any(requests.get(name) not in _NOTHING for name in RESOURCES & requests.keys())


def _entry(container: str) -> Object:
    path = f"metadata.annotations['{container}{names.VISIBLE_SUFFIX}']"
    return {"name": VARIABLE, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


_VOID: Final = {"name": VARIABLE, "value": NO_DEVICES}


def _source(entry: Object) -> tuple[str, str]:
    reference = (entry.get("valueFrom") or {}).get("fieldRef") or {}
    return entry.get("value") or "", reference.get("fieldPath") or ""
