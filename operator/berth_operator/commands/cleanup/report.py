"""The report at the end of a cleanup: what stays in the cluster, why, and how to remove it."""

from collections.abc import Iterable, Sequence
from typing import Final

from berth_api import names
from berth_client.objects import Object
from berth_operator.commands.cleanup.installed import POD_GROUP, Item
from berth_operator.commands.cleanup.nodes import Plan
from berth_operator.state.objects.workloads import CONTROLLER

MAX_PODS: Final = 5
"""Pods that a line names; a number stands for the others."""


def kept_node(plan: Plan) -> str:
    """Return the line of a Node that keeps capacity."""
    amounts = ", ".join(f"{name}: {amount}" for name, amount in plan.kept.items())
    return f"node {plan.node} keeps {amounts} for pods {listed(map(str, plan.pods))}"


def unanswered(checks: Iterable[Object], queues: Sequence[Object]) -> list[str]:
    """Return a line for each AdmissionCheck of Kueue that Berth answered; `queues`: all ClusterQueues."""
    lines = []
    queues_by_check: dict[str, list[str]] = {}
    for queue in queues:
        strategy = queue["spec"].get("admissionChecksStrategy") or {}
        for name in {check["name"] for check in strategy.get("admissionChecks") or ()}:
            queues_by_check.setdefault(name, []).append(queue["metadata"]["name"])
    for name in [check["metadata"]["name"] for check in checks if check["spec"]["controllerName"] == CONTROLLER]:
        waiting = listed(queues_by_check.get(name, ()))
        lines.append(f"AdmissionCheck {name}{QUEUES_WAIT.format(waiting) if waiting else ''}: {DELETE_CHECK} {name}")
    return lines


QUEUES_WAIT: Final = (
    ", which nothing answers now, so that the ClusterQueues {} admit nothing: take it out of their"
    " spec.admissionChecksStrategy, then"
)
DELETE_CHECK: Final = "kubectl delete admissionchecks.kueue.x-k8s.io"


def stays(definitions: Sequence[Item], kept: Sequence[Plan], waiting: int, checks: Iterable[str] = ()) -> list[str]:
    """Return the lines that list the remaining objects.

    Args:
        definitions: the definitions that still exist.
        kept: plans of the Nodes that keep capacity.
        waiting: the number of pods that wait for Berth's scheduler.
        checks: lines about Kueue's AdmissionChecks.
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
    return [f"stays: {line}" for line in (*filter(None, lines), *checks, *_ALWAYS)]


OURS_STAY: Final = "the definitions {names} and their objects, for another installation; to delete both: {command}"
POD_GROUP_STAYS: Final = "{names} and all PodGroups, which other schedulers may use; to delete both: {command}"


def _definition(definitions: Iterable[Item], line: str, *, is_shared: bool) -> str:
    """Return the line of the definition that others share, or of all others; empty if there is none."""
    stay = " ".join(item.name for item in definitions if (item.name == POD_GROUP) is is_shared)
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
