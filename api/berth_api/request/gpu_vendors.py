"""Load vendors of GPUs from other distributions: the entry points `berth.gpu_resources` (docs/plugins.md)."""

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint
from typing import Final

from berth_api.plugins import load as load_all
from berth_api.request.amounts import VENDORS, is_device
from berth_api.request.kinds import GpuVendor

GROUP: Final = "berth.gpu_resources"
BERTH: Final = "Berth"
NO_NAMES: Final[Mapping[str, str]] = {}


def load(entries: Iterable[EntryPoint], taken: Mapping[str, str] = NO_NAMES) -> dict[str, GpuVendor]:
    """Return the added vendors by the resources of their cards.

    Args:
        entries: the entry points of the group.
        taken: resources of plug-ins, with their owners.

    Raises:
        PluginError: an entry cannot be loaded, is invalid, or has a vendor or resource that exists already.
    """
    gpus: dict[str, GpuVendor] = {}
    owners = {**taken, **dict.fromkeys(VENDORS.values(), BERTH)}
    for declared in load_all(entries):
        vendor = declared.value
        if not isinstance(vendor, GpuVendor):
            raise declared.error(f"it names {vendor!r}; allowed is a berth_api.request.GpuVendor")
        for name in (vendor.name, *vendor.cards):
            if (owner := BERTH if is_device(name) else owners.get(name)) is not None:
                raise declared.error(f"{name} belongs to {owner} already; allowed is a name that no other vendor uses")
            owners[name] = declared.owner
        gpus |= dict.fromkeys(vendor.cards, vendor)
    return gpus
