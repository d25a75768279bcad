"""A pod's GPUs as `kubectl get gpupods` shows them: a short text, and how much of the GPUs the pod may use.

Pure functions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self, TypedDict

from berth_api.allocation import Grant, short, visible
from berth_api.device import MAX_DEVICES, DeviceSpec, HeldDevice
from berth_api.names import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from berth_api.objects import device_text
from berth_api.objects.gpupod import HeldCard
from berth_api.resources import quantity
from berth_api.values import listing

MAX_TEXT: Final = 1024
"""Characters of a text, as the definition of the GpuPod allows."""
MAX_CORE: Final = 2**31 - 1
"""More than all GPUs of a node; only an invalid allocation has more."""


class Shown(TypedDict):
    """The fields of a GpuPod that sum up its devices."""

    cards: list[HeldCard]
    devices: str
    ids: str
    memory: str
    core: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """A card or instance, and its time-sliced replicas."""

    card: HeldCard
    memory: int
    """Bytes of all replicas."""
    core: int | None
    """Hundredths of all replicas; None for an instance."""
    replicas: int = 1
    profile: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summaries:
    """Sums up devices of one node, as its last reading found them."""

    units: Mapping[str, _Unit] = field(default_factory=dict)
    """Units by id of the card or instance."""

    @classmethod
    def of(cls, spec: DeviceSpec) -> Self:
        """Return the summaries of a Device."""
        units: dict[str, _Unit] = {}
        for card in (device for device in spec.devices if device.type == GPU):
            bus_id = card.topology.bus_id if card.topology else ""
            held = HeldCard(minor=card.minor, id=card.id, model=card.model, bus_id=bus_id)
            amounts = {short(name): amount for name, amount in card.resources.items()}
            memory = quantity.parse(amounts.get(GPU_MEMORY, 0))
            units[card.id] = _Unit(card=held, memory=memory, core=device_text.CARD, replicas=card.replicas)
            for instance in card.mig.instances if card.mig else ():
                units[instance.id] = _Unit(
                    card=held,
                    memory=quantity.parse(instance.memory),
                    core=None,
                    replicas=instance.replicas,
                    profile=instance.profile,
                )
        return cls(units=units)

    def of_devices(self, devices: Iterable[HeldDevice]) -> Shown:
        """Sum up devices that kubelet gave; containers of a pod may have the same one."""
        held = list({device.id: device for device in devices}.values())
        units = [self.units.get(visible(device.id)) for device in held]
        known = [unit for unit in units if unit is not None]
        return _shown(
            units,
            (self._text(device.minor, device.id) for device in held),
            (device.id for device in held),
            # Of a device that is gone it is not known how much it was.
            sum(unit.memory // unit.replicas for unit in known) if len(known) == len(units) else 0,
            [None if unit is None or unit.core is None else unit.core // unit.replicas for unit in units],
        )

    def of_grants(self, grants: Iterable[Grant]) -> Shown:
        """Sum up an allocation."""
        grants = list(grants)
        memory = [self._memory(grant) for grant in grants]
        return _shown(
            (self.units.get(visible(grant.id)) for grant in grants),
            (self._text(grant.minor, grant.id) for grant in grants),
            (grant.id for grant in grants),
            sum(memory) if all(memory) else 0,
            [dict(grant.amounts).get(GPU_CORE) for grant in grants],
        )

    def _text(self, minor: int, name: str) -> str:
        unit = self.units.get(visible(name))
        if unit is None:
            return device_text.of_device(GPU, minor, name)
        replicas = unit.replicas if unit.replicas > 1 else 0
        return device_text.of_device(GPU, unit.card.minor, name, profile=unit.profile, replicas=replicas)

    def _memory(self, grant: Grant) -> int:
        """Return the bytes of a grant; 0 if they are not known."""
        amounts = dict(grant.amounts)
        if GPU_MEMORY in amounts:
            return amounts[GPU_MEMORY]
        unit = self.units.get(visible(grant.id))
        return amounts.get(GPU_MEMORY_RATIO, 0) * unit.memory // device_text.CARD if unit else 0


def _shown(
    units: Iterable[_Unit | None], texts: Iterable[str], ids: Iterable[str], memory: int, cores: Iterable[int | None]
) -> Shown:
    known = [core for core in cores if core is not None]
    cards = {unit.card.minor: unit.card for unit in units if unit is not None}
    return Shown(
        cards=[cards[minor] for minor in sorted(cards)][:MAX_DEVICES],
        devices=device_text.joined(texts)[:MAX_TEXT],
        ids=listing.first_of(ids, device_text.SHOWN)[:MAX_TEXT],
        memory=quantity.format_bytes(memory) if memory else "",
        core=min(sum(known), MAX_CORE) if known else None,
    )
