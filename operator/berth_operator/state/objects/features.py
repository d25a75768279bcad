"""Features of kubelet that a pod requires. Nodes declare their features in `status.declaredFeatures`."""

from collections.abc import Mapping
from typing import Any, Final

Object = Mapping[str, Any]

RESTART_ALL: Final = "RestartAllContainersOnContainerExits"
USERS_ON_HOST_NETWORK: Final = "UserNamespacesHostNetworkSupport"


def of_pod(spec: Object) -> tuple[str, ...]:
    """Return the names of the features that a pod requires."""
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    rules = (rule for container in containers for rule in container.get("restartPolicyRules") or ())
    features: list[str] = []
    if any(rule.get("action") == "RestartAllContainers" for rule in rules):
        features.append(RESTART_ALL)
    if spec.get("hostNetwork") and spec.get("hostUsers") is False:
        features.append(USERS_ON_HOST_NETWORK)
    return tuple(features)
