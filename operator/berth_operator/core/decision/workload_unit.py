"""A workload of Kueue as a unit of a queue: a gang of pods that do not exist yet."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from berth_api.values import keys
from berth_operator.core.decision.gang import Gang
from berth_operator.core.values.quota_workload import QuotaWorkload
from berth_operator.core.values.request import Membership, PendingPod


def unit_of(
    workload: QuotaWorkload, schedules: Callable[[str], bool], arrived: int, present: Mapping[str, int]
) -> Gang | None:
    """Return the pods of a workload that Berth schedules; None if there are none.

    Args:
        workload: the workload.
        schedules: returns whether Berth schedules the pods of a scheduler name.
        arrived: the workload's number in the order of arrival.
        present: `workload/pod set` -> number of its pods that exist already and need no further place.
    """
    members = []
    for pod_set in workload.pod_sets:
        of_set = keys.join(workload.name_in_pods, pod_set.name)
        members += [
            replace(
                pod,
                uid=f"{workload.uid}/{pod_set.name}/{index}",
                namespace=workload.namespace,
                name=f"{workload.name}:{pod_set.name}:{index}",  # no pod's name has a colon
                workload=of_set,
                nominated_node="",
            )
            for index, pod in enumerate(pod_set.pods)
            if index >= present.get(of_set, 0) and schedules(pod.scheduler)
        ]
    if not members:
        return None
    return Gang(
        membership=Membership(group=workload.key),
        minimum=len(members),
        members=tuple(members),
        created=workload.created,
        arrived=arrived,
    )


def pod_set_of(pod: PendingPod) -> str:
    """Return the name of a pod's pod set."""
    return pod.workload.partition("/")[2]
