"""Pods, parsed from the API: pending pods, and the charges of bound ones."""

import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from berth_api import names, request, resources, words
from berth_api.admission import injection, shares
from berth_api.allocation import Grant
from berth_api.request import BUILT_IN, DeviceRequest, Kinds, isolation, model, share
from berth_api.resources import PODS, nonzero_requested, resize
from berth_api.values import interning, keys
from berth_api.values.caching import compact, sized_cache
from berth_api.words import misspelt
from berth_api.words.no_devices import ABOUT_DEVICES
from berth_client import times
from berth_client.objects import READING_ERRORS, without_managed_fields
from berth_operator.core.decision import messages
from berth_operator.core.values import limits, releases
from berth_operator.core.values.charge import NOT_STARTED, Charge
from berth_operator.core.values.owner import NO_OWNER, Owner
from berth_operator.core.values.request import (
    SCHEDULING_GROUP,
    HostPort,
    PendingPod,
    PodRequest,
    Toleration,
)
from berth_operator.state.objects import (
    affinity,
    allocations,
    claim_uses,
    endings,
    extended_claims,
    features,
    genius_priority,
    groups,
    images,
    kubernetes_groups,
    mounts,
    pod_admission,
    pod_limits,
    ports,
    terms,
)
from berth_operator.state.objects.genius_priority import UNLIMITED, PriorityLimits

Object = Mapping[str, Any]

_UNREAD: Final = (
    "envFrom",
    "command",
    "args",
    "volumeMounts",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
)
"""Fields of a container that may be large and that scheduling does not read."""
_UNREAD_OF_POD: Final = ("dnsConfig", "hostAliases", "imagePullSecrets", "securityContext")
"""The same of a pod."""
_VOLUMES: Final = mounts.RELEVANT | {"image"}
MAX_FINALIZERS: Final = 3
"""Finalizers of a pod that messages name."""
_CONDITIONS: Final = frozenset({"PodScheduled", "PodResizePending"})
_KEPT: Final = ("name", "resources", "allocatedResources")
"""Fields of a container's status that are read during a resize."""
_LIMIT_RANGER: Final = "kubernetes.io/limit-ranger"
_MAX_RANGER: Final = 4096
"""Characters of this annotation that are read. Any user may write it, and 100 names of resources fit."""
TEMPLATES: Final = 2**24
"""Bytes of each cache of parsed specs: the replicas of an application have equal ones."""
_ANNOTATIONS: Final = {
    *ABOUT_DEVICES,
    *words.READ_ANNOTATIONS,
}
"""The annotations that are read from a waiting pod."""
_OF_ONE_REPLICA: Final = frozenset({"nodeName", "hostname", "volumes", "resourceClaims"})
"""Fields of a spec that differ between the replicas of an application."""


class PodError(ValueError):
    """A pod's annotation or label is invalid. The text names it and what is allowed."""


def transform(pod: dict[str, Any]) -> dict[str, Any]:
    """Drop the fields of a pod that the operator does not read, so that pods of equal scheduling compare equal."""
    without_managed_fields(pod)
    spec = pod.get("spec", {})
    for name in _UNREAD_OF_POD:
        spec.pop(name, None)
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        for name in _UNREAD:
            container.pop(name, None)
        variables = [
            variable
            for variable in container.pop("env", None) or ()
            if injection.is_variable(variable)
            or limits.is_limit(variable)
            or (variable.get("name") in request.mistakes.VISIBLE and variable.get("value"))
        ]
        if variables:
            container["env"] = variables
    spec["volumes"] = [volume for volume in spec.get("volumes") or () if not _VOLUMES.isdisjoint(volume)]
    status = pod["status"] = dict(pod.get("status") or {})
    conditions = status.get("conditions") or ()
    status["conditions"] = [condition for condition in conditions if condition["type"] in _CONDITIONS]
    for kind in ("containerStatuses", "initContainerStatuses"):
        resized = (
            container
            for container in status.get(kind) or ()
            if container.get("resources") is not None or container.get("allocatedResources")
        )
        status[kind] = [{name: container[name] for name in _KEPT if name in container} for container in resized]
    return pod


# --- pending pods -------------------------------------------------------------------------------------------


def is_gated(pod: Object) -> bool:
    """Return whether the pod must not be scheduled: it has scheduling gates, or is being deleted."""
    return has_gates(pod) or bool(pod["metadata"].get("deletionTimestamp"))


