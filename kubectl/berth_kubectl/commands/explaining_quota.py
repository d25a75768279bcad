"""Read what `explain workload/NAME` shows: a Workload of Kueue and the objects that it depends on."""

from berth_api.objects.visibility import PodExplanation
from berth_kubectl.errors import CommandError, ReadError
from berth_kubectl.reading import quota
from berth_kubectl.reading.objects import Object
from berth_kubectl.reading.quota import Around
from berth_kubectl.reading.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    PENDING_OF_QUEUE,
    PENDING_WORKLOADS,
    QUOTA_WORKLOADS,
    Resource,
)
from berth_kubectl.reading.session import Session, Source

NOT_SERVED = "the API server serves no Workloads of kueue.x-k8s.io/v1beta2; install Kueue 0.17 or later"


def explained(session: Session, name: str) -> PodExplanation:
    """Explain a Workload; the session's notes say what could not be read.

    Raises:
        CommandError: there is no such Workload, or no Kueue.
    """
    try:
        workload = session.object(QUOTA_WORKLOADS, session.namespace, name)
    except ReadError as error:
        if error.is_missing and _siblings(session) is None:
            raise CommandError(f"workload/{name}: {NOT_SERVED}") from error
        raise
    wanted = quota.queue_of(workload)
    queue = _optional(session, LOCAL_QUEUES, wanted)
    cluster_queue = _optional(session, CLUSTER_QUEUES, quota.cluster_queue_of(workload, queue))
    pending = siblings = None
    if quota.state_of(workload) == quota.PENDING:
        listed = _optional(session, PENDING_OF_QUEUE, wanted, PENDING_WORKLOADS)
        pending = None if listed is None else list(listed.get("items") or ())
        siblings = _siblings(session)
    # If the AdmissionChecks cannot be read, their names alone are shown.
    [checks] = session.lists([Source(resource=ADMISSION_CHECKS, optional=True)])
    around = Around(
        queue=queue,
        cluster_queue=cluster_queue,
        pending=pending,
        siblings=siblings,
        controllers={check["metadata"]["name"]: str(check["spec"].get("controllerName")) for check in checks or ()},
    )
    return quota.explanation(workload, around)


def _optional(session: Session, resource: Resource, name: str, subresource: str = "") -> Object | None:
    """Return an object; None, with a note, if it cannot be read."""
    if not name:
        return None
    try:
        return session.object(resource, session.namespace if resource.namespaced else "", name, subresource)
    except ReadError as error:
        if not (error.is_missing or error.is_forbidden or error.is_unavailable):
            raise
        session.notes.append(f"not shown: {resource.full_name} {name}: {error}")
        return None


def _siblings(session: Session) -> list[Object] | None:
    source = Source(resource=QUOTA_WORKLOADS, namespace=session.namespace, optional=True)
    [listed] = session.lists([source])
    return listed
