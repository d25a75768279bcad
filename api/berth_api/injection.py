"""The environment variable by which a container sees only its own GPUs.

Kubelet knows and passes on the devices of pods that request `nvidia.com/*`. The containers of all other pods get a
variable that NVIDIA's container runtime reads. The downward API sets it to the annotation that the Binding writes; a
container that requests no GPU sees none, whatever its image says. The variable is injected when a pod is created, by
the API server (`manifests/base/injection.yaml` has the same rules in CEL) or by our webhook.

An ephemeral container sees what its target container sees, and nothing if it has no target.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from berth_api import names, request

Object = Mapping[str, Any]
Put = tuple[str, int, Object]
"""(name of a list of containers, index in the list, container)."""

VARIABLE: Final = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES: Final = "void"
"""The value by which the runtime injects neither GPUs nor files of the driver."""
RESOURCES: Final = frozenset(
    prefix + name
    for prefix in (names.PREFIX, names.OTHER_PREFIX)
    for name in (names.GPU, names.GPU_SHARED, names.GPU_CORE, names.GPU_MEMORY, names.GPU_MEMORY_RATIO)
)
"""A container that requests one of these sees GPUs that kubelet does not know."""
EPHEMERAL: Final = "ephemeralContainers"
_KINDS: Final = ("initContainers", "containers")
_NOTHING: Final = (None, "0")
"""How the API server writes an amount of zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A container and the variable that it must have."""

    kind: str
    number: int
    """Index in the list of its kind."""
    container: Object
    entry: Object
    """The entry of the variable in the list `env`."""

    @property
    def env(self) -> list[Object]:
        """Return the container's variables with this one first, because others may refer to it."""
        return [self.entry, *(variable for variable in self.container.get("env") or () if not is_variable(variable))]

    @property
    def is_filled(self) -> bool:
        """Return whether the container has the variable; of several entries the last one counts."""
        entries = [entry for entry in self.container.get("env") or () if is_variable(entry)]
        return bool(entries) and _source(entries[-1]) == _source(self.entry)


def is_variable(entry: object) -> bool:
    """Return whether an entry of `env` is the variable."""
    return isinstance(entry, Mapping) and entry.get("name") == VARIABLE


def places(spec: Object, labels: Mapping[str, str]) -> Iterator[Place]:
    """Yield the containers of a pod that need the variable: all or none of them."""
    if seeing := _seeing(spec, labels):
        for kind in _KINDS:
            for number, container in enumerate(spec.get(kind) or ()):
                entry = _entry(container.get("name", ""), seeing)
                yield Place(kind=kind, number=number, container=container, entry=entry)


def fresh_places(spec: Object, labels: Mapping[str, str], before: Object) -> Iterator[Place]:
    """Yield the ephemeral containers that an update adds to a pod; existing ones cannot be changed."""
    existing = {container["name"] for container in before.get(EPHEMERAL) or ()}
    if seeing := _seeing(spec, labels):
        for number, container in enumerate(spec.get(EPHEMERAL) or ()):
            if container["name"] not in existing:
                entry = _entry(container.get("targetContainerName", ""), seeing)
                yield Place(kind=EPHEMERAL, number=number, container=container, entry=entry)


def asking(spec: Object, labels: Mapping[str, str]) -> Iterator[Put]:
    """Yield the containers that must see GPUs that kubelet does not know."""
    labelled = any(label in labels for label in request.LABELS)
    for kind in _KINDS:
        for number, container in enumerate(spec.get(kind) or ()):
            if labelled or _requests_devices(container):
                yield kind, number, container


def lacking(spec: Object, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the containers that would not see exactly their own GPUs."""
    return tuple(place.container.get("name", "") for place in places(spec, labels) if not place.is_filled)


def injected(pod: Object) -> dict[str, Any]:
    """Return a new pod with the variable injected."""
    return _filled(pod, places(pod["spec"], labels_of(pod)))


def joined(pod: Object, before: Object) -> dict[str, Any]:
    """Return an updated pod with the variable injected into its new ephemeral containers."""
    return _filled(pod, fresh_places(pod["spec"], labels_of(pod), before["spec"]))


def labels_of(pod: Object) -> Mapping[str, str]:
    """Return the labels of a pod."""
    return pod["metadata"].get("labels") or {}


def with_containers(spec: Object, changed: Iterator[Put]) -> dict[str, Any]:
    """Return a spec with these containers replaced."""
    copied = {**spec, **{kind: list(spec[kind]) for kind in (*_KINDS, EPHEMERAL) if spec.get(kind)}}
    for kind, number, container in changed:
        copied[kind][number] = container
    return copied


def _filled(pod: Object, lacking_places: Iterator[Place]) -> dict[str, Any]:
    changed = ((place.kind, place.number, {**place.container, "env": place.env}) for place in lacking_places)
    return {**pod, "spec": with_containers(pod["spec"], changed)}


def _seeing(spec: Object, labels: Mapping[str, str]) -> frozenset[str]:
    return frozenset(container.get("name", "") for _, _, container in asking(spec, labels))


def _requests_devices(container: Object) -> bool:
    requests = (container.get("resources") or {}).get("requests") or {}
    return any(requests.get(name) not in _NOTHING for name in RESOURCES & requests.keys())


def _entry(container: str, seeing: Collection[str]) -> Object:
    """Return the variable by which a container sees the cards of the named one, which may be itself."""
    if container not in seeing:
        return _VOID
    path = f"metadata.annotations['{container}{names.VISIBLE_SUFFIX}']"
    return {"name": VARIABLE, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


_VOID: Final = {"name": VARIABLE, "value": NO_DEVICES}


def _source(entry: Object) -> tuple[str, str]:
    reference = (entry.get("valueFrom") or {}).get("fieldRef") or {}
    return entry.get("value") or "", reference.get("fieldPath") or ""
