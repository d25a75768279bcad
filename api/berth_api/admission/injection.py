"""The environment variable that lets a container see only its own GPUs.

kubelet passes devices to containers that request resources of NVIDIA's device plugin. These containers keep the
variable that the plugin sets. Other names that begin with `nvidia.com/`, for example the names of NICs, belong to other
plugins, which do not set it. Every other container of a pod gets a variable that NVIDIA's container runtime reads. If
the container requests GPUs, the downward API sets the variable to the annotation that the Binding writes. Otherwise the
container sees no GPU, whatever its image says. The API server injects the variable when a pod is created
(`manifests/base/injection.yaml` has the same rules in CEL), or Berth's webhook does.

With this variable, an ephemeral container sees what its target container sees, and nothing if it has no target. kubelet
gives an ephemeral container no device.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from berth_api import names, request, words

Object = Mapping[str, Any]
Put = tuple[str, int, Object]
"""(name of a list of containers, index in the list, container)."""

VARIABLE: Final = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES: Final = "void"
"""The value with which the runtime injects neither GPUs nor files of the driver."""
RESOURCES: Final = frozenset(
    prefix + name
    for prefix in (names.PREFIX, names.OTHER_PREFIX)
    for name in (names.GPU, names.GPU_SHARED, names.GPU_CORE, names.GPU_MEMORY, names.GPU_MEMORY_RATIO)
)
"""A container that requests one of these sees GPUs that kubelet does not know."""
EPHEMERAL: Final = "ephemeralContainers"
_KINDS: Final = ("initContainers", "containers")
NO_ANNOTATIONS: Final[Mapping[str, str]] = MappingProxyType({})
NOTHING: Final = (None, "0")
"""How the API server writes an amount of zero."""
_GPUS: Final = re.compile(r"nvidia\.com/(gpu(\.shared)?$|mig-)")
"""Resources of NVIDIA's device plugin, by the names that it gives them itself."""
_ANNOTATION: Final = re.compile(r"metadata\.annotations\['(.+)'\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A container and the variable that it must have."""

    kind: str
    number: int
    """Index in the list of its kind."""
    container: Object
    entry: Object | None
    """The entry of the variable in the list `env`; None if the container must not set it, since kubelet does."""

    @property
    def env(self) -> list[Object]:
        """Return the container's variables with this one first, because others may refer to it."""
        others = [variable for variable in self.container.get("env") or () if not is_variable(variable)]
        return others if self.entry is None else [self.entry, *others]

    @property
    def is_filled(self) -> bool:
        """Return whether the container has the variable. If there are several entries, the last one counts."""
        last = _last_entry(self.container)
        if last is None or self.entry is None:
            return last is None and self.entry is None
        return _source(last) == _source(self.entry)


def is_variable(entry: object) -> bool:
    """Return whether an entry of `env` is the variable."""
    return isinstance(entry, Mapping) and entry.get("name") == VARIABLE


def places(
    spec: Object,
    labels: Mapping[str, str],
    renamed: Collection[str] = (),
    annotations: Mapping[str, str] = NO_ANNOTATIONS,
) -> Iterator[Place]:
    """Yield all containers of a pod, each with the entry that it must have.

    `renamed` are resources to which NVIDIA's device plugin has given other names.
    """
    seeing = seeing_of(spec, labels, annotations)
    for kind in _KINDS:
        for number, container in enumerate(spec.get(kind) or ()):
            name = container.get("name", "")
            entry = None if name not in seeing and _is_given_gpus(container, renamed) else _entry(name, seeing)
            yield Place(kind=kind, number=number, container=container, entry=entry)


def fresh_places(pod: Object, before: Object) -> Iterator[Place]:
    """Yield the ephemeral containers that an update adds to a pod. Existing ones cannot be changed."""
    spec = pod["spec"]
    existing = {container["name"] for container in before.get(EPHEMERAL) or ()}
    seeing = seeing_of(spec, labels_of(pod), annotations_of(pod))
    for number, container in enumerate(spec.get(EPHEMERAL) or ()):
        if container["name"] not in existing:
            entry = _entry(container.get("targetContainerName", ""), seeing)
            yield Place(kind=EPHEMERAL, number=number, container=container, entry=entry)


def asking(spec: Object, labels: Mapping[str, str]) -> Iterator[Put]:
    """Yield the containers that request GPUs which kubelet does not know, in Berth's words."""
    labelled = any(label in labels for label in request.LABELS)
    for kind, number, container in all_containers(spec):
        if labelled or requests_any(container, RESOURCES.__contains__):
            yield kind, number, container


def seeing_of(spec: Object, labels: Mapping[str, str], annotations: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the containers that see GPUs which kubelet does not know."""
    by_words = words.asking(spec, annotations, labels)
    return frozenset(
        container.get("name", "")
        for container in (
            *(container for _, _, container in asking(spec, labels)),
            *(container for kind, number, container in all_containers(spec) if (kind, number) in by_words),
        )
    )


def lacking(spec: Object, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the containers that would not see exactly their own GPUs; none if no container requests any.

    A pod that requests no GPU may have been created before all pods were injected, and a pod whose GPUs kubelet knows
    may have been created where nothing injects. Such pods lack the variable only if another of their containers has it.

    Other names of NVIDIA's plugin are known only where pods are injected, so a container that requests any
    `nvidia.com/*` may lack it.
    """
    is_asking = next(asking(spec, labels), None) is not None
    if not is_asking and not any(_is_given_gpus(container, ()) for _, _, container in all_containers(spec)):
        return ()
    every = list(places(spec, labels))
    if not is_asking and not any(place.entry is not None and place.is_filled for place in every):
        return ()
    return tuple(
        place.container.get("name", "")
        for place in every
        if not place.is_filled and not (place.entry == _VOID and _is_left_to_a_plugin(place.container))
    )


def annotations_read(spec: Object) -> frozenset[str] | None:
    """Return the annotations from which the containers read which cards they see; empty if they see none.

    Only Berth's operator can write these annotations. The result is None if a container may see cards for another
    reason: it is privileged, or its variable is missing or has another source, so that its image decides.
    """
    keys = [_annotation_read(container) for kind in (*_KINDS, EPHEMERAL) for container in spec.get(kind) or ()]
    return None if None in keys else frozenset(key for key in keys if key)


def injected(pod: Object, renamed: Collection[str] = ()) -> dict[str, Any]:
    """Return a new pod with the variable injected; `renamed` as for `places`."""
    return _filled(pod, places(pod["spec"], labels_of(pod), renamed, annotations_of(pod)))


def joined(pod: Object, before: Object) -> dict[str, Any]:
    """Return an updated pod with the variable injected into its new ephemeral containers."""
    return _filled(pod, fresh_places(pod, before["spec"]))


def labels_of(pod: Object) -> Mapping[str, str]:
    """Return the labels of a pod."""
    return pod["metadata"].get("labels") or {}


def annotations_of(pod: Object) -> Mapping[str, str]:
    """Return the annotations of a pod."""
    return pod["metadata"].get("annotations") or {}


def all_containers(spec: Object) -> Iterator[Put]:
    """Yield the init containers and containers of a pod."""
    for kind in _KINDS:
        for number, container in enumerate(spec.get(kind) or ()):
            yield kind, number, container


def with_containers(spec: Object, changed: Iterable[Put]) -> dict[str, Any]:
    """Return a spec with these containers replaced."""
    copied = {**spec, **{kind: list(spec[kind]) for kind in (*_KINDS, EPHEMERAL) if spec.get(kind)}}
    for kind, number, container in changed:
        copied[kind][number] = container
    return copied


def requests_any(container: Object, is_wanted: Callable[[str], bool]) -> bool:
    """Return whether a container requests any amount but zero of a resource whose name is wanted."""
    requests = (container.get("resources") or {}).get("requests") or {}
    return any(amount not in NOTHING for name, amount in requests.items() if is_wanted(name))


def requests_of_plugin(container: Object) -> bool:
    """Return whether a container requests a resource of a device plugin of NVIDIA's, of GPUs or of others."""
    return requests_any(container, lambda name: name.startswith(names.NVIDIA_PREFIX))


def _is_given_gpus(container: Object, renamed: Collection[str]) -> bool:
    """Return whether NVIDIA's device plugin decides which GPUs a container sees."""
    return requests_any(container, lambda name: bool(_GPUS.match(name)) or name in renamed)


def _is_left_to_a_plugin(container: Object) -> bool:
    return requests_of_plugin(container) and _last_entry(container) is None


def _filled(pod: Object, all_places: Iterator[Place]) -> dict[str, Any]:
    changed = (
        (place.kind, place.number, {**place.container, "env": place.env})
        for place in all_places
        if place.entry is not None or _last_entry(place.container) is not None
    )
    return {**pod, "spec": with_containers(pod["spec"], changed)}


def _entry(container: str, seeing: Collection[str]) -> Object:
    """Return the variable with which a container sees the cards of the named container, which may be itself."""
    if container not in seeing:
        return _VOID
    path = f"metadata.annotations['{container}{names.VISIBLE_SUFFIX}']"
    return {"name": VARIABLE, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


_VOID: Final = {"name": VARIABLE, "value": NO_DEVICES}


def _last_entry(container: Object) -> Object | None:
    """Return the entry of the variable in a container's `env` that counts, the last one; None if it has none."""
    return next((entry for entry in reversed(container.get("env") or ()) if is_variable(entry)), None)


def _annotation_read(container: Object) -> str | None:
    """Return the annotation with the cards that a container sees, empty if it sees none; None if it may see others."""
    entry = _last_entry(container)
    if entry is None or (container.get("securityContext") or {}).get("privileged"):
        return None
    value, path = _source(entry)
    if value == NO_DEVICES:
        return ""
    found = _ANNOTATION.fullmatch(path)
    return found[1] if found and found[1].endswith(names.VISIBLE_SUFFIX) else None


def _source(entry: Object) -> tuple[str, str]:
    reference = (entry.get("valueFrom") or {}).get("fieldRef") or {}
    return entry.get("value") or "", reference.get("fieldPath") or ""
