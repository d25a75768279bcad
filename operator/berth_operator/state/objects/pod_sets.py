"""The pod sets of Kueue's Workloads, read as the pods that will be created.

A template becomes a raw pod as Kueue, the job's controller and admission would create it. The pod has the node labels
and tolerations of its flavors and of its topology domain. Its requests are completed from limits, and other systems'
resources are renamed. It gets Berth's scheduler where it is routed. The code that reads pending pods then reads this
pod, once for each pod set.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from berth_api import names, resources
from berth_api.admission import renaming, routing
from berth_api.admission.routing import Route
from berth_api.request import BUILT_IN, Kinds
from berth_client.objects import READING_ERRORS
from berth_operator.core.claims.objects.fields import Field, FieldError
from berth_operator.core.values.pod_admission import PriorityClass, priority_of
from berth_operator.core.values.quota_workload import PodSet
from berth_operator.core.values.request import PendingPod
from berth_operator.state.objects import pod_admission, pods, terms, topology_assignments
from berth_operator.state.objects.genius_priority import UNLIMITED, PriorityLimits

Object = Mapping[str, Any]

MAX_PODS: Final = 4096
"""Maximum number of pods of a workload with promised places, because each is decided and charged by itself."""
SLICE_NAME: Final = "kueue.x-k8s.io/workload-slice-name"
"""The annotation of an elastic job's Workloads with the name of its first Workload."""
REPLACEMENT_FOR: Final = "kueue.x-k8s.io/workload-slice-replacement-for"
"""The annotation of the Workload of an elastic job that has grown. It names the Workload whose pods continue to run."""


class UnknownFlavorError(LookupError):
    """A flavor that was assigned is not known yet, or not any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """What a ResourceFlavor, or another AdmissionCheck, adds to pods."""

    labels: Mapping[str, str]
    tolerations: tuple[Object, ...]


def read_flavor(raw: Object) -> Flavor:
    """Read a ResourceFlavor.

    Raises:
        FieldError: a field cannot be read.
    """
    return _flavor(Field(raw, "").at("spec"), "nodeLabels")


def _flavor(fields: Field, labels: str) -> Flavor:
    tolerations = tuple(
        {key: value.value for key, value in toleration.entries()} for toleration in fields.at("tolerations").items()
    )
    return Flavor(labels=dict(_texts(fields.at(labels))), tolerations=tolerations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Templates:
    """What is known of how pods are made from templates."""

    kinds: Kinds = BUILT_IN
    priorities: PriorityLimits = UNLIMITED
    schedulers: Callable[[], Sequence[str]] = lambda: (names.SCHEDULER,)
    """Returns the scheduler names whose pods Berth schedules itself. Pods without a name are routed to the first."""
    namespace_labels: Callable[[str], Mapping[str, str]] = lambda _: {}
    """Returns the labels of a namespace."""
    route: Route = "own"
    """How pods of namespaces without the label are routed."""
    served: frozenset[str] = frozenset()
    """Further resources that the route `devices` reads."""
    flavors: dict[str, Flavor] = field(default_factory=dict)
    priority_classes: Mapping[str, PriorityClass] = field(default_factory=dict)
    """Name -> PriorityClass."""

    def flavor(self, name: str) -> Flavor:
        """Return a flavor; raise UnknownFlavorError if it is unknown."""
        try:
            return self.flavors[name]
        except KeyError:
            raise UnknownFlavorError(name) from None

    def priority(self, spec: Object) -> Object:
        """Return the fields that the admission plugin Priority sets in a pod; of an unknown class, the lowest."""
        found = priority_of(pod_admission.of_pod(spec), self.priority_classes)
        priority, preempts = found or (min(spec.get("priority") or 0, 0), False)
        return {"priority": priority, "preemptionPolicy": None if preempts else "Never"}


def read(workload: Field, templates: Templates) -> tuple[PodSet, ...]:
    """Read the pod sets of a Workload with a quota reservation. Pod sets of other schedulers have no pods.

    Raises:
        FieldError: a field cannot be read, or there are too many pods.
        UnknownFlavorError: an assigned flavor is not known.
    """
    status = workload.at("status")
    assignments = status.at("admission").at("podSetAssignments").items()
    assigned = {assignment.at("name").text(): assignment for assignment in assignments}
    finished = {ended.at("name").text(): ended.at("count").integer() for ended in status.at("reclaimablePods").items()}
    read_sets, total = [], 0
    for pod_set in workload.at("spec").at("podSets").items():
        name = pod_set.at("name").text("main")
        assignment = assigned.get(name, Field(None, pod_set.path))
        # An elastic job that shrinks keeps its assignment.
        number = pod_set.at("count").integer(1)
        count = min(number, assignment.at("count").integer(number)) - finished.get(name, 0)
        total += max(count, 0)
        if total > MAX_PODS:
            raise FieldError(f"spec.podSets: {total} pods; allowed are at most {MAX_PODS} with this AdmissionCheck")
        pod = _created(workload, pod_set, assignment, templates)
        if pod["spec"]["schedulerName"] not in templates.schedulers():
            read_sets.append(PodSet(name=name, pods=()))
            continue
        try:
            first = pods.pending(pod, templates.kinds, templates.priorities)
            first = replace(first, admission=pod_admission.of_pod(pod["spec"]))
        except READING_ERRORS as error:
            raise FieldError(f"{pod_set.path}.template: cannot be read: {error!r:.200}") from error
        # Admission injects what these name when the pod is created.
        first = replace(first, request=replace(first.request, uninjected=(), unlimited=()))
        read_pods: list[PendingPod] = []
        # The last are the pods of no domain; all, where there is no topology.
        for labels, number in (*topology_assignments.read(assignment.at("topologyAssignment")), ({}, count)):
            selector = {required.key: required for required in first.request.node_selector}
            selector |= {required.key: required for required in terms.node_selector(labels)}
            # As it is read from the pod, so that the pod gets a place in its domain.
            ordered = tuple(selector[key] for key in sorted(selector))
            request = replace(first.request, node_selector=ordered) if labels else first.request
            start = len(read_pods)
            read_pods += (
                replace(first, request=request, uid=f"{first.uid}/{name}/{index}", name=f"{first.name}-{index}")
                for index in range(start, min(start + number, count))
            )
        read_sets.append(PodSet(name=name, pods=tuple(read_pods)))
    return tuple(read_sets)


def _created(workload: Field, pod_set: Field, assignment: Field, templates: Templates) -> Object:
    """Return the raw pod that is created from a pod set's template."""
    metadata, template, name = workload.at("metadata"), pod_set.at("template"), pod_set.at("name").text("main")
    namespace = metadata.at("namespace").text()
    annotations = dict(_texts(template.at("metadata").at("annotations")))
    # Kueue writes them for the check, and does not start a Job whose template has other values. That of a running
    # elastic job has the ones of its first slice.
    of_pods = metadata.at("annotations").at(SLICE_NAME).text(metadata.at("name").text())
    for reserved, value in ((names.WORKLOAD, of_pods), (names.POD_SET, name)):
        if annotations.get(reserved, value) != value:
            raise FieldError(f"pod set {name}: annotation {reserved} is written by Kueue; remove it")
    created_metadata = {
        "namespace": namespace,
        "name": f"{metadata.at('name').text()}-{name}",
        "uid": metadata.at("uid").text(),
        "creationTimestamp": metadata.at("creationTimestamp").text(),
        "labels": dict(_texts(template.at("metadata").at("labels"))),
        "annotations": annotations,
    }

    spec = {key: value.value for key, value in template.at("spec").entries() if key != "schedulingGates"}
    selector = dict(_texts(template.at("spec").at("nodeSelector")))
    tolerations = [toleration.value for toleration in template.at("spec").at("tolerations").items()]
    # The flavors of its resources, each once.
    flavors = dict.fromkeys(flavor.text() for _, flavor in assignment.at("flavors").entries())
    added = [templates.flavor(flavor) for flavor in flavors]
    # What other AdmissionChecks add, such as the label of nodes that were created for the pods.
    for check in workload.at("status").at("admissionChecks").items():
        updates = check.at("podSetUpdates").items()
        added += [_flavor(update, "nodeSelector") for update in updates if update.at("name").text() == name]
    for flavor in added:
        selector |= flavor.labels
        tolerations += flavor.tolerations
    try:
        return _admitted(created_metadata, {**spec, "nodeSelector": selector, "tolerations": tolerations}, templates)
    except READING_ERRORS as error:
        raise FieldError(f"{template.path}: cannot be read: {error!r:.200}") from error


