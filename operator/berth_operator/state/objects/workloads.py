"""Workloads of Kueue (`kueue.x-k8s.io/v1beta2`), read into the values that the AdmissionCheck decides."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from berth_operator.core.decision import messages
from berth_operator.core.dra.fields import Field, FieldError
from berth_operator.core.values.quota_workload import CheckState, PodSet, QuotaWorkload
from berth_operator.state.objects import pod_sets, pods

Object = dict[str, Any]
ReadPodSets = Callable[[Field], tuple[PodSet, ...]]
"""Like `pod_sets.read` of one cluster: raises FieldError and UnknownFlavorError."""

CONTROLLER: Final = "berth.dev/fits-devices"
"""The `controllerName` of our AdmissionChecks."""
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
        return _stripped(raw)
    except (TypeError, AttributeError):
        return {"metadata": _metadata(raw), "spec": {}, "status": {}}


def _stripped(raw: Object) -> Object:
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    conditions = [each for each in status.get("conditions") or () if each.get("type") in _CONDITIONS]
    kept = {"spec": _of(spec, _SPEC), "status": {"conditions": conditions}}
    if not _is_true(conditions, "Finished"):
        kept["status"] |= _of(status, _STATUS)
        if status.get("admission"):
            kept["spec"]["podSets"] = [_without_unread(each) for each in spec.get("podSets") or ()]
    return {"metadata": _metadata(raw), **kept}


def _metadata(raw: Object) -> Object:
    kept = _of(raw["metadata"], _METADATA)
    annotations = raw["metadata"].get("annotations")
    return {**kept, "annotations": _of(annotations, _ANNOTATIONS)} if annotations else kept


def _of(fields: Mapping[str, Any], wanted: Collection[str]) -> Object:
    return {name: fields[name] for name in wanted if name in fields}


def _without_unread(pod_set: Object) -> Object:
    template = pod_set.get("template") or {}
    try:
        kept = pods.transform({"metadata": template.get("metadata") or {}, "spec": template.get("spec") or {}})
    except (KeyError, TypeError, AttributeError):
        return pod_set  # reading it says what is wrong
    return {**pod_set, "template": _of(kept, ("metadata", "spec"))}


def _is_true(conditions: Collection[Mapping[str, Any]], kind: str) -> bool:
    return any(each.get("type") == kind and each.get("status") == "True" for each in conditions)


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
        UnknownFlavorError: a flavor that was assigned to it is not known.
    """
    root = Field(raw, "")
    try:
        checks = tuple(_checks(root.at("status"), ours))
        workload = _read(root, checks, read_pod_sets) if checks else None
    except FieldError:
        # Kueue's definition of the kind excludes this. Without its fields nothing can be said about the Workload.
        return None
    return WorkloadView(workload=workload, version=_text(root, "resourceVersion"), checks=checks) if workload else None


def _checks(status: Field, ours: Collection[str]) -> Iterator[CheckItem]:
    for index, each in enumerate(status.at("admissionChecks").items()):
        name = each.at("name").text()
        if name in ours:
            yield CheckItem(
                index=index,
                name=name,
                state=_state(each.at("state")),
                message=each.at("message").text(),
                raw=dict(each.value),
            )


def _state(written: Field) -> CheckState:
    try:
        return CheckState(written.text(CheckState.PENDING))
    except ValueError as error:
        raise FieldError(f"{written.path}: {written.value!r:.64} is no state of a check") from error


def _read(root: Field, checks: tuple[CheckItem, ...], read_pod_sets: ReadPodSets) -> QuotaWorkload:
    spec, status = root.at("spec"), root.at("status")
    conditions = {each.at("type").text(): each for each in status.at("conditions").items()}
    # Of two of our checks the one that holds the Workload up is decided; a write sets both.
    check = next((each for each in checks if each.state is not CheckState.READY), checks[0])
    workload = QuotaWorkload(
        key=f"{_text(root, 'namespace')}/{_text(root, 'name')}",
        uid=_text(root, "uid"),
        priority=spec.at("priority").integer(),
        created=_text(root, "creationTimestamp"),
        queue=spec.at("queueName").text(),
        slice_name=_annotation(root, pod_sets.SLICE_NAME),
        grows=bool(_annotation(root, pod_sets.REPLACEMENT_FOR)),
        cluster_queue=status.at("admission").at("clusterQueue").text(),
        check=check.name,
        state=check.state,
        message=check.message,
        waits_for_others=_waits(status, {each.name for each in checks}),
        retries=Field(check.raw, "").at("retryCount").integer(),
        since=_since(conditions, "QuotaReserved"),
        has_quota=_has_quota(status, conditions),
        admitted=_is(conditions, "Admitted"),
        admitted_at=_since(conditions, "Admitted") if _is(conditions, "Admitted") else "",
        finished=_is(conditions, "Finished") or root.at("metadata").at("deletionTimestamp").value is not None,
    )
    return _with_pods(workload, root, read_pod_sets) if workload.has_quota and not workload.finished else workload


def _waits(status: Field, ours: Collection[str]) -> bool:
    """Return whether one of the checks of other controllers is not Ready."""
    others = (each for each in status.at("admissionChecks").items() if each.at("name").text() not in ours)
    return any(each.at("state").text() != CheckState.READY for each in others)


def _with_pods(workload: QuotaWorkload, root: Field, read_pod_sets: ReadPodSets) -> QuotaWorkload:
    try:
        return replace(workload, pod_sets=read_pod_sets(root))
    except FieldError as error:
        return replace(workload, problem=messages.cut(str(error)))


def _has_quota(status: Field, conditions: Mapping[str, Field]) -> bool:
    """Return whether quota is reserved, and not only because the pods of an evicted Workload still end."""
    has_admission = status.at("admission").value is not None
    return has_admission and _is(conditions, "QuotaReserved") and not _is(conditions, "Evicted")


def _is(conditions: Mapping[str, Field], kind: str) -> bool:
    return kind in conditions and conditions[kind].at("status").text() == "True"


def _since(conditions: Mapping[str, Field], kind: str) -> str:
    return conditions[kind].at("lastTransitionTime").text() if kind in conditions else ""


def _annotation(root: Field, key: str) -> str:
    return root.at("metadata").at("annotations").at(key).text()


def _text(root: Field, key: str) -> str:
    return root.at("metadata").at(key).text()
