"""NVIDIA, as the shared rooms know it."""

from pathlib import Path
from typing import Final

from berth_agent.configuration.options import KUBELET_SOCKET
from berth_agent.configuration.settings import Settings
from berth_agent.inventory import sysfs
from berth_agent.isolation.provider import ListPods, Provider
from berth_agent.vendors.nvidia.hand_over.access import NvidiaHandOver
from berth_agent.vendors.nvidia.hand_over.resources import names_of_others
from berth_agent.vendors.nvidia.isolation.hami_core import HamiCoreProvider
from berth_agent.vendors.nvidia.isolation.mps import MpsProvider
from berth_agent.vendors.nvidia.nvml.inventory import DRIVER, VENDOR, NvmlInventory
from berth_agent.vendors.nvidia.partitions.client import PartitionClient
from berth_api.device import DeviceSpec


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

    def card_names(self, settings: Settings, spec: DeviceSpec) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return the ids by which other device plugins offer the cards."""
        return list(names_of_others(spec))

    def partitions(self, settings: Settings) -> PartitionClient | None:
        """Return the client of the process that makes MIG instances."""
        return PartitionClient(settings.dra_partitions) if settings.dra_partitions else None

    def providers(self, settings: Settings, *, list_pods: ListPods) -> list[Provider]:
        """Return MPS and HAMi-core, as the settings request them."""
        chosen: list[Provider] = []
        if settings.mps:
            chosen.append(MpsProvider(folder=settings.mps_folder, program=settings.mps_control, list_pods=list_pods))
        if settings.hami_core:
            kubelet = Path(settings.kubelet_socket or KUBELET_SOCKET).parent
            chosen.append(HamiCoreProvider(settings.hami_core, kubelet=kubelet))
        return chosen