def has_gates(pod: Object) -> bool:
    """Return whether the pod has scheduling gates."""
    return bool(pod["spec"].get("schedulingGates"))


def gates_text(pod: Object) -> str:
    """Return why a pod with scheduling gates waits."""
    return f"scheduling is blocked by gates: {', '.join(gate['name'] for gate in pod['spec']['schedulingGates'])}"


def pending(pod: Object, kinds: Kinds = BUILT_IN, priorities: PriorityLimits = UNLIMITED) -> PendingPod:
    """Read a pending pod; `error` explains why it is invalid."""
    metadata, spec = pod["metadata"], pod["spec"]
    last_reason, last_message, since = _last_condition(pod)
    try:
        request.mistakes.check_names(metadata.get("annotations") or {}, metadata.get("labels") or {})
        weight = genius_priority.of_pod(metadata["namespace"], metadata.get("labels") or {}, priorities)
        pod_request, gang, error = _request(pod, kinds), groups.of_pod(pod), ""
        for kind in kinds.requested([name for name, _ in pod_request.plugin_requests]):
            if gang is not None and gang.controller and not kind.gangs:
                gang = None
            if gang is not None and not kind.gangs:
                raise PodError(f"{gang.key}: its members cannot request devices of type {kind.name}")
    except ValueError as wrong:
        # Without its gang, so that the error is reported on this pod; the gang waits for a member.
        pod_request, weight, gang = PodRequest(), 0, None
        # Which of the resources a LimitRange added, by the annotation of its admission plug-in.
        written = (metadata.get("annotations") or {}).get(_LIMIT_RANGER, "")[:_MAX_RANGER].split()
        following = itertools.pairwise(written)
        set_by_it = dict.fromkeys(name for name, what in following if "/" in name and what in ("request", "limit"))
        added = [name for name in set_by_it if name in str(wrong)]
        note = f" (a LimitRange of the namespace added {' and '.join(added)})" if added else ""
        error = messages.cut(f"{wrong}{note}")
    return PendingPod(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        request=pod_request,
        scheduler=spec.get("schedulerName") or names.SCHEDULER,
        error=error,
        priority=operator.index(spec.get("priority") or 0),
        weight=weight,
        created=metadata.get("creationTimestamp") or "",
        annotation_bytes=sum(
            len(key) + len(value.encode()) for key, value in (metadata.get("annotations") or {}).items()
        ),
        generation=metadata.get("generation") or 0,
        last_message=last_message,
        last_reason=last_reason,
        unschedulable_since=since,
        lifetime=endings.lifetime(pod),
        ends=endings.expected(pod),
        gang=gang,
        preempts=spec.get("preemptionPolicy") != "Never",
        nominated_node=(pod.get("status") or {}).get("nominatedNodeName") or "",
        owner=owner_of(metadata),
        workload=_workload(metadata),
        admission=pod_admission.of_pod(spec) if gang is not None and gang.controller else None,
    )


def _workload(metadata: Object) -> str:
    """Return `name/pod set` of the pod's Workload, as Kueue writes it from the AdmissionCheck; empty without."""
    annotations = metadata.get("annotations")
    if not annotations or names.WORKLOAD not in annotations:
        return ""
    return interning.intern(keys.join(annotations[names.WORKLOAD], annotations.get(names.POD_SET) or ""))


def owner_of(metadata: Object) -> Owner:
    """Return a pod's controller."""
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            return interning.intern(
                Owner(
                    kind=owner.get("kind") or "",
                    name=owner.get("name") or "",
                    api_version=owner.get("apiVersion") or "",
                    uid=owner.get("uid") or "",
                )
            )
    return NO_OWNER


def request_of(pod: Object, kinds: Kinds = BUILT_IN) -> PodRequest:
    """Read what a bound pod requested while it waited; an empty request if that is invalid."""
    try:
        return _request(pod, kinds)
    except READING_ERRORS:
        return PodRequest()


