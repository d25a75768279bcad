"""Which pods are routed to Berth: pods that request its devices and name no scheduler.

No other scheduler allocates `kubernetes.io/gpu` and similar names. A pod that got a node without an allocation could
use any card there. The API server sets `default-scheduler` before admission, so a pod with that name has not chosen a
scheduler. The API server routes the pod (`manifests/base/routing.yaml` has the same rules in CEL), or Berth's webhook
does.

A namespace's label decides about other names. With `words`, pods with words of other systems are routed, and with
`devices` also pods that request devices by any name that Berth serves. Without the label, a request for `nvidia.com/*`
alone does not route a pod, because the device plugin serves pods of all schedulers.

The label routes no pod that holds ResourceClaims. Admission sees neither the driver nor the pool of a claim, and Berth
allocates only from its own pools (docs/decisions/0046-claims-are-not-routed.md).
"""

import re
from collections.abc import Collection
from datetime import datetime
from typing import Any, Final, Literal

from berth_api import names, request, words
from berth_api.admission.injection import Object, annotations_of, labels_of, requests_any, requests_of_plugin
from berth_api.values import listing, spelling
from berth_api.words import cards

DEFAULT: Final = "default-scheduler"
"""What the API server writes into a pod that names no scheduler."""
OF_SYSTEMS: Final = frozenset(name for system in words.TABLE.systems for name in system.schedulers)
"""The scheduler names of other systems' manifests."""
Route = Literal["own", "words", "devices", "disabled"]
"""A value of the label: pods with Berth's own names, with words of other systems too, with any name that Berth serves
too, or none."""
HOLDS_CLAIMS: Final = f"The label {names.ROUTING} routes no pod with spec.resourceClaims"
RESOURCES: Final = re.compile(r"(kubernetes\.io|koordinator\.sh)/(gpu([.-].*)?|rdma|fpga)")
"""Names of resources that only Berth allocates."""
UNTRIED: Final = 60.0
"""Seconds after which no scheduler of a pod's name seems to run, if none has tried the pod."""
_OF_NVIDIA: Final = re.compile(r"nvidia\.com/(gpu(\.shared)?|mig-.+)")
"""Names of resources that NVIDIA's device plugin offers, and that Berth serves as well."""


def is_routed(pod: Object) -> bool:
    """Return whether a new pod must be routed to Berth. A pod that names its node passes no scheduler at all."""
    spec = pod["spec"]
    if spec.get("schedulerName") != DEFAULT or spec.get("nodeName"):
        return False
    containers = _containers(spec)
    if any(requests_any(container, lambda name: RESOURCES.fullmatch(name) is not None) for container in containers):
        return True
    labels = labels_of(pod)
    return any(label in labels for label in request.LABELS) and not any(map(requests_of_plugin, containers))


def routed(pod: Object, scheduler: str) -> Object:
    """Return a new pod with this scheduler if it is to be routed."""
    return {**pod, "spec": {**pod["spec"], "schedulerName": scheduler}} if is_routed(pod) else pod


def routed_by_words(pod: Object, scheduler: str) -> Object:
    """Return a new pod with this scheduler if it has a word of another system; its namespace has opted in."""
    spec = pod["spec"]
    if not _may_be_labelled(spec) or not words.is_used(spec, annotations_of(pod), labels_of(pod)):
        return pod
    return {**pod, "spec": {**spec, "schedulerName": scheduler}}


def routed_by_devices(pod: Object, scheduler: str, served: Collection[str] = ()) -> Object:
    """Return a new pod with this scheduler if it requests devices of NVIDIA; its namespace has opted in.

    `served` are further resources that Berth serves in this cluster.
    """
    spec = pod["spec"]

    def is_served(name: str) -> bool:
        return name in served or _OF_NVIDIA.fullmatch(name) is not None

    if not _may_be_labelled(spec) or not any(requests_any(container, is_served) for container in _containers(spec)):
        return pod
    return {**pod, "spec": {**spec, "schedulerName": scheduler}}


