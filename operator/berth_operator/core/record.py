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
    prefix = placement.pod.request.devices.prefix
    found = {names.ALLOCATED: allocation.render(placement.grants, prefix)}
    found |= {container + names.VISIBLE_SUFFIX: ",".join(ids) for container, ids in _visible(placement).items()}
    allowed = min(MAX_OWN, MAX_ALL - placement.pod.annotated)
    size = sum(len(key) + len(value) for key, value in found.items())
    if size > allowed:
        raise RecordError(f"the allocation takes {size} bytes of annotations; this pod can hold {allowed} more")
    return found


def _visible(placement: Placement) -> dict[str, dict[str, None]]:
    """Give each container's ids, each once: of two replicas of a card it sees one card."""
    ids = [grant.visible for grant in placement.grants if grant.type == names.GPU]
    found: dict[str, dict[str, None]] = {}
    for share in placement.pod.request.shares:
        found.setdefault(share.container, {}).update(dict.fromkeys(ids[share.first : share.end]))
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
