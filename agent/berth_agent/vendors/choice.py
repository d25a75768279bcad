"""Choose where the devices of this node come from. No other module of the agent names a vendor."""

from collections.abc import Mapping
from importlib.metadata import entry_points

from berth_agent.configuration.settings import Settings
from berth_agent.inventory import plugins
from berth_agent.inventory.discovery.fpga import Fpgas
from berth_agent.inventory.discovery.rdma import RdmaNics
from berth_agent.inventory.interface import NoGpus
from berth_agent.inventory.plugins import DeviceAgent, InventoryWithPlugins
from berth_agent.isolation.provider import ListPods, Provider
from berth_agent.vendor import Inventory, Vendor
from berth_agent.vendors.nvidia.isolation.selection import providers
from berth_agent.vendors.nvidia.vendor import Nvidia
from berth_agent.vendors.simulated.inventory import SimulatedInventory


def vendor_for(settings: Settings) -> Vendor:  # noqa: ARG001
    """Return the vendor of the node's GPUs."""
    return Nvidia()


def inventory_for(settings: Settings) -> Inventory:
    """Return the inventory that the settings select, with the devices from sysfs and from plug-ins.

    Raises:
        FleetError: its fleet file is wrong.
        PluginError: a plug-in cannot be used.
    """
    brought = plugins.load(entry_points(group=plugins.GROUP))
    if settings.inventory == "simulated" and settings.fleet:
        return _with_agents(SimulatedInventory(path=settings.fleet), brought, settings)
    gpus: Inventory = (
        vendor_for(settings).inventory(settings) if "gpu" in settings.discover else NoGpus(node=settings.node_name)
    )
    # A plug-in that brings a type that is looked for in sysfs, too, knows it better, its minors included.
    in_sysfs: dict[str, DeviceAgent] = {}
    for agent in (RdmaNics(settings.sysfs_root), Fpgas(settings.sysfs_root, ids=settings.fpga_ids)):
        if agent.name in settings.discover and agent.name not in brought:
            in_sysfs[agent.name] = agent
    return _with_agents(gpus, {**in_sysfs, **brought}, settings, unnumbered=frozenset(in_sysfs))


def isolation(settings: Settings, *, list_pods: ListPods) -> list[Provider]:
    """Return what limits containers to their shares of cards, as the settings request it."""
    return providers(settings, list_pods=list_pods)


def _with_agents(
    gpus: Inventory,
    agents: Mapping[str, DeviceAgent],
    settings: Settings,
    *,
    unnumbered: frozenset[str] = frozenset(),
) -> Inventory:
    return InventoryWithPlugins(gpus, agents, timeout=settings.read_timeout, unnumbered=unnumbered) if agents else gpus
