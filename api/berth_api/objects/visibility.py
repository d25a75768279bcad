"""The objects of the visibility API. The operator writes them, and the console reads them.

The descriptions are published (OpenAPI, docs/reference/visibility.md). The console converts other objects to the same
form. Fields that it cannot know there are NotRequired, and so are fields that are absent when they have no meaning.
Amounts are in the units of docs/protocol.md.
"""

from typing import Annotated, Any, Final, NotRequired, Required, TypedDict

GROUP: Final = "visibility.berth.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

Amounts = Annotated[
    dict[str, int], "Resource -> amount: memory in bytes, cpu in thousandths, parts of cards in hundredths."
]


class ObjectMeta(TypedDict):
    """Which object it is about."""

    name: str
    namespace: NotRequired[str]
    uid: NotRequired[str]
    creationTimestamp: NotRequired[str | None]


# --- fleet ------------------------------------------------------------------------------------------------------


class InstancePlacement(TypedDict):
    """The place on its card of a MIG instance that is made for a ResourceClaim."""

    start: Annotated[int, "The first of its memory slices; the card's first is 0."]
    size: Annotated[int, "Number of its memory slices."]
    of: Annotated[int, "Number of memory slices of the card."]


class CardInstance(TypedDict):
    """A MIG instance."""

    profile: Annotated[str, "Its profile."]
    minor: Annotated[int, "The card."]
    free: Annotated[bool, "Whether it can be allocated."]
    placement: NotRequired[
        Annotated[InstancePlacement, "Of an instance that is made for a ResourceClaim; absent if it is not known."]
    ]


class Metrics(TypedDict, total=False):
    """What was measured of a card."""

    utilization: Annotated[float, "Share of the time in which a kernel ran, 0 to 1."]
    memoryUsed: Annotated[int, "Bytes."]
    power: Annotated[float, "Watts."]


class Card(TypedDict):
    """A device of a node."""

    type: Annotated[str, "gpu, rdma, fpga, or a type of a plug-in."]
    minor: Annotated[int, "Its number on the node."]
    id: Annotated[str, "UUID of a GPU, PCI address of others."]
    model: Annotated[str, "Model as the driver reports it."]
    healthy: Annotated[bool, "Whether it, or its instances, can be allocated."]
    message: Annotated[str, "The faults that the agent reports."]
    blocked: Annotated[str, "Why a healthy card is not allocated; empty if it can be."]
    barred: NotRequired[Annotated[str, "Why it is not allocated by name, such as for ResourceClaims; absent if it is."]]
    total: Amounts
    free: Amounts
    held: Annotated[int, "How much of it is held, in hundredths of the resource of which most is held."]
    users: Annotated[int, "Number of grants of pods."]
    unheld: NotRequired[Annotated[int, "Number of pods that use it and do not hold it; absent if it is 0."]]
    numaNode: Annotated[int, "-1 if it is not known."]
    pcie: Annotated[str, "The PCIe switch; empty if it is not known."]
    mig: Annotated[list[CardInstance], "MIG instances that are given by name, or were made for ResourceClaims."]
    migOnDemand: NotRequired[
        Annotated[
            dict[str, int],
            "Profile -> MIG instances that can still be made for ResourceClaims if none of another profile is made; "
            "absent if none can be made.",
        ]
    ]
    links: Annotated[dict[str, str], "Id of another card -> kind of link."]
    metrics: NotRequired[Annotated[Metrics, "What was measured; absent if it is not known or too old."]]


class NodeResource(TypedDict):
    """A resource of the Node."""

    total: Annotated[int, "Allocatable."]
    free: Annotated[int, "Not requested."]


class FleetNode(TypedDict):
    """A node with a Device, its cards and what is free. It names no pods."""

    metadata: ObjectMeta
    ready: Annotated[bool, "Whether the Node is ready."]
    schedulable: Annotated[bool, "Whether the Node is not cordoned."]
    taints: NotRequired[
        Annotated[
            list[str], "Taints that keep pods without a toleration away, except a cordon's: `key=value:NoSchedule`."
        ]
    ]
    reporting: Annotated[bool, "Whether the agent renews its Lease."]
    blocked: Annotated[str, "Why some or all devices are not allocated there; empty if they are."]
    promised: NotRequired[Annotated[int, "Places that are promised to pods which do not exist yet; they are not free."]]
    models: Annotated[dict[str, int], "Model -> number of devices."]
    devices: Annotated[list[Card], "What the Device lists."]
    resources: NotRequired[Annotated[dict[str, NodeResource], "cpu, memory and pods."]]
    zone: Annotated[str, "Label topology.kubernetes.io/zone."]
    rack: Annotated[str, "The label of the narrowest topology domain above the node that gangs are placed in."]
    isolation: Annotated[str, "Label berth.dev/isolation: mps if pods share its GPUs by MPS alone."]


