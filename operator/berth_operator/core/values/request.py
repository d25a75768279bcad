"""The parts of a pod that scheduling reads.

Two pods with equal `PodRequest`s are of one class: a decision for one is valid for the other.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from berth_api import names
from berth_api.request import NOTHING, DeviceRequest
from berth_api.request.model import ANY_MODEL, ModelConstraint
from berth_api.request.share import Share
from berth_api.values import interning
from berth_api.values.selectors import Requirement
from berth_operator.core.claims.objects.extended import ExtendedRequest
from berth_operator.core.values import ending
from berth_operator.core.values.affinity import NO_AFFINITY, NO_IDENTITY, Affinity, Identity
from berth_operator.core.values.limits import Limit
from berth_operator.core.values.mounts import NO_MOUNTS, Mounts
from berth_operator.core.values.owner import NO_OWNER, Owner
from berth_operator.core.values.pod_admission import PodAdmission
from berth_operator.core.values.pod_claims import ClaimUse
from berth_operator.core.values.preemption_backoff import NO_BACKOFF, PreemptionBackoff


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A toleration of a pod; empty fields match everything."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: "Taint") -> bool:
        """Return whether this tolerates the taint, by Kubernetes' rules."""
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
    """Requirements on a node that must all be met; a term without requirements matches no node."""

    labels: tuple[Requirement, ...] = ()
    names: tuple[Requirement, ...] = ()
    """Requirements on the node's name, `In` or `NotIn`; their key is ignored."""


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
    volumes: int = 0
    """Number of image volumes."""


