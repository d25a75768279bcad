"""Choose where the devices of this node come from. Only this module knows which vendors there are.

A node has GPUs of one vendor. The PCI bus decides which, because it shows cards without their driver.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from berth_agent.conditions import Finding
from berth_agent.configuration.settings import Settings
from berth_agent.inventory import plugins
from berth_agent.inventory.completed import CompletedInventory
from berth_agent.inventory.device_infos import DeviceInfos, InventoryWithDeviceInfos
from berth_agent.inventory.discovery.fpga import Fpgas
from berth_agent.inventory.discovery.rdma import RdmaNics
from berth_agent.inventory.interface import NoGpus, label_value
from berth_agent.inventory.plugins import DeviceAgent, InventoryWithPlugins
from berth_agent.isolation.provider import Isolation, ListPods, Provider
from berth_agent.vendor import CardNames, HandOver, Inventory, MakesPartitions, NamesCards, Partitions, Vendor
from berth_agent.vendors.amd.vendor import Amd
from berth_agent.vendors.nvidia.vendor import Nvidia
from berth_agent.vendors.simulated.inventory import SimulatedInventory
from berth_api import names
from berth_api.plugins import in_one_line
from berth_api.plugins import load as load_all
from berth_api.request import VENDORS, gpu_vendors, is_counted_on_node

GROUP: Final = "berth.gpu_vendors"
BUILT_IN: Final[Sequence[Vendor]] = (Nvidia(), Amd())
"""The vendors of this distribution. An earlier one comes first where several drive their cards."""
MAX_NAME: Final = 32
"""Characters of a vendor's name, as of a type of devices: the type of a condition contains it, and has 63 at most."""


_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class ChosenVendor(NamedTuple):
    """The vendor of a node's GPUs."""

    vendor: Vendor
    others: tuple[str, ...] = ()
    """Names of further vendors that have a GPU on the PCI bus."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return a condition of the Device for each further vendor."""
        message = f"the node also has GPUs of this vendor; only those of {self.vendor.name} are listed"
        return tuple(
            Finding(type=f"{names.INVENTORY_READ}.{other}", ok=False, reason="SecondVendor", message=message)
            for other in self.others
        )


def load(entries: Sequence[EntryPoint]) -> tuple[Vendor, ...]:
    """Return all vendors: the built-in ones, and those of other distributions.

    Raises:
        PluginError: a vendor cannot be created, or its name is already taken.
    """
    vendors = list(BUILT_IN)
    for plugin in load_all(entries):
        try:
            vendor: Vendor = plugin.value()
        except Exception as error:
            raise plugin.error(f"cannot be made: {in_one_line(error)}") from error
        needed = ("is_present", "is_driven", "discovery", "hand_over")
        if missing := [method for method in needed if not callable(getattr(vendor, method, None))]:
            raise plugin.error(f"it has no {', '.join(missing)}; needed are name, {', '.join(needed)}")
        name = getattr(vendor, "name", None)
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or label_value(name) != name:
            allowed = f"allowed are values of labels of up to {MAX_NAME} characters, such as example"
            raise plugin.error(f"its name is {name!r}; {allowed}")
        if any(name == other.name for other in vendors):
            raise plugin.error(f"vendor {name} exists already; use another name")
        vendors.append(vendor)
    return tuple(vendors)


def choose(vendors: Sequence[Vendor], sysfs_root: Path) -> ChosenVendor:
    """Return the first vendor whose driver holds a card, else the first that has a card, else the first of all."""
    if len(vendors) == 1:
        # Nothing is read: a file that cannot be read must not keep the agent from starting.
        return ChosenVendor(vendors[0])
    present = [vendor for vendor in vendors if _holds(vendor, vendor.is_present, sysfs_root)]
    driven = [vendor for vendor in present if _holds(vendor, vendor.is_driven, sysfs_root)]
    chosen = next(iter((*driven, *present, *vendors)))
    return ChosenVendor(chosen, tuple(vendor.name for vendor in present if vendor is not chosen))


def _holds(vendor: Vendor, question: Callable[[Path], bool | None], sysfs_root: Path) -> bool:
    """Return the answer of a vendor; False if it fails, because it must not keep the agent from starting."""
    try:
        return bool(question(sysfs_root))
    except Exception as error:  # noqa: BLE001 - a third party's code may raise anything
        _log.warning("a vendor of GPUs cannot say whether it has cards", vendor=vendor.name, error=in_one_line(error))
        return False


