"""`kubectl berth free`: what is free, by model and kind, and the largest request that fits one node."""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from berth_api import links, names
from berth_api.allocation import REPLICAS, mig
from berth_api.objects.visibility import Card, FleetNode
from berth_kubectl.arguments import forms, no_namespaces, selector, watching
from berth_kubectl.commands import listing
from berth_kubectl.printing import amounts
from berth_kubectl.printing.report import Column, Report, Row, cell
from berth_kubectl.reading import views
from berth_kubectl.reading.objects import natural

EXAMPLES: Final = """\
  kubectl berth free                         # whole cards, shares, slices and MIG instances
  kubectl berth free --model H100            # models whose name contains this
  kubectl berth free -l pool=training        # on the nodes with a label
"""
WHOLE: Final = "whole"
SHARE: Final = "share"
SLICE: Final = "slice"
ON_DEMAND: Final = "-on-demand"
"""The end of the kind of MIG instances that can be made for claims."""
FULL: Final = 100
COLUMNS: Final = (
    Column(title="TYPE"),
    Column(title="MODEL"),
    Column(title="KIND"),
    Column(title="TOTAL"),
    Column(title="FREE"),
    Column(title="LARGEST"),
    Column(title="NODES"),
    Column(title="NODE", wide=True),
    Column(title="NOTE"),
)

Kind = tuple[str, str, str]
"""Device type, model, kind."""


@dataclass(slots=True, kw_only=True)
class Pool:
    """What there is of one kind of devices."""

    total: int = 0
    free: Counter[str] = field(default_factory=Counter)
    """Node -> units that can be allocated now: devices, or hundredths of a partly used card."""
    largest: Counter[str] = field(default_factory=Counter)
    """Node -> units of the largest request that fits: all devices of the node, or one card's share."""
    unusable: Counter[str] = field(default_factory=Counter)
    """Why -> units that no pod holds and that cannot be allocated."""
    tainted: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Taint -> node -> free units that only pods with a toleration can use."""
    unlinked: dict[str, str] = field(default_factory=dict)
    """Node on which no two of the free cards have a direct link, although the model has them -> the type of link."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--model", default="", metavar="TEXT", help="models whose name contains this, ignoring case")
    selector(parser, "nodes")
    no_namespaces(parser)
    watching(parser)
    forms(parser, ("wide", "json", "yaml"))


def run(options: argparse.Namespace) -> int:
    """Print what is free."""
    return listing.show(
        options,
        lambda _: views.fleets(options.selector),
        lambda rows, _: report(rows, model=options.model),
    )


def report(fleet: Iterable[FleetNode], *, model: str = "") -> Report:
    """Return a row for each kind of devices whose model contains a text."""
    pools = {kind: pool for kind, pool in pooled(fleet).items() if model.casefold() in kind[1].casefold()}
    listed = sorted(pools.items(), key=lambda item: (item[0][0] != names.GPU, item[0]))
    rows: list[Row] = []
    items = []
    for kind, pool in listed:
        (device_type, model_name, sort), (node, largest) = kind, _largest(pool)
        free, remarks = sum(pool.free.values()), notes(kind, pool)
        rows.append(
            (
                device_type,
                cell(model_name),
                sort,
                "-" if sort == SHARE or sort.endswith(ON_DEMAND) else str(pool.total),
                _shown(sort, free),
                _shown(sort, largest),
                str(len(pool.free)),
                node or "-",
                "; ".join(remarks) or "-",
            )
        )
        items.append(
            {
                "type": device_type,
                "model": model_name,
                "kind": sort,
                "total": pool.total,
                "free": free,
                "largest": {"amount": largest, "node": node},
                "nodes": dict(sorted(pool.free.items())),
                "unusable": {why: count for why, count in sorted(pool.unusable.items()) if count},
                "notes": remarks,
            }
        )
    return Report(kind="FreeDevicesList", columns=COLUMNS, rows=rows, items=items, empty="No devices found")


# --- counting ---------------------------------------------------------------------------------------------------


