"""Reports as tables, for people."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from berth_api import names
from berth_api.resources import quantity
from berth_api.values.printing import printable
from berth_operator.commands.reports import Report

GI: Final = 2**30
WIDTH: Final = 100_000
"""Columns of output to a file or a pipe, where no line is wrapped. Each row is one line for grep and awk."""


def console() -> Console:
    """Return the console for standard output, as wide as the terminal."""
    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=WIDTH)


def show_simulation(report: Report, to: Console, *, waiting: bool = False) -> None:
    """Write the report of a simulation; `waiting` also lists the pods that wait already."""
    _pods(report["pods"], to)
    fitting = sum(pod["fits"] for pod in report["pods"])
    if report["pods"] or report["fits"]:
        count = len(report["pods"])
        to.print(f"\n{fitting} of {count} {'pod' if count == 1 else 'pods'} would get a place.")
    else:
        to.print("\nNothing was decided: another scheduler places all pods of the workload.")
    if report["waiting"] and not waiting:
        to.print(f"{len(report['waiting'])} other pod(s) wait already and are decided with them; --waiting lists them.")
    elif report["waiting"]:
        to.print("\nPods that wait already, and are decided with them:\n")
        _pods(report["waiting"], to)
    changed = [
        device
        for device in report["devices"]
        if any(amounts["before"] != amounts["after"] for amounts in (device["idle"], device["free"]))
    ]
    to.print(f"\nDevices before and after ({len(report['devices']) - len(changed)} more stay as they are):\n")
    rows = []
    for row in [*changed, *({"node": "all nodes", **total} for total in report["totals"])]:
        free = []
        for name, after in row["free"]["after"].items():
            amounts = [row["free"]["before"].get(name, "0"), after]
            if name == names.PREFIX + names.GPU_MEMORY:
                amounts = [f"{quantity.parse(amount) / GI:.4g}Gi" for amount in amounts]
            free.append(f"{name.removeprefix(names.PREFIX)} {_then(*amounts)}")
        idle = _then(str(row["idle"]["before"]), str(row["idle"]["after"]))
        rows.append((row["node"], row["type"], row["model"], str(row["cards"]), idle, ", ".join(free)))
    _table(("NODE", "TYPE", "MODEL", "CARDS", "IDLE", "FREE"), rows, to)
    _nodes("\nNodes whose devices no pod would use: ", report["unusedNodes"], to)
    _nodes("Of them in use now: ", report["emptiedNodes"], to)
    _lines("\nNote: ", report["notes"], to)


def show_defragmentation(report: Report, to: Console) -> None:
    """Write the report of which pods are moved for a pod."""
    show_advice(report, to)
    if report["moves"] and not report["first"]:
        to.print("\nThey could only be moved at once, and not so many at once are allowed.")
    elif len(report["first"]) < len(report["moves"]):
        _lines("\nMoved first: ", [", ".join(report["first"])], to)


def show_advice(report: Report, to: Console) -> None:
    """Write the report of which pods to move for a pod."""
    if not report["fits"]:
        to.print(_shown(f"{report['pod']} fits nowhere: {report['reason']}"))
        to.print("\nNo pods were found that could be moved for it.")
        _lines("\nIts ResourceClaims: ", report["requests"], to)
    else:
        to.print(_shown(f"{report['pod']} would get {_place(report)}."))
        if report["moves"]:
            to.print("\nFirst these pods have to be moved:\n")
            rows = [(move["pod"], _place(move["from"]), _place(move["to"])) for move in report["moves"]]
            _table(("POD", "FROM", "TO"), rows, to)
    _lines("\nNot looked at: ", report["limits"], to)
    if report["fixed"]:
        to.print("\nIn the way, but cannot be moved:\n")
        _table(("POD", "NODE", "WHY"), [(pod["pod"], pod["node"], pod["why"]) for pod in report["fixed"]], to)


def _pods(pods: Sequence[Report], to: Console) -> None:
    rows = [(pod["pod"], pod.get("node", "-"), _minors(pod), pod.get("reason", "")) for pod in pods]
    _table(("POD", "NODE", "DEVICES", "WHY NOT"), rows, to)


def _then(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _place(report: Report) -> str:
    return f"{report['node']} {_minors(report)}".strip()


def _minors(report: Report) -> str:
    devices: Mapping[str, Sequence[int]] = report.get("devices", {})
    by_claim: Mapping[str, Sequence[str]] = report.get("claims", {})
    held = [f"{device_type} {','.join(map(str, minors))}" for device_type, minors in devices.items()]
    return ", ".join([*held, *(f"{claim}: {','.join(given)}" for claim, given in by_claim.items())])


def _nodes(title: str, nodes: Sequence[str], to: Console) -> None:
    _lines(title, [", ".join(nodes)] if nodes else [], to)


def _lines(title: str, texts: Iterable[str], to: Console) -> None:
    for text in texts:
        to.print(title + _shown(text))


def _shown(text: str) -> str:
    """Return a text as a console shows it, whatever the file or the cluster contains."""
    return escape(printable(text))


def _table(titles: Sequence[str], rows: Iterable[Sequence[Any]], to: Console) -> None:
    table = Table(*titles, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*map(_shown, row))
    if to.is_terminal:
        to.print(table)
        return
    with to.capture() as written:
        to.print(table)
    # Without the blanks with which the last column is filled up.
    to.print("\n".join(line.rstrip() for line in written.get().splitlines()), markup=False)
