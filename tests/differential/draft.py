"""The draft of a scenario: a few nodes, the pods on them, and a probe pod that is tried on every node.

By the rule of the scenario, the first node must take the probe and the last node must reject it. The nodes in between
may do either. Every rule writes its part of the same draft, so that rules meet in all combinations.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any

Raw = dict[str, Any]

MARK = "example.com/differential"
"""Label of all objects that a scenario creates; they are deleted with it."""
PLENTY = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti"}


@dataclass(slots=True, kw_only=True)
class Draft:
    """One scenario; `id` makes its names unique, `namespace` holds only its own pods."""

    id: str
    namespace: str
    random: Random
    nodes: list[Raw] = field(default_factory=list)
    pods: list[Raw] = field(default_factory=list)
    """Bound pods; a `status` among their fields is written after they are created."""
    probe: Raw = field(default_factory=dict)
    objects: list[tuple[str, Raw]] = field(default_factory=list)
    """(path, manifest) of other objects, created before the nodes; a `status` is written afterwards."""
    volumes: dict[str, list[Raw]] = field(default_factory=dict)
    """Node -> volumes that only its own probe has."""
    kubernetes: int
    """Minor version of the API server and kube-scheduler."""

    @property
    def first(self) -> Raw:
        """Return the node that must take the probe."""
        return self.nodes[0]

    @property
    def last(self) -> Raw:
        """Return the node that must reject it."""
        return self.nodes[-1]

    @property
    def between(self) -> list[Raw]:
        """Return the nodes that may do either."""
        return self.nodes[1:-1]

    def put(self, node: Raw, spec: Raw | None = None, *, status: Raw | None = None, **metadata: Any) -> Raw:
        """Bind a pod to a node."""
        name = f"{self.id}-held-{len(self.pods)}"
        pod = pod_of(name, self.namespace, {"nodeName": name_of(node), **(spec or {})}, **metadata)
        self.pods.append({**pod, **({"status": status} if status else {})})
        return pod

    def own(self, node: Raw) -> list[Raw]:
        """Return the volumes of the probe of one node, a list to append to."""
        return self.volumes.setdefault(name_of(node), [])

    def on(self, node: Raw) -> list[Raw]:
        """Return the pods that are bound to a node."""
        return [each for each in self.pods if each["spec"]["nodeName"] == name_of(node)]


def begin(id_: str, namespace: str, random: Random, kubernetes: int) -> Draft:
    """Return a draft whose nodes would all take its probe."""
    draft = Draft(id=id_, namespace=namespace, random=random, kubernetes=kubernetes)
    draft.nodes = [node_of(f"{id_}-n{i}") for i in range(random.randint(2, 4))]
    draft.probe = pod_of(f"{id_}-probe", namespace, {})
    return draft


def node_of(name: str) -> Raw:
    """Return a node without a kubelet: its status never changes."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"taints": []},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "reason": "Drafted"}],
            "allocatable": dict(PLENTY),
            "capacity": dict(PLENTY),
        },
    }


def pod_of(name: str, namespace: str, spec: Raw, **metadata: Any) -> Raw:
    """Return a pod."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"containers": [container("main")], "terminationGracePeriodSeconds": 0, **spec},
    }


def container(name: str, **fields: Any) -> Raw:
    """Return a container."""
    return {"name": name, "image": "none", **fields}


def name_of(node: Raw) -> str:
    """Return an object's name."""
    return str(node["metadata"]["name"])