def _admitted(metadata: Object, spec: Object, templates: Templates) -> Object:
    """Return a raw pod as admission changes it: with all requests and a priority, renamed, and routed."""
    created_spec = {
        **resources.from_limits(dict(spec)),
        "schedulerName": spec.get("schedulerName") or routing.DEFAULT,
        **templates.priority(spec),
    }
    scheduler = next(iter(templates.schedulers()), "")
    route = templates.namespace_labels(metadata["namespace"]).get(names.ROUTING, templates.route)
    pod = renaming.renamed({"metadata": metadata, "spec": created_spec})
    return routing.routed_as(pod, scheduler, route, templates.served) if scheduler else pod


def read_template(template: Object, namespace: str, templates: Templates) -> PendingPod | None:
    """Return a pod that a controller will create from a pod template; None if the template cannot be read.

    Its name and UID are empty.
    """
    try:
        of_template = template.get("metadata") or {}
        of_pods = {kind: dict(of_template.get(kind) or {}) for kind in ("labels", "annotations")}
        metadata = {"namespace": namespace, "name": "", "uid": "", **of_pods}
        created = _admitted(metadata, template.get("spec") or {}, templates)
        # With the priority of the template: its class may be created, or change, later.
        admission = pod_admission.of_pod({**created["spec"], **_written_priority(template)})
        pod = replace(pods.pending(created, templates.kinds), admission=admission)
    except READING_ERRORS:
        return None
    # Admission injects what these name when the pod is created.
    return replace(pod, request=replace(pod.request, uninjected=(), unlimited=()))


def _written_priority(template: Object) -> Object:
    spec = template.get("spec") or {}
    return {name: spec.get(name) for name in ("priority", "preemptionPolicy")}


def _texts(fields: Field) -> Iterator[tuple[str, str]]:
    """Yield the entries of an object of strings."""
    for key, value in fields.entries():
        yield key, value.text()
