"""The live cluster's objects: which are listed, which of them are independent workloads, and their manifests."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from berth_api import names
from berth_api.words import KUBERNETES_GROUPS, TABLE

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedKind:
    """A kind of objects that is listed."""

    group: str = ""
    version: str = "v1"
    plural: str
    name: str
    namespaced: bool = True
    optional: bool = False
    """Whether a cluster may lack this kind."""

    @property
    def title(self) -> str:
        """Return the name as in RBAC rules."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api(self) -> str:
        """Return the apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str) -> str:
        """Return the path of the list; of all namespaces if that is empty."""
        base = f"/apis/{self.api}" if self.group else f"/api/{self.version}"
        place = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        return f"{base}{place}/{self.plural}"


_GROUPS: Final = tuple(
    ListedKind(group=kind.group, version=kind.version, plural="podgroups", name="PodGroup", optional=True)
    for kind in TABLE.pod_groups
    if kind != KUBERNETES_GROUPS
)
_DAEMON_SETS: Final = ListedKind(group="apps", plural="daemonsets", name="DaemonSet")
_DEPLOYMENTS: Final = ListedKind(group="apps", plural="deployments", name="Deployment")
PODS: Final = ListedKind(plural="pods", name="Pod")
WORKLOADS: Final = (
    *_GROUPS,
    _DEPLOYMENTS,
    ListedKind(group="apps", plural="statefulsets", name="StatefulSet"),
    _DAEMON_SETS,
    ListedKind(group="apps", plural="replicasets", name="ReplicaSet"),
    ListedKind(group="batch", plural="cronjobs", name="CronJob"),
    ListedKind(group="batch", plural="jobs", name="Job"),
    PODS,
)
"""What may be rewritten."""
PRIORITY_CLASSES: Final = ListedKind(
    group="scheduling.k8s.io", plural="priorityclasses", name="PriorityClass", namespaced=False
)
"""What is read where a workload names one."""
WEBHOOKS: Final = ListedKind(
    group="admissionregistration.k8s.io",
    plural="mutatingwebhookconfigurations",
    name="MutatingWebhookConfiguration",
    namespaced=False,
)
NODES: Final = ListedKind(plural="nodes", name="Node", namespaced=False)
DEVICES: Final = ListedKind(
    group=names.GROUP, version=names.VERSION, plural=names.DEVICES, name="Device", namespaced=False, optional=True
)
TAKEOVER: Final = (NODES, PODS, _DAEMON_SETS, _DEPLOYMENTS, WEBHOOKS, DEVICES)
"""What a takeover is planned by."""

_OF_SERVER: Final = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "selfLink")
_OF_CONTROLLERS: Final = (
    "kubectl.kubernetes.io/last-applied-configuration",
    "deployment.kubernetes.io/revision",
    "deprecated.daemonset.template.generation",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadList:
    """Why a list could not be read."""

    why: str
    missing: bool = False
    """Whether the API server does not serve this kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """What the user may read of a cluster."""

    objects: Mapping[ListedKind, Sequence[Object]] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    """Title of a kind -> why it could not be read."""

    def of(self, *plurals: str) -> Iterator[Object]:
        """Yield the objects of these kinds."""
        for kind, objects in self.objects.items():
            if kind.plural in plurals:
                yield from objects


Get = Callable[[Sequence[str]], Sequence[Object | UnreadList]]
"""Answers the paths of lists."""


def read(get: Get, kinds: Sequence[ListedKind], namespace: str = "") -> Lists:
    """Return the lists of these kinds in a namespace, or in all."""
    objects: dict[ListedKind, Sequence[Object]] = {}
    unread = {}
    for kind, answer in zip(kinds, get([kind.path(namespace) for kind in kinds]), strict=True):
        if isinstance(answer, UnreadList):
            if not (answer.missing and kind.optional):
                unread[kind.title] = answer.why
        else:
            objects[kind] = [{"apiVersion": kind.api, "kind": kind.name, **item} for item in answer["items"]]
    return Lists(objects=objects, unread=unread)


def bodies(lists: Lists) -> Iterator[Object]:
    """Yield the objects that nothing else creates, in the order of the lists, as they may be created again."""
    for objects in lists.objects.values():
        for body in objects:
            owners = body["metadata"].get("ownerReferences") or ()
            if not any(owner.get("controller") for owner in owners):
                yield _unbound(body) if body["kind"] == PODS.name else body


def _unbound(pod: Object) -> Object:
    """Return a pod without its node, which its scheduler wrote: a new pod with a node passes no scheduler."""
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return pod
    return {**pod, "spec": {name: value for name, value in spec.items() if name != "nodeName"}}


def text(body: Object) -> str:
    """Return the manifest of an object, without what API server and controllers write."""
    metadata = {name: value for name, value in body["metadata"].items() if name not in _OF_SERVER}
    annotations = metadata.pop("annotations", None) or {}
    kept = {name: value for name, value in annotations.items() if name not in _OF_CONTROLLERS}
    if kept:
        metadata["annotations"] = kept
    manifest = {name: value for name, value in body.items() if name != "status"}
    return yaml.safe_dump({**manifest, "metadata": metadata}, sort_keys=False, allow_unicode=True)
