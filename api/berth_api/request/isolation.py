"""How a pod requests that its containers are limited to their shares of cards, and the result of admission."""

from collections.abc import Collection, Mapping
from typing import Final

from berth_api import metadata, names

MPS: Final = "mps"
HAMI_CORE: Final = "hami-core"
REQUIRED: Final = "required"
"""The first mode of the configured order."""
NONE: Final = "none"
"""Shares without limits, whatever the namespace's default is."""
ALLOWED: Final = metadata.of(metadata.POD, metadata.ANNOTATION)[names.ISOLATION_KEY].values
RESOURCES: Final = {MPS: names.MPS_RESOURCE, HAMI_CORE: names.HAMI_CORE_RESOURCE}
"""Mode -> the resource that admission adds to containers."""
_OF_OTHERS: Final = ("nvidia.com/vgpu-mode", "volcano.sh/vgpu-mode")
"""Annotations of other systems that are read as such a request."""
_OF_KOORDINATOR: Final = "HAMi-core"


def wanted(annotations: Mapping[str, str], labels: Mapping[str, str]) -> str:
    """Return the mode that a pod itself requests, one of ALLOWED if it is valid; empty if its namespace decides."""
    by_label = HAMI_CORE if labels.get(names.ISOLATION) == _OF_KOORDINATOR else ""
    return annotations.get(names.ISOLATION_KEY, by_label)


def wanted_by(annotations: Mapping[str, str], labels: Mapping[str, str]) -> str:
    """Return which part of a pod's metadata requests limits, as messages name it; empty if none does."""
    known = (("annotation", names.ISOLATION_KEY, annotations), ("label", names.ISOLATION, labels))
    modes = (("annotation", name, annotations) for name in _OF_OTHERS)
    return next((f"the {kind} {name}" for kind, name, written in (*known, *modes) if name in written), "")


def given(requested: Collection[str]) -> str:
    """Return the mode of a pod, or of a container, that requests these resources; empty if it has none."""
    return next((mode for mode, resource in RESOURCES.items() if resource in requested), "")
