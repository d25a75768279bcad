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
        (sys.intern(str(name)), int(image.get("sizeBytes") or 0))
        for image in reported
        for name in image.get("names") or ()
    )


def of_pod(spec: Object) -> PodImages:
    """Read the images of a pod's containers and image volumes, as nodes name them."""
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    volumes = [volume["image"] for volume in spec.get("volumes") or () if volume.get("image") is not None]
    names = (*(container.get("image") for container in containers), *(volume.get("reference") for volume in volumes))
    # A name without a tag gets the default one; a colon before the last slash is a port.
    tagged = (name if name.rfind(":") > name.rfind("/") else f"{name}:latest" for name in names if name)
    return PodImages(names=tuple(sorted(tagged)), containers=len(containers), volumes=len(volumes))
