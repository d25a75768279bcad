"""Checks of node reservations: devices that are idle while a node is gathered, and reservations that were in vain.

The operator records both in the condition of the pod that waits.
"""

import re
from collections.abc import Iterator
from typing import Final

from berth_kubectl.doctor.facts import Facts, Finding
from berth_kubectl.printing.amounts import age
from berth_kubectl.reading.objects import condition, key_of, time_of

IDLE: Final = 600.0
"""Seconds for which free devices may be kept while nothing is freed, without a finding."""
_RESERVED: Final = re.compile(r" nothing has been freed since (\S+); reserved on (\S+): (.*)\.")
_FREE: Final = re.compile(r"[1-9]\d* of \d+ ")
_IN_VAIN: Final = re.compile(r" (\d+ node reservations? (?:was|were) in vain): .*; (the next one may begin at \S+)\.")


def idle_reservation(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each node whose free devices are kept in vain, and each pod whose reservations were."""
    for pod in facts.all_of("waiting"):
        namespace, name = key_of(pod)
        message = str(condition(pod, "PodScheduled").get("message") or "")
        fix = f"kubectl describe pod -n {namespace} {name}   # end the pods that hold the rest, or request less"
        if match := _RESERVED.search(message):
            since, node, progress = match.groups()
            idle = (facts.now - (time_of(since) or facts.now)).total_seconds()
            if _FREE.search(progress) and idle >= IDLE:
                found = f"reserved for pod {namespace}/{name}, and nothing has been freed for {age(idle)}: {progress}"
                yield Finding(check="IdleReservation", object=f"node/{node}", message=found, fix=fix)
        elif match := _IN_VAIN.search(message):
            found = f"{match[1]}, because pods that hold the rest of a node do not end; {match[2]}"
            yield Finding(check="IdleReservation", object=f"pod/{namespace}/{name}", message=found, fix=fix)
