"""The time-sliced replicas of cards and MIG instances that another device plugin offers to kubelet.

Such a plugin has a configuration of its own. Kubelet knows the result: a replica's id is `<UUID>::<n>`. Kubelet lists
only healthy devices, so what it has listed of a card or instance before counts until it lists it again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, get_args

import structlog

from berth_agent.kubelet.admission.admission import UnavailableError
from berth_agent.kubelet.podresources import PodResources
from berth_api.allocation import REPLICA_MARK, mig
from berth_api.device import MAX_REPLICAS, DeviceInfo, DeviceSpec, MigInstance, ReplicaResource

_RESOURCES: Final = frozenset(filter(None, get_args(ReplicaResource)))
_INSTANCE: Final = "MIG-"
"""The prefix of the UUIDs of MIG instances."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class OfferedReplicas:
    """What another device plugin offers of one node's cards."""

    def __init__(self, kubelet: PodResources) -> None:
        self._kubelet = kubelet
        self._offered: dict[str, tuple[int, str]] = {}
        """Id of a card or instance -> number of its replicas, and their resource."""
        self._failure = ""

    def restore(self, published: Iterable[DeviceInfo]) -> None:
        """Restore what an earlier run published."""
        units = (unit for card in published for unit in _units(card))
        self._offered = {unit.id: (unit.replicas, unit.replica_resource) for unit in units if unit.replicas > 1}

    async def refresh(self) -> bool:
        """Ask kubelet what it can allocate; return whether replicas have changed."""
        try:
            ids_by_resource = await self._kubelet.list_allocatable()
        except UnavailableError as error:
            if str(error) != self._failure:
                _log.warning("devices that kubelet can allocate not read, will try again", reason=str(error))
            self._failure = str(error)
            return False
        self._failure = ""
        before = dict(self._offered)
        self._offered |= _replicas(ids_by_resource)
        return self._offered != before

    def shown(self, spec: DeviceSpec) -> DeviceSpec:
        """Return the spec with the replicas of whole cards and of instances. Kubelet chooses among them."""
        devices = [self._with_replicas(card) for card in spec.devices]
        if all(unit.replicas == 1 for card in devices for unit in _units(card)):
            return spec
        return spec.model_copy(update={"devices": devices, "replica_choice": "kubelet"})

    def _with_replicas(self, card: DeviceInfo) -> DeviceInfo:
        if card.mig is None or not card.mig.enabled:
            return card.model_copy(update=self._update(card.id))
        instances = [instance.model_copy(update=self._update(instance.id)) for instance in card.mig.instances]
        return card.model_copy(update={"mig": card.mig.model_copy(update={"instances": instances})})

    def _update(self, unit: str) -> dict[str, Any]:
        number, resource = self._offered.get(unit, (1, ""))
        return {} if number == 1 else {"replicas": number, "replica_resource": resource}


def _units(card: DeviceInfo) -> Sequence[DeviceInfo | MigInstance]:
    """Return the instances of a card in MIG mode, or the card."""
    return card.mig.instances if card.mig is not None and card.mig.enabled else [card]


def _replicas(ids_by_resource: Mapping[str, Iterable[str]]) -> dict[str, tuple[int, str]]:
    """Return (number of replicas, resource) of each listed device; (1, "") if it is not sliced."""
    replicas: dict[str, tuple[int, str]] = {}
    for resource in sorted(name for name in ids_by_resource if name in _RESOURCES or mig.is_resource(name)):
        for unit in ids_by_resource[resource]:
            device, mark, _ = unit.partition(REPLICA_MARK)
            if mig.is_resource(resource) and not device.startswith(_INSTANCE):
                continue  # a card never has replicas by the name of a profile
            number = replicas.get(device, (0, ""))[0] + 1
            replicas[device] = (min(number, MAX_REPLICAS), resource) if mark else (1, "")
    return {device: listed if listed[0] > 1 else (1, "") for device, listed in replicas.items()}
