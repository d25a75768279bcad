"""The independent audit: do the pods and Devices of a cluster agree with each other?

It reads only objects of the API server, as plain JSON, and shares no code with the operator, the
agents or their shared package (`make imports` checks that), so that it does not repeat their errors. It parses
quantities, requests and allocations itself, as docs/protocol.md specifies them.

Not a fault: a card that is unhealthy now may have failed under its pod, which keeps it.
"""

from demo.audit.checks import audit
from demo.audit.fault import Fault, FaultKind

__all__ = ["Fault", "FaultKind", "audit"]
