"""When a placed pod ends at the latest: seconds since 1970, or one of the values below.

The values are ordered by how little can be expected: a pod with a lower value is rather waited for.
"""

from typing import Final

UNKNOWN: Final = 2**60
"""The pod may complete by itself at any time."""
UNTIL_DELETED: Final = 2**61
"""The pod's containers are restarted whenever they end (`restartPolicy: Always`)."""
NEVER: Final = 2**62
"""What belongs to the node: a pod of a DaemonSet, a static pod, or processes outside Kubernetes."""
