"""`kubectl berth queue`: the pods that wait, in the order in which they will be tried."""

import argparse
from collections.abc import Sequence
from typing import Final

from berth_api import names
from berth_api.objects.visibility import QueuedPod
from berth_kubectl.arguments import forms, namespaces, selector, watching
from berth_kubectl.commands import listing
from berth_kubectl.printing import amounts, colours
from berth_kubectl.printing.report import Column, Report, Row, cell
from berth_kubectl.reading import views

EXAMPLES: Final = """\
  kubectl berth queue                        # the waiting pods of this namespace, and their places in the whole queue
  kubectl berth queue -A -o wide             # with reasons, back-off, and what wakes them
  kubectl berth queue --watch
"""
PLAIN: Final = ("cpu", "memory", "ephemeral-storage", "pods")
"""Resources that a table leaves out: every pod requests them."""
_COLOURS: Final = {"Active": colours.GREEN, "BackingOff": colours.YELLOW, "Unschedulable": colours.YELLOW}
STATES: Final = {"active": "Active", "backoff": "BackingOff", "unschedulable": "Unschedulable", "gated": "Gated"}


COLUMNS: Final[Sequence[Column]] = (
    Column(title="POSITION"),
    Column(title="NAMESPACE"),
    Column(title="NAME"),
    Column(title="STATE", style=lambda text: _COLOURS.get(text, "")),
    Column(title="PRIORITY"),
    Column(title="WAITING", volatile=True),
    Column(title="GANG"),
    Column(title="REQUESTS"),
    Column(title="SCHEDULER", wide=True),
    Column(title="BACKOFF", wide=True, volatile=True),
    Column(title="RESERVED", wide=True),
    Column(title="WAKES-ON", wide=True),
    Column(title="MESSAGE", wide=True),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--scheduler-names",
        default=names.SCHEDULER,
        metavar="NAMES",
        help="Berth's scheduler names, separated by commas, if the visibility API is not served (default: %(default)s)",
    )
    namespaces(parser)
    selector(parser, "pods")
    watching(parser)
    forms(parser)


def run(options: argparse.Namespace) -> int:
    """Print the queue."""
    schedulers = frozenset(options.scheduler_names.split(","))
    return listing.show(
        options,
        lambda session: views.queues(session.namespace, schedulers, options.selector),
        lambda rows, _: report(rows),
    )


def report(pods: Sequence[QueuedPod]) -> Report:
    """Return a row for each pod that waits, by its position; those without one follow in their order."""
    listed = sorted(pods, key=lambda pod: (pod["position"] == 0, pod["position"]))
    rows: list[Row] = []
    for pod in listed:
        gang = "-"
        if waiting := pod.get("gang"):
            # `train`, or `train:3/4` with its waiting and required members.
            counts = f":{waiting['members']}/{waiting['required']}" if "required" in waiting else ""
            gang = f"{waiting['name']}{counts}"
        rows.append(
            (
                str(pod["position"] or "-"),
                pod["metadata"].get("namespace", ""),
                pod["metadata"]["name"],
                STATES.get(pod["state"], cell(pod["state"])),
                str(pod["priority"]),
                amounts.age(pod["waitingSeconds"]),
                gang,
                amounts.requests({name: amount for name, amount in pod["requests"].items() if name not in PLAIN}),
                pod["scheduler"],
                f"{pod['backoffSeconds']:.0f}s" if pod["backoffSeconds"] else "-",
                pod["reservedNode"],
                ",".join(map(cell, pod["wakesOn"])),
                pod["message"],
            )
        )
    return Report(
        kind="QueuedPodList",
        columns=COLUMNS,
        rows=rows,
        items=listed,
        names=[f"pod/{pod['metadata']['name']}" for pod in listed],
        volatile=("waitingSeconds", "backoffSeconds"),
        empty="No pods wait",
    )
