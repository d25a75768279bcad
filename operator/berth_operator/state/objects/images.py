"""Container images of nodes and pods, parsed from the API."""

import sys
from collections.abc import Mapping
from typing import Any

from berth_operator.core.values.request import PodImages

Object = Mapping[str, Any]


def of_node(status: Object) -> tuple[tuple[str, int], ...]:
    """Read (name, bytes) of a node's images; names are interned, since most nodes have the same."""
    reported = status.get("images") or ()
    return tuple(
        (sys.intern(str(name)), int(each.get("sizeBytes") or 0))
        for each in reported
        for name in each.get("names") or ()
    )


def of_pod(spec: Object) -> PodImages:
    """Read the images of a pod's containers and image volumes, as nodes name them."""
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    volumes = [each["image"] for each in spec.get("volumes") or () if each.get("image") is not None]
    names = (*(each.get("image") or "" for each in containers), *(each.get("reference") or "" for each in volumes))
    return PodImages(
        names=tuple(sorted(_normal(each) for each in names if each)), containers=len(containers), volumes=len(volumes)
    )


def _normal(name: str) -> str:
    """Add the default tag to a name without one; a colon before the last slash is a port."""
    return name if name.rfind(":") > name.rfind("/") else f"{name}:latest"
