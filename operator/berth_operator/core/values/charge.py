"""What one pod uses of its node."""

from dataclasses import dataclass, field
from typing import Final

from berth_api.allocation import Grant
from berth_operator.core.values import ending
from berth_operator.core.values.affinity import NO_AFFINITY, NO_IDENTITY, Affinity, Identity
from berth_operator.core.values.mounts import NO_MOUNTS, NO_POD_VOLUMES, Mounts, PodVolumes
from berth_operator.core.values.owner import NO_OWNER, Owner
from berth_operator.core.values.pod_claims import NO_POD_CLAIMS, PodClaims
from berth_operator.core.values.request import AlikeKey, HostPort, Membership

NOT_STARTED: Final = 2**62
"""The start time of a pod that has not started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What one pod uses of its node."""

    uid: str
    pod: str
    """namespace/name."""
    node: str
    resources: tuple[tuple[str, int], ...] = ()
    """(name, amount) as kubelet counts them when it admits other pods: also what a claim provides by a DeviceClass."""
    nonzero_requested: tuple[int, int] = (0, 0)
    """cpu (thousandths) and memory (bytes), with kube-scheduler's defaults for containers that request none."""
    plugin_requests: tuple[tuple[str, int], ...] = ()
    """(name, amount) of the device resources that the pod requests by name, so that kubelet allocates them."""
    ports: tuple[HostPort, ...] = ()
    grants: tuple[Grant, ...] = ()
    isolation: str = ""
    """As `PodRequest.isolation`."""
    unknown: tuple[str, ...] = ()
    """Device types of which the pod may hold any card, because its allocation is missing or cannot be parsed."""
    lacks_cards: bool = False
    """Whether the pod's containers see no GPU, because another program bound the pod."""
    identity: Identity = NO_IDENTITY
    affinity: Affinity = NO_AFFINITY
    mounts: Mounts = NO_MOUNTS
    volumes: PodVolumes = NO_POD_VOLUMES
    """What the decision assigned to the pod's claims, kept until the API server shows the same."""
    claims: PodClaims = NO_POD_CLAIMS
    """The allocations that the decision made for its ResourceClaims. `grants` and `unknown` have the cards. They are
    kept until the API server shows the pod on its node, after the claims."""
    terminating: bool = False
    finalizers: tuple[str, ...] = field(default=(), compare=False)
    """What keeps a pod that is being deleted; the first names, for messages."""
    gang: Membership | None = None
    alike_key: AlikeKey | None = field(default=None, compare=False, repr=False)
    """The pod's `PodRequest.alike_key` if it is a member of a gang. It is not compared, because it follows from the
    spec."""
    priority: int = 0
    started: int = field(default=NOT_STARTED, compare=False)
    """Seconds since 1970, as kubelet reports. It is not compared, because it does not affect what the pod uses."""
    ends: int = field(default=ending.UNKNOWN, compare=False)
    """When the pod has ended at the latest, as in `ending`; not compared either."""
    owner: Owner = field(default=NO_OWNER, compare=False)
    scheduler: str = field(default="", compare=False)
    """The pod's `schedulerName`; empty for charges that are of no pod."""
    workload: str = field(default="", compare=False)
    """As `PendingPod.workload`."""