# --- holders ----------------------------------------------------------------------------------------------------


class PodOwner(TypedDict):
    """The controller of a pod."""

    kind: Annotated[str, "Empty for none."]
    name: str


class HeldPart(TypedDict):
    """A device, or a part of one, that a pod holds."""

    type: Annotated[str, "Type of device."]
    minor: Annotated[int, "The card; negative if the Device no longer lists it."]
    id: Annotated[str, "The device, instance or replica."]
    model: Annotated[str, "Model of the card."]
    amounts: Amounts
    placement: NotRequired[
        Annotated[InstancePlacement, "Of an instance that is made for a ResourceClaim; absent if it is not known."]
    ]
    card: NotRequired[
        Annotated[dict[str, int], "Of an instance or replica: what its card has of instances, by profile, or replicas."]
    ]


class Exceeding(TypedDict):
    """A card of which a pod uses more memory than its share."""

    type: Annotated[str, "Type of device."]
    minor: Annotated[int, "The card."]
    memory: Annotated[int, "Bytes in use, rounded up to 1 GiB."]
    limit: Annotated[int, "Bytes of its share."]


class HoldingPod(TypedDict):
    """A pod that holds devices, or a place with devices that is promised to one."""

    metadata: ObjectMeta
    node: Annotated[str, "Its node."]
    owner: Annotated[PodOwner, "Its controller."]
    scheduler: Annotated[str, "The pod's schedulerName."]
    since: Annotated[str, "When kubelet started it; empty if that is not known."]
    endsBy: Annotated[str, "When it ends at the latest (activeDeadlineSeconds); empty if it has no deadline."]
    devices: Annotated[list[HeldPart], "The devices."]
    drifted: Annotated[bool, "Whether it holds other devices than it was allocated."]
    promised: Annotated[bool, "Whether the pod does not exist yet: its owner is the Workload to which it was promised."]
    isolation: Annotated[str, "What limits its containers to their shares, mps or hami-core; empty for nothing."]
    exceeding: Annotated[list[Exceeding], "Cards of which it uses more memory than its share, by more than 1 GiB."]


# --- queue ------------------------------------------------------------------------------------------------------


class WaitingGang(TypedDict):
    """The pod group; of a Workload the pods with a place, and all pods. Absent for single pods."""

    name: Annotated[str, "Name of the group."]
    members: NotRequired[Annotated[int, "Members that wait or have a node."]]
    required: NotRequired[Annotated[int, "Members that must be placed together; with fewer, none is placed."]]


class QueuedPod(TypedDict):
    """A pod that waits for a node, or a Workload of Kueue that waits for places."""

    metadata: ObjectMeta
    position: Annotated[
        int, "1 is tried next; counts the pods of all namespaces. 0 of a pod with scheduling gates, and of a Workload."
    ]
    state: Annotated[str, "active, backoff, unschedulable or gated."]
    priority: Annotated[int, "The pod's priority."]
    waitingSeconds: Annotated[int, "Seconds since its creation, when this was rendered."]
    scheduler: Annotated[str, "The pod's schedulerName."]
    requests: Amounts
    backoffSeconds: Annotated[float, "Seconds until it is active again; 0 if it does not back off."]
    wakesOn: Annotated[list[str], "The events after which it is tried again."]
    message: Annotated[str, "Why it waits."]
    reservedNode: Annotated[str, "The node that is reserved for it."]
    gang: NotRequired[WaitingGang]


# --- explanation ------------------------------------------------------------------------------------------------


class ReasonGroup(TypedDict):
    """Nodes that are rejected for the same reasons."""

    reasons: Annotated[list[str], "The reasons of all filters that reject these nodes, in the order of the filters."]
    counted: Annotated[list[str], "The reasons that the condition counts: those of the first filter."]
    filters: Annotated[list[str], "The filters."]
    count: Annotated[int, "Number of nodes."]
    nodes: Annotated[list[str], "Names of the first 100 nodes."]


