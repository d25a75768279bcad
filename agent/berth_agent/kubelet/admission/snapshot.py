"""A snapshot of a node when kubelet makes a request, and the containers that the request may be for.

kubelet admits one pod after another. For each pod, it handles the init containers first, then the containers. A
container that needs devices first gets devices of init containers of the same pod that have ended. Only for the rest
does kubelet look for free devices.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from berth_agent.kubelet.admission.pods import ContainerSpec, Pod
from berth_agent.kubelet.admission.units import Taken, Units
from berth_api.allocation import visible

Ids = frozenset[str]
NONE: Ids = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerKey:
    """A container by its pod's UID and its name."""

    uid: str
    container: str


Allocated = Mapping[ContainerKey, Mapping[str, Ids]]
"""Container -> resource -> ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingContainer:
    """A container that wants a resource and is not admitted yet."""

    pod: Pod
    container: ContainerSpec
    reusable: Ids
    """Devices of the init containers before it, which kubelet gives it first."""
    order: tuple[bool, ...]
    """Sort key: the most likely first. Equal containers keep the order of their pods."""

    @property
    def key(self) -> ContainerKey:
        """Return the container's name on the node."""
        return ContainerKey(uid=self.pod.uid, container=self.container.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSnapshot:
    """The node's pods, and what their containers have."""

    pods: tuple[Pod, ...] = ()
    """Pods that have not ended, in the order in which kubelet admits them."""
    unreported: frozenset[str] = frozenset()
    """UIDs of the pods that kubelet admitted and no longer reports. Their end has not reached our watch yet."""
    doubtful: frozenset[str] = frozenset()
    """UIDs of the pods with an allocation that kubelet never reported. They failed, or were taken for other pods."""
    allocated: Allocated = field(default_factory=dict)
    """What kubelet reports, and pending allocations."""
    recorded: frozenset[str] = frozenset()
    """UIDs of the pods that kubelet reports."""
    unconfirmed: tuple[Ids, ...] = ()
    """Pending allocations: their containers are our guess."""
    lingering: Mapping[str, Ids] = field(default_factory=dict)
    """UID of a removed pod -> devices of its containers that still run. Kubelet believes that these are free."""
    running: frozenset[str] = frozenset()
    """UIDs of the pods in `lingering` that were seen to have processes."""
    units: Units = field(default_factory=Units)

    def pending_containers(self, resource: str, size: int) -> list[PendingContainer]:
        """Return the containers for which kubelet may request this number of a resource, most likely first."""
        candidates = (candidate for pod in self.pods for candidate in self._pending_containers(pod, resource))
        return sorted(
            (candidate for candidate in candidates if candidate.container.wants[resource] == size),
            key=lambda candidate: candidate.order,
        )

    def _pending_containers(self, pod: Pod, resource: str) -> Iterator[PendingContainer]:
        """Go through a pod's containers after the last that has the resource, and yield each with what it may reuse.

        Where all that a pod has is our guess, its init containers come last: they may have been another pod's.
        """
        if pod.uid in self.unreported:
            return
        wanting = [container for container in pod.containers if resource in container.wants]
        having = [self.of(ContainerKey(uid=pod.uid, container=container.name), resource) for container in wanting]
        served = max((place for place, ids in enumerate(having) if ids), default=-1) + 1
        reusable = NONE
        for container, ids in zip(wanting[:served], having, strict=False):
            reusable = reusable | ids if container.ends else reusable - ids
        # Kubelet finishes a pod before it begins the next.
        fresh = not any(key.uid == pod.uid for key in self.allocated)
        late = self.is_late(pod)
        for place, container in enumerate(wanting[served:]):
            yield PendingContainer(pod=pod, container=container, reusable=reusable, order=(place > 0, late, fresh))
        guessed = [container for container in wanting[:served] if container.ends and pod.uid not in self.recorded]
        for container in guessed:
            yield PendingContainer(pod=pod, container=container, reusable=NONE, order=(True, True, True))

    def is_late(self, pod: Pod) -> bool:
        """Return whether kubelet seems to be done with a pod, admitted or not."""
        return pod.started or pod.uid in self.doubtful

    def of(self, key: ContainerKey, resource: str) -> Ids:
        """Return what a container has of a resource."""
        return self.allocated.get(key, {}).get(resource, NONE)

    def is_waiting(self, pod: Pod) -> bool:
        """Return whether some container of a pod has yet to be admitted."""
        wanted = {resource for container in pod.containers for resource in container.wants}
        return any(True for resource in wanted for _ in self._pending_containers(pod, resource))

    def had_by(self, pod: Pod) -> Ids:
        """Return all that a pod's containers have."""
        return NONE.union(*(ids for key, by in self.allocated.items() if key.uid == pod.uid for ids in by.values()))

    def holders(self) -> dict[str, str]:
        """Return by id the UID of the pod that has it."""
        return {unit: key.uid for key, by in self.allocated.items() for ids in by.values() for unit in ids}

    def owners(self) -> dict[str, Pod]:
        """Return by id the pod whose annotation names it."""
        return {unit: pod for pod in self.pods for unit in pod.granted}

    def held(self) -> frozenset[str]:
        """Return the ids of all cards and instances that pods have by name, may have, or still use."""
        units = {*self.holders(), *(unit for pod in self.pods for unit in pod.granted)}
        return self.uncertain().union(map(visible, units.union(*self.lingering.values())))

    def uncertain(self) -> frozenset[str]:
        """Return the ids of the cards that containers may have: the ids that kubelet reports do not show which."""
        given = NONE.union(self.holders(), *self.lingering.values())
        return frozenset[str]().union(
            *(self.units.candidates(unit) for unit in given if self.units.matched(unit) is None)
        )

    def promised(self, *, without: Ids = NONE) -> Taken:
        """Return the devices that annotations name, except the annotations of some pods."""
        grants = [grant for pod in self.pods if pod.uid not in without for grant in pod.grants]
        # A share of a card leaves kubelet nothing of it: it would hand out all.
        whole = (grant.id for grant in grants if not grant.is_subdevice)
        return Taken.of((grant.id for grant in grants), self.units, whole=whole)

    def had_by_others(self, pod: Pod) -> Taken:
        """Return the devices that no container of a pod can have, whatever the pod's annotation names."""
        others = {unit for unit, uid in self.holders().items() if uid != pod.uid}
        lingering = (ids for uid, ids in self.lingering.items() if uid != pod.uid)
        return Taken.of(others.difference(*self.unconfirmed).union(*lingering), self.units)

    def withheld(self) -> frozenset[str]:
        """Return the ids of the cards that kubelet must not allocate.

        These cards are charged to pods for which kubelet knows no devices, or containers of removed pods still use
        them, or containers may have them. A card of which kubelet allocated any part by its own id is never among them:
        a pod whose devices turn unhealthy can neither be restarted nor admitted again.
        """
        shared = {self.units.card(unit) for pod in self.pods if not pod.uses_plugin for unit in pod.granted}
        running = (ids for uid, ids in self.lingering.items() if uid in self.running)
        lingering = Taken.of(NONE.union(*running), self.units).touched
        given = (unit for unit in self.holders() if self.units.matched(unit) is not None)
        return (lingering | shared | self.uncertain()) - Taken.of(given, self.units).touched
