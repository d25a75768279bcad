"""The independent audit: do the pods and Devices of a cluster agree with each other?

It reads only what anybody can read from the API server, as plain JSON, and shares no code with the operator, the
agents or their common language (`make imports` checks that): where they misunderstand a rule, it must not. So it
reads quantities, requests and allocations by itself, after docs/protocol.md.

Not a fault: a card that is unhealthy now may have failed under its pod, which is left alone.
"""

from demo.audit.checks import audit
from demo.audit.finding import Finding, Kind

__all__ = ["Finding", "Kind", "audit"]