class LackingCard(TypedDict):
    """A card that must become free."""

    type: Annotated[str, "Type of device."]
    minor: Annotated[int, "The card."]
    amounts: Annotated[Amounts, "What is missing; empty if no other pod may use the card."]


class LackingNode(TypedDict):
    """A node that would take the pod if it had what it lacks."""

    node: Annotated[str, "Its name."]
    resources: Annotated[Amounts, "Missing amounts of the Node."]
    cards: Annotated[list[LackingCard], "Cards that must become free, wholly or in part."]


class LeftOut(TypedDict):
    """Devices that a request does not find for one reason."""

    devices: Annotated[int, "How many."]
    why: Annotated[str, "Why these devices are left out, as the end of a sentence."]
    selector: Annotated[bool, "Whether a selector leaves them out: the first selector that does not match."]


class RequestedDevices(TypedDict):
    """What one request of a ResourceClaim finds; each subrequest of `firstAvailable` is one of its own."""

    claim: Annotated[str, "namespace/name of the claim, or the extended resource that a DeviceClass provides."]
    request: Annotated[str, "Its name, or request/subrequest."]
    needed: Annotated[int, "Devices that it needs on one node; 0 for all that match."]
    devices: Annotated[int, "Devices that were compared with it."]
    found: Annotated[int, "Of these, the devices that match and are free, on all nodes together."]
    most: Annotated[int, "The largest number that match and are free on one node."]
    nodes: Annotated[list[str], "Nodes with this number, the first by name; none if nothing was found."]
    enough: Annotated[int, "Nodes that have enough for this request alone."]
    matching: Annotated[
        int, "The largest number on one node that match, free or not, without pools of other schedulers."
    ]
    leftOut: Annotated[list[LeftOut], "Why other devices are left out, the largest number first."]


class ClaimDevices(TypedDict):
    """What the requests of a pod's ResourceClaims that are not allocated yet find."""

    nodes: Annotated[int, "Nodes that were compared. If claims alone exclude some nodes, only these are compared."]
    complete: Annotated[bool, "Whether all of them were compared: comparing ends after 20,000 devices."]
    together: Annotated[
        str, "Why a node that has enough for each single request does not fit; empty if there is no such node."
    ]
    requests: Annotated[list[RequestedDevices], "The requests that have to be met on one node."]


class RemedyAnswer(TypedDict):
    """A change of the cluster, and whether it ends the wait."""

    kind: Annotated[str, "Member, Claim, Label, NewNode, Capacity, End, Preemption or Administrator."]
    answer: Annotated[str, "Ends (if nothing else changes), Needed (before any other change helps) or DoesNotHelp."]
    message: Annotated[str, "The change, the answer, and what was assumed."]
    node: Annotated[str, "The node that changes, or that the new node is like; may be empty."]
    newNode: Annotated[bool, "Whether a node is added."]


class WaitAnswer(TypedDict):
    """What is said of a wait."""

    message: Annotated[str, "The answer."]
    helps: Annotated[bool, "Whether it names a way to end the wait."]


class TitledAnswer(WaitAnswer):
    """The answer to a question."""

    title: Annotated[str, "The question: Fits, New node, In vain or Preemption."]


class TriedChanges(TypedDict):
    """What is said of single changes."""

    title: Annotated[str, "The title of the list."]
    answers: Annotated[
        list[WaitAnswer], "The changes; or that no change was found to end the wait, or that none was tried."
    ]


class PreemptionOutlook(TypedDict):
    """Whether evictions of pods of lower priority would help."""

    possible: Annotated[bool, "Whether evictions would help."]
    message: Annotated[str, "How many pods, or why not."]


class ExplainedGang(WaitingGang):
    """The pod group, and which member is explained."""

    firstWithoutPlace: Annotated[
        str, "The first member without a place; empty if all have one, or if members are missing."
    ]


class NodeReservation(TypedDict):
    """The node reservation of a pod."""

    node: Annotated[str, "The node."]
    message: Annotated[str, "What it waits for."]


class QueuePlace(TypedDict):
    """The place of a pod in the queue."""

    position: Annotated[int, "1 is tried next."]
    of: Annotated[int, "Number of pods in the queue."]
    state: Annotated[str, "active, backoff or unschedulable."]
    backoffSeconds: Annotated[float, "Seconds until it is active again; 0 if it does not back off."]
    wakesOn: Annotated[list[str], "The events after which it is tried again."]


