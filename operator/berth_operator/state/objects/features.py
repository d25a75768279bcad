"""Features of kubelet that a pod requires. Nodes declare their features in `status.declaredFeatures`."""

from collections.abc import Mapping
from typing import Any, Final

Object = Mapping[str, Any]

RESTART_ALL: Final = "RestartAllContainersOnContainerExits"
USERS_ON_HOST_NETWORK: Final = "UserNamespacesHostNetworkSupport"


def of_pod(spec: Object) -> tuple[str, ...]:
    """Return the names of the features that a pod requires."""
    needed = {RESTART_ALL: _restarts_all(spec), USERS_ON_HOST_NETWORK: _maps_users_on_host_network(spec)}
    return tuple(name for name, is_needed in needed.items() if is_needed)


def _restarts_all(spec: Object) -> bool:
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    rules = (rule for each in containers for rule in each.get("restartPolicyRules") or ())
    return any(rule.get("action") == "RestartAllContainers" for rule in rules)


def _maps_users_on_host_network(spec: Object) -> bool:
    return bool(spec.get("hostNetwork")) and spec.get("hostUsers") is False
