"""Checks of node reservations and promised places: devices that are idle, and reservations that were in vain.

The leader records both in the status of the LeaderLease.
"""

from collections.abc import Iterator
from typing import Final

from berth_api import names
from berth_api.values.listing import first_of
from berth_kubectl.doctor.facts import Facts, Finding
from berth_kubectl.printing.amounts import age
from berth_kubectl.reading.objects import controller_of, key_of, time_of

KEPT: Final = 60.0
"""Seconds for which places may be kept for pods that do not exist yet, without a finding."""
IDLE: Final = 600.0
"""Seconds for which free devices may be kept while nothing is freed, without a finding."""


def kept_places(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each gang for whose later pods places have been kept for a while."""
    for kept in facts.record.get("promisedGangs") or ():
        since = time_of(kept.get("since") or "")
        if since is None or (facts.now - since).total_seconds() < KEPT:
            continue
        nodes = [place for joined in kept["places"] for place in joined["nodes"]]
        pods = sum(place["pods"] for place in nodes)
        namespace = kept["namespace"]
        yield Finding(
            check="KeptPlaces",
            object=f"namespace/{namespace}",
            message=f"{pods} place(s) on {first_of(sorted({place['node'] for place in nodes}))} are kept from "
            f"{kept['since']} until {kept['until']} for pods that {kept['kind']} {namespace}/{kept['name']} has not "
            "created yet",
            fix=f"kubectl annotate namespace {namespace} {names.CONTROLLER_GANGS}=false   # gives them up at once",
        )


def idle_reservation(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each node whose free devices are kept in vain, and each pod whose reservations were."""
    reserved = {reservation["uid"]: reservation for reservation in facts.record.get("nodeReservations") or ()}
    in_vain = {}
    for backoff in facts.record.get("reservationBackoffs") or ():
        until = time_of(backoff.get("until") or "")
        if until is not None and until > facts.now:
            in_vain[backoff["namespace"], backoff["owner"]] = backoff
    for pod in facts.all_of("waiting"):
        namespace, name = key_of(pod)
        uid = pod["metadata"].get("uid")
        fix = f"kubectl describe pod -n {namespace} {name}   # end the pods that hold the rest, or request less"
        if (kept := reserved.get(uid)) is not None:
            idle = (facts.now - (time_of(kept["since"]) or facts.now)).total_seconds()
            if kept["free"] and idle >= IDLE:
                free = f"{kept['free']} free device(s) are reserved for pod {namespace}/{name}"
                found = f"{free}, and nothing has been freed for {age(idle)}"
                yield Finding(check="IdleReservation", object=f"node/{kept['node']}", message=found, fix=fix)
        elif (backoff := in_vain.get((namespace, controller_of(pod).get("uid") or uid))) is not None:
            count = f"{backoff['count']} node reservation{'s were' if backoff['count'] > 1 else ' was'} in vain"
            found = (
                f"{count}, because pods that hold the rest of a node do not end; the next one may begin at "
                f"{backoff['until']}"
            )
            yield Finding(check="IdleReservation", object=f"pod/{namespace}/{name}", message=found, fix=fix)
