"""How a container comes to see just the GPUs that it was given.

Of pods that ask for `nvidia.com/*` kubelet knows the devices, and hands them out. The containers of all others get a
variable that NVIDIA's container runtime reads. Its value is the annotation that comes with the Binding, by the
downward API; a container that asks for no GPU sees none, whatever its image says. The variable is put into pods as they
are created, by the API server (`manifests/base/injection.yaml`, which says in CEL what stands here) or by our webhook.

An ephemeral container, which comes to a pod that runs, sees what the container sees that it is aimed at, and nothing
where it is aimed at none.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from berth_api import names, request

Object = Mapping[str, Any]
Put = tuple[str, int, Object]
"""A container, with the list that it stands in and its place there."""

VARIABLE: Final = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES: Final = "void"
"""What the runtime takes for: no GPUs, nor anything of the driver."""
RESOURCES: Final = frozenset(
    prefix + name
    for prefix in (names.PREFIX, names.OTHER_PREFIX)
    for name in (names.GPU, names.GPU_SHARED, names.GPU_CORE, names.GPU_MEMORY, names.GPU_MEMORY_RATIO)
)
"""What a container requests to see GPUs of which kubelet knows nothing."""
EPHEMERAL: Final = "ephemeralContainers"
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
        return [self.entry, *(variable for variable in self.container.get("env") or () if not is_variable(variable))]

    @property
    def is_filled(self) -> bool:
        """Tell whether the container has the variable: of several the last one counts."""
        entries = [entry for entry in self.container.get("env") or () if is_variable(entry)]
        return bool(entries) and _source(entries[-1]) == _source(self.entry)


def is_variable(entry: object) -> bool:
    """Tell whether an entry of `env` is the variable's."""
    return isinstance(entry, Mapping) and entry.get("name") == VARIABLE


def places(spec: Object, labels: Mapping[str, str]) -> Iterator[Place]:
    """Give the containers of a pod that need the variable: all or none of them."""
    if seeing := _seeing(spec, labels):
        for kind in _KINDS:
            for number, container in enumerate(spec.get(kind) or ()):
                entry = _entry(container.get("name", ""), seeing)
                yield Place(kind=kind, number=number, container=container, entry=entry)


def fresh_places(spec: Object, labels: Mapping[str, str], before: Object) -> Iterator[Place]:
    """Give the ephemeral containers that come to a pod, which was another before: what is there cannot be changed."""
    existing = {container["name"] for container in before.get(EPHEMERAL) or ()}
    if seeing := _seeing(spec, labels):
        for number, container in enumerate(spec.get(EPHEMERAL) or ()):
            if container["name"] not in existing:
                entry = _entry(container.get("targetContainerName", ""), seeing)
                yield Place(kind=EPHEMERAL, number=number, container=container, entry=entry)


def asking(spec: Object, labels: Mapping[str, str]) -> Iterator[Put]:
    """Give the containers that are to see GPUs of which kubelet knows nothing."""
    labelled = any(label in labels for label in request.LABELS)
    for kind in _KINDS:
        for number, container in enumerate(spec.get(kind) or ()):
            if labelled or _asks(container):
                yield kind, number, container


def lacking(spec: Object, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Give the names of the containers that would not see what they are given, and nothing else."""
    return tuple(place.container.get("name", "") for place in places(spec, labels) if not place.is_filled)


def injected(pod: Object) -> dict[str, Any]:
    """Give a pod that is created with the variable put in."""
    return _filled(pod, places(pod["spec"], labels_of(pod)))


def joined(pod: Object, before: Object) -> dict[str, Any]:
    """Give a pod to which ephemeral containers come, with the variable put into those."""
    return _filled(pod, fresh_places(pod["spec"], labels_of(pod), before["spec"]))


def labels_of(pod: Object) -> Mapping[str, str]:
    """Give a pod's labels."""
    return pod["metadata"].get("labels") or {}


def with_containers(spec: Object, changed: Iterator[Put]) -> dict[str, Any]:
    """Give a spec with these containers in their places."""
    copied = {**spec, **{kind: list(spec[kind]) for kind in (*_KINDS, EPHEMERAL) if spec.get(kind)}}
    for kind, number, container in changed:
        copied[kind][number] = container
    return copied


def _filled(pod: Object, lacking_places: Iterator[Place]) -> dict[str, Any]:
    changed = ((place.kind, place.number, {**place.container, "env": place.env}) for place in lacking_places)
    return {**pod, "spec": with_containers(pod["spec"], changed)}


def _seeing(spec: Object, labels: Mapping[str, str]) -> frozenset[str]:
    return frozenset(container.get("name", "") for _, _, container in asking(spec, labels))


def _asks(container: Object) -> bool:
    requests = (container.get("resources") or {}).get("requests") or {}
    return any(requests.get(name) not in _NOTHING for name in RESOURCES & requests.keys())


def _entry(container: str, seeing: Collection[str]) -> Object:
    """Give the variable by which one sees the cards of a container; none where that sees none."""
    if container not in seeing:
        return _VOID
    path = f"metadata.annotations['{container}{names.VISIBLE_SUFFIX}']"
    return {"name": VARIABLE, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


_VOID: Final = {"name": VARIABLE, "value": NO_DEVICES}


def _source(entry: Object) -> tuple[str, str]:
    reference = (entry.get("valueFrom") or {}).get("fieldRef") or {}
    return entry.get("value") or "", reference.get("fieldPath") or ""
