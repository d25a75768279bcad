"""What a leader inherits: the record that the last one left in the LeaderLease."""

from typing import Final

import structlog

from berth_api import names
from berth_api.objects.leader_lease import VERSION, LeaderLeaseStatus
from berth_client.objects import Object
from berth_operator.core.decision import sentences
from berth_operator.state.cache.cluster import Cluster

NOTHING: Final = LeaderLeaseStatus(version=VERSION, lost_places=[])
"""The record of the first leader."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def read(lease: Object, cluster: Cluster) -> LeaderLeaseStatus:
    """Return the record in a LeaderLease as the last leader left it.

    An operator of the version before leaves an annotation, and the rest in messages.
    """
    if not lease["spec"]["term"]:
        return NOTHING
    status, annotations = lease.get("status"), lease["metadata"].get("annotations") or {}
    if status and names.LOST_PLACES not in annotations:
        try:
            record = LeaderLeaseStatus.model_validate(status)
            if record.version == VERSION:
                return record
            log.warning("record of the last leader has another version", version=record.version, allowed=VERSION)
        except ValueError as error:
            log.warning("record of the last leader cannot be read", why=str(error))
    pods, workloads = cluster.pending.values(), cluster.workloads.by_key.values()
    return sentences.read(pods, workloads, annotations.get(names.LOST_PLACES), cluster.wall())