def inventory_for(settings: Settings) -> Inventory:
    """Return the inventory that the settings select, with the devices from sysfs and from plug-ins.

    Raises:
        FleetError: its fleet file is wrong.
        PluginError: a plug-in cannot be used.
    """
    brought = plugins.load(entry_points(group=plugins.GROUP))
    if settings.inventory == "simulated" and settings.fleet:
        return _with_agents(SimulatedInventory(path=settings.fleet), brought, settings)
    gpus: Inventory = NoGpus(node=settings.node_name)
    findings: tuple[Finding, ...] = ()
    if "gpu" in settings.discover:
        chosen = _chosen(settings.sysfs_root)
        discovery, findings = chosen.vendor.discovery(settings), chosen.findings
        gpus = (
            discovery
            if isinstance(discovery, Inventory)
            else CompletedInventory(discovery, node=settings.node_name, timeout=settings.read_timeout)
        )
        if settings.device_infos:
            gpus = InventoryWithDeviceInfos(gpus, DeviceInfos(settings.device_infos), timeout=settings.read_timeout)
    # A plug-in that brings a type that is looked for in sysfs, too, knows it better, its minors included.
    in_sysfs: dict[str, DeviceAgent] = {}
    for agent in (RdmaNics(settings.sysfs_root), Fpgas(settings.sysfs_root, ids=settings.fpga_ids)):
        if agent.name in settings.discover and agent.name not in brought:
            in_sysfs[agent.name] = agent
    return _with_agents(gpus, {**in_sysfs, **brought}, settings, unnumbered=frozenset(in_sysfs), findings=findings)


def hand_over_for(settings: Settings) -> HandOver | None:
    """Return how kubelet and containers get the node's cards; None if the settings or the vendor do not offer them.

    Raises:
        OptionsError: the options cannot be used.
    """
    return _chosen(settings.sysfs_root).vendor.hand_over(settings) if settings.device_plugin else None


def partitions_for(settings: Settings) -> Partitions | None:
    """Return what makes partitions on demand; None if the settings do not request it, or the vendor has none."""
    vendor = _chosen(settings.sysfs_root).vendor
    return vendor.partitions(settings) if isinstance(vendor, MakesPartitions) else None


def has_partitions(settings: Settings) -> bool:
    """Return whether partitions can be made on the node's cards."""
    return isinstance(_chosen(settings.sysfs_root).vendor, MakesPartitions)


def resources_for(settings: Settings) -> frozenset[str]:
    """Return the resources by which kubelet gives the node's cards to containers, besides partitions of cards.

    Raises:
        PluginError: a vendor's names cannot be used.
    """
    chosen = _chosen(settings.sysfs_root).vendor.name
    added = gpu_vendors.load(entry_points(group=gpu_vendors.GROUP))
    vendors = {**VENDORS, **{name: vendor.name for name, vendor in added.items()}}
    return frozenset(name for name, vendor in vendors.items() if vendor == chosen and is_counted_on_node(name))


def card_names_for(settings: Settings) -> CardNames:
    """Return what knows the ids by which other device plugins offer the node's cards; most vendors have none."""
    vendor = _chosen(settings.sysfs_root).vendor
    return partial(vendor.card_names, settings) if isinstance(vendor, NamesCards) else lambda _spec: ()


def isolation_for(settings: Settings, *, list_pods: ListPods) -> list[Provider]:
    """Return what limits containers to their shares of cards, as the settings request it; nothing for most vendors."""
    vendor = _chosen(settings.sysfs_root).vendor
    return vendor.providers(settings, list_pods=list_pods) if isinstance(vendor, Isolation) else []


def has_shares(settings: Settings) -> bool:
    """Return whether claims may have shares of the node's cards: the vendor limits containers to their shares."""
    return isinstance(_chosen(settings.sysfs_root).vendor, Isolation)


@lru_cache(maxsize=1)
def _chosen(sysfs_root: Path) -> ChosenVendor:
    # Once: inventory and hand-over must be of the same vendor, even if a driver is loaded between the two.
    return choose(load(tuple(entry_points(group=GROUP))), sysfs_root)


def _with_agents(
    gpus: Inventory,
    agents: Mapping[str, DeviceAgent],
    settings: Settings,
    *,
    unnumbered: frozenset[str] = frozenset(),
    findings: tuple[Finding, ...] = (),
) -> Inventory:
    if not agents and not findings:
        return gpus
    return InventoryWithPlugins(gpus, agents, timeout=settings.read_timeout, unnumbered=unnumbered, findings=findings)