def pooled(fleet: Iterable[FleetNode]) -> dict[Kind, Pool]:
    """Return what there is of each kind."""
    pools: dict[Kind, Pool] = defaultdict(Pool)
    for node in fleet:
        for card in node["devices"]:
            name = node["metadata"]["name"]
            for kind, total, free in _units(card):
                obstacle = _obstacle(card, node, kind)
                pool = pools[card["type"], card["model"], kind]
                pool.total += total
                if obstacle:
                    pool.unusable[obstacle] += total if kind != SHARE and not card["users"] else 0
                elif free:
                    pool.free[name] += free
                    pool.largest[name] = max(pool.largest[name], free) if kind == SHARE else pool.free[name]
                    for taint in node.get("taints", ()):
                        pool.tainted[taint][name] += free
        # Note where the free cards of a node have direct links, but none among each other.
        idle: dict[str, list[Card]] = defaultdict(list)
        for card in node["devices"]:
            if any(kind == WHOLE and free for kind, _, free in _units(card)) and not _obstacle(card, node, WHOLE):
                idle[card["model"]].append(card)
        for model, cards in idle.items():
            ids = {card["id"] for card in cards}
            peers = {peer: links.type_of(text) for card in cards for peer, text in card["links"].items()}
            direct = {peer: link_type for peer, link_type in peers.items() if links.is_direct(link_type)}
            if len(cards) > 1 and direct and not ids.intersection(direct):
                pools[names.GPU, model, WHOLE].unlinked[node["metadata"]["name"]] = next(iter(direct.values()))
    return dict(pools)


def _obstacle(card: Card, node: FleetNode, kind: str) -> str:
    """Return why nothing of a kind can be allocated of a card; empty if something can."""
    if not node["reporting"]:
        return "on nodes whose agent is silent"
    is_by_claim = kind.endswith(ON_DEMAND)
    if not is_by_claim and not card["healthy"] and not any(map(mig.is_resource, card["total"])):
        return "not given by name" if card.get("barred") else "unhealthy"
    if not node["schedulable"]:
        return "on cordoned nodes"
    if not node["ready"]:
        return "on nodes that are not ready"
    return "blocked" if card["blocked"] else ""


def _units(card: Card) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, total, free) of a card: in devices, shares in hundredths."""
    yield from ((profile + ON_DEMAND, count, count) for profile, count in card.get("migOnDemand", {}).items())
    total, free = card["total"], card["free"]
    instances = {name: amount for name, amount in total.items() if mig.is_resource(name)}
    if instances:
        yield from ((mig.profile(name), amount, free.get(name, 0)) for name, amount in instances.items())
        return
    if replicas := total.get(REPLICAS):
        yield SLICE, replicas, free.get(REPLICAS, 0)
    capacity, left = _hundredths(card, total), _hundredths(card, free)
    is_idle = not card["users"] and left >= capacity
    yield WHOLE, 1, int(is_idle and capacity > 0)
    if card["users"] and left > 0:
        yield SHARE, 0, left


def _hundredths(card: Card, of: dict[str, int]) -> int:
    """Return hundredths of a device: of a GPU as much as there is of both its cores and its memory."""
    if card["type"] != names.GPU:
        return max(of.values(), default=0)
    return min(of.get(names.GPU_CORE, 0), of.get(names.GPU_MEMORY_RATIO, 0))


# --- rows -------------------------------------------------------------------------------------------------------


def _largest(pool: Pool) -> tuple[str, int]:
    """Return the node with the largest request that fits, and its units."""
    return min(pool.largest.items(), key=lambda item: (-item[1], natural(item[0])), default=("", 0))


def _shown(kind: str, units: int) -> str:
    return amounts.cards(units) if kind == SHARE else str(units)


def notes(kind: Kind, pool: Pool) -> list[str]:
    """Return what the numbers alone would hide."""
    free, (_, largest) = sum(pool.free.values()), _largest(pool)
    listed = []
    if kind[2] == WHOLE and free > 1 and largest == 1:
        listed.append(f"cannot be used together: each of the {free} free ones is on another node")
    elif kind[2] == WHOLE and pool.unlinked and pool.free.keys() <= pool.unlinked.keys():
        words = sorted({links.DIRECT_LINKS[link_type] for link_type in pool.unlinked.values()})
        listed.append(f"no two free ones of a node have {' or '.join(words)} between them")
    if kind[2] == SHARE and free >= FULL > largest:
        listed.append(f"cannot be used together: no card has more than {amounts.cards(largest)} free")
    if kind[2].endswith(ON_DEMAND) and free:
        listed.append("for claims, if no other instances are made there first")
    for taint, nodes in sorted(pool.tainted.items()):
        units = sum(nodes.values())
        shown = "all" if units == free else _shown(kind[2], units)
        listed.append(f"{shown} of the free ones only for pods that tolerate {taint}")
    listed += [f"{count} {why}" for why, count in sorted(pool.unusable.items()) if count]
    return listed
