"""Which of a pod's extended resources are given without cards of Berth, node by node.

DeviceClasses provide some, as in kube-scheduler's DynamicResources. If the resource is in a node's allocatable, a
device plugin provides it there, whatever DeviceClasses exist. On any other node the class provides it, from devices in
Berth's pools. Berth counts some devices on cards, for example for `nvidia.com/gpu`. A class provides their resources
only on nodes where no agent lists cards of their type, or whose label `berth.dev/cards` gives cards to claims.

Device plugins of other vendors than NVIDIA provide others. On a node without an agent, Berth counts these resources
like every extended resource, and kubelet chooses the devices.
"""

from dataclasses import replace

import numpy as np

from berth_api.request import vendor_of
from berth_operator.core.claims.allocation.results import Allocation
from berth_operator.core.claims.objects import extended
from berth_operator.core.claims.objects.extended import RequestMapping
from berth_operator.core.claims.objects.requests import Alternatives, ResourceClaim
from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.inventory import DEFAULT_VENDOR
from berth_operator.core.values.request import PendingPod, PodRequest


def rows_by_class(fleet: Fleet, request: PodRequest) -> dict[str, Mask]:
    """Return the rows where DeviceClasses provide extended resources of a pod, by resource."""
    if not (request.extended and fleet.device_classes and fleet.claims.own):
        return {}
    names = sorted({wanted.resource for wanted in request.extended} & fleet.device_classes.keys())
    rows = {name: fleet.total(name) == 0 for name in names}
    of_devices = {name for name, _ in request.plugin_requests}
    if of_devices & rows.keys():
        together = _without_cards(fleet, request) if of_devices <= rows.keys() else np.zeros_like(fleet.present)
        for name in of_devices & rows.keys():
            together = together & rows[name]
        rows |= dict.fromkeys(of_devices & rows.keys(), together)
    return rows


def rows_of_class(fleet: Fleet, name: str) -> Mask:
    """Return the rows for which slices list a device of the DeviceClass that provides an extended resource."""
    device_class = fleet.claims.classes.get(fleet.device_classes[name])
    nodes = fleet.claims.supply.nodes_matching(() if device_class is None else device_class.selectors)
    if nodes is None:
        return fleet.present
    mask = np.zeros_like(fleet.present)
    mask[[fleet.rows[node] for node in nodes if node in fleet.rows]] = True
    return mask


def _without_cards(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows without cards by name: their label says so, or no Device lists cards of the pod's types."""
    mask = np.ones(len(fleet.names), np.bool_)
    for part in request.devices.parts:
        mask &= ~fleet.cards[part.type].present.any(axis=1)
    return mask | fleet.cards_by_claim


def reporting(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows that may give a pod devices now: their agent is alive, or the pod needs no cards of Berth."""
    if not request.devices:
        return fleet.present
    mask, without_grants = fleet.has_device & fleet.fresh, rows_without_grants(fleet, request)
    return mask if without_grants is None else mask | without_grants


def rows_without_grants(fleet: Fleet, request: PodRequest) -> Mask | None:
    """Return the rows where a pod gets all its devices without cards of Berth; None if there are none."""
    if not request.plugin_requests:
        return None
    by_class = rows_by_class(fleet, request).get(request.plugin_requests[0][0])
    masks = [mask for mask in (by_class, rows_by_count(fleet, request)) if mask is not None]
    return np.logical_or.reduce(masks) if masks else None


def rows_by_count(fleet: Fleet, request: PodRequest) -> Mask | None:
    """Return the rows where device plugins alone provide what a pod requests of devices; None if there are none.

    These are rows without an agent, for pods that request only resources of other vendors than NVIDIA and say nothing
    about their cards. Whether the resources suffice, the filter `resources` compares, as in kube-scheduler.
    """
    vendors = {vendor_of(name, fleet.kinds) for name, _ in request.plugin_requests}
    if not vendors or not vendors.isdisjoint(("", DEFAULT_VENDOR)):
        return None
    # If annotations say more of the cards, only the Device of an agent shows which cards these are.
    if not {name for name, _ in request.plugin_requests} <= {wanted.resource for wanted in request.extended}:
        return None
    return ~(fleet.has_device | fleet.has_agent)


def requests_by_class(fleet: Fleet, request: PodRequest) -> list[tuple[Alternatives, Mask]]:
    """Return what the claim for a pod's extended resources requests, each with the rows where it does."""
    by_class = rows_by_class(fleet, request)
    return [
        (alternatives, rows)
        for name, rows in by_class.items()
        for alternatives in extended.requests(request.extended, {name: fleet.device_classes[name]})[0]
    ]


def claim_on(fleet: Fleet, row: int, pod: PendingPod) -> tuple[ClaimState | None, tuple[RequestMapping, ...]]:
    """Return the claim for a pod's extended resources on a row, and its mappings; None if it needs none there."""
    by_class = rows_by_class(fleet, pod.request)
    classes = {name: fleet.device_classes[name] for name, rows in by_class.items() if rows[row]}
    if not classes:
        return None, ()
    requests, mappings = extended.requests(pod.request.extended, classes)
    claim = ResourceClaim(namespace=pod.namespace, name=extended.IN_MEMORY, requests=requests)
    return ClaimState(key=str(claim), uid=pod.uid, claim=claim), mappings


def of_pod(allocation: Allocation, pod: PendingPod) -> Allocation:
    """Return an allocation of this claim with a name that no claim of another pod has."""
    return replace(allocation, claim=replace(allocation.claim, name=f"{extended.IN_MEMORY}/{pod.uid}"))
