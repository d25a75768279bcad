"""Messages about a pod that fits nowhere, with the words and grammar of kube-scheduler's FitError.

People search, alert and script on these texts, so the frame is identical to the letter:

    0/5 nodes are available: 2 node(s) had untolerated taint(s), 3 Insufficient cpu. preemption: 0/5 nodes ...
"""

from collections.abc import Mapping
from typing import Final

MAX_MESSAGE: Final = 1024
"""Characters that an Event's note holds. kube-scheduler ends a longer note with the same mark."""
CUT: Final = " ..."
NO_NODES: Final = "no nodes available to schedule pods"

# Reasons of the condition PodScheduled=False. Karpenter and cluster-autoscaler add nodes for `Unschedulable` alone.
UNSCHEDULABLE: Final = "Unschedulable"
"""kube-scheduler's reason for a pod that fits on no node; another node could help."""
SCHEDULER_ERROR: Final = "SchedulerError"
"""kube-scheduler's reason for a pod that could not be decided or bound because of an error."""
INVALID_REQUEST: Final = "InvalidRequest"
"""A resource, annotation or label of the pod is invalid."""
NODE_STARTING: Final = "NodeStarting"
"""A node that may take the pod is starting; its agent has not reported all devices yet."""
UNKNOWN_MODEL: Final = "UnknownModel"
"""No GPU is of the model that the pod's annotations name, and the pod does not select the nodes that have it."""
NAMESPACE_LIMIT: Final = "NamespaceLimit"
"""The namespace may hold no more GPUs on any node with GPUs that the pod accepts."""
POD_GROUP_NOT_READY: Final = "PodGroupNotReady"
"""The pod's group has too few members, does not exist or is invalid."""


def fit_error(nodes: int, counts: Mapping[str, int], of_pod: str = "") -> str:
    """Return why a pod fits on none of `nodes` nodes: the reasons, sorted as text, each with its number of nodes.

    A reason that concerns the pod alone (`of_pod`) has no number, like a PreFilter plugin's reason.
    """
    if not nodes and not of_pod:
        return NO_NODES
    reasons = of_pod or ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"0/{nodes} nodes are available: {reasons}."


def starting(nodes: int) -> str:
    """Return the sentence that ends the message of a pod that may fit on nodes that are starting."""
    return f"{nodes} node(s) that may take the pod are starting."


def invalid_request(error: str) -> str:
    """Return the message of a pod whose request is invalid."""
    return cut(f"invalid request: {error}")


def cut(text: str) -> str:
    """Return a message, shortened if it is too long for an Event."""
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - len(CUT)] + CUT


def with_note(text: str, note: str) -> str:
    """Return a message with a sentence at its end, which is kept if the message is too long for an Event."""
    room = MAX_MESSAGE - len(note) - 1
    return f"{text if len(text) <= room else text[: room - len(CUT)] + CUT} {note}"
