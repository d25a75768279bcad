"""Which containers request a share of a card, and what admission adds to limit them to it.

A container with whole cards needs no limit, and MIG instances have their own. Admission adds a resource of the agent's
device plugin, so that kubelet gives the container what limits it. It also adds the variables that the limiter reads.
`manifests/components/isolation` has the same rules in CEL.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from berth_api import names, request, words
from berth_api.admission.injection import (
    NOTHING,
    Object,
    Put,
    all_containers,
    annotations_of,
    asking,
    labels_of,
    with_containers,
)
from berth_api.request import CARD, isolation
from berth_api.request.isolation import HAMI_CORE, MPS, REQUIRED
from berth_api.resources import quantity
from berth_api.words import TABLE, Role, WordPlace

ORDER: Final = (MPS, HAMI_CORE)
"""The default order of preference of the modes: `required` means the first."""
MAX_CARDS: Final = 16
"""Maximum number of cards for which limits are set. A node has no more."""
_PREFIXES: Final = (names.PREFIX, names.OTHER_PREFIX)
_OF_MEMORY: Final = (names.GENIUS_MEMORY_EACH, names.GENIUS_MEMORY_TOTAL)
_BY_CARDS: Final = tuple(row for row in TABLE.rows() if row.word.role == Role.CARDS)
"""Words of other systems that state the number of cards."""
_NUMBER: Final = re.compile("[0-9]{1,9}")
_MODES: Final = ("nvidia.com/vgpu-mode", "volcano.sh/vgpu-mode")
"""Annotations of HAMi and Volcano that ask for HAMI_CORE by its name."""


def of_pod(spec: Object, labels: Mapping[str, str]) -> Iterator[Put]:
    """Yield the containers that request shares of cards, in Berth's words."""
    labelled = any(label in labels for label in request.LABELS)
    has_memory = any(label in labels for label in _OF_MEMORY)
    for kind, number, container in asking(spec, labels):
        if has_memory if labelled else not _is_whole((container.get("resources") or {}).get("requests") or {}):
            yield kind, number, container


def isolated(pod: Object, default: str = "", order: Sequence[str] = ORDER) -> Object:
    """Return a pod whose containers with shares are limited, if the pod or the default requests limits.

    Args:
        pod: the pod, as it was sent.
        default: the mode of its namespace, or else of the cluster; empty for none.
        order: the modes, in order of preference: `required` means the first.

    Raises:
        ValueError: an amount is not a number.
    """
    annotations, labels = annotations_of(pod), labels_of(pod)
    by_word = HAMI_CORE if any(annotations.get(name) == HAMI_CORE for name in _MODES) else ""
    asked = isolation.wanted(annotations, labels) or by_word or default
    mode = order[0] if asked == REQUIRED else asked
    if mode not in isolation.RESOURCES:
        return pod
    spec = pod["spec"]
    # Containers that request by other systems' resource names always have shares.
    sharing = words.asking(spec, annotations, labels)
    sharing |= {(kind, number) for kind, number, _ in of_pod(spec, labels)}
    containers = [put for put in all_containers(spec) if put[:2] in sharing]
    cards = min(
        max((_cards(pod, (kind, number), container) for kind, number, container in containers), default=0), MAX_CARDS
    )
    changed = ((kind, number, _limited(container, mode, cards)) for kind, number, container in containers)
    return {**pod, "spec": with_containers(spec, changed)}


def _is_whole(requests: Object) -> bool:
    return any(_is_whole_by(prefix, requests) for prefix in _PREFIXES)


def _is_whole_by(prefix: str, requests: Object) -> bool:
    """Return whether a container requests whole cards: all of their memory."""
    amount, ratio, cards = (
        requests.get(prefix + name) for name in (names.GPU, names.GPU_MEMORY_RATIO, names.GPU_SHARED)
    )
    if amount not in NOTHING:
        return _milli(amount) % _milli(CARD) == 0
    if ratio in NOTHING:
        return False
    return _milli(ratio) % _milli(CARD) == 0 if cards in NOTHING else _milli(ratio) == CARD * _milli(cards)


def _milli(amount: object) -> int:
    return quantity.parse_milli(str(amount))


def _cards(pod: Object, where: tuple[str, int], container: Object) -> int:
    """Return the number of cards that a container may see: one unless its shares are spread over several."""
    labels = labels_of(pod)
    if names.GENIUS_NUMBER in labels:
        return int(labels[names.GENIUS_NUMBER])
    requests = (container.get("resources") or {}).get("requests") or {}
    amounts = [requests.get(prefix + names.GPU_SHARED) for prefix in _PREFIXES]
    if where in words.asking(pod["spec"], annotations_of(pod), labels):
        written = {WordPlace.RESOURCE: requests, WordPlace.ANNOTATION: annotations_of(pod), WordPlace.LABEL: labels}
        amounts += [written[row.word.place].get(row.word.name) for row in _BY_CARDS]
    return max((1, *(int(amount) for amount in map(str, amounts) if _NUMBER.fullmatch(amount))))


def _limited(container: Object, mode: str, cards: int) -> Object:
    amounts = container.get("resources") or {}
    one = {isolation.RESOURCES[mode]: "1"}
    own: list[Object] = []
    for name, suffix in _variables(mode, cards):
        path = f"metadata.annotations['{container['name']}{suffix}']"
        own.append({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}})
    return {
        **container,
        "resources": {**amounts, **{kind: {**(amounts.get(kind) or {}), **one} for kind in ("requests", "limits")}},
        # A variable of the same name is left for the validation, which refuses it.
        "env": [*(variable for variable in container.get("env") or () if variable not in own), *own],
    }


def _variables(mode: str, cards: int) -> Iterator[tuple[str, str]]:
    """Yield each variable, and the suffix of the annotation that it reads."""
    if mode == MPS:
        yield "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", names.MPS_MEMORY_SUFFIX
        yield "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", names.MPS_THREADS_SUFFIX
        return
    for card in range(cards):
        yield f"CUDA_DEVICE_MEMORY_LIMIT_{card}", f"{names.LIMIT_PREFIX.format('memory')}{card}"
    yield "CUDA_DEVICE_SM_LIMIT", f"{names.LIMIT_PREFIX.format('sm')}0"