def routed_as(pod: Object, scheduler: str, route: str, served: Collection[str] = ()) -> Object:
    """Return a new pod, routed by everything that a namespace with this value of the label routes."""
    if route == "disabled":
        return pod
    if route == "devices":
        pod = routed_by_devices(pod, scheduler, served)
    return routed(routed_by_words(pod, scheduler) if route in ("words", "devices") else pod, scheduler)


def meant(name: str, schedulers: Collection[str]) -> str:
    """Return the scheduler name of ours that a name is almost equal to; empty if there is none."""
    beginnings = [scheduler for scheduler in schedulers if scheduler.startswith(f"{name.lower()}-")]
    return beginnings[0] if beginnings else spelling.closest(name, schedulers, spelling.SURE)


def not_ours(name: str, schedulers: Collection[str]) -> str:
    """Return the message about a pod with another scheduler."""
    nearest = meant(name, schedulers)
    question = f" (did you mean {nearest}?)" if nearest else ""
    return f'Berth does not schedule pods of schedulerName "{name}"{question}'


def why_not_ours(pod: Object, schedulers: Collection[str]) -> str:
    """Return the message about a pod with another scheduler. It names what in the pod is meant for Berth."""
    name, spec = str(pod["spec"].get("schedulerName") or ""), pod["spec"]
    message, written = not_ours(name, schedulers), f"spec.schedulerName: {', '.join(sorted(schedulers))}"
    has = listing.first_of(for_us(pod))
    if meant(name, schedulers):
        return message
    is_unset = name == DEFAULT and not spec.get("nodeName")
    if is_unset and spec.get("resourceClaims") and (has or _requests_of_nvidia(spec)):
        with_it = f": it has {has}" if has else ""
        return f"{message}{with_it}. {HOLDS_CLAIMS}; if all its claims are in pools of Berth's, write {written}"
    if not has:
        return message
    if name in OF_SYSTEMS:
        unchanged = "or give a profile of Berth this name to leave the pods unchanged"
        return f"{message}: it has {has}; write {written}, {unchanged}"
    label = f", or give its namespace the label {names.ROUTING}: words" if is_unset else ""
    return f"{message}: it has {has}; write {written}{label}"


def is_untried(pod: Object, now: datetime) -> bool:
    """Return whether no scheduler has tried a pod although it has existed for a while."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    if pod["spec"].get("nodeName") or any(condition["type"] == "PodScheduled" for condition in conditions):
        return False
    created = datetime.fromisoformat(str(pod["metadata"].get("creationTimestamp") or "") or now.isoformat())
    return (now - created).total_seconds() >= UNTRIED


def why_untried(pod: Object, now: datetime) -> str:
    """Return the message about a pod of another scheduler that seems not to run; empty if it may run."""
    name = str(pod["spec"].get("schedulerName") or DEFAULT)
    if pod["spec"].get("schedulingGates") or not is_untried(pod, now):
        return ""
    profile = "" if name == DEFAULT else ", or give a profile of Berth this name"
    return f"no scheduler has tried it for a minute, so no scheduler {name} seems to run: start it{profile}"


def for_us(pod: Object) -> list[str]:
    """Return what of a pod only Berth reads: its resources, and words of other systems, as messages name them."""
    held = dict.fromkeys(name for container in _containers(pod["spec"]) for name in cards.amounts(container))
    annotations, labels = annotations_of(pod), labels_of(pod)
    return [
        *(name for name in held if name in words.TABLE.telling or RESOURCES.fullmatch(name)),
        *(f"annotation {name}" for name in words.TABLE.annotations if name in annotations),
        *(f"label {name}" for name in (*words.TABLE.labels, *request.LABELS) if name in labels),
    ]


def _requests_of_nvidia(spec: Object) -> bool:
    return any(
        requests_any(container, lambda name: bool(_OF_NVIDIA.fullmatch(name))) for container in _containers(spec)
    )


def _may_be_labelled(spec: Object) -> bool:
    """Return whether the label of a namespace may route the pod: no scheduler, no node and no claim."""
    is_unset = spec.get("schedulerName") == DEFAULT and not spec.get("nodeName")
    return is_unset and not spec.get("resourceClaims")


def _containers(spec: Object) -> list[dict[str, Any]]:
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
