"""NVIDIA, as the shared rooms know it."""

from pathlib import Path
from typing import Final

from berth_agent.configuration.settings import Settings
from berth_agent.inventory import sysfs
from berth_agent.vendors.nvidia.hand_over.access import NvidiaHandOver
from berth_agent.vendors.nvidia.nvml.inventory import DRIVER, VENDOR, NvmlInventory


class Nvidia:
    """GPUs of NVIDIA."""

    name: Final = "nvidia"

    def is_present(self, sysfs_root: Path) -> bool | None:
        """Return whether the PCI bus has a GPU of NVIDIA's; None where there is no bus to look at."""
        return sysfs.has_gpus(sysfs_root, VENDOR)

    def is_driven(self, sysfs_root: Path) -> bool:
        """Return whether NVIDIA's driver holds a card."""
        return bool(sysfs.bound_cards(sysfs_root, DRIVER))

    def discovery(self, settings: Settings) -> NvmlInventory:
        """Return what NVML and sysfs show."""
        return NvmlInventory(settings)

    def hand_over(self, settings: Settings) -> NvidiaHandOver:
        """Return how kubelet and containers get the cards, by the options of NVIDIA's plugin.

        Raises:
            OptionsError: the configuration file cannot be used.
        """
        return NvidiaHandOver(settings)
