"""Workloads of Kueue (`kueue.x-k8s.io/v1beta2`), read into the values that the AdmissionCheck decides."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from berth_operator.core.claims.objects.fields import Field, FieldError
from berth_operator.core.decision import messages
from berth_operator.core.values.quota_workload import CheckState, PodSet, QuotaWorkload
from berth_operator.state.objects import pod_sets, pods

Object = dict[str, Any]
ReadPodSets = Callable[[Field], tuple[PodSet, ...]]
"""Like `pod_sets.read` of one cluster: raises FieldError and UnknownFlavorError."""

CONTROLLER: Final = "berth.dev/fits-devices"
"""The `controllerName` of our AdmissionChecks."""
_POD: Final = {"apiVersion": "v1", "kind": "Pod"}
_METADATA: Final = ("namespace", "name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_ANNOTATIONS: Final = (pod_sets.SLICE_NAME, pod_sets.REPLACEMENT_FOR)
_SPEC: Final = ("queueName", "priority", "active")
_STATUS: Final = ("admissionChecks", "admission", "reclaimablePods")
_CONDITIONS: Final = frozenset({"QuotaReserved", "Admitted", "Evicted", "Finished"})


def transform(raw: Object) -> Object:
    """Return a Workload with only the fields that are read: its pod sets only while it has quota and runs.

    A cluster keeps thousands of Workloads that have finished, and as many may wait. One that Kueue's definition of the
    kind excludes keeps nothing: it lists no check then.
    """
    try:
        spec, status = raw.get("spec") or {}, raw.get("status") or {}
        conditions = [condition for condition in status.get("conditions") or () if condition.get("type") in _CONDITIONS]
        kept = {"spec": _of(spec, _SPEC), "status": {"conditions": conditions}}
        if ("Finished", "True") not in ((condition["type"], condition.get("status")) for condition in conditions):
            kept["status"] |= _of(status, _STATUS)
            if status.get("admission"):
                kept["spec"]["podSets"] = [_without_unread(pod_set) for pod_set in spec.get("podSets") or ()]
        return {"metadata": _metadata(raw), **kept}
    except (TypeError, AttributeError):
        return {"metadata": _metadata(raw), "spec": {}, "status": {}}


def _metadata(raw: Object) -> Object:
    kept = _of(raw["metadata"], _METADATA)
    annotations, owners = raw["metadata"].get("annotations"), raw["metadata"].get("ownerReferences")
    if annotations:
        kept["annotations"] = _of(annotations, _ANNOTATIONS)
    pods_that_exist = [_POD for owner in owners or () if _POD.items() <= owner.items()]
    if pods_that_exist:
        kept["ownerReferences"] = pods_that_exist
    return kept


def _of(fields: Mapping[str, Any], wanted: Collection[str]) -> Object:
    return {name: fields[name] for name in wanted if name in fields}


def _without_unread(pod_set: Object) -> Object:
    template = pod_set.get("template") or {}
    try:
        kept = pods.transform({"metadata": template.get("metadata") or {}, "spec": template.get("spec") or {}})
    except (KeyError, TypeError, AttributeError):
        return pod_set  # reading it says what is wrong
    return {**pod_set, "template": _of(kept, ("metadata", "spec"))}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckItem:
    """An entry of `status.admissionChecks` that is ours."""

    index: int
    """Its place in the list."""
    name: str
    state: CheckState
    message: str
    raw: Object
    """As the API server shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadView:
    """A Workload, and what a write of its check must know in addition."""

    workload: QuotaWorkload
    version: str
    """The resourceVersion that was read."""
    checks: tuple[CheckItem, ...]
    """Our entries: the AdmissionChecks of our controller that the Workload lists."""


def read(raw: Mapping[str, Any], ours: Collection[str], read_pod_sets: ReadPodSets) -> WorkloadView | None:
    """Read a Workload; None if it lists none of our AdmissionChecks.

    Raises:
        UnknownFlavorError: a flavor assigned to it is not known.
    """
    try:
        return _view(Field(raw, ""), ours, read_pod_sets)
    except FieldError:
        # Kueue's definition of the kind excludes this. Without its fields nothing can be said about the Workload.
        return None


def _view(root: Field, ours: Collection[str], read_pod_sets: ReadPodSets) -> WorkloadView | None:
    spec, status = root.at("spec"), root.at("status")
    checks: list[CheckItem] = []
    waits_for_others = False
    for index, entry in enumerate(status.at("admissionChecks").items()):
        name, state = entry.at("name").text(), entry.at("state")
        if name not in ours:
            waits_for_others |= state.text() != CheckState.READY
            continue
        try:
            read_state = CheckState(state.text(CheckState.PENDING))
        except ValueError as error:
            raise FieldError(f"{state.path}: {state.value!r:.64} is no state of a check") from error
        message = entry.at("message").text()
        checks.append(CheckItem(index=index, name=name, state=read_state, message=message, raw=dict(entry.value)))
    if not checks:
        return None
    # Of two of our checks the one that holds the Workload up is decided; a write sets both.
    check = next((entry for entry in checks if entry.state is not CheckState.READY), checks[0])
    conditions = {condition.at("type").text(): condition for condition in status.at("conditions").items()}
    # An evicted Workload keeps its admission until its pods have ended.
    is_reserved = _is(conditions, "QuotaReserved") and not _is(conditions, "Evicted")
    workload = QuotaWorkload(
        key=f"{_text(root, 'namespace')}/{_text(root, 'name')}",
        uid=_text(root, "uid"),
        priority=spec.at("priority").integer(),
        created=_text(root, "creationTimestamp"),
        queue=spec.at("queueName").text(),
        slice_name=_annotation(root, pod_sets.SLICE_NAME),
        grows=bool(_annotation(root, pod_sets.REPLACEMENT_FOR)),
        existing=sum(owner.value == _POD for owner in root.at("metadata").at("ownerReferences").items()),
        cluster_queue=status.at("admission").at("clusterQueue").text(),
        check=check.name,
        state=check.state,
        message=check.message,
        waits_for_others=waits_for_others,
        retries=Field(check.raw, "").at("retryCount").integer(),
        since=_since(conditions, "QuotaReserved"),
        has_quota=status.at("admission").value is not None and is_reserved,
        admitted=_is(conditions, "Admitted"),
        admitted_at=_since(conditions, "Admitted") if _is(conditions, "Admitted") else "",
        finished=_is(conditions, "Finished") or root.at("metadata").at("deletionTimestamp").value is not None,
    )
    if workload.has_quota and not workload.finished:
        try:
            workload = replace(workload, pod_sets=read_pod_sets(root))
        except FieldError as error:
            workload = replace(workload, problem=messages.cut(str(error)))
    return WorkloadView(workload=workload, version=_text(root, "resourceVersion"), checks=tuple(checks))


def _is(conditions: Mapping[str, Field], kind: str) -> bool:
    return kind in conditions and conditions[kind].at("status").text() == "True"


def _since(conditions: Mapping[str, Field], kind: str) -> str:
    return conditions[kind].at("lastTransitionTime").text() if kind in conditions else ""


def _annotation(root: Field, key: str) -> str:
    return root.at("metadata").at("annotations").at(key).text()


def _text(root: Field, key: str) -> str:
    return root.at("metadata").at(key).text()
