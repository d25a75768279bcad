"""AMD, as the shared rooms know it."""

from pathlib import Path
from typing import Final

from berth_agent.configuration.settings import Settings
from berth_agent.inventory import sysfs
from berth_agent.vendors.amd.cards import FIRST_RENDER
from berth_agent.vendors.amd.hand_over import AmdHandOver
from berth_agent.vendors.amd.inventory import DRIVER, VENDOR, AmdInventory
from berth_api import names
from berth_api.device import DeviceSpec

PARTITIONS: Final = "amdgpu_xcp_*"
"""The names of the devices of partitions. The first partition of a card has the card's own device."""


class Amd:
    """GPUs of AMD."""

    name: Final = "amd"

    def is_present(self, sysfs_root: Path) -> bool | None:
        """Return whether the PCI bus has a GPU of AMD's; None where there is no bus to look at."""
        return sysfs.has_gpus(sysfs_root, VENDOR)

    def is_driven(self, sysfs_root: Path) -> bool:
        """Return whether AMD's driver holds a card. It also holds integrated graphics, which do not count."""
        bound = sysfs.bound_cards(sysfs_root, DRIVER)
        return any(folder.name in bound for folder in sysfs.gpus(sysfs_root, VENDOR) or ())

    def discovery(self, settings: Settings) -> AmdInventory:
        """Return what sysfs shows."""
        return AmdInventory(settings)

    def hand_over(self, settings: Settings) -> AmdHandOver:
        """Return how kubelet and containers get the cards.

        Raises:
            OptionsError: the configuration file cannot be used.
        """
        return AmdHandOver(settings)

    def card_names(self, settings: Settings, spec: DeviceSpec) -> list[tuple[str, str]]:
        """Return the ids by which other device plugins offer the cards: render nodes, and AMD's names of partitions.

        AMD's plugin has PCI addresses for cards and for their first partitions.
        """
        gpus = [device for device in spec.devices if device.type == names.GPU]
        ids = {f"renderD{gpu.minor + FIRST_RENDER}": gpu.id for gpu in gpus}
        partitions = [
            (folder.name, ids[node.name])
            for folder in sysfs.entries(settings.sysfs_root / "devices/platform", PARTITIONS)
            for node in sysfs.entries(folder / "drm")
            if node.name in ids
        ]
        return [*ids.items(), *partitions]
