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
from berth_api.request import BUILT_IN, Kinds
from berth_operator.core.dra.fields import Field, FieldError
from berth_operator.core.values.quota_workload import PodSet
from berth_operator.core.values.request import PendingPod
from berth_operator.state.objects import pods, terms, topology_assignments
from berth_operator.state.objects.genius_priority import UNLIMITED, PriorityLimits
from berth_operator.state.objects.topology_assignments import Domain

Object = Mapping[str, Any]

MAX_PODS: Final = 4096
"""Pods of a workload for which places are promised; each is decided and charged by itself."""
SLICE_NAME: Final = "kueue.x-k8s.io/workload-slice-name"
"""The annotation of the Workloads of an elastic job with the name of the first of them."""
REPLACEMENT_FOR: Final = "kueue.x-k8s.io/workload-slice-replacement-for"
"""The annotation of the Workload of an elastic job that has grown: the one whose pods run on."""


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
        {key: each.at(key).value for key, _ in each.entries()} for each in fields.at("tolerations").items()
    )
    return Flavor(labels=dict(_texts(fields.at(labels))), tolerations=tolerations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Templates:
    """What is known of how pods are made from templates."""

    kinds: Kinds = BUILT_IN
    priorities: PriorityLimits = UNLIMITED
    schedulers: Callable[[], Sequence[str]] = lambda: (names.SCHEDULER,)
    """Returns the scheduler names whose pods Berth schedules itself; pods that name none are routed to the first."""
    namespace_labels: Callable[[str], Mapping[str, str]] = lambda _: {}
    """Returns the labels of a namespace."""
    flavors: dict[str, Flavor] = field(default_factory=dict)
    priority_classes: dict[str, Object] = field(default_factory=dict)
    """Name -> PriorityClass."""

    def flavor(self, name: str) -> Flavor:
        """Return a flavor; raise UnknownFlavorError if it is not known."""
        try:
            return self.flavors[name]
        except KeyError:
            raise UnknownFlavorError(name) from None

    def priority(self, spec: Object) -> Object:
        """Return the fields that the admission plugin Priority sets in a pod."""
        default: Object = next((each for each in self.priority_classes.values() if each.get("globalDefault")), {})
        named = self.priority_classes.get(spec.get("priorityClassName") or "", default)
        policy = spec.get("preemptionPolicy") or named.get("preemptionPolicy")
        given = spec.get("priority")
        return {"priority": named.get("value", 0) if given is None else given, "preemptionPolicy": policy}


def read(workload: Field, templates: Templates) -> tuple[PodSet, ...]:
    """Read the pod sets of a Workload with a quota reservation; those of other schedulers have no pods.

    Raises:
        FieldError: a field cannot be read, or there are too many pods.
        UnknownFlavorError: an assigned flavor is not known.
    """
    assigned = {each.at("name").text(): each for each in _assignments(workload)}
    finished = {each.at("name").text(): each.at("count").integer() for each in _reclaimable(workload)}
    read_sets, total = [], 0
    for each in workload.at("spec").at("podSets").items():
        name = each.at("name").text("main")
        assignment = assigned.get(name, Field(None, each.path))
        # An elastic job that shrinks keeps its assignment.
        number = each.at("count").integer(1)
        count = min(number, assignment.at("count").integer(number)) - finished.get(name, 0)
        total += max(count, 0)
        if total > MAX_PODS:
            raise FieldError(f"spec.podSets: {total} pods; allowed are at most {MAX_PODS} with this AdmissionCheck")
        read_sets.append(_PodSet(workload, each, assignment, templates).read(name, count))
    return tuple(read_sets)


def _assignments(workload: Field) -> Iterator[Field]:
    return workload.at("status").at("admission").at("podSetAssignments").items()


def _reclaimable(workload: Field) -> Iterator[Field]:
    return workload.at("status").at("reclaimablePods").items()


@dataclass(frozen=True, slots=True)
class _PodSet:
    """One pod set with its assignment."""

    workload: Field
    raw: Field
    assignment: Field
    templates: Templates

    def read(self, name: str, count: int) -> PodSet:
        pod = self._pod(name)
        if pod["spec"]["schedulerName"] not in self.templates.schedulers():
            return PodSet(name=name, pods=())
        return PodSet(name=name, pods=tuple(self._pods(pod, name, count)))

    def _pods(self, raw: Object, name: str, count: int) -> Iterator[PendingPod]:
        first = self._pending(raw)
        index = 0
        for labels, number in self._domains(count):
            pod = _in_domain(first, labels)
            for _ in range(min(number, count - index)):
                yield replace(pod, uid=f"{first.uid}/{name}/{index}", name=f"{first.name}-{index}")
                index += 1

    def _domains(self, count: int) -> Iterator[Domain]:
        yield from topology_assignments.read(self.assignment.at("topologyAssignment"))
        # Pods of no domain; all, where there is no topology.
        yield {}, count

    def _pending(self, raw: Object) -> PendingPod:
        try:
            pod = pods.pending(raw, self.templates.kinds, self.templates.priorities)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise FieldError(f"{self.raw.path}.template: cannot be read: {error!r:.200}") from error
        # Admission injects what these name when the pod is created.
        return replace(pod, request=replace(pod.request, uninjected=(), unlimited=()))

    def _pod(self, name: str) -> Object:
        """Return the raw pod that is made from the template."""
        metadata, template = self.workload.at("metadata"), self.raw.at("template")
        namespace = metadata.at("namespace").text()
        annotations = dict(_texts(template.at("metadata").at("annotations")))
        # Kueue writes them for the check, and does not start a Job whose template has other values. That of a running
        # elastic job has the ones of its first slice.
        of_pods = metadata.at("annotations").at(SLICE_NAME).text(metadata.at("name").text())
        for reserved, value in ((names.WORKLOAD, of_pods), (names.POD_SET, name)):
            if annotations.get(reserved, value) != value:
                raise FieldError(f"pod set {name}: annotation {reserved} is written by Kueue; remove it")
        created = {
            "metadata": {
                "namespace": namespace,
                "name": f"{metadata.at('name').text()}-{name}",
                "uid": metadata.at("uid").text(),
                "creationTimestamp": metadata.at("creationTimestamp").text(),
                "labels": dict(_texts(template.at("metadata").at("labels"))),
                "annotations": annotations,
            },
            "spec": self._spec(template),
        }
        try:
            return self._routed(renaming.renamed(created), namespace)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise FieldError(f"{template.path}: cannot be read: {error!r:.200}") from error

    def _spec(self, template: Field) -> Object:
        spec = {key: value.value for key, value in template.at("spec").entries() if key != "schedulingGates"}
        added = [*(self.templates.flavor(each) for each in self._flavors()), *self._of_checks()]
        selector = dict(_texts(template.at("spec").at("nodeSelector")))
        tolerations = [each.value for each in template.at("spec").at("tolerations").items()]
        try:
            return {
                **resources.from_limits(spec),
                "schedulerName": spec.get("schedulerName") or routing.DEFAULT,
                "nodeSelector": {
                    key: value for each in (selector, *(one.labels for one in added)) for key, value in each.items()
                },
                "tolerations": [*tolerations, *(each for one in added for each in one.tolerations)],
                **self.templates.priority(spec),
            }
        except (TypeError, AttributeError) as error:
            raise FieldError(f"{template.path}.spec: cannot be read: {error!r:.200}") from error

    def _of_checks(self) -> Iterator[Flavor]:
        """Yield what other AdmissionChecks add to the pods, such as the label of nodes that were created for them."""
        name = self.raw.at("name").text("main")
        for check in self.workload.at("status").at("admissionChecks").items():
            for each in check.at("podSetUpdates").items():
                if each.at("name").text() == name:
                    yield _flavor(each, "nodeSelector")

    def _flavors(self) -> list[str]:
        """Return the flavors of the pod set's resources, each once."""
        return list(dict.fromkeys(value.text() for _, value in self.assignment.at("flavors").entries()))

    def _routed(self, pod: Object, namespace: str) -> Object:
        route, first = (
            self.templates.namespace_labels(namespace).get(routing.ROUTING),
            next(iter(self.templates.schedulers()), ""),
        )
        if route == "disabled" or not first:
            return pod
        return routing.routed(routing.routed_by_words(pod, first) if route == "words" else pod, first)


def _texts(fields: Field) -> Iterator[tuple[str, str]]:
    """Yield the entries of an object of strings."""
    for key, value in fields.entries():
        yield key, value.text()


def _in_domain(pod: PendingPod, labels: Mapping[str, str]) -> PendingPod:
    """Return a pod that selects the nodes of a topology domain, too."""
    if not labels:
        return pod
    selector = {each.key: each for each in (*pod.request.node_selector, *terms.node_selector(labels))}
    # As it is read from the pod, so that the pod gets a place in its domain.
    ordered = tuple(selector[key] for key in sorted(selector))
    return replace(pod, request=replace(pod.request, node_selector=ordered))
