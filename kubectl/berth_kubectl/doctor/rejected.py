"""Checks of pods that kubelet rejected at admission."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from berth_api import names
from berth_api.objects import rejected_pod
from berth_kubectl.doctor.facts import Facts, Finding
from berth_kubectl.reading.objects import Object, key_of, owner_of, time_of

RECENT: Final = 900.0
"""Seconds for which a rejected pod counts. Berth's pauses between two of them are shorter."""
LEAST: Final = 2
"""Pods that are a finding. A single one may have met a kubelet that was starting."""
READ: Final = 500
"""Failed pods that are read: a cluster may keep thousands."""


def rejected_pods(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each node and controller whose pods kubelet recently rejected again and again."""
    by_controller = defaultdict[tuple[str, str, str], list[Object]](list)
    for pod in facts.all_of("failed"):
        is_ours = names.EPOCH in (pod["metadata"].get("annotations") or {}) and rejected_pod.is_rejected(pod)
        if is_ours and (facts.now - _ended(pod, facts.now)).total_seconds() < RECENT:
            (namespace, name), owner = key_of(pod), owner_of(pod)
            controller = f"{owner['kind']} {namespace}/{owner['name']}" if owner["kind"] else f"pod {namespace}/{name}"
            by_controller[pod["spec"]["nodeName"], namespace, controller].append(pod)
    for (node, namespace, controller), pods in sorted(by_controller.items(), key=lambda item: item[0]):
        if len(pods) < LEAST:
            continue
        last = max(pods, key=lambda pod: _ended(pod, facts.now))
        message = f"kubelet has rejected {len(pods)} pods of {controller} at admission within 15 minutes, the last "
        message += f"with {rejected_pod.reason_of(last)}: Berth binds one pod of it there after ever longer pauses"
        fix = f"kubectl describe pod -n {namespace} {key_of(last)[1]}   # why kubelet of {node} rejected it"
        yield Finding(check="RejectedPods", object=f"node/{node}", message=message, fix=fix)


def _ended(pod: Object, now: datetime) -> datetime:
    """Return when kubelet rejected a pod."""
    return time_of(str(pod["status"].get("startTime") or "")) or now
