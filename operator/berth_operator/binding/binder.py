"""Write a decision: one Binding with the node, the cards and the leader's term.

The answer of the API server decides what happens to the assumed charge:

* Success: the charge stays. A 409 counts as success if the pod has exactly this allocation, because an earlier answer
  was lost. If the pod still waits, a 409 is a refusal, because a webhook may refuse with any status.
* No answer, or a server error: the outcome is unknown, so the same Binding is sent again. The cards stay charged
  meanwhile, because a request that is still in flight may bind the pod to them.
* A refusal, including the server errors after which nothing was written: the charge is forgotten, and the pod is
  decided again after its back-off, which grows up to a minute if only a person can end the refusal. After an unknown
  outcome, a refusal says nothing about the earlier request, which may have reached another API server. Then the Binding
  is sent again for the time that an API server gives a request.
"""

import enum
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

from berth_api import names
from berth_api.values.backoff import ExponentialBackoff
from berth_client import refusals
from berth_client.errors import ApiError, Unreachable
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.decision.record import annotations
from berth_operator.core.queue.queue import MAX_BACKOFF

BACKOFF: Final = ExponentialBackoff(first=0.1, longest=2.0)
"""Between two sends of one Binding."""
DENIED_BACKOFF: Final = 60.0
"""Seconds of the longest back-off of a pod whose Binding is denied."""
REQUEST_TIMEOUT: Final = 75.0
"""Seconds after which an API server no longer executes a request: its --request-timeout, 60 by default, and a margin
for the write that it has sent to etcd by then."""

_NOT_WRITTEN: Final = ("failed calling webhook", "denied the request", "etcdserver: request is too large")
"""Texts of server errors (500) after which nothing has been written: a webhook failed, or denied the Binding with this
status, or a large pod is too large for etcd with the Binding's annotations (kubernetes/kubernetes#112152)."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class BindOutcome(enum.Enum):
    """The outcome of a Binding."""

    BOUND = "bound"
    GONE = "gone"
    """The pod is gone, or was bound by another scheduler."""
    REFUSED = "refused"
    DENIED = "denied"
    """Refused until a person acts: by a policy, a webhook or the rights."""
    FENCED = "fenced"
    """The fence refused the Binding: our term is over, or the API server cannot evaluate the policy yet."""
    UNKNOWN = "unknown"
    """A server error, after which the Binding may still be executed: send it again."""
    UNANSWERED = "unanswered"
    """The same without an answer."""

    @property
    def label(self) -> str:
        """Return the outcome in metrics, in which all refusals are one."""
        return BindOutcome.REFUSED.value if self is BindOutcome.DENIED else self.value

    @property
    def longest_backoff(self) -> float:
        """Return the seconds of the longest back-off after this outcome."""
        return DENIED_BACKOFF if self is BindOutcome.DENIED else MAX_BACKOFF


REFUSALS: Final = {BindOutcome.REFUSED, BindOutcome.DENIED, BindOutcome.FENCED}
"""The pod is still there and waits; the same Binding may succeed later."""
INDEFINITE: Final = {BindOutcome.UNKNOWN, BindOutcome.UNANSWERED}
"""The pod may be bound, or may be bound later."""


class PodBinder(Protocol):
    """The subset of `kube.KubeClient` that the binder uses."""

    async def bind(self, namespace: str, name: str, binding: dict[str, Any]) -> None:
        """Post a Binding."""

    async def get_pod(self, namespace: str, name: str) -> dict[str, Any]:
        """Read a pod at quorum."""


def refused(error: BaseException | None) -> BindOutcome:
    """Return the outcome of a write that was refused."""
    if names.FENCE in str(error):
        return BindOutcome.FENCED
    return BindOutcome.DENIED if refusals.is_for_good(error) else BindOutcome.REFUSED


async def send(
    pods: PodBinder, placement: Placement, binding: dict[str, Any], *, may_be_bound: bool = False
) -> tuple[BindOutcome, str]:
    """Send a Binding once; return its outcome and the error message, empty on success.

    `may_be_bound`: whether an earlier send had no definite answer. Admission may refuse a Binding for a bound pod.
    """
    pod = placement.pod
    try:
        await pods.bind(pod.namespace, pod.name, binding)
    except Unreachable as error:
        return BindOutcome.UNANSWERED, str(error)
    except ApiError as error:
        if error.is_missing:
            return BindOutcome.GONE, error.message
        if not error.is_refused and not any(text in error.message for text in _NOT_WRITTEN):
            return BindOutcome.UNKNOWN, error.message
        refusal = refused(error), error.message
        if error.status != HTTPStatus.CONFLICT and not may_be_bound:
            return refusal
    else:
        return BindOutcome.BOUND, ""

    # It may have a node already: by this Binding, if an earlier answer was lost. A webhook may refuse with 409, too.
    try:
        current = await pods.get_pod(pod.namespace, pod.name)
    except Unreachable as error:
        return BindOutcome.UNANSWERED, str(error)
    except ApiError as error:
        return (BindOutcome.GONE if error.status == HTTPStatus.NOT_FOUND else BindOutcome.UNKNOWN), error.message
    metadata, node = current["metadata"], current["spec"].get("nodeName")
    if metadata["uid"] != pod.uid or (not node and metadata.get("deletionTimestamp")):
        return BindOutcome.GONE, "deleted"
    if not node:
        return refusal
    allocated = (metadata.get("annotations") or {}).get(names.ALLOCATED)
    is_ours = node == placement.node and allocated == annotations(placement).get(names.ALLOCATED)
    return (BindOutcome.BOUND, "") if is_ours else (BindOutcome.GONE, "bound by another scheduler")
