"""Fleet rows from Devices, Nodes and Leases, in the form of the visibility API."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from berth_api import links, names
from berth_api.allocation import REPLICAS, mig, short
from berth_api.objects import faults
from berth_api.objects.visibility import Amounts, Card, CardInstance, FleetNode
from berth_api.resources import quantity
from berth_kubectl.reading.objects import Object, condition, name_of, natural

CORDON: Final = "node.kubernetes.io/unschedulable"
ZONE: Final = "topology.kubernetes.io/zone"


def rows(devices: Iterable[Object], nodes: Mapping[str, Object] | None) -> list[FleetNode]:
    """Return a row for each Device, ordered by name: node-2 before node-10.

    Without `nodes` (by name; None if they may not be read) all nodes count as schedulable.
    """
    listed: list[FleetNode] = []
    for device in sorted(devices, key=lambda device: natural(name_of(device))):
        name, status = name_of(device), device.get("status") or {}
        node = {} if nodes is None else nodes.get(name, {})
        labels = (node.get("metadata") or {}).get("labels") or {}
        ready = condition(device, names.READY)
        accounted = condition(device, names.ACCOUNTED)
        blocked = (
            "" if ready.get("status") == "True" else str(ready.get("message") or "no leader has read its Device yet")
        )
        unaccounted = str(accounted.get("message") or "") if accounted.get("status") == "False" else ""
        cards = [*_cards(device, blocked, unaccounted)]
        listed.append(
            {
                "metadata": {"name": name},
                "ready": ready.get("status") == "True" and condition(node, names.READY).get("status", "True") == "True",
                "schedulable": not (node.get("spec") or {}).get("unschedulable", False),
                "reporting": bool(status) and ready.get("reason") != "AgentNotHeard",
                "blocked": blocked or unaccounted,
                "models": dict(Counter(card["model"] for card in cards if card["model"])),
                "zone": labels.get(ZONE, ""),
                "rack": "",
                "isolation": labels.get(names.ISOLATION_KEY, ""),
                "devices": cards,
            }
        )
        if taints := _taints(node):
            listed[-1]["taints"] = taints
    return listed


def _taints(node: Object) -> list[str]:
    """Return the taints that keep pods without a toleration away, except a cordon's and Berth's for preemption."""
    return sorted(
        f"{taint['key']}{'=' * bool(taint.get('value'))}{taint.get('value') or ''}:{taint['effect']}"
        for taint in (node.get("spec") or {}).get("taints") or ()
        if taint["effect"] != "PreferNoSchedule" and taint["key"] not in (CORDON, names.PREEMPTING)
    )


def _cards(device: Object, blocked: str, unaccounted: str) -> Iterator[Card]:
    """Yield the cards; `blocked` is why none is allocated, `unaccounted` why those are not that the status marks."""
    # The driver is that of the GPUs.
    is_of_driver = condition(device, names.DRIVER_LOADED).get("status") == "False"
    listed = (device.get("spec") or {}).get("devices") or ()
    status = device.get("status") or {}
    uses = {(use["type"], use["minor"]): use for use in status.get("devices") or ()}
    unheld = Counter(use["id"] for use in status.get("unheld") or ())
    ids = {card["minor"]: card["id"] for card in listed if card["type"] == names.GPU}
    for card in listed:
        use = uses.pop((card["type"], card["minor"]), {})
        of_card = "" if is_of_driver and card["type"] != names.GPU else blocked
        row = _card(card, use, ids, of_card or (unaccounted if use.get("blocked") else ""))
        yield {**row, "unheld": count} if (count := unheld[card["id"]]) else row
    for use in uses.values():  # pods hold these, and the agent no longer lists them
        gone = {"id": use.get("id") or "", "health": False, "type": use["type"], "minor": use["minor"]}
        yield {**_card(gone, use, ids), "message": "no longer there, and pods hold it"}


def _card(card: Object, use: Object, ids: Mapping[int, str], blocked: str = "") -> Card:
    topology, free = card.get("topology") or {}, amounts(use.get("free"))
    barred: str = use.get("barred") or ""
    left, listed = Counter(free), []
    for instance in (card.get("mig") or {}).get("instances") or ():
        resource = mig.resource(instance["profile"])
        listed.append(CardInstance(profile=instance["profile"], minor=card["minor"], free=left[resource] > 0))
        left[resource] -= 1
    row: Card = {
        "type": card["type"],
        "minor": card["minor"],
        "id": card["id"],
        "model": card.get("model") or "",
        "healthy": bool(card.get("health")) and not barred,
        "message": faults.text(faults_of(card)) or barred,
        "blocked": blocked,
        "total": total(card),
        "free": free,
        "held": int(use.get("held") or 0),
        "users": len(use.get("holders") or ()),
        "numaNode": topology.get("nodeID", -1),
        "pcie": topology.get("pcieID", ""),
        "mig": listed,
        "links": {
            ids[link["minor"]]: links.text(link["type"], link.get("count") or 0)
            for link in card.get("links") or ()
            if link["minor"] in ids
        },
    }
    return {**row, "barred": barred} if barred else row


def amounts(resources: Mapping[str, Any] | None) -> Amounts:
    """Return amounts by short names; an amount that cannot be read counts as 0."""
    read: Amounts = {}
    for name, value in (resources or {}).items():
        try:
            read[short(name)] = quantity.parse(value)
        except quantity.QuantityError:
            read[short(name)] = 0
    return read


def faults_of(card: Object) -> tuple[faults.Fault, ...]:
    """Return the faults of a device that a Device lists."""
    if card.get("health"):
        return ()
    return faults.of_conditions([_Condition(condition) for condition in card.get("conditions") or ()])


class _Condition:
    """A condition of JSON."""

    def __init__(self, raw: Object) -> None:
        self.type, self.status, self.reason, self.message, self.last_transition_time = (
            str(raw.get(name) or "") for name in ("type", "status", "reason", "message", "lastTransitionTime")
        )


def total(card: Object) -> Amounts:
    """Return what can be allocated of the card; in MIG mode only its instances."""
    instances = (card.get("mig") or {}).get("instances") or ()
    if instances:
        return dict(Counter(mig.resource(instance["profile"]) for instance in instances))
    resources = amounts(card.get("resources"))
    return {**resources, REPLICAS: card["replicas"]} if card.get("replicas", 1) > 1 else resources
