"""The record that a leader inherits: the last leader left it in the LeaderLease."""

import structlog

from berth_api import names
from berth_api.objects.leader_lease import VERSION, LeaderLeaseStatus
from berth_client.objects import Object
from berth_operator.core.decision import sentences
from berth_operator.state.cache.cluster import Cluster

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def read(lease: Object, cluster: Cluster) -> LeaderLeaseStatus:
    """Return the record in a LeaderLease as the last leader left it.

    An operator of the version before leaves an annotation, and the rest in messages.
    """
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
    # Before the first term of a LeaderLease nothing was lost; it may be new because somebody deleted another one.
    lost_places = annotations.get(names.LOST_PLACES) if lease["spec"]["term"] else "{}"
    return sentences.read(pods, workloads, lost_places, cluster.wall())
