"""The means of isolation that the settings request."""

from pathlib import Path

from berth_agent.configuration.options import KUBELET_SOCKET
from berth_agent.configuration.settings import Settings
from berth_agent.isolation.provider import ListPods, Provider
from berth_agent.vendors.nvidia.isolation.hami_core import HamiCoreProvider
from berth_agent.vendors.nvidia.isolation.mps import MpsProvider


def providers(settings: Settings, *, list_pods: ListPods) -> list[Provider]:
    """Return the providers that the settings request."""
    chosen: list[Provider] = []
    if settings.mps:
        chosen.append(MpsProvider(folder=settings.mps_folder, program=settings.mps_control, list_pods=list_pods))
    if settings.hami_core:
        kubelet = Path(settings.kubelet_socket or KUBELET_SOCKET).parent
        chosen.append(HamiCoreProvider(settings.hami_core, kubelet=kubelet))
    return chosen
