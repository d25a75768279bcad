"""The answers of the validating webhook: denials and warnings in the scheduler's own words.

The scheduler's parser reads the pod. If it cannot parse one of Berth's pods, the pod would wait until a user deletes
it, so the webhook denies it. For a template it only warns: the controller that creates the pods may still change them,
and the template may be stored for later. It also warns about names that resemble Berth's, because they may belong to
another system.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from berth_api import names, request, resources
from berth_api.admission import routing
from berth_api.request import BUILT_IN, Kinds
from berth_api.words import misspelt
from berth_operator.core.decision.messages import invalid_request
from berth_operator.core.filters import supported
from berth_operator.core.values.request import PendingPod
from berth_operator.state.objects import pods

Object = Mapping[str, Any]

_POD: Final = "Pod"
_TEMPLATE: Final = ("spec", "template")
_TEMPLATES: Final = {
    "Deployment": _TEMPLATE,
    "StatefulSet": _TEMPLATE,
    "DaemonSet": _TEMPLATE,
    "Job": _TEMPLATE,
    "CronJob": ("spec", "jobTemplate", *_TEMPLATE),
}
"""Kind -> the fields that lead to its pod template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """What the API server answers to a user."""

    denial: str = ""
    """Why the object is refused; empty if it is accepted."""
    warnings: tuple[str, ...] = ()


ACCEPTED: Final = Admitted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Validates pods and pod templates."""

    schedulers: Sequence[str] = (names.SCHEDULER,)
    """The scheduler names of Berth's profiles."""
    kinds: Kinds = BUILT_IN

    def judge(self, review: Object) -> Admitted:
        """Return the verdict on the object of an AdmissionReview's request.

        Raises:
            KeyError, TypeError, AttributeError: the request has no pod and no pod template.
        """
        kind, body = review["kind"]["kind"], review["object"]
        template = _template(kind, body)
        before = review.get("oldObject")
        if kind != _POD and before and _template(kind, before) == template:
            return ACCEPTED
        if template["spec"].get("nodeName"):
            return ACCEPTED  # no scheduler reads it
        owner, namespace = body["metadata"], review.get("namespace") or "default"
        name = owner.get("name") or owner.get("generateName") or ""
        metadata = {**(template.get("metadata") or {}), "name": name, "namespace": namespace, "uid": ""}
        # With the requests that the API server sets.
        pod = {"metadata": metadata, "spec": resources.from_limits(template["spec"])}
        # Pods of a template may be routed to our scheduler when they are created.
        is_ours = _scheduler(pod) in self.schedulers or (kind != _POD and routing.is_routed(pod))
        if not is_ours:
            meant = routing.meant(_scheduler(pod), self.schedulers)
            question = f'spec.schedulerName: "{_scheduler(pod)}"; did you mean {meant}?'
            return Admitted(warnings=(question,)) if meant else ACCEPTED
        parsed = pods.pending(pods.transform(pod), self.kinds)
        if not parsed.error:
            return Admitted(warnings=tuple(_doubts(pod, parsed)))
        problem = invalid_request(parsed.error)
        return Admitted(denial=problem) if kind == _POD else Admitted(warnings=(problem,))


def _template(kind: str, body: Object) -> Object:
    for name in () if kind == _POD else _TEMPLATES[kind]:
        body = body[name]
    return body


def _scheduler(pod: Object) -> str:
    return pod["spec"].get("schedulerName") or routing.DEFAULT


def _doubts(pod: Object, parsed: PendingPod) -> Iterator[str]:
    """Yield what may be wrong with a valid pod."""
    metadata = pod["metadata"]
    yield from misspelt.questions(metadata.get("annotations") or {}, metadata.get("labels") or {})
    if parsed.request.unsupported:
        yield supported.reason(parsed.request)
    if hint := parsed.request.devices.hint:
        written, requests = request.Written(pod["spec"]), dict(parsed.request.plugin_requests)
        amounts = ", ".join(f"{name}: {written.amount(name, total)}" for name, total in requests.items())
        yield f"{amounts}; {hint}{written.origin(tuple(requests))}"
