"""The holders of each card, and how much of it each holds, for metrics. Pure functions."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from berth_agent.kubelet.admission.mirror import Holding
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.readings import ClaimedPart
from berth_agent.usage import exceeding
from berth_api.allocation import short, visible
from berth_api.device import DeviceInfo, DeviceSpec, MigInstance
from berth_api.names import GPU, GPU_MEMORY, GPU_MEMORY_RATIO
from berth_api.objects import device_text
from berth_api.resources import quantity

WHOLE: Final = "whole"
"""The text of a whole card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A container that holds a card, an instance or a share of a card."""

    namespace: str
    pod: str
    container: str
    """Empty if the allocation names no container."""
    card: str
    """UUID."""
    instance: MigInstance | None = None
    share: float
    """Share of the card: 1 for all of it, of an instance by its memory."""
    text: str
    """The same in the words of Events and GpuPods: `whole`, `core 50, memory 40Gi`, `MIG 1g.10gb`, `replica 1 of 4`."""
    memory: int | None = None
    """Bytes of the card that are the pod's; None for a whole card, a replica and an instance."""
    claimed: str = ""
    """Names the part of a ResourceClaim: containers that share it have equal ones. Empty for an allocation by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNames:
    """The names that identify a pod to users."""

    namespace: str
    name: str
    containers: Mapping[str, str] = field(default_factory=dict)
    """Runtime's id -> name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """A card or instance by the id that kubelet and allocations know."""

    card: DeviceInfo
    instance: MigInstance | None = None

    @property
    def replicas(self) -> int:
        return self.instance.replicas if self.instance else self.card.replicas

    @property
    def share(self) -> float:
        """Share of the card that all replicas are."""
        if self.instance is None:
            return 1.0
        memory = {short(name): amount for name, amount in self.card.resources.items()}.get(GPU_MEMORY, 0)
        whole = quantity.parse(memory)
        return quantity.parse(self.instance.memory) / whole if whole else 0.0


def holders(
    holdings: Iterable[Holding], pods: Iterable[Pod], spec: DeviceSpec, claimed: Iterable[ClaimedPart] = ()
) -> tuple[Holder, ...]:
    """Return the holders of a node's cards: by kubelet's reports, and by allocations that kubelet does not know.

    `claimed` is what containers have by ResourceClaims.
    """
    units: dict[str, _Unit] = {}
    for card in (device for device in spec.devices if device.type == GPU):
        units[card.id] = _Unit(card=card)
        for instance in card.mig.instances if card.mig else ():
            units[instance.id] = _Unit(card=card, instance=instance)
    of_kubelet = [
        Holder(
            namespace=holding.namespace,
            pod=holding.pod,
            container=holding.container,
            card=unit.card.id,
            instance=unit.instance,
            share=unit.share / unit.replicas,
            text=_text(unit, unit_id) or WHOLE,
        )
        for holding in holdings
        for unit_id in holding.ids
        if (unit := units.get(visible(unit_id)))
    ]
    of_allocations = [holder for pod in pods if not pod.uses_plugin for holder in _of_allocation(pod, units)]
    of_claims = [_of_claim(part, units[part.card].card) for part in claimed if part.card in units]
    return (*of_kubelet, *of_allocations, *of_claims)


def pod_names(holdings: Iterable[Holding], pods: Iterable[Pod]) -> dict[str, PodNames]:
    """Return the names of the pods that may have processes, by the UID in their cgroups; some outlive their objects."""
    gone = {holding.uid: PodNames(namespace=holding.namespace, name=holding.pod) for holding in holdings}
    return gone | {
        pod.cgroup_uid: PodNames(namespace=pod.namespace, name=pod.name, containers=pod.container_ids) for pod in pods
    }


def _of_allocation(pod: Pod, units: Mapping[str, _Unit]) -> Iterator[Holder]:
    for grant in pod.grants:
        if unit := units.get(grant.visible):
            if grant.is_subdevice:
                share = unit.share / unit.replicas
            else:
                share = dict(grant.amounts).get(GPU_MEMORY_RATIO, device_text.CARD) / device_text.CARD
            containers = [container.name for container in pod.containers if grant.visible in container.visible]
            for container in containers or [""]:
                yield Holder(
                    namespace=pod.namespace,
                    pod=pod.name,
                    container=container,
                    card=unit.card.id,
                    instance=unit.instance,
                    share=share,
                    text=_text(unit, grant.id) or device_text.of_share(grant) or WHOLE,
                    memory=exceeding.share(grant, unit.card),
                )


def _of_claim(claimed: ClaimedPart, card: DeviceInfo) -> Holder:
    unit, grant = _Unit(card=card, instance=claimed.instance), exceeding.claimed_share(claimed, card)
    part = dict(grant.amounts)[GPU_MEMORY_RATIO] / device_text.CARD if grant else unit.share
    return Holder(
        namespace=claimed.namespace,
        pod=claimed.pod,
        container=claimed.container,
        card=card.id,
        instance=unit.instance,
        share=part,
        text=(device_text.of_share(grant) if grant else _text(unit, "")) or WHOLE,
        memory=exceeding.share(grant, card) if grant else None,
        claimed=claimed.key,
    )


def _text(unit: _Unit, unit_id: str) -> str:
    """Return which part of its card a unit is; empty for a card."""
    profile = unit.instance.profile if unit.instance else ""
    text = device_text.of_device(GPU, unit.card.minor, unit_id, profile=profile, replicas=unit.replicas)
    return text.partition(", ")[2]
