"""Rows of the visibility API and objects of the API server, as `kubectl berth` reads them."""

from typing import Any

from berth_api.objects.visibility import Card, FleetNode, HeldPart, HoldingPod

Raw = dict[str, Any]
A100 = "NVIDIA A100-SXM4-80GB"
GI = 2**30
WHOLE = {"gpu-core": 100, "gpu-memory": 80 * GI, "gpu-memory-ratio": 100}
PREFIX = "kubernetes.io/"


def card(minor: int = 0, *, used: int = 0, **fields: Any) -> Card:
    """Return an A100 of which so many hundredths are used."""
    free = {name: amount * (100 - used) // 100 for name, amount in WHOLE.items()}
    row: Any = {
        "type": "gpu",
        "minor": minor,
        "id": f"GPU-{minor}",
        "model": A100,
        "healthy": True,
        "message": "",
        "blocked": "",
        "total": dict(WHOLE),
        "free": free,
        "held": used,
        "users": int(used > 0),
        "numaNode": 0,
        "pcie": "pci0000:00",
        "mig": [],
        "links": {},
        **fields,
    }
    checked: Card = row
    return checked


def mig_card(minor: int, *, free: int, count: int = 2) -> Card:
    """Return an A100 in MIG mode with instances of a profile, of which some are free."""
    resource = "nvidia.com/mig-1g.10gb"
    instances = [{"profile": "1g.10gb", "minor": minor, "free": index < free} for index in range(count)]
    return card(minor, total={resource: count}, free={resource: free}, mig=instances, users=int(free < count))


def fleet_node(name: str, *cards: Card, **fields: Any) -> FleetNode:
    """Return a node that is ready and has these cards."""
    row: Any = {
        "metadata": {"name": name},
        "ready": True,
        "schedulable": True,
        "reporting": True,
        "blocked": "",
        "models": {},
        "zone": "",
        "rack": "",
        "isolation": "",
        "devices": list(cards),
        **fields,
    }
    checked: FleetNode = row
    return checked


def part(minor: int = 0, ratio: int = 100, **fields: Any) -> HeldPart:
    """Return a share of an A100."""
    amounts = {name: amount * ratio // 100 for name, amount in WHOLE.items()}
    row: Any = {"type": "gpu", "minor": minor, "id": f"GPU-{minor}", "model": A100, "amounts": amounts, **fields}
    checked: HeldPart = row
    return checked


def holder(name: str, *parts: HeldPart, namespace: str = "team", **fields: Any) -> HoldingPod:
    """Return a pod of a Job that holds these devices."""
    row: Any = {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"},
        "node": "node-0",
        "owner": {"kind": "Job", "name": "train"},
        "scheduler": "berth-scheduler",
        "since": "2026-01-01T00:00:00Z",
        "endsBy": "",
        "devices": list(parts),
        "drifted": False,
        "promised": False,
        "isolation": "",
        "exceeding": [],
        **fields,
    }
    checked: HoldingPod = row
    return checked


def raw_card(minor: int = 0, **fields: Any) -> Raw:
    """Return a card of a Device's spec."""
    resources = {f"{PREFIX}gpu-core": 100, f"{PREFIX}gpu-memory": "80Gi", f"{PREFIX}gpu-memory-ratio": 100}
    return {
        "type": "gpu",
        "minor": minor,
        "id": f"GPU-{minor}",
        "health": True,
        "model": A100,
        "resources": resources,
        **fields,
    }


def condition(kind: str, status: str = "True", **fields: Any) -> Raw:
    """Return a condition."""
    return {"type": kind, "status": status, "reason": "Because", "message": "", **fields}


def raw_device(name: str, *cards: Raw, uses: list[Raw] | None = None, conditions: list[Raw] | None = None) -> Raw:
    """Return a Device that is ready."""
    usual = [condition("Ready"), condition("Valid"), condition("Accounted")]
    return {
        "metadata": {"name": name},
        "spec": {"devices": list(cards)},
        "status": {"devices": uses or [], "conditions": usual if conditions is None else conditions},
    }


def raw_node(name: str, *, capacity: Raw | None = None, allocatable: Raw | None = None, **fields: Any) -> Raw:
    """Return a Node that is ready, with the sums that Berth writes for one GPU."""
    sums = {f"{PREFIX}gpu": "100"} if capacity is None else capacity
    return {
        "metadata": {"name": name, "labels": fields.pop("labels", {})},
        "spec": fields,
        "status": {
            "capacity": sums,
            "allocatable": sums if allocatable is None else allocatable,
            "conditions": [condition("Ready")],
        },
    }


def raw_pod(name: str, *, namespace: str = "team", **fields: Any) -> Raw:
    """Return a pod of Berth's."""
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **fields.pop("metadata", {}),
        },
        "spec": {"schedulerName": "berth-scheduler", "containers": [{"name": "main"}], **fields.pop("spec", {})},
        "status": {"phase": "Pending", **fields.pop("status", {})},
    }