def _request(pod: Object, kinds: Kinds) -> PodRequest:
    metadata, spec = pod["metadata"], pod["spec"]
    written, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    annotations = {name: written[name] for name in written.keys() & _ANNOTATIONS}
    questions = list(misspelt.questions(written, labels))
    template = _template(pod, annotations, labels, affinity.controller(metadata), questions)
    pod_limits.check_template(template, pod, annotations)
    pod_request = _of_template(template, kinds)
    if extended_claims.names_claim(pod):
        pod_request = replace(pod_request, names_claim=True)
    if not (mounts.relevant(spec) or spec.get("resourceClaims")):
        return pod_request
    pod_limits.check_mounts(spec)
    return replace(pod_request, mounts=mounts.of_pod(pod), claims=claim_uses.of_pod(pod))


def _template(pod: Object, *more: Object | str | list[str]) -> bytes:
    """Return what all replicas of an application have in common, as JSON, which is a fast cache key."""
    spec = {name: value for name, value in pod["spec"].items() if name not in _OF_ONE_REPLICA}
    spec["volumes"] = [volume for volume in pod["spec"].get("volumes") or () if "image" in volume]
    return compact(orjson.dumps((spec, pod["metadata"]["namespace"], *more), option=orjson.OPT_SORT_KEYS))


@sized_cache(TEMPLATES)
def _of_template(template: bytes, kinds: Kinds) -> PodRequest:
    spec, namespace, annotations, labels, controller, questions = orjson.loads(template)
    metadata = {"namespace": namespace, "labels": labels}
    pod_limits.check_parts(metadata, spec, annotations)
    total = resources.total(spec)
    request.mistakes.check_amounts(spec)
    reading = words.read(spec, annotations, labels, kinds.units)
    # The API server has set the requests of all resources but those that were just read.
    asking = resources.from_limits(reading.spec) if reading.words else spec
    containers = resources.containers(asking)
    of_devices = resources.total(asking) if reading.words else total
    devices = request.of_pod(of_devices, reading.annotations, reading.labels, kinds, request.Written(asking))
    gpus = sum(part.count for part in devices.parts if part.type == names.GPU)
    # What kubelet counts: the total without the words of other systems, which its Node does not list.
    visible = {name: amount for name, amount in total.items() if name not in reading.replaced}

    # Kubelet gives devices to a container that still requests a device plugin's resource next to other systems' words.
    # For this container, no policy and no webhook replaced the resource when the pod was created, so that it would not
    # see exactly its own GPUs.
    given = (
        str(container.get("name", ""))
        for _, _, container in injection.all_containers(spec)
        if any(words.TABLE.resources[name].word.by_plugin for name in words.resources_of(container, reading.replaced))
    )
    uninjected = tuple(dict.fromkeys((*injection.lacking(asking, reading.labels), *given)))

    # The containers that are not limited to their shares though their pod asks for it.
    unlimited: tuple[str, ...] = ()
    mode = isolation.wanted(reading.annotations, reading.labels) or isolation.given(visible)
    if mode not in ("", isolation.NONE):
        limited = {limit.container for limit in limits.of_pod(asking, containers, labelled=False)}
        sharing = (str(container.get("name", "")) for _, _, container in shares.of_pod(asking, reading.labels))
        unlimited = tuple(name for name in sharing if name not in limited)

    requested_model = model.of_pod(reading.annotations, reading.labels)
    # A DeviceClass may provide these, but knows nothing of what annotations, labels or words add about devices.
    extended = {name for name in visible if extended_claims.is_extended(name)}
    if devices and (
        reading.words or requested_model != model.ANY_MODEL or devices != request.of_resources(visible, kinds=kinds)
    ):
        extended = {name for name in extended if not request.is_device(name, kinds)}

    return PodRequest(
        resources=_counted_on_node(visible),
        nonzero_requested=nonzero_requested.of_pod(spec, {}),
        devices=devices,
        plugin_requests=_plugin_requests(visible, kinds),
        shares=share.of_pod(containers, devices, kinds),
        model=interning.intern(requested_model),
        node_selector=terms.node_selector(spec.get("nodeSelector") or {}),
        node_affinity=terms.required_nodes(spec.get("affinity") or {}),
        preferred_nodes=terms.preferred_nodes(spec.get("affinity") or {}),
        tolerations=tuple(
            Toleration(
                key=toleration.get("key") or "",
                operator=toleration.get("operator") or "Equal",
                value=toleration.get("value") or "",
                effect=toleration.get("effect") or "",
            )
            for toleration in spec.get("tolerations") or ()
        ),
        ports=ports.of_pod(spec),
        features=features.of_pod(spec),
        images=images.of_pod(spec),
        identity=affinity.identity_of(namespace, labels, controller),
        affinity=affinity.of_pod({"metadata": metadata, "spec": spec}),
        unsupported=tuple(_unsupported(spec, devices)),
        uninjected=uninjected,
        limits=limits.of_pod(spec, containers, labelled=devices.labelled),
        isolation=isolation.given(visible),
        unlimited=unlimited,
        limited_by=isolation.wanted_by(annotations, labels) if unlimited else "",
        questions="; ".join(
            filter(None, (request.mistakes.excess(spec), *questions, *request.mistakes.visible_devices(spec, gpus)))
        ),
        extended=tuple(extended_claims.requested(containers, extended)),
        read=words.plain.reading(reading.words, reading.said, reading.notes, devices),
    )


