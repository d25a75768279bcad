"""Everything that scheduling reads of a pod.

Two pods with equal `PodRequest`s are of one class: what is decided for one holds for the other.
"""

from dataclasses import dataclass, field

from berth_api import interning, names
from berth_api.model import ANY_MODEL, ModelConstraint
from berth_api.request import NOTHING, DeviceRequest
from berth_api.selectors import Requirement
from berth_api.share import Share
from berth_operator.core.values.affinity import NO_AFFINITY, NO_IDENTITY, Affinity, Identity
from berth_operator.core.values.limits import Limit
from berth_operator.core.values.mounts import NO_MOUNTS, Mounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A taint that the pod puts up with; empty fields match all."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: "Taint") -> bool:
        """Return whether this covers the taint, by Kubernetes' rules."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return self.operator == "Equal" and bool(self.key) and self.value == taint.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTerm:
    """Conditions on a node that must all hold; a term without any matches no node."""

    labels: tuple[Requirement, ...] = ()
    names: tuple[Requirement, ...] = ()
    """Conditions on the node's name, `In` or `NotIn`; their key means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPort:
    """A port of the node on which a pod listens."""

    protocol: str = "TCP"
    port: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodImages:
    """The images of a pod's containers and volumes."""

    names: tuple[str, ...] = ()
    containers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """A pod's class."""

    resources: tuple[tuple[str, int], ...] = ()
    """(name, amount) of what is compared with the Node's allocatable; `pods: 1` is always there."""
    nonzero_requested: tuple[int, int] = (0, 0)
    """cpu and memory, with what is assumed of containers that name none."""
    devices: DeviceRequest = NOTHING
    plugin_requests: tuple[tuple[str, int], ...] = ()
    """The device resources as the pod names them."""
    shares: tuple[Share, ...] = ()
    """Which of the pod's cards each container sees."""
    model: ModelConstraint = ANY_MODEL
    node_selector: tuple[Requirement, ...] = ()
    node_affinity: tuple[NodeTerm, ...] | None = None
    """Terms of which at least one must match; None where the pod does not mind."""
    preferred_nodes: tuple[tuple[NodeTerm, int], ...] = ()
    """(term, weight)."""
    tolerations: tuple[Toleration, ...] = ()
    images: PodImages = PodImages()
    ports: tuple[HostPort, ...] = ()
    features: tuple[str, ...] = ()
    """Features of kubelet that it cannot do without."""
    identity: Identity = NO_IDENTITY
    """Its namespace and labels: pods on a node may mind them."""
    affinity: Affinity = NO_AFFINITY
    mounts: Mounts = NO_MOUNTS
    unsupported: tuple[str, ...] = ()
    """Fields that this version cannot honour; such a pod stays pending and is told so."""
    limits: tuple[Limit, ...] = ()
    """Parts of the containers that read how much they may use."""
    uninjected: tuple[str, ...] = ()
    """Containers that would not see the pod's GPUs, or others beside them."""
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute the hash once: classes are looked up with every pod."""
        object.__setattr__(self, "_hash", interning.hash_of(self))

    def __hash__(self) -> int:
        """Return the hash of everything that is compared."""
        return self._hash

    def tolerates(self, taint: Taint) -> bool:
        """Return whether any toleration covers the taint."""
        return any(each.tolerates(taint) for each in self.tolerations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What a pod says of the gang that it belongs to."""

    group: str
    """namespace/name."""
    minimum: int | None = None
    """The members that are needed, by the pod's annotation; None where a PodGroup tells."""
    scheduler: str = names.SCHEDULER

    @property
    def key(self) -> str:
        """Return what tells the gang from all others, in words for its user."""
        return f"PodGroup {self.group}" if self.minimum is None else f"pod group {self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPod:
    """A pod that waits for a node."""

    uid: str
    namespace: str
    name: str
    request: PodRequest
    scheduler: str = names.SCHEDULER
    """Its `schedulerName`, which tells the policy that it is decided by."""
    error: str = ""
    """Why its request means nothing; such a pod is never placed."""
    priority: int = 0
    weight: int = 0
    """`genius/priority`: orders pods of one priority, higher first."""
    created: str = ""
    """RFC 3339, so that text order is time order."""
    arrived: int = 0
    """Its number in the order in which the watch showed pods; orders those that were created in the same second."""
    annotation_bytes: int = 0
    """Bytes of annotations that it has already."""
    generation: int = 0
    """Of its spec; 0 if the API server is too old to count."""
    last_message: str = ""
    """The message that its PodScheduled condition already carries."""
    gang: Membership | None = None
    preempts: bool = True
    """Whether pods of lower priority may be evicted for it."""
    nominated: str = ""
    """The node that others leave for it, if any: it is tried first."""

    @property
    def key(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def kind(self) -> tuple[PodRequest, str, str, int, bool, str]:
        """Return the class of pods for which the same is decided; another scheduler's policy may answer otherwise.

        Whom it may preempt is part of it; and a pod for which others leave a node is a class of its own.
        """
        own = self.uid if self.nominated else ""
        return self.request, self.error, self.scheduler, self.priority, self.preempts, own

    @property
    def requests(self) -> tuple[PodRequest, ...]:
        """Return what is requested, as a unit of the queue."""
        return (self.request,)
