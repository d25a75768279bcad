"""Types of devices that other distributions bring: the entry points `berth.device_allocators` (docs/plugins.md)."""

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from berth_api import allocation, request
from berth_api.plugins import Plugin
from berth_api.plugins import load as load_all
from berth_operator.core.plugins import DevicePlugin
from berth_operator.core.plugins.containment import contained

GROUP: Final = "berth.device_allocators"
BERTH: Final = "Berth"

_ALLOCATOR: Final = ("passes", "could_pass", "reasons", "choose")


def installed() -> Mapping[str, DevicePlugin]:
    """Return the plug-ins that are installed beside the operator, by the types that they bring.

    Raises:
        PluginError: as `load`.
    """
    return load(entry_points(group=GROUP))


def load(entries: Iterable[EntryPoint]) -> Mapping[str, DevicePlugin]:
    """Return the plug-ins by the types that they bring.

    Raises:
        PluginError: one cannot be loaded, is declared wrongly, or brings what is there already.
    """
    found: dict[str, DevicePlugin] = {}
    owners = dict.fromkeys(allocation.TYPES, BERTH)
    for each in load_all(entries):
        plugin = _checked(each)
        for name in (plugin.kind.name, *plugin.kind.resources):
            if (owner := BERTH if request.is_device(name) else owners.get(name)) is not None:
                raise each.error(f"{name} belongs to {owner} already; allowed is one that nobody else brings")
            owners[name] = each.owner
        found[plugin.kind.name] = contained(plugin, each.owner)
    return found


def _checked(plugin: Plugin) -> DevicePlugin:
    value = plugin.value
    if not isinstance(value, DevicePlugin):
        raise plugin.error(f"it names {value!r}; allowed is a berth_operator.core.plugins.DevicePlugin")
    for part, members in (("allocator", _ALLOCATOR), ("score", ("score",))):
        own = getattr(value, part)
        if own is not None and (missing := [each for each in members if not callable(getattr(own, each, None))]):
            raise plugin.error(f"its {part} has no {', '.join(missing)}; needed are {', '.join(members)}")
    return value