def _counted_on_node(total: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    counted = {name: amount for name, amount in total.items() if request.is_counted_on_node(name)}
    return tuple(sorted({**counted, PODS: 1}.items()))


def _plugin_requests(total: Mapping[str, int], kinds: Kinds) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, amount) for name, amount in total.items() if request.is_device(name, kinds)))


def _unsupported(spec: Object, devices: DeviceRequest) -> Iterator[str]:
    """Yield the fields and resources that Berth does not support yet."""
    if spec.get("schedulingGroup") and not kubernetes_groups.name_in(spec):
        yield f"{SCHEDULING_GROUP} without podGroupName"
    if any(request.NPU_CORE in dict(part.amounts) and not part.whole for part in devices.parts):
        # The NPU's device plugin needs the name of a template, which Berth does not write.
        yield f"a part of an NPU ({request.NPU_CORE} by a template)"
    has_subdevices = any(part.unit in (request.REPLICA, request.INSTANCE) for part in devices.parts)
    if devices.joint is not None and devices.joint.same_pcie and has_subdevices:
        yield f"annotation {names.JOINT_ALLOCATE} with slices or MIG instances"
    if has_subdevices and isolation.given(resources.total(spec)):
        yield "isolation of shares with slices or MIG instances in one pod"


def _last_condition(pod: Object) -> tuple[str, str, str]:
    """Return reason, message and time of PodScheduled=False; all are empty if scheduling gates caused it."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            reason = str(condition.get("reason") or "")
            if reason == "SchedulingGated":
                break
            since = str(condition.get("lastTransitionTime") or "")
            return reason, str(condition.get("message") or ""), since
    return "", "", ""


# --- bound pods ---------------------------------------------------------------------------------------------


def is_running(pod: Object) -> bool:
    """Return whether the pod's containers have started."""
    return (pod.get("status") or {}).get("phase") == "Running"


ResolveGrants = Callable[[str, str, tuple[Grant, ...]], tuple[Grant, ...]]
"""(UID, node, grants) -> the grants with the minors that their cards have now, like `Fleet.resolve_grants`."""


