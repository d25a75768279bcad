"""What a placement writes on its pod, all of it in the Binding: see docs/protocol.md."""

from typing import Any, Final

from berth_api import allocation, names
from berth_operator.core.cycle import Placement

MAX_OWN: Final = 200 * 1024
MAX_ALL: Final = 250 * 1024
"""Bytes of annotations, ours alone and with the pod's own. The API server does not check a Binding's annotations, and a
pod with more than 256 KiB can never change again."""


class RecordError(ValueError):
    """A placement cannot be written."""


def annotations(placement: Placement) -> dict[str, str]:
    """Give the annotations that tell the pod's cards, and each container's.

    Raises:
        RecordError: they are too large for a pod.
    """
    if not placement.grants:
        return {}
    wanted = placement.pod.request
    ids = [grant.id for grant in placement.grants if grant.type == names.GPU]
    found = {names.ALLOCATED: allocation.render(placement.grants, wanted.devices.prefix)}
    for share in wanted.shares:
        found[share.container + names.VISIBLE_SUFFIX] = ",".join(ids[share.first : share.end])
    allowed = min(MAX_OWN, MAX_ALL - placement.pod.annotated)
    size = sum(len(key) + len(value) for key, value in found.items())
    if size > allowed:
        raise RecordError(f"the allocation takes {size} bytes of annotations; this pod can hold {allowed} more")
    return found


def binding(placement: Placement, epoch: int, lease: str) -> dict[str, Any]:
    """Give the Binding: node, cards and the leader's term in one object, for exactly this pod's UID."""
    pod = placement.pod
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
            "labels": {names.FENCED_BY: lease},
            "annotations": {names.EPOCH: str(epoch), **annotations(placement)},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": placement.node},
    }
