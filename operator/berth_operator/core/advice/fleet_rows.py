"""The offered and free amounts of a node, card by card, as a row of the visibility API that names no pod."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from berth_api import links
from berth_api.allocation import held, mig, visible
from berth_api.names import GPU, GPU_MEMORY, ISOLATION_KEY
from berth_api.objects.visibility import Card, CardInstance, FleetNode, Metrics
from berth_api.resources import CPU, MEMORY, PODS
from berth_api.values.caching import sized_cache
from berth_operator.core.advice.card_amounts import offers
from berth_operator.core.advice.claimed_parts import ClaimedPart, claimed_parts
from berth_operator.core.advice.possible_instances import possible_instances
from berth_operator.core.decision.promise import is_promised
from berth_operator.core.filters import taints
from berth_operator.core.filters.devices import silence
from berth_operator.core.fleet.arrays.column_cache import only
from berth_operator.core.fleet.arrays.intern_table import Wiring
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.card_columns import UNMEASURED
from berth_operator.core.fleet.nodes.cards import Cards
from berth_operator.core.values.gpu_metrics import Quantity
from berth_operator.core.values.request import PodRequest

Faults = Mapping[tuple[str, str], str]
"""(type, id) of an unhealthy card -> its faults, as text."""

ZONE: Final = "topology.kubernetes.io/zone"
NONE: Final[Mapping[str, int]] = MappingProxyType({})
NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})
_OF_NODE: Final = (CPU, MEMORY, PODS)
_WITHOUT_TOLERATIONS: Final = PodRequest()


def nodes(fleet: Fleet) -> list[str]:
    """Return the names of the nodes that have a Device."""
    return [name for name, row in fleet.rows.items() if fleet.has_device[row]]


def fleet_row(
    fleet: Fleet,
    name: str,
    faults: Faults,
    unheld: Mapping[str, int] = NONE,
    *,
    labels: Mapping[str, str] = NO_LABELS,
    rack_key: str = "",
) -> FleetNode:
    """Return a known node's row.

    `unheld`: id of a card -> pods that use it and do not hold it; `rack_key`: the label that names the rack, empty for
    none.
    """
    row = fleet.rows[name]
    # Why no device of the row is allocated, whatever its type.
    of_all = []
    if not fleet.present[row]:
        of_all.append("there is no Node of this name")
    if fleet.foreign[row]:
        of_all.append("another client changed the Device")
    elif not fleet.fresh[row]:
        of_all.append(silence(fleet.heard[only(row)]))
    blocked = list(of_all)
    if fleet.present[row] and not fleet.ready[row]:
        blocked.append("the Node is not ready")
    if fleet.cordoned[row]:
        blocked.append("the Node is cordoned")
    devices: list[Card] = []
    for cards in fleet.cards.values():
        blocked += (*_of_type(cards, row), *_of_instances(cards, row))
        devices += _devices(fleet, cards, row, faults, of_all)
    for device in devices:
        if count := unheld.get(device["id"]):
            device["unheld"] = count
    _add_claimed(fleet, name, devices)
    possible = possible_instances(fleet, name)
    for device in devices if possible else ():
        if device["type"] == GPU and device["minor"] in possible:
            device["migOnDemand"] = dict(possible[device["minor"]])
    keeping = sorted(
        str(taint) for taint, rows in fleet.taints().items() if rows[row] and taints.repels(taint, _WITHOUT_TOLERATIONS)
    )
    return {
        "metadata": {"name": name},
        "ready": bool(fleet.present[row] and fleet.ready[row]),
        "schedulable": bool(fleet.present[row] and not fleet.cordoned[row]),
        "taints": keeping,
        "reporting": bool(fleet.fresh[row] or fleet.foreign[row]),
        "blocked": "; ".join(blocked),
        "promised": sum(map(is_promised, fleet.nominees_on(name))),
        "models": dict(Counter(device["model"] for device in devices if device["model"])),
        "devices": devices,
        "resources": {
            resource: {
                "total": int(fleet.total(resource)[row]),
                "free": max(0, int(fleet.left(resource, only(row))[0])),
            }
            for resource in _OF_NODE
        },
        "zone": labels.get(ZONE, ""),
        "rack": labels.get(rack_key, ""),
        "isolation": labels.get(ISOLATION_KEY, ""),
    }


def _add_claimed(fleet: Fleet, name: str, devices: Sequence[Card]) -> None:
    """Replace whole cards by the shares and instances that claims have of them."""
    parts: dict[int, list[ClaimedPart]] = {}
    claims: dict[int, set[str]] = {}
    for claim in fleet.claims.held_on(name):
        for part in claimed_parts(fleet, name, claim):
            parts.setdefault(part.grant.minor, []).append(part)
            claims.setdefault(part.grant.minor, set()).add(claim.key)
    for device in devices if parts else ():
        minor = device["minor"]
        # What others hold, such as the containers of a claim that is gone, stays what is shown.
        if device["type"] != GPU or minor not in parts or device["users"] > len(claims[minor]):
            continue
        is_listed = bool(device["mig"])
        for part in parts[minor]:
            # Another driver's instances may be on the Device, too.
            if part.profile and not is_listed:
                instance: CardInstance = {"profile": part.profile, "minor": device["minor"], "free": False}
                if part.placement is not None:
                    instance["placement"] = part.placement
                device["mig"].append(instance)
        used = [dict(part.grant.amounts) for part in parts[minor]]
        device["held"] = round(held.hundredths(used, device["total"]))


def _of_type(cards: Cards, row: int) -> Iterator[str]:
    """Yield why no card of one type is allocated."""
    if count := int(cards.unknown[row]):
        yield f"{count} pod(s) may hold any {cards.device_type}: their allocation is missing or cannot be read"


def _of_instances(cards: Cards, row: int) -> Iterator[str]:
    """Yield why no MIG instance of one type is allocated."""
    if count := int(cards.unlocated[row]):
        yield f"{count} MIG instance(s) are held of cards that are not known"


def _devices(fleet: Fleet, cards: Cards, row: int, faults: Faults, of_all: Sequence[str]) -> Iterator[Card]:
    """Yield the cards of one type that the Device lists; `of_all` is why no device of the row is allocated."""
    if not cards.present[row].any():
        return
    of_shares = [*of_all, *_of_type(cards, row)]
    of_instances = [*of_shares, *_of_instances(cards, row)]
    # As lists: single elements of arrays take several times as long.
    amounts = [(name, total[0].tolist(), free[0].tolist()) for name, total, _, free in offers(cards, only(row))]
    in_use = [
        (name, cards.used[index, row].tolist(), cards.total[index, row].tolist()) for name, index in cards.index.items()
    ]
    columns = (cards.healthy, cards.model, cards.users, cards.numa, cards.pcie, cards.bar)
    healthy, models, users, numa, pcie, bars = (column[row].tolist() for column in columns)
    minors, ids, table = cards.minor[row].tolist(), cards.ids[row], fleet.intern_table
    linked = _links_by_card(table.wirings[int(cards.wiring[row])])
    for slot in cards.slots(row):
        if not cards.present[row, slot]:
            continue
        minor = minors[slot]
        device_id, instances = ids.get(minor, ""), cards.instances.get(row, {}).get(minor, ())
        blocked = "; ".join(of_instances if instances else of_shares)
        free = {name: 0 if blocked else left[slot] for name, total, left in amounts if total[slot]}
        in_hundredths = 0
        if users[slot]:
            used = {name: used[slot] for name, used, _ in in_use}
            in_hundredths = round(held.hundredths([used], {name: total[slot] for name, _, total in in_use}))
        # None is free of a profile of which nothing can be allocated.
        taken = {visible(name) for name in cards.taken.get(row, ())} if instances else set()
        mig_instances: list[CardInstance] = [
            {"profile": mig.profile(resource), "minor": minor, "free": name not in taken and free.get(resource, 0) > 0}
            for name, resource in instances
        ]
        device: Card = {
            "type": cards.device_type,
            "minor": minor,
            "id": device_id,
            "model": table.models[models[slot]],
            "healthy": healthy[slot] or bool(instances),
            "message": faults.get((cards.device_type, device_id), ""),
            "blocked": blocked,
            "total": {name: total[slot] for name, total, _ in amounts if total[slot]},
            "free": free,
            "held": in_hundredths,
            "users": users[slot],
            "numaNode": numa[slot],
            "pcie": table.switches[pcie[slot]],
            "mig": mig_instances,
            "links": {ids.get(other, str(other)): kind for other, kind in linked.get(minor, ())},
        }
        if bar := table.bars[bars[slot]]:
            device["barred"] = bar
        if cards.device_type == GPU:
            # What is unknown or too old is left out.
            measured = cards.measured[:, row, slot].tolist()
            free_memory, power = measured[Quantity.FREE_MEMORY], measured[Quantity.POWER]
            metrics: Metrics = {}
            if (utilization := measured[Quantity.MULTIPROCESSORS]) != UNMEASURED:
                metrics["utilization"] = round(utilization, 3)
            if free_memory != UNMEASURED:
                memory = int(cards.total[cards.index[GPU_MEMORY], row, slot])
                metrics["memoryUsed"] = max(0, memory - int(free_memory))
            if power != UNMEASURED:
                metrics["power"] = round(power, 1)
            if metrics:
                device["metrics"] = metrics
        yield device


@sized_cache(2**20)
def _links_by_card(wiring: Wiring) -> Mapping[int, tuple[tuple[int, str], ...]]:
    """Return (other card, kind of link) of each card that has links; nodes of one type have the same."""
    return {
        minor: tuple((other, links.text(link_type, count)) for other, link_type, count in of_card)
        for _, minor, of_card in wiring
    }
