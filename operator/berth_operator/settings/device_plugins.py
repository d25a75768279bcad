"""Device types and vendors of GPUs from other Python packages (docs/plugins.md).

Their entry points are `berth.device_allocators` and `berth.gpu_resources`.
"""

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from berth_api import allocation, request
from berth_api.plugins import load as load_all
from berth_api.request import GpuVendor, gpu_vendors
from berth_operator.core.plugins import DevicePlugin
from berth_operator.core.plugins.containment import contained

GROUP: Final = "berth.device_allocators"
BERTH: Final = "Berth"

_ALLOCATOR: Final = ("passes", "could_pass", "reasons", "choose")


def installed() -> Mapping[str, DevicePlugin]:
    """Return the installed plug-ins, by device type.

    Raises:
        PluginError: see `load`.
    """
    return load(entry_points(group=GROUP))


def gpu_resources(plugins: Mapping[str, DevicePlugin]) -> Mapping[str, GpuVendor]:
    """Return the installed vendors of GPUs, by the resources of their cards.

    Raises:
        PluginError: a vendor is invalid, or has a name or resource that exists already.
    """
    taken = {name: f"type {plugin.kind.name}" for plugin in plugins.values() for name in plugin.kind.resources}
    return gpu_vendors.load(entry_points(group=gpu_vendors.GROUP), taken)


def load(entries: Iterable[EntryPoint]) -> Mapping[str, DevicePlugin]:
    """Load plug-ins, and return them by device type.

    Raises:
        PluginError: a plug-in cannot be loaded, is invalid, or has a type or resource that exists already.
    """
    plugins: dict[str, DevicePlugin] = {}
    owners = dict.fromkeys(allocation.TYPES, BERTH)
    for declared in load_all(entries):
        plugin = declared.value
        if not isinstance(plugin, DevicePlugin):
            raise declared.error(f"it names {plugin!r}; allowed is a berth_operator.core.plugins.DevicePlugin")
        for part, members in (("allocator", _ALLOCATOR), ("score", ("score",))):
            own = getattr(plugin, part)
            missing = [member for member in members if not callable(getattr(own, member, None))]
            if own is not None and missing:
                raise declared.error(f"its {part} has no {', '.join(missing)}; needed are {', '.join(members)}")
        for name in (plugin.kind.name, *plugin.kind.resources):
            if (owner := BERTH if request.is_device(name) else owners.get(name)) is not None:
                raise declared.error(f"{name} belongs to {owner} already; allowed is a name that no other plug-in uses")
            owners[name] = declared.owner
        plugins[plugin.kind.name] = contained(plugin, declared.owner)
    return plugins