AlikeKey = tuple[DeviceRequest, ModelConstraint, tuple[Requirement, ...], tuple[NodeTerm, ...] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """A pod's class."""

    resources: tuple[tuple[str, int], ...] = ()
    """(name, amount) of each resource that is compared with the Node's allocatable; always includes `pods: 1`."""
    nonzero_requested: tuple[int, int] = (0, 0)
    """cpu (thousandths) and memory (bytes), with kube-scheduler's defaults for containers that request none."""
    devices: DeviceRequest = NOTHING
    plugin_requests: tuple[tuple[str, int], ...] = ()
    """(name, amount) of the device resources under the names that the pod requests."""
    shares: tuple[Share, ...] = ()
    """Which of the pod's cards each container sees."""
    model: ModelConstraint = ANY_MODEL
    node_selector: tuple[Requirement, ...] = ()
    node_affinity: tuple[NodeTerm, ...] | None = None
    """The terms, at least one of which must match; None if the pod has no required node affinity."""
    preferred_nodes: tuple[tuple[NodeTerm, int], ...] = ()
    """(term, weight)."""
    tolerations: tuple[Toleration, ...] = ()
    images: PodImages = PodImages()
    ports: tuple[HostPort, ...] = ()
    features: tuple[str, ...] = ()
    """Features of kubelet that the pod requires."""
    identity: Identity = NO_IDENTITY
    """The pod's namespace and labels, which terms of placed pods may match."""
    affinity: Affinity = NO_AFFINITY
    mounts: Mounts = NO_MOUNTS
    claims: tuple[ClaimUse, ...] = ()
    """Its ResourceClaims, in the order of the spec."""
    extended: tuple[ExtendedRequest, ...] = ()
    """What its containers request of extended resources, if nothing else decides which devices they get."""
    names_claim: bool = False
    """Whether the pod's status names a claim for its extended resources, because it was nearly bound before."""
    rejected_controller: str = ""
    """Key of the pod's controller in `Fleet.rejecting` if kubelets have rejected its pods; empty for most pods."""
    unsupported: tuple[str, ...] = ()
    """Fields that this version does not support. The pod stays pending, and its status names these fields."""
    limits: tuple[Limit, ...] = ()
    """The limits of the containers that read them."""
    isolation: str = ""
    """The isolation mode that limits the pod's containers to their shares of cards, `mps` or `hami-core`; empty for
    none."""
    uninjected: tuple[str, ...] = ()
    """Containers that would not see the pod's GPUs, or would see other GPUs too."""
    unlimited: tuple[str, ...] = ()
    """Containers without the limits that the pod requests."""
    limited_by: str = ""
    """What in the pod requests these limits, as messages name it; empty if `unlimited` is."""
    questions: str = ""
    """What may be meant otherwise: limits of devices above the requests, names that are almost words."""
    read: str = ""
    """Other systems' words that were read, and which of them have no effect; empty if the pod has none."""
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute the hash once, because classes are looked up for every pod."""
        object.__setattr__(self, "_hash", interning.hash_of(self))

    def __hash__(self) -> int:
        """Return the hash of everything that is compared."""
        return self._hash

    @property
    def most_gpus_of_a_container(self) -> int:
        """Return the number of units of GPUs of the container that gets the most; all of them if it is not known."""
        total = sum(part.count for part in self.devices.parts if part.type == names.GPU)
        return max((share.end - share.first for share in self.shares), default=total)

    @property
    def alike_key(self) -> AlikeKey | None:
        """Return what members of a gang whose GPUs must be alike have in common; None if the pod needs no alike GPUs.

        Members that select different nodes may get different GPUs.
        """
        if self.devices.mixed or not any(part.type == names.GPU for part in self.devices.parts):
            return None
        return self.devices, self.model, self.node_selector, self.node_affinity

    def tolerates(self, taint: Taint) -> bool:
        """Return whether any of the pod's tolerations tolerates the taint."""
        return any(each.tolerates(taint) for each in self.tolerations)


SCHEDULING_GROUP: Final = "spec.schedulingGroup"
"""The field of a pod that names a PodGroup of Kubernetes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The gang that a pod belongs to, as the pod's spec names it."""

    group: str
    """namespace/name."""
    minimum: int | None = None
    """The minimum number of members, from the pod's annotations; None if another object defines it."""
    controller: str = ""
    """The kind of a gang that its controller defines, as in `controller_gangs`; empty if the pod names a group."""
    first: int = 0
    """The number of members that the controller creates before the others; 0 if the pod does not show it."""
    scheduler: str = names.SCHEDULER
    word: str = field(default=f"label {names.POD_GROUP_LABEL}", compare=False)
    """The label, annotation or field that names it, for messages: members may have different ones."""

    @property
    def is_kubernetes(self) -> bool:
        """Return whether the pod names a PodGroup of Kubernetes."""
        return self.word == SCHEDULING_GROUP

    @property
    def has_object(self) -> bool:
        """Return whether a PodGroup defines it, which shows its state."""
        return self.minimum is None and not self.controller

    @property
    def name(self) -> str:
        """Return the group's name without its namespace."""
        return self.group.partition("/")[2]

    @property
    def key(self) -> str:
        """Return the gang's unique name, in the words that messages use."""
        kind = self.controller or ("PodGroup" if self.has_object else "pod group")
        return f"{kind} {self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPod:
    """A pod that waits for a node."""

    uid: str
    namespace: str
    name: str
    request: PodRequest
    scheduler: str = names.SCHEDULER
    """The pod's `schedulerName`, which selects the policy."""
    error: str = ""
    """Why the pod's request is invalid; empty if it is valid. A pod with an invalid request is never placed."""
    priority: int = 0
    weight: int = 0
    """`genius/priority`: orders pods of equal priority, higher first."""
    created: str = ""
    """RFC 3339, so that lexical order is time order."""
    arrived: int = 0
    """The pod's number in the order of the watch; orders pods that were created in the same second."""
    queued_at: float = 0.0
    """When the pod was first seen without gates, in monotonic seconds."""
    annotation_bytes: int = 0
    """Bytes of the annotations that the pod already has."""
    generation: int = 0
    """`metadata.generation`; 0 if the API server is too old to set it."""
    last_message: str = ""
    """The message of the pod's current PodScheduled condition."""
    last_reason: str = ""
    """The reason of that condition."""
    unschedulable_since: str = ""
    """When that condition became False, in RFC 3339; empty while there is none."""
    lifetime: int = 0
    """Seconds after the pod's start within which kubelet ends it (`activeDeadlineSeconds`); 0 if unlimited."""
    ends: int = ending.UNKNOWN
    """When it is expected to end once it is placed, as in `ending`."""
    gang: Membership | None = None
    preempts: bool = True
    """Whether pods of lower priority may be preempted for this pod."""
    nominated_node: str = ""
    """The pod's nominated node, if any. It is tried first."""
    reserved_node: str = ""
    """The node with the pod's node reservation, if any."""
    backoff: PreemptionBackoff = NO_BACKOFF
    """Where no pods are evicted for it now."""
    owner: Owner = NO_OWNER
    workload: str = ""
    """`name/pod set` of the Kueue Workload in the pod's namespace that may have a promised place; empty for most."""
    admission: PodAdmission | None = field(default=None, hash=False)
    """What admission reads of it, for pods that will be created like it; None for most."""

    @property
    def key(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def without_controllers_gang(self) -> "PendingPod":
        """Return the pod as a member of the gang that it names, if any, and of no gang that its controller defines."""
        return replace(self, gang=None) if self.gang is not None and self.gang.controller else self

    @property
    def class_key(self) -> tuple[PodRequest, str, str, int, bool, int, str]:
        """Return the key of the pods that get the same decision.

        The key includes the scheduler, because policies differ. It includes the priority, which determines the victims,
        and the lifetime, which determines the node reservations that the pod may backfill. A pod with a nominated node
        or a node reservation has its own key. So have the pods of a controller whose preemption backs off.
        """
        own = self.uid if self.nominated_node or self.reserved_node else self.backoff.preemptor
        return self.request, self.error, self.scheduler, self.priority, self.preempts, self.lifetime, own

    @property
    def requests(self) -> tuple[PodRequest, ...]:
        """Return the requests of this unit of the queue: a single one."""
        return (self.request,)

    @property
    def size(self) -> int:
        """Return the number of pods of this unit of the queue."""
        return 1
