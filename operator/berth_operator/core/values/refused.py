"""The report that the operator may not write a plug-in's resources to Nodes."""

from typing import Final

POLICY: Final = "berth-operator-writes"
"""The policy that limits the operator's writes."""
REASON: Final = "RefusedByPolicy"
"""The reason of the condition `ResourcesWritten.*` of Devices if this policy does not name the resources."""
SETTING: Final = "the chart's value operator.pluginResources, or to plugins in manifests/base/limits.yaml"
"""Where a user adds them to it."""
