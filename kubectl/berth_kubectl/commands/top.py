"""`kubectl berth top`: use, memory and watts of cards, and which pods hold idle cards."""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from berth_api import names
from berth_api.objects.visibility import Card, FleetNode, HoldingPod
from berth_kubectl.arguments import forms, namespaces, watching
from berth_kubectl.commands import listing
from berth_kubectl.commands.who import devices, hundredths, owner
from berth_kubectl.errors import CommandError, ReadError
from berth_kubectl.printing import amounts, colours
from berth_kubectl.printing.report import NONE, Column, Report, Row, cell
from berth_kubectl.reading import views
from berth_kubectl.reading.objects import natural, time_of

EXAMPLES: Final = """\
  kubectl berth top                          # the nodes, the busiest first
  kubectl berth top --by card                # every GPU
  kubectl berth top --by pod -A --idle       # pods that hold GPUs and use none of them
"""
BY: Final = ("node", "card", "pod")
IDLE: Final = 0.01
"""Use below which a card is idle."""
UNSERVED: Final = (
    "live metrics come from the visibility API (visibility.berth.dev), which is not served; install it, or ask an "
    "administrator to (docs/kubectl.md)"
)
SILENT: Final = (
    "the visibility API does not answer now, and live metrics come from it; usually no replica of the operator leads: "
    "kubectl berth doctor says more"
)
UNMEASURED: Final = (
    "no fresh metrics: the operator reads them if its configuration names a source (docs/live-metrics.md)"
)


