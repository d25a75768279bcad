"""`kubectl berth who`: which pods hold devices, or how much namespaces, owners and nodes hold together."""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from berth_api import names
from berth_api.allocation import held, mig
from berth_api.objects.visibility import HeldPart, HoldingPod
from berth_api.resources import quantity
from berth_api.values import keys
from berth_kubectl.arguments import forms, namespaces, selector, watching
from berth_kubectl.commands import listing
from berth_kubectl.printing import amounts, colours
from berth_kubectl.printing.report import Column, Report, Row, cell
from berth_kubectl.reading import views
from berth_kubectl.reading.objects import natural, time_of

EXAMPLES: Final = """\
  kubectl berth who                          # the pods of this namespace
  kubectl berth who -A --by namespace        # how many cards each namespace holds
  kubectl berth who -A --by card -o wide     # which pods are on which card
"""
BY: Final = ("pod", "namespace", "owner", "node", "card")


PODS: Final[Sequence[Column]] = (
    Column(title="NAMESPACE"),
    Column(title="NAME"),
    Column(title="NODE"),
    Column(title="CARDS"),
    Column(title="DEVICES"),
    Column(title="OWNER"),
    Column(title="AGE", volatile=True),
    Column(title="ENDS", wide=True),
    Column(title="SCHEDULER", wide=True),
    Column(title="AMOUNTS", wide=True),
    Column(title="LIMITED", wide=True),
    Column(title="EXCEEDED", wide=True, style=lambda text: "" if text == "-" else colours.RED),
    Column(title="DRIFTED", wide=True, style=lambda text: colours.RED if text == "yes" else ""),
)
GROUPS: Final = {
    "namespace": (Column(title="NAMESPACE"),),
    "owner": (Column(title="NAMESPACE"), Column(title="OWNER")),
    "node": (Column(title="NODE"),),
    "card": (Column(title="NODE"), Column(title="TYPE"), Column(title="MINOR")),
}
SUMS: Final = (Column(title="PODS"), Column(title="CARDS"), Column(title="MODELS"), Column(title="NAMES", wide=True))


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--by", choices=BY, default="pod", help=f"one row for each {' | '.join(BY)} (default: pod)")
    namespaces(parser)
    selector(parser, "pods")
    watching(parser)
    forms(parser)


def run(options: argparse.Namespace) -> int:
    """Print the holders."""
    return listing.show(
        options,
        lambda session: views.holding(session.namespace, options.selector),
        lambda rows, now: report(rows, by=options.by, now=now),
    )


def report(holders: Sequence[HoldingPod], *, by: str = "pod", now: datetime) -> Report:
    """Return a row for each pod that holds devices, or for each group of them."""
    columns: Sequence[Column]
    if by == "pod":
        rows, columns, items = [_row(holder, now) for holder in holders], PODS, list[Any](holders)
    else:
        parts_of: dict[_Key, list[_Part]] = defaultdict(list)
        for holder in holders:
            for part in holder["devices"]:
                parts_of[_KEYS[by](holder, part)].append((holder, part))
        # Cards by node and minor, other groups the largest first.
        if by == "card":
            groups = sorted(parts_of.items(), key=lambda item: (natural(item[0][0]), item[0][1], int(item[0][2])))
        else:
            groups = sorted(parts_of.items(), key=lambda item: (-hundredths(item[1]), [*map(natural, item[0])]))
        rows, columns, items = [], (*GROUPS[by], *SUMS), []
        titles = [column.title.lower() for column in GROUPS[by]]
        for key, parts in groups:
            of_pods = (holder["metadata"] for holder, _ in parts)
            pods = [*{f"{pod.get('namespace', '')}/{pod['name']}": None for pod in of_pods}]
            models = dict.fromkeys(cell(part["model"]) for _, part in parts if part["model"])
            cards = hundredths(parts)
            rows.append((*key, str(len(pods)), amounts.cards(cards), ",".join(models), ",".join(pods)))
            named = [dict(zip(("namespace", "name"), keys.split(pod), strict=True)) for pod in pods]
            items.append({**dict(zip(titles, key, strict=True)), "pods": named, "cards": round(cards / held.CARD, 3)})
    return Report(
        kind="HolderList" if by == "pod" else "HolderSumList",
        columns=columns,
        rows=rows,
        items=items,
        names=[f"pod/{holder['metadata']['name']}" for holder in holders],
        empty="No pods hold devices",
    )


