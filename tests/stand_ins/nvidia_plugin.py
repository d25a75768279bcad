"""The device plugin of a node with NVIDIA's cards."""

from berth_agent.configuration.settings import Settings
from berth_agent.kubelet.device_plugin import manager
from berth_agent.kubelet.device_plugin.chooser import Chooser
from berth_agent.kubelet.device_plugin.manager import CHECK_INTERVAL
from berth_agent.vendors.nvidia.hand_over.access import NvidiaHandOver


class PluginManager(manager.PluginManager):
    """Berth's plugin with the options of the settings."""

    def __init__(self, settings: Settings, *, chooser: Chooser, check_interval: float = CHECK_INTERVAL) -> None:
        super().__init__(settings, hand_over=NvidiaHandOver(settings), chooser=chooser, check_interval=check_interval)
