"""What else clusters of users have: a mutating policy, a priority level for Berth's requests, rules of a namespace."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from devcluster import Arena
from devcluster.additions import installation
from devcluster.control_plane.api import Manifest
from tests.attacks.accounts import ADDED

ADMISSION: Final = "admissionregistration.k8s.io/v1"
FLOWS: Final = "flowcontrol.apiserver.k8s.io/v1"
WRITTEN: Final[Mapping[str, list[str]]] = {
    "": ["pods", "pods/binding", "pods/status", "nodes", "nodes/status", "events"],
    "events.k8s.io": ["events"],
    "berth.dev": ["devices", "devices/status", "gpupods", "leaderleases"],
    "coordination.k8s.io": ["leases"],
}
"""API group -> what the operator and the agents write."""
AGENTS_WRITES: Final = (
    ("berth.dev", "devices"),
    ("berth.dev", "devices/status"),
    ("resource.k8s.io", "resourceslices"),
)
"""(API group, resource) of what an agent writes about the devices of its node."""
SHARES: Final = 5
"""A dozen of the API server's 600 seats: each takes a request at a time, also that by which the leader renews."""
REJECT: Final = {"type": "Reject"}
QUEUE: Final = {"type": "Queue", "queuing": {"queues": 16, "handSize": 4, "queueLengthLimit": 50}}


def mutating_policy(arena: Arena) -> list[Manifest]:
    """Return a policy that changes an annotation in each write of Berth's, as policies of versions and owners do."""
    rules = [
        {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": resources}
        for group, resources in WRITTEN.items()
    ]
    by_berth = " || ".join(f'request.userInfo.username.startsWith("{account}")' for account in _accounts(arena))
    value = 'object.metadata.?resourceVersion.orValue("none")'
    patch = f'Object{{metadata: Object.metadata{{annotations: {{"{ADDED}": {value}}}}}}}'
    spec: Mapping[str, Any] = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        # The API server cannot convert an Event from one of its groups to the other, and would refuse it.
        "matchConstraints": {"resourceRules": rules, "matchPolicy": "Exact"},
        "matchConditions": [{"name": "by-berth", "expression": by_berth}],
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": patch}}],
    }
    name = f"adding-{arena.id}"
    return [
        {"apiVersion": ADMISSION, "kind": f"MutatingAdmissionPolicy{kind}", "metadata": {"name": name}, "spec": body}
        for kind, body in (("", spec), ("Binding", {"policyName": name}))
    ]


def refusing_policy(arena: Arena, group: str, resource: str, *, node: str = "") -> list[Manifest]:
    """Return a policy that refuses writes of one resource, as a strict administrator's may.

    It refuses what Berth writes, or what anyone writes about one node.
    """
    names = f'[object.metadata.name, object.?spec.?nodeName.orValue("")].exists(name, name == "{node}")'
    by_berth = " || ".join(f'request.userInfo.username.startsWith("{account}")' for account in _accounts(arena))
    rule = {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": [resource]}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "of-berth", "expression": names if node else by_berth}],
        "validations": [{"expression": "false", "message": f"{resource} are frozen"}],
    }
    name = f"refusing-{arena.id}"
    bodies = {"": spec, "Binding": {"policyName": name, "validationActions": ["Deny"]}}
    return [
        {"apiVersion": ADMISSION, "kind": f"ValidatingAdmissionPolicy{kind}", "metadata": {"name": name}, "spec": body}
        for kind, body in bodies.items()
    ]


@contextlib.contextmanager
def refused(arena: Arena, group: str, resource: str, *, node: str) -> Iterator[None]:
    """Refuse what anyone writes of one resource about one node."""
    policies, api = refusing_policy(arena, group, resource, node=node), arena.cluster.api
    try:
        arena.apply(policies)
        yield
    finally:
        for policy in reversed(policies):
            api.delete(api.path_of(policy))


def priority_level(arena: Arena, response: Mapping[str, Any] = QUEUE, *, shares: int = SHARES) -> list[Manifest]:
    """Return a priority level without borrowed seats, and the rule that assigns the requests of Berth to it."""
    metadata = {"name": arena.id, "labels": arena.labels}
    limited = {
        "nominalConcurrencyShares": shares,
        "lendablePercent": 0,
        "borrowingLimitPercent": 0,
        "limitResponse": response,
    }
    groups = [f"system:serviceaccounts:{name}" for name in (arena.namespace, installation.AGENTS)]
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
    rule = {
        "subjects": [{"kind": "Group", "group": {"name": group}} for group in groups],
        "resourceRules": [everything],
    }
    flow = {"priorityLevelConfiguration": {"name": arena.id}, "matchingPrecedence": 50, "rules": [rule]}
    level = {"type": "Limited", "limited": limited}
    return [
        {"apiVersion": FLOWS, "kind": "PriorityLevelConfiguration", "metadata": metadata, "spec": level},
        {"apiVersion": FLOWS, "kind": "FlowSchema", "metadata": metadata, "spec": flow},
    ]


def namespace_rules(arena: Arena) -> list[Manifest]:
    """Return a LimitRange with defaults and a maximum, and the level of PodSecurity of the arena's namespace."""
    levels = {"enforce": "baseline", "warn": "restricted", "audit": "restricted"}
    labels = {f"pod-security.kubernetes.io/{mode}": level for mode, level in levels.items()}
    limits = {
        "type": "Container",
        "defaultRequest": {"cpu": "50m", "memory": "64Mi"},
        "default": {"memory": "1Gi"},
        "max": {"memory": "64Gi"},
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": arena.namespace, "labels": labels}},
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "own"}, "spec": {"limits": [limits]}},
    ]


def _accounts(arena: Arena) -> list[str]:
    return [f"system:serviceaccount:{name}:" for name in (arena.namespace, installation.AGENTS)]
