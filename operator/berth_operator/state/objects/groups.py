"""Gangs, parsed from the API: a pod's membership, and PodGroups."""

import reprlib
from collections.abc import Mapping
from typing import Any, Final

from berth_api import names, words
from berth_api.objects import rejected_pod
from berth_api.objects.podgroup import MAX_MEMBERS
from berth_api.request import RequestError
from berth_api.values import keys
from berth_api.words import KUBERNETES_GROUPS, OWN_GROUPS, PodGroupKind
from berth_operator.core.queue.gang_tracker import Group
from berth_operator.core.values import controller_gangs
from berth_operator.core.values.request import SCHEDULING_GROUP, Membership
from berth_operator.state.objects import kubernetes_groups

Object = Mapping[str, Any]

FORMED: Final = ("Scheduled", "Running", "Finished", "Failed")
"""Phases of groups that have had their minimum of bound members."""

_DIGITS: Final = len(str(MAX_MEMBERS))
MAX_NAME: Final = 253
"""Characters of the name of an object."""


class GroupError(ValueError):
    """A pod's gang is ambiguous or invalid. The text names the field and what is allowed."""


def of_pod(pod: Object) -> Membership | None:
    """Read which gang a pod belongs to: the gang that it names, or else its controller's; None if it belongs to none.

    Raises:
        GroupError: the pod names several gangs, or an invalid minimum.
        RequestError: the same in the words of another system.
    """
    metadata, scheduler = pod["metadata"], pod["spec"].get("schedulerName") or names.SCHEDULER
    written = metadata.get("annotations") or {}
    annotations, labels = words.gang(written, metadata.get("labels") or {})
    labelled = {name: labels[name] for name in (names.POD_GROUP_LABEL, names.OLD_POD_GROUP_LABEL) if labels.get(name)}
    if name := kubernetes_groups.name_in(pod["spec"]):
        own = [annotation for annotation in (names.POD_GROUP, names.POD_GROUP_MIN_MEMBER) if annotation in annotations]
        if also := [*(f"label {label}" for label in labelled), *(f"annotation {annotation}" for annotation in own)]:
            raise GroupError(f"{SCHEDULING_GROUP} and {also[0]} both name a group; allowed is one")
        return Membership(group=f"{metadata['namespace']}/{name}", scheduler=scheduler, word=SCHEDULING_GROUP)
    if names.POD_GROUP in annotations or names.POD_GROUP_MIN_MEMBER in annotations:
        name, text = annotations.get(names.POD_GROUP) or "", annotations.get(names.POD_GROUP_MIN_MEMBER)
        where = f"annotation {names.POD_GROUP}"
        if labelled:
            raise GroupError(f"label {next(iter(labelled))} and {where} both name a group; allowed is one")
        if not name:
            raise GroupError(f'{where}: "{name}"; allowed is the name of the group')
        if len(name) > MAX_NAME:
            raise GroupError(f"{where}: {len(name)} characters; allowed are at most {MAX_NAME}")
        if text is None:
            raise GroupError(f"{where}: annotation {names.POD_GROUP_MIN_MEMBER} must be set, too")
        if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS and 0 < int(text) <= MAX_MEMBERS):
            raise GroupError(
                f'annotation {names.POD_GROUP_MIN_MEMBER}: "{text}"; allowed are whole numbers from 1 to {MAX_MEMBERS}'
            )
        return Membership(group=f"{metadata['namespace']}/{name}", minimum=int(text), scheduler=scheduler)
    if len(set(labelled.values())) > 1:
        listed = ", ".join(f"{name}: {value}" for name, value in labelled.items())
        raise GroupError(f"labels {listed} name different groups; allowed is one")
    for label, name in labelled.items():
        others = words.GANG_NAMES & written.keys()
        word = f"annotation {min(others)}" if others else f"label {label}"
        return Membership(group=f"{metadata['namespace']}/{name}", scheduler=scheduler, word=word)
    gang = controller_gangs.of_pod(metadata)
    if gang is None:
        return None
    group = f"{metadata['namespace']}/{gang.name}"
    return Membership(group=group, minimum=gang.minimum, controller=gang.kind, first=gang.first, scheduler=scheduler)


def of_placed(pod: Object) -> Membership | None:
    """Read which gang a placed pod belongs to; None if its annotations or labels are invalid."""
    try:
        return of_pod(pod)
    except (GroupError, RequestError):
        return None


def group(raw: Object, kind: PodGroupKind = OWN_GROUPS) -> Group:
    """Read a PodGroup of a kind; `problem` explains why it is invalid."""
    if kind == KUBERNETES_GROUPS:
        return kubernetes_groups.group(raw)
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    name = keys.of(raw)
    written = spec.get("minMember") or 0
    minimum = _whole(written)
    # A list may have a thousand levels.
    shown = written if isinstance(written, int | float | str) else reprlib.repr(written)
    problem = "" if minimum else f"PodGroup {name}: spec.minMember: {shown}; allowed are whole numbers from 1"
    notes = () if kind.has_status else kind.notes(spec)
    return Group(
        name=name,
        uid=metadata["uid"],
        minimum=minimum,
        timeout=float(_whole(spec.get("scheduleTimeoutSeconds"))),
        created=metadata.get("creationTimestamp") or "",
        formed=kind.has_status and status.get("phase") in FORMED,
        problem=problem,
        notes="; ".join((f"PodGroup {name} of {kind.group}: {notes[0]}", *notes[1:])) if notes else "",
    )


def _whole(value: Any) -> int:
    """Return a number from 1; 0 for anything else, which the PodGroups of other systems may have."""
    return value if isinstance(value, int) and value > 0 else 0


def transform_ended(pod: dict[str, Any]) -> dict[str, Any]:
    """Return an ended pod with only the fields that name its gang, or that show that kubelet rejected it.

    There may be very many ended pods.
    """
    metadata = pod["metadata"]
    kept = {name: metadata[name] for name in ("uid", "name", "namespace", "resourceVersion")}
    for kind in ("labels", "annotations"):
        kept[kind] = {name: value for name, value in (metadata.get(kind) or {}).items() if name in _READ}
    spec = {name: pod["spec"].get(name) for name in ("schedulerName", "schedulingGroup")}
    owner = controller_gangs.controller(metadata)
    if kept["labels"] or kept["annotations"] or spec["schedulingGroup"]:
        owner = next((owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")), None)
    if owner is not None:
        kept["ownerReferences"] = [{name: owner.get(name) for name in _OWNER}]
    status = {"phase": pod["status"]["phase"]}
    if rejected_pod.is_rejected(pod):
        status |= {"message": rejected_pod.MESSAGE, "reason": rejected_pod.reason_of(pod)}
    return {"metadata": kept, "spec": spec, "status": status}


_OWNER: Final = ("apiVersion", "kind", "name", "uid", "controller")
_READ: Final = frozenset(
    {
        *(names.POD_GROUP_LABEL, names.OLD_POD_GROUP_LABEL, names.POD_GROUP, names.POD_GROUP_MIN_MEMBER),
        *words.GANG_READS,
        *controller_gangs.READS,
    }
)