class NodeScore(TypedDict):
    """The points of a node."""

    node: Annotated[str, "Its name."]
    total: Annotated[float, "The sum of the points, by which nodes are compared."]
    terms: Annotated[dict[str, float], "Score that differs between nodes -> weighted points."]


class BindPoints(TypedDict):
    """Why a pod was bound to its node."""

    kept: Annotated[bool, "Whether the leader keeps the points: it does for its last 1,000 binds."]
    message: Annotated[str, "Why the points are not kept; empty if they are kept."]
    node: Annotated[str, "The node."]
    scores: Annotated[list[NodeScore], "The node and up to two runners-up."]


class PodExplanation(TypedDict, total=False):
    """Why a pod waits, or why it is where it is. For a pod that does not wait most fields are absent.

    For groups of up to 16 waiting pods, groups, nearest and the rest are those of the first member without a place.
    """

    metadata: Required[ObjectMeta]
    state: Required[Annotated[str, "Waiting, BackingOff, Active, Gated, Binding, Bound or NotManaged (by Berth)."]]
    message: Required[Annotated[str, "The message of its condition PodScheduled, or why there is none."]]
    nodes: Annotated[int, "Number of nodes that the decision considered."]
    groups: Annotated[list[ReasonGroup], "All nodes, the largest group first."]
    nearest: Annotated[list[LackingNode], "Up to five nodes that lack least."]
    fitsNow: Annotated[
        bool, "Whether it would be placed now; false, untried, if more than 16 members of its gang wait."
    ]
    remedies: Annotated[list[RemedyAnswer], "Examples; none for members of gangs with more than 16 waiting pods."]
    inVain: Annotated[bool, "Whether no change of the cluster can end the wait: the request cannot be met as it is."]
    outlook: Annotated[list[TitledAnswer], "The answers that people see, one for each question about the wait."]
    changes: Annotated[TriedChanges, "The answers about changes other than new nodes; absent without such answers."]
    fitsWhenEmpty: Annotated[
        int, "Nodes that it would fit if they had no pods; for a gang, its member alone. Absent if no node matters yet."
    ]
    newNodeHelps: Annotated[bool, "Whether it would fit another node that equals one of the cluster."]
    claims: Annotated[ClaimDevices, "Which devices its ResourceClaims find; absent unless claims exclude a node."]
    preemption: Annotated[
        PreemptionOutlook, "Whether evictions would help; absent for gangs, and where evictions are never tried."
    ]
    gang: ExplainedGang
    reservation: NodeReservation
    refusal: Annotated[str, "Which writes for it the API server refuses, and why; absent if it refuses none."]
    queue: Annotated[QueuePlace, "Its place in the queue; absent when bound."]
    bind: Annotated[BindPoints, "Why it was bound to its node; absent while it waits."]


# --- settings ---------------------------------------------------------------------------------------------------


class OperatorSettings(TypedDict, total=False):
    """The operator's settings that decide about pods. An explanation has those that concern its namespace."""

    configuration: Annotated[dict[str, Any], "The profiles and limits in use, as a BerthSchedulerConfiguration."]
    memoryUnits: Annotated[
        dict[str, int], "Resource of another system -> bytes of its unit, if --memory-units sets it."
    ]
    nicResources: Annotated[
        dict[str, int], "Resource of another device plugin -> hundredths of an RDMA NIC (--nic-resources)."
    ]
    gpuVendors: Annotated[list[str], "Vendors whose GPUs pods get by Berth's resources (--gpu-vendors)."]
    geniusPriorities: Annotated[
        dict[str, int], "Namespace, or * for all others -> the highest `genius/priority` of its pods; 0 for none."
    ]
    trustedSchedulers: Annotated[
        list[str], "Other schedulers whose allocations are trusted; of the fleet alone, as all below."
    ]
    nodeSelector: Annotated[str, "Label selector of the nodes; empty for all."]
    agentNamespace: Annotated[str, "Namespace of the agents' Leases."]
    chargeForeign: Annotated[bool, "Whether pods are kept off cards that processes outside Kubernetes use."]
    chargeUnheld: Annotated[bool, "Whether other pods are kept off a card that a pod uses without holding it."]
    podMix: Annotated[dict[str, Any], "What the pods that the leader has seen request; it scores nodes by this."]
    reservedNodes: Annotated[dict[str, str], "UID of a pod that waits -> the node that is reserved for it."]
