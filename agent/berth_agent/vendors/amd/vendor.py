"""AMD, as the shared rooms know it."""

from pathlib import Path
from typing import Final

from berth_agent.configuration.settings import Settings
from berth_agent.inventory import sysfs
from berth_agent.vendors.amd.hand_over import AmdHandOver
from berth_agent.vendors.amd.inventory import DRIVER, VENDOR, AmdInventory


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
