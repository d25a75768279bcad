"""The time-sliced replicas of cards that another device plugin offers to kubelet.

Such a plugin has a configuration of its own. Kubelet knows the result: a replica's id is `<UUID>::<n>`. Kubelet lists
only healthy devices, so what it has listed of a card before counts until it lists the card again.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

import structlog

from berth_agent.kubelet.admission.admission import UnavailableError
from berth_agent.kubelet.podresources import PodResources
from berth_api.allocation import REPLICA_MARK
from berth_api.device import MAX_REPLICAS, DeviceInfo, DeviceSpec, ReplicaResource

_RESOURCES: Final = frozenset(filter(None, get_args(ReplicaResource)))

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class OfferedReplicas:
    """What another device plugin offers of one node's cards."""

    def __init__(self, kubelet: PodResources) -> None:
        self._kubelet = kubelet
        self._of_cards: dict[str, tuple[int, str]] = {}
        """Id of a card -> number of its replicas, and their resource."""
        self._failure = ""

    def restore(self, published: Iterable[DeviceInfo]) -> None:
        """Restore what an earlier run published."""
        self._of_cards = {card.id: (card.replicas, card.replica_resource) for card in published if card.replicas > 1}

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
        before = dict(self._of_cards)
        self._of_cards |= _replicas(ids_by_resource)
        return self._of_cards != before

    def shown(self, spec: DeviceSpec) -> DeviceSpec:
        """Return the spec with the replicas of whole cards. Kubelet chooses among them."""
        devices = [card.model_copy(update=self._update(card)) for card in spec.devices]
        if all(card.replicas == 1 for card in devices):
            return spec
        return spec.model_copy(update={"devices": devices, "replica_choice": "kubelet"})

    def _update(self, card: DeviceInfo) -> dict[str, Any]:
        number, resource = self._of_cards.get(card.id, (1, ""))
        is_divided = card.mig is not None and card.mig.enabled
        return {} if number == 1 or is_divided else {"replicas": number, "replica_resource": resource}


def _replicas(ids_by_resource: Mapping[str, Iterable[str]]) -> dict[str, tuple[int, str]]:
    """Return (number of replicas, resource) of each listed device; (1, "") if it is not sliced."""
    replicas: dict[str, tuple[int, str]] = {}
    for resource in sorted(_RESOURCES & ids_by_resource.keys()):
        for unit in ids_by_resource[resource]:
            device, mark, _ = unit.partition(REPLICA_MARK)
            number = replicas.get(device, (0, ""))[0] + 1
            replicas[device] = (min(number, MAX_REPLICAS), resource) if mark else (1, "")
    return {device: listed if listed[0] > 1 else (1, "") for device, listed in replicas.items()}
