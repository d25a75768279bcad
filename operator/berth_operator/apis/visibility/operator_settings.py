"""The operator's settings that affect decisions about pods, as objects. Pure functions.

A user who may read explanations in a namespace may read the settings that concern its pods. All other settings require
the right to read the fleet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from berth_api import words
from berth_api.objects.visibility import OperatorSettings
from berth_api.request.kinds import read_gpu_vendors, read_nics
from berth_client.objects import Object
from berth_operator.apis.aggregated.options import TRUE
from berth_operator.apis.visibility.kinds import SETTINGS_PARAMETER
from berth_operator.settings import rendering
from berth_operator.settings.configuration import Configuration
from berth_operator.settings.flags import Settings


def are_wanted(query: Mapping[str, str]) -> bool:
    """Return whether a request is for the settings."""
    return query.get(SETTINGS_PARAMETER, "") in TRUE


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsInUse:
    """The settings by which the leader decides."""

    settings: Settings
    configuration: Callable[[], Configuration]
    """Returns the profiles of the pods that Berth schedules itself."""
    mix: Callable[[], Object]
    """Returns the mix of the pods that the leader has seen, by which it scores nodes."""
    reserved: Callable[[], Mapping[str, str]]
    """Returns the reserved nodes by the UIDs of the pods that wait for them."""

    def of_namespace(self, namespace: str) -> OperatorSettings:
        """Return what concerns the pods of a namespace."""
        whole = rendering.document(self.configuration())
        # A list of what is shown, so that what is added is not shown to users of one namespace.
        shown = {name: whole[name] for name in ("apiVersion", "kind", "profiles", "modelAliases")}
        limits = {name: limit for name, limit in whole["namespaceLimits"].items() if name == namespace}
        return {
            **self._head({**shown, "namespaceLimits": limits}),
            "geniusPriorities": {namespace: self.settings.priorities.highest(namespace)},
        }

    def of_cluster(self) -> OperatorSettings:
        """Return all of them."""
        settings = self.settings
        return {
            **self._head(rendering.document(self.configuration())),
            "geniusPriorities": dict(settings.priorities.of),
            "trustedSchedulers": sorted(settings.trusted),
            "nodeSelector": settings.node_selector,
            "agentNamespace": settings.agent_namespace,
            "chargeForeign": settings.charge_foreign,
            "chargeUnheld": settings.charge_unheld,
            "podMix": self.mix(),
            "reservedNodes": dict(self.reserved()),
        }

    def _head(self, configuration: Object) -> OperatorSettings:
        return {
            "configuration": configuration,
            "memoryUnits": words.read_units(self.settings.memory_units),
            "nicResources": read_nics(self.settings.nic_resources),
            "gpuVendors": sorted(read_gpu_vendors(self.settings.gpu_vendors)),
        }
