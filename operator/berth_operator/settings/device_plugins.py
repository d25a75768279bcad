"""Device types from other Python packages: the entry points `berth.device_allocators` (docs/plugins.md)."""

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from berth_api import allocation, request
from berth_api.plugins import load as load_all
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