def as_recorded(_uid: str, _node: str, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
    """Return the grants unchanged, with the minors in the allocation."""
    return grants


def charge(
    pod: Object,
    kinds: Kinds = BUILT_IN,
    trusted: Collection[str] = (),
    resolve_grants: ResolveGrants = as_recorded,
    kubernetes: int = releases.NEWEST,
) -> Charge:
    """Return what a bound pod takes of its node.

    Args:
        pod: the pod from the API.
        kinds: the device types.
        trusted: other schedulers whose allocations are trusted.
        resolve_grants: finds the current minors of the grants' cards.
        kubernetes: the API server's minor version.

    Raises:
        ValueError: a part of the pod cannot be read, such as an amount.
    """
    metadata, node = pod["metadata"], pod["spec"]["nodeName"]
    whole = pod_limits.trimmed(pod["spec"])
    spec, status = extended_claims.without_claimed(pod, whole)
    taken = counted = _taken_by(pod, spec, status, kinds, kubernetes)
    if spec is not whole:
        # For other pods, kubelet counts what a claim provides as taken from the node as well.
        counted = _taken_by(pod, whole, pod.get("status") or {}, kinds, kubernetes)
    grants, unknown = allocations.of_pod(pod, taken.devices, trusted)
    gang = groups.of_placed(pod)
    return Charge(
        uid=metadata["uid"],
        pod=keys.of(pod),
        node=node,
        resources=counted.resources,
        nonzero_requested=taken.nonzero_requested,
        plugin_requests=taken.plugin_requests,
        ports=taken.ports,
        grants=resolve_grants(metadata["uid"], node, grants),
        isolation=isolation.given(dict(taken.resources)),
        unknown=unknown,
        lacks_cards=allocations.lacks_cards(pod, taken.devices.reads),
        identity=affinity.identity(pod),
        affinity=affinity.of_placed(pod),
        mounts=mounts.of_pod(pod),
        terminating=bool(metadata.get("deletionTimestamp")),
        finalizers=_finalizers(metadata),
        gang=gang,
        alike_key=request_of(pod, kinds).alike_key if gang else None,
        # Raises TypeError for anything but an integer: a bound pod could not be charged with it.
        priority=operator.index(pod["spec"].get("priority") or 0),
        started=times.seconds(status.get("startTime") or "", NOT_STARTED),
        ends=endings.of_placed(pod),
        owner=owner_of(metadata),
        scheduler=interning.intern(pod["spec"].get("schedulerName") or names.SCHEDULER),
        workload=_workload(metadata),
    )


def unreadable(pod: Object, types: Iterable[str]) -> Charge:
    """Return the charge of a bound pod that `charge` cannot read: it may hold any device of these types.

    Its other resources do not count. If they do not fit next to other pods, kubelet refuses those, but only Berth
    protects devices.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    priority = spec.get("priority")
    return Charge(
        uid=metadata["uid"],
        pod=keys.of(pod),
        node=spec["nodeName"],
        resources=((PODS, 1),),
        unknown=tuple(types),
        terminating=bool(metadata.get("deletionTimestamp")),
        finalizers=_finalizers(metadata),
        priority=priority if isinstance(priority, int) else 0,
        owner=owner_of(metadata),
        scheduler=interning.intern(spec.get("schedulerName") or names.SCHEDULER),
    )


def _finalizers(metadata: Object) -> tuple[str, ...]:
    """Return the first finalizers of a pod that is being deleted."""
    if not metadata.get("deletionTimestamp"):
        return ()
    return tuple(interning.intern(name) for name in (metadata.get("finalizers") or ())[:MAX_FINALIZERS])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """What each replica of an application takes of its node."""

    resources: tuple[tuple[str, int], ...]
    nonzero_requested: tuple[int, int]
    plugin_requests: tuple[tuple[str, int], ...]
    devices: allocations.Requested
    ports: tuple[HostPort, ...]


def _requested(spec: Object, total: Mapping[str, int], kinds: Kinds) -> allocations.Requested:
    """Return what the allocation of a bound pod is checked against: its spec, as its metadata may have changed."""
    if not words.is_used(spec, {}, {}):
        return allocations.requested(total, kinds, spec)
    try:
        reading = words.read(spec, {}, {}, kinds.units)
    except request.RequestError:
        return allocations.requested({names.PREFIX + names.GPU: request.CARD}, kinds, spec).of_allocation()
    requested = allocations.requested(resources.total(resources.from_limits(reading.spec)), kinds, spec)
    return requested.of_allocation() if reading.may_be_in_metadata else requested


def _taken_by(pod: Object, spec: Object, status: Object, kinds: Kinds, kubernetes: int) -> _Taken:
    """Return what a bound pod takes of its node by this spec and status."""
    resize_status = {name: status[name] for name in resize.READS if status.get(name)}
    template = _template({**pod, "spec": spec}, resize_status)
    # Unlike a waiting pod's, it has no limit.
    read = _taken if len(template) <= pod_limits.MAX_TEMPLATE_BYTES else _taken.uncached
    return read(template, kinds, by_sums=kubernetes >= releases.RESIZES_BY_SUMS)


@sized_cache(TEMPLATES)
def _taken(template: bytes, kinds: Kinds, *, by_sums: bool) -> _Taken:
    spec, _, status = orjson.loads(template)
    total = pod_limits.first_resources(resize.held(spec, status, by_sums=by_sums))
    return _Taken(
        resources=_counted_on_node(total),
        nonzero_requested=nonzero_requested.of_pod(spec, status, by_sums=by_sums),
        plugin_requests=_plugin_requests(total, kinds),
        devices=_requested(spec, total, kinds),
        ports=ports.of_pod(spec)[: pod_limits.MAX_HOST_PORTS],
    )
