"""Mutate a pod when it is created or when ephemeral containers are added."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from berth_api import request, words
from berth_api.admission import injection, nics, renaming, rewriting, routing, shares, tolerating
from berth_api.admission.injection import Object, annotations_of, labels_of
from berth_api.admission.routing import Route

_OF_POD: Final = ("schedulerName", "runtimeClassName", "tolerations")
_OF_CONTAINER: Final = ("env", "resources")
_LISTS: Final = ("initContainers", "containers", injection.EPHEMERAL)
_GPUS: Final = re.compile(r"(kubernetes[.]io|koordinator[.]sh)/gpu([.-]|$)|nvidia[.]com/(gpu|mig-)")
"""Names of resources that need NVIDIA's runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutations:
    """The mutations to apply; where the API server supports them, mutating admission policies do the same."""

    renamed: frozenset[str] = frozenset()
    """Resources that NVIDIA's device plugin serves under other names than its own."""
    runtime_class: str = ""
    """RuntimeClass for pods that request GPUs and name none; empty to leave these pods unchanged."""
    nics: bool = False
    """Whether the agents give containers the device files of RDMA NICs."""
    tolerated: Sequence[str] = ()
    """Keys of taints that pods with devices tolerate."""

    def made_of(self, pod: Object, before: Object | None) -> Object:
        """Return the mutated pod; `before` is the pod before ephemeral containers were added, None for a new pod.

        Raises:
            ValueError: an annotation, label or resource of the pod is invalid.
        """
        if before:
            return injection.joined(pod, before)
        mutated: Object = injection.injected(renaming.renamed(pod), self.renamed)
        if self.nics:
            mutated = nics.with_device_files(mutated)
        mutated = tolerating.tolerating(mutated, self.tolerated, self.renamed)
        return with_runtime(mutated, self.runtime_class) if self.runtime_class else mutated


@dataclass(frozen=True, slots=True, kw_only=True)
class LateInjection:
    """The same mutations for pods of all schedulers: what something else gave to Berth meanwhile is changed."""

    mutations: Mutations
    schedulers: Sequence[str]
    """The scheduler names of Berth's profiles."""

    def made_of(self, pod: Object, _before: Object | None) -> Object:
        """Return the new pod, mutated if it is Berth's.

        Raises:
            ValueError: an annotation, label or resource of the pod is invalid.
        """
        return self.mutations.made_of(pod, None) if pod["spec"].get("schedulerName") in self.schedulers else pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The mutation that limits containers to their shares of cards."""

    default: str = ""
    """The mode of pods that name none: from their namespace's label, or else for the cluster; empty for none."""
    order: Sequence[str] = shares.ORDER
    """The modes in order of preference: `required` means the first."""

    def made_of(self, pod: Object, _before: Object | None) -> Object:
        """Return the pod with limits for its containers with shares.

        Raises:
            ValueError: an amount or a label of the pod is no number.
        """
        return shares.isolated(pod, self.default, self.order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The mutation that routes pods to Berth; the API server sends only pods of namespaces that are routed so."""

    scheduler: str
    """The scheduler name of routed pods."""
    served: frozenset[str] = frozenset()
    """Further resources that `devices` routes."""
    route: Route = "own"

    def made_of(self, pod: Object, _before: Object | None) -> Object:
        """Return the pod, routed to Berth if it names no scheduler and has one of the route's names."""
        match self.route:
            case "words":
                return routing.routed_by_words(pod, self.scheduler)
            case "devices":
                return routing.routed_by_devices(pod, self.scheduler, self.served)
            case _:
                return routing.routed(pod, self.scheduler)


class Rewriting:
    """The mutation for pods that kube-scheduler places with our extender."""

    @staticmethod
    def made_of(pod: Object, _before: Object | None) -> Object:
        """Return the pod with the names of devices that kube-scheduler passes to the extender."""
        return rewriting.rewritten(pod)


def with_runtime(pod: Object, name: str) -> Object:
    """Return a pod with this RuntimeClass if it requests GPUs and names none."""
    spec = pod["spec"]
    if "runtimeClassName" in spec:
        return pod
    containers = [*spec["containers"], *(spec.get("initContainers") or ())]
    requested = (name for container in containers for name in (container.get("resources") or {}).get("requests") or ())
    requests_gpus = (
        any(label in labels_of(pod) for label in request.LABELS)
        or any(map(_GPUS.match, requested))
        or bool(words.asking(spec, annotations_of(pod), labels_of(pod)))
    )
    if not requests_gpus:
        return pod
    return {**pod, "spec": {**spec, "runtimeClassName": name}}


def patch(pod: Object, mutated: Object) -> list[dict[str, Any]]:
    """Return the JSON patch from a pod to its mutated form; empty if they are equal."""
    before, after = pod["spec"], mutated["spec"]
    operations = list(_differing("/metadata", pod["metadata"], mutated["metadata"], ("annotations",)))
    operations += _differing("/spec", before, after, _OF_POD)
    for kind in _LISTS:
        pairs = zip(before.get(kind) or (), after.get(kind) or (), strict=True)
        for number, (old, new) in enumerate(pairs):
            operations += _differing(f"/spec/{kind}/{number}", old, new, _OF_CONTAINER)
    return operations


def _differing(path: str, before: Object, after: Object, fields: Iterable[str]) -> Iterator[dict[str, Any]]:
    for field in fields:
        if after.get(field) != before.get(field):
            yield {"op": "add", "path": f"{path}/{field}", "value": after[field]}
