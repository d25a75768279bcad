"""The latest time when a placed pod ends: seconds since 1970, or one of the values below.

The values are ordered: the higher the value, the less an end can be expected. Berth prefers to wait for a pod with a
lower value.
"""

from typing import Final

UNKNOWN: Final = 2**60
"""The pod may complete by itself at any time."""
UNTIL_DELETED: Final = 2**61
"""The pod's containers are restarted whenever they end (`restartPolicy: Always`)."""
NEVER: Final = 2**62
"""What belongs to the node: a pod of a DaemonSet, a static pod, or processes outside Kubernetes."""