_MEASURED: Final = (
    Column(title="USE", style=lambda text: colours.YELLOW if text == "0%" else ""),
    Column(title="MEMORY"),
    Column(title="POWER"),
)
COLUMNS: Final[dict[str, Sequence[Column]]] = {
    "node": (Column(title="NODE"), Column(title="GPUS"), Column(title="HELD"), Column(title="IDLE"), *_MEASURED),
    "card": (
        *(Column(title="NODE"), Column(title="MINOR"), Column(title="MODEL"), Column(title="PODS")),
        *_MEASURED,
        Column(title="ID", wide=True),
    ),
    "pod": (
        *(Column(title="NAMESPACE"), Column(title="NAME"), Column(title="NODE"), Column(title="CARDS")),
        *_MEASURED,
        *(Column(title="DEVICES"), Column(title="OWNER"), Column(title="AGE", volatile=True)),
    ),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--by", choices=BY, default="node", help=f"one row for each {' | '.join(BY)} (default: node)")
    parser.add_argument("--idle", action="store_true", help="show only cards that are held and idle")
    namespaces(parser)
    watching(parser)
    forms(parser, ("wide", "json", "yaml"))


def run(options: argparse.Namespace) -> int:
    """Print what was measured."""
    by, idle = options.by, options.idle
    try:
        if by == "pod":
            return listing.show(
                options,
                lambda session: [views.holding_and_fleet(session.namespace)],
                lambda rows, now: of_pods(rows[0], idle=idle, now=now),
            )
        of_fleet = of_cards if by == "card" else of_nodes
        return listing.show(options, lambda _: views.fleets()[:1], lambda rows, _: of_fleet(rows, idle=idle))
    except ReadError as error:
        raise unanswered(error) from None


def unanswered(error: ReadError) -> CommandError:
    """Return the error of a command that only the visibility API can answer."""
    if error.is_missing:
        return CommandError(UNSERVED)
    return CommandError(f"{SILENT} ({error})") if error.is_unavailable else error


# --- nodes and cards --------------------------------------------------------------------------------------------


def of_nodes(fleet: Iterable[FleetNode], *, idle: bool = False) -> Report:
    """Return a row for each node with GPUs, the busiest first, or of those with GPUs that are held and idle."""
    listed = [(node, [*_gpus(node)]) for node in fleet]
    kept = [(node, cards) for node, cards in listed if cards and (not idle or any(map(is_held_idle, cards)))]
    kept.sort(key=lambda item: (-(_use(item[1]) or 0), natural(item[0]["metadata"]["name"])))
    rows: list[Row] = []
    items: list[dict[str, Any]] = []
    for node, cards in kept:
        name, held = node["metadata"]["name"], sum(card["users"] > 0 for card in cards)
        counted = {} if _use(cards) is None else {"idle": sum(map(is_held_idle, cards))}
        rows.append((name, str(len(cards)), str(held), str(counted.get("idle", NONE)), *_measured(cards)))
        items.append({"node": name, "gpus": len(cards), "held": held, **counted, **_sums(cards)})
    return _report("node", rows, items, kept)


def of_cards(fleet: Iterable[FleetNode], *, idle: bool = False) -> Report:
    """Return a row for each GPU, or for each that is held and idle."""
    listed = [(node, card) for node in fleet for card in _gpus(node) if not idle or is_held_idle(card)]
    rows: list[Row] = []
    for node, card in listed:
        place = (node["metadata"]["name"], str(card["minor"]), cell(card["model"]), str(card["users"]))
        rows.append((*place, *_measured([card]), card["id"]))
    items = [{"node": node["metadata"]["name"], **card} for node, card in listed]
    return _report("card", rows, items, [(node, [card]) for node, card in listed])


def is_held_idle(card: Card) -> bool:
    """Return whether pods hold a card, and it was measured and is idle."""
    use = _use([card])
    return card["users"] > 0 and use is not None and use < IDLE


def _gpus(node: FleetNode) -> Iterator[Card]:
    return (card for card in node["devices"] if card["type"] == names.GPU)


# --- pods -------------------------------------------------------------------------------------------------------


def of_pods(held: tuple[list[HoldingPod], list[FleetNode]], *, idle: bool, now: datetime) -> Report:
    """Return a row for each pod that holds GPUs, with the use of its cards, or for each whose cards are all idle."""
    holders, fleet = held
    cards = {(node["metadata"]["name"], card["minor"]): card for node in fleet for card in _gpus(node)}
    rows: list[Row] = []
    kept: list[tuple[HoldingPod, list[Card]]] = []
    for holder in holders:
        minors = dict.fromkeys(part["minor"] for part in holder["devices"] if part["type"] == names.GPU)
        own = [cards[holder["node"], minor] for minor in minors if (holder["node"], minor) in cards]
        if holder["promised"] or not own or (idle and not all(map(is_held_idle, own))):
            continue
        since, metadata = time_of(holder["since"]), holder["metadata"]
        kept.append((holder, own))
        rows.append(
            (
                *(metadata.get("namespace", ""), metadata["name"], holder["node"]),
                amounts.cards(hundredths((holder, part) for part in holder["devices"])),
                *_measured(own),
                *(cell(devices(holder["devices"])), owner(holder)),
                amounts.age((now - since).total_seconds()) if since else NONE,
            )
        )
    return _report("pod", rows, [{**holder, **_sums(own)} for holder, own in kept], kept)


# --- what was measured ------------------------------------------------------------------------------------------


def _report(by: str, rows: list[Row], items: Sequence[Any], cards: Iterable[tuple[Any, Sequence[Card]]]) -> Report:
    unmeasured = bool(rows) and all(_use(own) is None for _, own in cards)
    kind = {"node": "MeasuredNodeList", "card": "MeasuredCardList", "pod": "MeasuredPodList"}[by]
    notes = [UNMEASURED] if unmeasured else []
    return Report(kind=kind, columns=COLUMNS[by], rows=rows, items=items, empty="No GPUs found", notes=notes)


def _use(cards: Iterable[Card]) -> float | None:
    """Return the mean use, 0 to 1, of the cards that were measured; None if none was."""
    values = [card["metrics"]["utilization"] for card in cards if "utilization" in card.get("metrics", {})]
    return sum(values) / len(values) if values else None


def _sums(cards: Sequence[Card]) -> dict[str, Any]:
    """Return what was measured of cards together; absent values were not."""
    sums: dict[str, Any] = defaultdict(float)
    for card in cards:
        for name in ("memoryUsed", "power"):
            if name in (measured := card.get("metrics", {})):
                sums[name] += measured[name]
    use = _use(cards)
    return {**({} if use is None else {"utilization": round(use, 3)}), **sums}


def _measured(cards: Sequence[Card]) -> Row:
    sums = _sums(cards)
    total = sum(card["total"].get(names.GPU_MEMORY, 0) for card in cards)
    return (
        f"{sums['utilization']:.0%}" if "utilization" in sums else NONE,
        f"{amounts.memory(sums['memoryUsed'])}/{amounts.memory(total)}" if "memoryUsed" in sums else NONE,
        f"{sums['power']:.0f}W" if "power" in sums else NONE,
    )
