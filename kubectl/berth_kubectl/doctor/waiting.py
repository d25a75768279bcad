"""Checks of waiting pods: no scheduler reads what they request, or another vendor has the GPUs that are there."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from berth_api import names
from berth_api.admission import routing
from berth_kubectl.doctor.facts import Facts, Finding
from berth_kubectl.reading.objects import Object, condition, key_of

_OF_VENDOR: Final = re.compile(r"node\(s\) have GPUs of ([\w.-]+), which pods request by ([\w./-]*\w)")
"""The reason of Berth's filter of devices."""
MAX_SCHEDULERS: Final = 16
"""Scheduler names that are asked for."""


def other_scheduler(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each pod that was left to a scheduler that is not there, or that does not read its words."""
    for pod in facts.all_of("waiting"):
        name = scheduler_of(pod)
        is_tried = bool(condition(pod, "PodScheduled"))
        if (name == routing.DEFAULT and is_tried) or (
            name in routing.OF_SYSTEMS and routing.is_untried(pod, facts.now)
        ):
            if not routing.for_us(pod):
                continue
            namespace, pod_name = key_of(pod)
            by = "" if is_tried else ", and no scheduler has tried it"
            yield Finding(
                check="OtherScheduler",
                object=f"pod/{namespace}/{pod_name}",
                message=f"{routing.why_not_ours(pod, (names.SCHEDULER,))}{by}",
                fix=f"kubectl get pod -n {namespace} {pod_name} -o yaml   # create it again with that scheduler name",
            )


def no_scheduler(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each scheduler name that pods wait for and that no bound pod has."""
    bound = {scheduler_of(pod) for pod in facts.all_of("bound")}
    others = [
        pod for pod in facts.all_of("waiting") if scheduler_of(pod) not in routing.OF_SYSTEMS or not routing.for_us(pod)
    ]
    for name, pods in left(others, facts.now).items():
        if name in bound:
            continue
        namespace, pod_name = key_of(pods[0])
        more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
        yield Finding(
            check="NoScheduler",
            object=f"scheduler/{name}",
            message=f"no scheduler has tried pod {namespace}/{pod_name}{more} for a minute, "
            "and no bound pod has this scheduler name",
            fix=f"kubectl get pods -A --field-selector spec.schedulerName={name}   "
            "# run that scheduler, or give Berth a profile with its name",
        )


def other_vendor(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each vendor whose GPUs waiting pods do not get by the resource that they request."""
    by_vendor: dict[tuple[str, str], list[Object]] = {}
    for pod in facts.all_of("waiting"):
        message = str(condition(pod, "PodScheduled").get("message") or "")
        for vendor, resource in _OF_VENDOR.findall(message):
            by_vendor.setdefault((vendor, resource), []).append(pod)
    for (vendor, resource), pods in by_vendor.items():
        namespace, name = key_of(pods[0])
        more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
        yield Finding(
            check="OtherVendor",
            object=f"vendor/{vendor}",
            message=f"pod {namespace}/{name}{more} waits. Nodes have GPUs of {vendor}, which pods get by {resource} "
            f"and not by {names.PREFIX}{names.GPU}",
            fix=f"kubectl get pod -n {namespace} {name} -o yaml   # request {resource}, or add the vendor to the "
            "operator's --gpu-vendors if its containers get these GPUs in another way",
        )


def left(pods: Sequence[Object], now: datetime) -> dict[str, list[Object]]:
    """Return the pods that no scheduler has tried, by scheduler name; at most `MAX_SCHEDULERS` names."""
    by_name: dict[str, list[Object]] = {}
    for pod in pods:
        if routing.is_untried(pod, now) and not pod["spec"].get("schedulingGates"):
            by_name.setdefault(scheduler_of(pod), []).append(pod)
    return dict(list(by_name.items())[:MAX_SCHEDULERS])


def scheduler_of(pod: Object) -> str:
    """Return a pod's scheduler name."""
    return str(pod["spec"].get("schedulerName") or routing.DEFAULT)
