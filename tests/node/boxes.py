"""Pods that a real node can run. Their image is built on the node, and their arguments determine what they do."""

from collections.abc import Mapping, Sequence
from typing import Any

from devcluster import Arena
from devcluster.control_plane.api import Manifest
from devcluster.control_plane.nodes import Strings
from devcluster.real_node import image

START_SECONDS = 30.0


def box(
    arena: Arena,
    name: str = "pod",
    *,
    words: Sequence[str] = ("wait",),
    limits: Strings | None = None,
    annotations: Strings | None = None,
    environment: Strings | None = None,
    scheduler_name: str | None = None,
    **spec: object,
) -> Manifest:
    """Return the manifest of a pod with one container, `main`.

    `words` are those of the program `box`; a value of `environment` that begins with `metadata.` is the field of that
    path, anything else a text. `spec` overrides fields of the pod's spec.
    """
    pod = arena.pod(name, limits=limits, annotations=annotations, scheduler_name=scheduler_name)
    # The cluster has no DNS, and each pod without it would say so.
    pod["spec"] |= {"terminationGracePeriodSeconds": 1, "dnsPolicy": "Default", **spec}
    [container] = pod["spec"]["containers"]
    container |= {"image": image.NAME, "imagePullPolicy": "Never", "args": list(words)}
    container["env"] = [_variable(*item) for item in (environment or {}).items()]
    return pod


def running(arena: Arena, name: str = "pod", *, deadline: float = START_SECONDS) -> Manifest:
    """Wait until a pod is ready, and return it."""

    def found() -> Manifest | None:
        pod = arena.get("pods", name)
        return pod if _is_ready(pod["status"]) else None

    ready = arena.wait(found, deadline=deadline, what=f"the pod {name} to be ready")
    assert ready is not None
    return ready


def _variable(name: str, value: str) -> dict[str, Any]:
    if value.startswith("metadata."):
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": value}}}
    return {"name": name, "value": value}


def _is_ready(status: Mapping[str, Any]) -> bool:
    conditions = status.get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