# --- pods -------------------------------------------------------------------------------------------------------


def _row(holder: HoldingPod, now: datetime) -> Row:
    metadata, since = holder["metadata"], time_of(holder["since"])
    # What a pod uses of a card, and its share of it: `gpu:0=52Gi/40Gi`.
    exceeded = [
        f"{use['type']}:{use['minor']}={quantity.format_bytes(use['memory'])}/{quantity.format_bytes(use['limit'])}"
        for use in holder["exceeding"]
    ]
    return (
        metadata.get("namespace", ""),
        metadata["name"],
        holder["node"],
        amounts.cards(hundredths((holder, part) for part in holder["devices"])),
        cell(devices(holder["devices"])),
        owner(holder),
        amounts.age((now - since).total_seconds()) if since else "-",
        holder["endsBy"],
        holder["scheduler"],
        cell(";".join(amounts.requests(part["amounts"]) for part in holder["devices"])),
        limited(holder),
        cell(";".join(exceeded)),
        "yes" if holder["drifted"] else "no",
    )


def limited(holder: HoldingPod) -> str:
    """Return what holds a pod to its part of a card: `mps,cooperative`, `MIG,enforced` or `none`."""
    if mode := holder["isolation"]:
        return f"{mode},cooperative"
    parts = [part["amounts"] for part in holder["devices"] if part["type"] == names.GPU]
    is_mig = parts and all(any(mig.is_resource(name) for name in amounts_) for amounts_ in parts)
    return "MIG,enforced" if is_mig else "none"


def devices(parts: Iterable[HeldPart]) -> str:
    """Return the devices of a pod: `gpu:0,1` and `rdma:2`."""
    by_type: dict[str, dict[int, None]] = defaultdict(dict)
    for part in parts:
        by_type[part["type"]][part["minor"]] = None
    return ";".join(f"{kind}:{','.join(map(str, minors))}" for kind, minors in by_type.items())


def owner(holder: HoldingPod) -> str:
    """Return the controller of a pod: `job/train`."""
    return f"{holder['owner']['kind'].lower()}/{holder['owner']['name']}" if holder["owner"]["kind"] else "-"


def hundredths(parts: Iterable[tuple[HoldingPod, HeldPart]]) -> float:
    """Return how much of GPUs parts are together, in hundredths; devices other than GPUs count as none."""
    cards: defaultdict[tuple[str, int | str], list[HeldPart]] = defaultdict(list)
    for holder, part in parts:
        if part["type"] == names.GPU:
            # Cards that the Device no longer lists are numbered pod by pod.
            cards[holder["node"], part["minor"] if part["minor"] >= 0 else part["id"]].append(part)
    return sum(
        held.hundredths([part["amounts"] for part in of_card], of_card[0].get("card", {})) for of_card in cards.values()
    )


# --- groups -----------------------------------------------------------------------------------------------------

_Part = tuple[HoldingPod, HeldPart]
_Key = tuple[str, ...]


_KEYS: Final[dict[str, Callable[[HoldingPod, HeldPart], _Key]]] = {
    "namespace": lambda holder, _: (holder["metadata"].get("namespace", ""),),
    "owner": lambda holder, _: (
        holder["metadata"].get("namespace", ""),
        owner(holder) if holder["owner"]["kind"] else f"pod/{holder['metadata']['name']}",
    ),
    "node": lambda holder, _: (holder["node"],),
    "card": lambda holder, part: (holder["node"], part["type"], str(part["minor"])),
}
