"""HAMi-core, the library that limits containers to their share of a card: manifests/components/hami-core in Python."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from berth_api import names, request
from berth_api.admission.injection import Object, Put, asking, labels_of, with_containers

PROVIDER: Final = names.ISOLATION
"""Label of pods that ask for a library, and of nodes that have it."""
HAMI_CORE: Final = "HAMi-core"
LIBRARY: Final = "/usr/local/vgpu/libvgpu.so"
LOCKS: Final = "/tmp/vgpulock"  # noqa: S108 - of the library
MAX_CARDS: Final = 16
"""Most cards for which limits are set; a node has no more."""
_OWN: Final = "berth-vgpu"
"""Prefix of the names of our volumes."""
_MEMORY: Final = "CUDA_DEVICE_MEMORY_LIMIT_{}"
_CORE: Final = "CUDA_DEVICE_SM_LIMIT"
_PRELOAD: Final = "LD_PRELOAD"
_MOUNTS: Final = (
    {"name": _OWN, "mountPath": LIBRARY, "readOnly": True},
    {"name": f"{_OWN}lock", "mountPath": LOCKS},
)
_VOLUMES: Final = (
    {"name": _OWN, "hostPath": {"path": LIBRARY, "type": "File"}},
    {"name": f"{_OWN}lock", "hostPath": {"path": LOCKS, "type": "DirectoryOrCreate"}},
)


def limited(pod: Object) -> Object:
    """Return a pod that asks for HAMi-core with the library and its limits in each container that requests GPUs.

    Raises:
        ValueError: the requested number of cards is not a number.
    """
    spec, labels = pod["spec"], labels_of(pod)
    containers = list(asking(spec, labels)) if labels.get(PROVIDER) == HAMI_CORE else []
    if not containers:
        return pod
    cards = min(max(_cards(container, labels) for _, _, container in containers), MAX_CARDS)
    fresh = with_containers(spec, _with_library(containers, cards))
    fresh["volumes"] = [*_of_others(spec.get("volumes")), *_VOLUMES]
    fresh["nodeSelector"] = {**(spec.get("nodeSelector") or {}), PROVIDER: HAMI_CORE}
    return {**pod, "spec": fresh}


def _cards(container: Object, labels: Object) -> int:
    """Return the number of cards that a container may see: one unless its shares are spread over several."""
    requests = (container.get("resources") or {}).get("requests")
    if requests:
        return max(int(requests.get(prefix + names.GPU_SHARED, 1)) for prefix in (names.PREFIX, names.OTHER_PREFIX))
    return int(labels.get(names.GENIUS_NUMBER, 1)) if any(each in labels for each in request.LABELS) else 1


def _with_library(containers: Iterable[Put], cards: int) -> Iterator[Put]:
    for kind, number, container in containers:
        mounts = [*_of_others(container.get("volumeMounts")), *_MOUNTS]
        yield kind, number, {**container, "env": _env(container, cards), "volumeMounts": mounts}


def _env(container: Object, cards: int) -> list[Object]:
    limits = {_MEMORY.format(card): ("memory", card) for card in range(cards)} | {_CORE: ("sm", 0)}
    kept = [each for each in container.get("env") or () if each["name"] not in {*limits, _PRELOAD}]
    variables = [_read(name, container["name"], *limit) for name, limit in limits.items()]
    return [*kept, *variables, {"name": _PRELOAD, "value": LIBRARY}]


def _read(name: str, container: str, what: str, card: int) -> Object:
    path = f"metadata.annotations['{container}{names.LIMIT_PREFIX.format(what)}{card}']"
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _of_others(listed: Iterable[Any] | None) -> list[Any]:
    return [each for each in listed or () if not each["name"].startswith(_OWN)]
