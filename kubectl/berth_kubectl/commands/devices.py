"""`kubectl berth devices [NODE]`: every device with its health, use and place, on cordoned and silent nodes, too."""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from berth_api import names
from berth_api.objects.visibility import Card, FleetNode
from berth_kubectl.arguments import forms, no_namespaces, selector, watching
from berth_kubectl.commands import listing
from berth_kubectl.errors import CommandError
from berth_kubectl.printing import amounts, colours
from berth_kubectl.printing.report import Column, Report, Row, cell
from berth_kubectl.reading import views

EXAMPLES: Final = """\
  kubectl berth devices                      # all nodes
  kubectl berth devices node-3 -o wide       # one node, with ids, PCIe switches, links and messages
  kubectl berth devices -l pool=training     # the nodes with a label
"""
HEALTHY: Final = "Healthy"
_COLOURS: Final = {
    **dict.fromkeys((HEALTHY, "Ready", "-"), ""),
    **dict.fromkeys(("Cordoned", "Withheld"), colours.YELLOW),
}
"""Of states in which nothing is broken."""


def state_colour(text: str) -> str:
    """Return the colour of a state: green if nothing is wrong."""
    return _COLOURS.get(text, colours.RED)


COLUMNS: Final = (
    Column(title="NODE"),
    Column(title="STATE", style=state_colour),
    Column(title="TYPE"),
    Column(title="MINOR"),
    Column(title="MODEL"),
    Column(title="HEALTH", style=state_colour),
    Column(title="USERS"),
    Column(title="FREE"),
    Column(title="NUMA", wide=True),
    Column(title="ID", wide=True),
    Column(title="PCIE", wide=True),
    Column(title="LINKS", wide=True),
    Column(title="MODE", wide=True),
    Column(title="MESSAGE", wide=True),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("node", nargs="?", default="", metavar="NODE", help="only this node")
    selector(parser, "nodes")
    no_namespaces(parser)
    watching(parser)
    forms(parser)


def run(options: argparse.Namespace) -> int:
    """Print the devices."""
    return listing.show(
        options, lambda _: views.fleets(options.selector), lambda rows, _: report(of_node(rows, options.node))
    )


def of_node(fleet: Iterable[FleetNode], node: str) -> list[FleetNode]:
    """Return the rows of one node, or of all if it is empty.

    Raises:
        CommandError: the node has no Device.
    """
    chosen = [row for row in fleet if node in ("", row["metadata"]["name"])]
    if node and not chosen:
        raise CommandError(f'the node "{node}" has no Device; `kubectl get nodes,devices` lists both')
    return chosen


def report(fleet: Sequence[FleetNode]) -> Report:
    """Return a row for each device, and one for each node without devices."""
    rows: list[Row] = []
    for node in fleet:
        head = (node["metadata"]["name"], state(node))
        ids = {card["id"]: str(card["minor"]) for card in node["devices"]}
        for card in node["devices"]:
            links = ",".join(f"{ids.get(peer, peer)}:{kind}" for peer, kind in sorted(card["links"].items()))
            count = card.get("unheld", 0)
            unheld = f"{count} pod(s) use it and do not hold it" if count else ""
            # What is free: MIG instances by profile, else slices or hundredths and memory.
            free = _short(card)
            if card["mig"]:
                profiles = [instance["profile"] for instance in card["mig"]]
                left = Counter(instance["profile"] for instance in card["mig"] if instance["free"])
                free = ",".join(f"{name}:{left[name]}/{profiles.count(name)}" for name in sorted(set(profiles)))
            rows.append(
                (
                    *head,
                    card["type"],
                    str(card["minor"]),
                    cell(card["model"]),
                    health(card),
                    str(card["users"]),
                    cell(free),
                    str(card["numaNode"]) if card["numaNode"] >= 0 else "-",
                    card["id"],
                    cell(card["pcie"]),
                    cell(links),
                    cell(node["isolation"]),
                    card["message"] or card.get("barred") or card["blocked"] or unheld,
                )
            )
        if not node["devices"]:
            rows.append((*head, *("-",) * (len(COLUMNS) - 3), node["blocked"]))
    return Report(
        kind="FleetNodeList",
        columns=COLUMNS,
        rows=rows,
        items=fleet,
        names=[f"device.berth.dev/{node['metadata']['name']}" for node in fleet],
    )


def _short(card: Card) -> str:
    """Return what is free of a card without what a reader of its row knows: its type, and equal hundredths twice."""
    free = dict(card["free"])
    if free.get(names.GPU_CORE) == free.get(names.GPU_MEMORY_RATIO):
        free.pop(names.GPU_MEMORY_RATIO, None)
    return amounts.requests(free).replace(f"{card['type']}-", "")


def state(node: FleetNode) -> str:
    """Return the state of a node in one word."""
    if not node["reporting"]:
        return "Silent"
    if not node["ready"]:
        return "NotReady"
    return "Ready" if node["schedulable"] else "Cordoned"


def health(card: Card) -> str:
    """Return the health of a card in one word."""
    if card.get("barred"):
        return "Withheld"
    if not card["healthy"]:
        return "Unhealthy"
    return "Blocked" if card["blocked"] else HEALTHY
