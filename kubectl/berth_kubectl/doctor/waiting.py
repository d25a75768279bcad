"""Checks of pods that wait for a scheduler which ignores what they request."""

from collections.abc import Iterator
from typing import Final

from berth_api import names, words
from berth_api.admission import routing
from berth_kubectl.doctor.facts import Facts, Finding
from berth_kubectl.reading.objects import condition, key_of, time_of

UNTRIED: Final = 60.0
"""Seconds after which a pod that no scheduler has tried is a finding."""
_OF_SYSTEMS: Final = frozenset(name for system in words.TABLE.systems for name in system.schedulers)


def other_scheduler(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each pod that was left to a scheduler that is not there, or that does not read its words."""
    for pod in facts.all_of("waiting"):
        name = str(pod["spec"].get("schedulerName") or routing.DEFAULT)
        tried = condition(pod, "PodScheduled")
        created = time_of(str(pod["metadata"].get("creationTimestamp") or "")) or facts.now
        is_left = not tried and (facts.now - created).total_seconds() >= UNTRIED
        if (name == routing.DEFAULT and tried) or (name in _OF_SYSTEMS and is_left):
            if not routing.for_us(pod):
                continue
            namespace, pod_name = key_of(pod)
            by = "" if tried else ", and no scheduler has tried it"
            yield Finding(
                check="OtherScheduler",
                object=f"pod/{namespace}/{pod_name}",
                message=f"{routing.why_not_ours(pod, (names.SCHEDULER,))}{by}",
                fix=f"kubectl get pod -n {namespace} {pod_name} -o yaml   # create it again with that scheduler name",
            )
