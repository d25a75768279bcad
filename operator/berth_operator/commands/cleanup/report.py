"""What a cleanup prints at its end: what stays in the cluster, why, and how it is removed."""

from collections.abc import Iterable, Sequence
from typing import Final

from berth_api import names
from berth_operator.commands.cleanup.installed import POD_GROUP, Item
from berth_operator.commands.cleanup.nodes import Plan

MAX_PODS: Final = 5
"""Pods that a line names; a number stands for the others."""


def kept_node(plan: Plan) -> str:
    """Return the line of a Node that keeps capacity."""
    amounts = ", ".join(f"{name}: {amount}" for name, amount in plan.kept.items())
    return f"node {plan.node} keeps {amounts} for pods {listed(map(str, plan.pods))}"


def stays(definitions: Sequence[Item], kept: Sequence[Plan], waiting: int) -> list[str]:
    """Return the lines that say what stays.

    Args:
        definitions: the definitions that still exist.
        kept: plans of the Nodes that keep capacity.
        waiting: the number of pods that wait for Berth's scheduler.
    """
    lines = [
        _definition(definitions, POD_GROUP_STAYS, is_shared=True),
        _definition(definitions, OURS_STAY, is_shared=False),
    ]
    if kept:
        lines.append(
            f"capacity of {len(kept)} node(s), because kubelet would end these pods at its next restart without it;"
            " when they have ended, run this command again, or run it with --drain now"
        )
    if waiting:
        lines.append(f"{waiting} pod(s) that wait for {names.SCHEDULER}: delete them, or give them another scheduler")
    return [f"stays: {line}" for line in (*filter(None, lines), *_ALWAYS)]


OURS_STAY: Final = "the definitions {names} and their objects, for another installation; to delete both: {command}"
POD_GROUP_STAYS: Final = "{names} and all PodGroups, which other schedulers may use; to delete both: {command}"


def _definition(definitions: Iterable[Item], line: str, *, is_shared: bool) -> str:
    """Return the line of the definition that others share, or of all others; empty if there is none."""
    stay = " ".join(each.name for each in definitions if (each.name == POD_GROUP) is is_shared)
    return line.format(names=stay, command=f"kubectl delete crd {stay}") if stay else ""


_ALWAYS: Final = (
    "annotations of pods that Berth bound; they go with the pods, and environment variables may read them",
    "nvidia.com/* of nodes where the agent was the device plugin: kubelet sets them to 0 and owns them",
    "files on nodes: /var/lib/berth-agent, and in /var/run/cdi what running containers may need at a restart",
)


def listed(texts: Iterable[str]) -> str:
    """Return names joined by commas, the first few of many."""
    everything = list(texts)
    more = len(everything) - MAX_PODS
    return ", ".join(everything[:MAX_PODS]) + (f" and {more} more" if more > 0 else "")
