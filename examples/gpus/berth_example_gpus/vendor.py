"""The vendor as the agent knows it: which cards a node has, how they are, and how containers get them.

The kernel's driver `example` adds these files to the PCI folder of each card:

    serial          16 hexadecimal digits
    index           the number of the device node, `/dev/example3`
    memory          bytes
    memory_used     bytes
    uncorrectable   memory errors since the last reset of the card
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from berth_agent.conditions import Finding
from berth_agent.configuration.settings import Settings
from berth_agent.health import catalogue
from berth_agent.health.catalogue import FaultCatalogue, Remedy
from berth_agent.health.faults import Fault, mark
from berth_agent.inventory import sysfs
from berth_agent.kubelet.device_plugin import preferred
from berth_agent.kubelet_api.deviceplugin_pb2 import ContainerAllocateResponse
from berth_agent.kubelet_api.deviceplugin_pb2 import DeviceSpec as DeviceNode
from berth_agent.readings import CardSample, MemoryUse, Reading
from berth_agent.vendor import CardAccess, HandOver, Offer, Offers, whole_cards
from berth_api import names
from berth_api.device import DeviceInfo, DeviceSpec
from berth_example_gpus.resources import CARDS, RESOURCES

PCI_VENDOR: Final = "0xe0e0"
DRIVER: Final = "example"
MEMORY_ERRORS: Final = "ExampleMemoryErrors"
"""A kind of fault. The driver reports it until the card is reset, so a reading without it ends the fault."""

catalogue.add(
    FaultCatalogue(
        remedy=lambda kind: Remedy.UNTOLD if kind == MEMORY_ERRORS else None,
        counts=lambda _number: False,
    )
)


class Example:
    """GPUs of the vendor."""

    name: Final = RESOURCES.name

    def is_present(self, sysfs_root: Path) -> bool | None:
        """Return whether the PCI bus has a card; None without a bus."""
        return sysfs.has_gpus(sysfs_root, PCI_VENDOR)

    def is_driven(self, sysfs_root: Path) -> bool:
        """Return whether the driver holds a card."""
        return bool(sysfs.bound_cards(sysfs_root, DRIVER))

    def discovery(self, settings: Settings) -> "Cards":
        """Return the source of readings and measurements."""
        return Cards(settings)

    def hand_over(self, settings: Settings) -> "WholeCards":
        """Return how kubelet and containers get the cards."""
        return WholeCards(settings)


# --- the cards --------------------------------------------------------------------------------------------------


class Cards:
    """The cards of this node, and what they measure."""

    def __init__(self, settings: Settings) -> None:
        self._node, self._root = settings.node_name, settings.sysfs_root

    async def read(self) -> Mapping[str, Reading]:
        """Return the cards. If this fails or hangs, the agent keeps the last ones and reports it."""
        # In a thread: a read may hang in the driver.
        return {self._node: await asyncio.to_thread(self._read)}

    def _read(self) -> Reading:
        devices = [self._card(folder) for folder in self._folders()]
        is_driven = bool(sysfs.bound_cards(self._root, DRIVER))
        driver = Finding(type=names.DRIVER_LOADED, ok=is_driven, reason="Loaded" if is_driven else "NotLoaded")
        read = Finding(type=names.INVENTORY_READ, ok=True, reason="InventoryRead")
        labels = {names.VENDOR_LABEL: RESOURCES.name, names.MODEL_LABEL: "Example-1"} if devices else {}
        return Reading(spec=DeviceSpec(devices=devices), findings=(driver, read), labels=labels)

    async def sample(self) -> Mapping[str, CardSample]:
        """Return the use of the memory, by the ids of the cards."""
        return await asyncio.to_thread(self._sample)

    def _sample(self) -> dict[str, CardSample]:
        samples = {}
        for folder in self._folders():
            total, used = int(sysfs.text(folder / "memory")), int(sysfs.text(folder / "memory_used"))
            samples[_id(folder)] = CardSample(memory=MemoryUse(total=total, used=used, free=total - used))
        return samples

    def close(self) -> None:
        """Hold nothing."""

    def _folders(self) -> list[Path]:
        bound = sysfs.bound_cards(self._root, DRIVER)
        return [folder for folder in sysfs.gpus(self._root, PCI_VENDOR) or () if folder.name in bound]

    def _card(self, folder: Path) -> DeviceInfo:
        memory, errors = int(sysfs.text(folder / "memory")), int(sysfs.text(folder / "uncorrectable"))
        card = DeviceInfo(
            type=names.GPU,
            minor=int(sysfs.text(folder / "index")),
            id=_id(folder),
            health=True,
            model="Example 1",
            resources={names.PREFIX + names.GPU_MEMORY: memory},
            topology=sysfs.place(self._root, folder.name),
        )
        return mark(card, [Fault(kind=MEMORY_ERRORS, message=f"{errors} uncorrectable errors")]) if errors else card


def _id(folder: Path) -> str:
    return f"GPU-{sysfs.text(folder / 'serial')}"


# --- kubelet and containers -------------------------------------------------------------------------------------


class WholeCards(HandOver):
    """Offers whole cards as one resource."""

    def __init__(self, settings: Settings) -> None:
        self._dev = settings.dev_folder

    def offers(self, spec: DeviceSpec, *, withheld: frozenset[str] = frozenset()) -> Offers:
        """Return the cards."""
        units = whole_cards(spec, withheld=withheld)
        return Offers(offers=(Offer(resource=CARDS, units=units),) if units else ())

    def access(self, spec: DeviceSpec) -> "CardNodes":
        """Return how containers get these cards."""
        return CardNodes(spec, self._dev)


class CardNodes(CardAccess):
    """How containers get the device nodes of cards."""

    def __init__(self, spec: DeviceSpec, dev: Path) -> None:
        self._spec, self._dev = spec, dev
        self._minors = {card.id: card.minor for card in spec.devices if card.type == names.GPU}

    def prefer(self, offer: Offer, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Return the cards that are connected best."""
        return preferred.prefer(self._spec, offer, available, must_include, size, policy="distributed")

    def grant(self, ids: Sequence[str]) -> ContainerAllocateResponse:
        """Return the device nodes of these cards, and a variable that lists the cards."""
        response = ContainerAllocateResponse(envs={"EXAMPLE_VISIBLE_DEVICES": ",".join(ids)})
        for name in (f"example{self._minors[unit]}" for unit in ids):
            response.devices.append(
                DeviceNode(container_path=f"/dev/{name}", host_path=str(self._dev / name), permissions="rw")
            )
        return response
