"""The objects of `visibility.berth.dev/v1alpha1`; what is read from other objects is given the same form.

Amounts are integers in the units of docs/protocol.md: memory in bytes, cpu in thousandths, parts of cards in
hundredths.
"""

from typing import Any, NotRequired, TypedDict

Object = dict[str, Any]
Amounts = dict[str, int]


class Metadata(TypedDict):
    """Which object a row is about."""

    name: str
    namespace: NotRequired[str]
    uid: NotRequired[str]
    creationTimestamp: NotRequired[str]


class Mig(TypedDict):
    """A MIG instance, or several of one profile."""

    profile: str
    free: bool


class Metrics(TypedDict, total=False):
    """What was measured of a card."""

    utilization: float
    """Share of the time in which the card was busy, 0 to 1."""
    memoryUsed: int
    """Bytes."""
    power: float
    """Watts."""


class Card(TypedDict):
    """One device of a node."""

    type: str
    minor: int
    id: str
    model: str
    healthy: bool
    message: str
    blocked: NotRequired[str]
    """Why nothing of it is allocated although it is healthy; older operators show that only of the node."""
    total: Amounts
    free: Amounts
    held: NotRequired[int]
    """Hundredths; older operators do not show it."""
    users: int
    numaNode: int
    pcie: str
    mig: list[Mig]
    links: dict[str, str]
    metrics: NotRequired[Metrics]
    barred: NotRequired[str]
    """Why it is not given by name."""
    unheld: NotRequired[int]
    """Pods that use it and do not hold it; absent if it is 0."""


class Capacity(TypedDict):
    """An amount of a node, and what is free of it."""

    total: int
    free: int


class FleetNode(TypedDict):
    """A node with a Device object."""

    metadata: Metadata
    ready: bool
    schedulable: bool
    reporting: bool
    blocked: str
    promised: NotRequired[int]
    """Places that are promised to pods which do not exist yet."""
    models: dict[str, int]
    zone: str
    rack: str
    isolation: NotRequired[str]
    """The label berth.dev/isolation of the Node; older operators do not show it."""
    devices: list[Card]
    resources: NotRequired[dict[str, Capacity]]


class Owner(TypedDict):
    """The controller of a pod; an empty kind for none."""

    kind: str
    name: str


class HeldPart(TypedDict):
    """A device, or a share of it, that a pod holds."""

    type: str
    minor: int
    id: str
    model: str
    amounts: Amounts
    card: NotRequired[Amounts]
    """Of an instance or replica: the instances or replicas of its card. Older operators do not show it."""


class Exceeding(TypedDict):
    """A card of which a pod uses more memory than its share, in bytes."""

    type: str
    minor: int
    memory: int
    limit: int


class Holder(TypedDict):
    """A pod that holds devices."""

    metadata: Metadata
    node: str
    owner: Owner
    scheduler: str
    since: str
    endsBy: str
    devices: list[HeldPart]
    drifted: bool
    promised: NotRequired[bool]
    """Whether the pod does not exist yet."""
    isolation: NotRequired[str]
    """What limits its containers to their shares; empty for nothing."""
    exceeding: NotRequired[list[Exceeding]]
    """Older operators do not show it."""


class Gang(TypedDict, total=False):
    """The gang of a waiting pod."""

    name: str
    members: int
    required: int


class QueuedPod(TypedDict):
    """A pod that waits."""

    metadata: Metadata
    position: int
    """1 is decided next; 0 if the order is not known, and of a pod with scheduling gates."""
    state: str
    priority: int
    waitingSeconds: int
    scheduler: str
    requests: Amounts
    backoffSeconds: float
    wakesOn: list[str]
    message: str
    gang: NotRequired[Gang]
    reservedNode: str


class ReasonGroup(TypedDict):
    """Nodes on which the same filters fail."""

    reasons: list[str]
    counted: list[str]
    filters: list[str]
    count: int
    nodes: list[str]


class LackingCard(TypedDict):
    """What a card lacks."""

    type: str
    minor: int
    amounts: Amounts


class NearNode(TypedDict):
    """A node that lacks amounts alone."""

    node: str
    resources: Amounts
    cards: list[LackingCard]


class Preemption(TypedDict):
    """Whether pods of lower priority could make room."""

    possible: bool
    message: str


class ExplainedGang(TypedDict, total=False):
    """The gang of a pod."""

    name: str
    members: int
    required: int
    bound: int
    waiting: int
    firstWithoutPlace: str
    message: str


class Reservation(TypedDict):
    """The node that is kept for a pod."""

    node: str
    message: str


class QueuePlace(TypedDict):
    """The place of a pod in the queue."""

    position: int
    of: int
    state: str
    backoffSeconds: float
    wakesOn: list[str]


class NodeScore(TypedDict):
    """The score of a node, with its terms."""

    node: str
    total: float
    terms: dict[str, float]


class Bind(TypedDict):
    """Why a pod was bound to its node."""

    kept: bool
    message: NotRequired[str]
    """Why they are not kept; an older operator does not say so."""
    node: str
    scores: list[NodeScore]


class Remedy(TypedDict):
    """A change of the cluster, and whether it ends the wait."""

    kind: str
    answer: str
    """Ends, Needed or DoesNotHelp."""
    message: str
    node: str
    newNode: bool


class WaitAnswer(TypedDict):
    """What is said of a wait."""

    message: str
    helps: bool
    """Whether it names a way to end the wait."""


class TitledAnswer(WaitAnswer):
    """The answer to a question."""

    title: str


class Changes(TypedDict):
    """What is said of single changes."""

    title: str
    answers: list[WaitAnswer]


class LeftOut(TypedDict):
    """Devices that a request does not find for one reason."""

    devices: int
    why: str
    selector: bool


class RequestedDevices(TypedDict):
    """What a request of a ResourceClaim finds."""

    claim: str
    request: str
    needed: int
    """0 for all that match."""
    devices: int
    found: int
    most: int
    nodes: list[str]
    enough: int
    matching: int
    leftOut: list[LeftOut]


class ClaimDevices(TypedDict):
    """What the requests of a pod's ResourceClaims find."""

    nodes: int
    complete: bool
    together: str
    requests: list[RequestedDevices]


class Explanation(TypedDict):
    """Why a pod waits, or why it is where it is; only `metadata`, `state` and `message` are always there."""

    metadata: Metadata
    state: str
    message: str
    nodes: NotRequired[int]
    groups: NotRequired[list[ReasonGroup]]
    nearest: NotRequired[list[NearNode]]
    fitsNow: NotRequired[bool]
    fitsWhenEmpty: NotRequired[int]
    newNodeHelps: NotRequired[bool]
    remedies: NotRequired[list[Remedy]]
    outlook: NotRequired[list[TitledAnswer]]
    changes: NotRequired[Changes]
    """An older operator has no remedies, outlook and changes."""
    inVain: NotRequired[bool]
    claims: NotRequired[ClaimDevices]
    preemption: NotRequired[Preemption]
    gang: NotRequired[ExplainedGang]
    reservation: NotRequired[Reservation]
    queue: NotRequired[QueuePlace]
    bind: NotRequired[Bind]
