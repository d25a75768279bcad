"""Workloads of Kueue that have a quota reservation, and the answers of the AdmissionCheck `berth.dev/fits-devices`."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from berth_api.values import keys
from berth_operator.core.values.request import PendingPod


class CheckState(StrEnum):
    """The state of an AdmissionCheck of a Workload, as Kueue names it."""

    PENDING = "Pending"
    READY = "Ready"
    RETRY = "Retry"
    REJECTED = "Rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """The configuration of the AdmissionCheck; times are in seconds."""

    pending: float = 60.0
    """How long a workload keeps its quota while its places become free."""
    gather: float = 300.0
    """How long places are gathered for one workload."""
    promise: float = 300.0
    """How long places are kept before a workload is admitted, and after that."""
    fleet_grows: bool = False
    """Whether nodes may be added that are larger than the existing nodes, or have other cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """Equal pods of a workload."""

    name: str
    pods: tuple[PendingPod, ...]
    """All its pods, in the workload's namespace, with its priority and with the node labels and tolerations of the
    flavors and the topology domain that were assigned. The UID of each is `workload UID/pod set/index`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaWorkload:
    """A Workload with our AdmissionCheck."""

    key: str
    """namespace/name."""
    uid: str
    priority: int = 0
    created: str = ""
    """RFC 3339, so that lexical order is time order."""
    queue: str = ""
    """Name of its LocalQueue."""
    slice_name: str = ""
    """Name of the first slice of an elastic job, which the pods of all its slices have; empty for other workloads."""
    grows: bool = False
    """Whether it has replaced another slice, whose pods run on."""
    existing: int = 0
    """How many of its pods exist already, and are held back by Kueue's scheduling gates."""
    cluster_queue: str = ""
    check: str
    """Name of the AdmissionCheck."""
    state: CheckState = CheckState.PENDING
    """The state that the API server shows."""
    message: str = ""
    """The message next to it."""
    waits_for_others: bool = False
    """Whether an AdmissionCheck of another controller is not Ready; it may be creating nodes."""
    retries: int = 0
    """How often Kueue has counted the state Retry of this check (`retryCount`)."""
    since: str = ""
    """When its quota was reserved, in RFC 3339."""
    has_quota: bool = False
    """Whether its quota is reserved and it is not being evicted."""
    admitted: bool = False
    admitted_at: str = ""
    """When it was admitted, in RFC 3339."""
    finished: bool = False
    """Whether it has ended, or is being deleted."""
    pod_sets: tuple[PodSet, ...] = ()
    """Empty while it has no quota."""
    problem: str = ""
    """Why its pods cannot be read. Reading is retried, because a missing object may be created."""

    @property
    def namespace(self) -> str:
        """Return the namespace."""
        return keys.split(self.key)[0]

    @property
    def name(self) -> str:
        """Return the name."""
        return keys.split(self.key)[1]

    @property
    def name_in_pods(self) -> str:
        """Return the name that its pods have in the annotation `berth.dev/workload`."""
        return self.slice_name or self.name

    @property
    def pods(self) -> Iterator[PendingPod]:
        """Yield the pods of all pod sets."""
        for pod_set in self.pod_sets:
            yield from pod_set.pods


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckAnswer:
    """What the AdmissionCheck of a workload should show."""

    workload: QuotaWorkload
    """The workload at the time of the decision. The answer is outdated if its UID or quota reservation has changed
    since."""
    state: CheckState
    message: str
    requeue_after: int | None = None
    """Seconds until Kueue may reserve quota again; only with the state Retry."""
