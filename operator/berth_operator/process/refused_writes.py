"""The refused writes of a leader, for the status of its LeaderLease, where `kubectl berth doctor` reads them."""

from collections.abc import Iterable

from berth_api.objects import leader_lease
from berth_api.objects.leader_lease import RefusedWrite
from berth_client import refusals

MAX_NAME = 256
"""Characters of a resource or a refuser."""


def record(refused_writes: Iterable[refusals.RefusalGroup]) -> list[RefusedWrite]:
    """Return the entries of the refused writes, the latest come last."""
    entries = [
        RefusedWrite(
            verb=refused.write.verb,
            resource=refused.write.resource[:MAX_NAME],
            code=refused.write.status,
            refuser=refused.write.refuser[:MAX_NAME],
            object=refused.object[: leader_lease.MAX_REFUSED_OBJECT],
            namespaces=list(refused.namespaces[: leader_lease.MAX_REFUSED_NAMESPACES]),
            since=int(refused.since),
            last=int(refused.last),
            message=refused.message[: leader_lease.MAX_REFUSED_MESSAGE],
        )
        for refused in refused_writes
    ]
    return entries[-leader_lease.MAX_REFUSED_WRITES :]
