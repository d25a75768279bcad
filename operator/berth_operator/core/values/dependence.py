"""Pods whose end depends on a waiting pod. When they end, they free no capacity for it.

A rolling update ends an old pod once a new one is ready. A controller replaces each replica that ends. The pods of one
Job or gang may wait for each other before they begin to work.
"""

from typing import Final

from berth_api.values import keys
from berth_api.values.selectors import Labels
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.revisions import REVISIONS, application_of

_VARYING: Final = REVISIONS | {"statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"}
"""Labels that differ between the revisions of an application, or between the replicas of a StatefulSet."""


def depends_on(charge: Charge, pod: PendingPod) -> bool:
    """Return whether the end of a placed pod depends on a waiting pod, unless it is known when it ends."""
    if keys.split(charge.pod)[0] != pod.namespace:
        return False
    if charge.owner.uid and charge.owner.uid == pod.owner.uid:
        return True
    if (pod.gang is not None and charge.gang == pod.gang) or (pod.workload and charge.workload == pod.workload):
        return True
    return _are_of_one_rollout(charge, pod)


def _are_of_one_rollout(charge: Charge, pod: PendingPod) -> bool:
    """Return whether two pods are of revisions of one application: by the name of its owner, or by all other labels."""
    labels, others = charge.identity.labels, pod.request.identity.labels
    if not (_has_revision(others) and _has_revision(labels)):
        return False
    _, name = application_of(charge.owner, labels)
    return (name != "" and name == application_of(pod.owner, others)[1]) or _unversioned(labels) == _unversioned(others)


def _has_revision(labels: Labels) -> bool:
    return any(name in REVISIONS for name, _ in labels)


def _unversioned(labels: Labels) -> list[tuple[str, str]]:
    return [each for each in labels if each[0] not in _VARYING]
