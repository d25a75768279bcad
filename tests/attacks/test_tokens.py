"""What a stolen token of each account can do on the real API server: a table of allowed and refused requests.

Every request is a dry run, so that no row depends on another. The programs send the requests of the allowed rows. These
rows show that the others are refused because of what they change. `SECURITY.md` lists what remains.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal

import pytest

from devcluster import Arena
from devcluster.control_plane.api import Api, ApiError, Manifest
from tests.attacks.accounts import ADDED, PROTECTED, Accounts

ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
VISIBLE: Final = "main.devices.berth.dev/visible"
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
JSON: Final = "application/json"

PODS: Final = "/api/v1/namespaces/{ns}/pods"
CLAIMS: Final = "/api/v1/namespaces/{ns}/persistentvolumeclaims"
VOLUMES: Final = "/api/v1/persistentvolumes"
NODES: Final = "/api/v1/nodes"
DEVICES: Final = "/apis/berth.dev/v1alpha1/devices"
GPU_PODS: Final = "/apis/berth.dev/v1alpha1/namespaces/{ns}/gpupods"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
TERMS: Final = "/apis/berth.dev/v1alpha1/namespaces/{ns}/leaderleases"
SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
WRITTEN_SLICES: Final = f"{SLICES}?fieldManager=thief"
"""For requests that are no dry runs."""
EVENTS: Final = "/api/v1/namespaces/{ns}/events"
NODE_EVENTS: Final = "/api/v1/namespaces/default/events"
SECRETS: Final = "/api/v1/namespaces/{ns}/secrets"
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
WEBHOOKS: Final = (
    f"{ADMISSION}/mutatingwebhookconfigurations/berth-injection-{{id}}",
    f"{ADMISSION}/validatingwebhookconfigurations/berth-validation-{{id}}",
)
API_SERVICES: Final = "/apis/apiregistration.k8s.io/v1/apiservices"

STOLEN: Final = {"app": "stolen"}
TAINTS: Final = (
    {"key": "berth.dev/agent-not-ready", "effect": "NoSchedule"},
    {"key": "other", "effect": "NoSchedule"},
)
"""Of each node."""
PREEMPTING: Final = {
    "key": "status-taint.cluster-autoscaler.kubernetes.io/berth-preempting",
    "effect": "NoSchedule",
}
Body = Mapping[str, Any] | None
Account = Literal["operator", "agent", "stray agent", "webhook", "api"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A request with a token; in path and body `{ns}` and `{id}` are the arena's, `{mine}` and `{other}` two nodes."""

    account: Account
    what: str
    method: str
    path: str
    body: Body = None
    content_type: str = MERGE
    is_allowed: bool = False

    def __str__(self) -> str:
        return f"{self.account}-{'may' if self.is_allowed else 'may-not'}-{self.what}".replace(" ", "-")


def metadata(**fields: object) -> Body:
    return {"metadata": fields}


def patches(account: Account, path: str, rows: Mapping[str, Body], *, is_allowed: bool = False) -> Iterator[Attempt]:
    for what, body in rows.items():
        # Lists merge: conditions by their type, containers and webhooks by their name.
        kind = STRATEGIC if path.startswith((f"{PODS}/bound", *WEBHOOKS)) else MERGE
        yield Attempt(
            account=account,
            what=what,
            method="PATCH",
            path=path,
            body=body,
            content_type=kind,
            is_allowed=is_allowed,
        )


def creates(account: Account, path: str, rows: Mapping[str, Body], *, is_allowed: bool = False) -> Iterator[Attempt]:
    for what, body in rows.items():
        yield Attempt(
            account=account,
            what=what,
            method="POST",
            path=path,
            body=body,
            content_type=JSON,
            is_allowed=is_allowed,
        )


def others(account: Account, rows: Mapping[str, tuple[str, str]]) -> Iterator[Attempt]:
    for what, (method, path) in rows.items():
        body: Body = {} if method in ("PATCH", "POST", "PUT") else None
        yield Attempt(
            account=account,
            what=what,
            method=method,
            path=path,
            body=body,
            content_type=JSON if method == "POST" else MERGE,
        )


EVERYBODY: Final = {
    "create pods": ("POST", PODS),
    "replace the spec of a pod": ("PUT", f"{PODS}/bound"),
    "delete all pods": ("DELETE", PODS),
    "add an ephemeral container": ("PATCH", f"{PODS}/bound/ephemeralcontainers"),
    "resize a pod": ("PATCH", f"{PODS}/bound/resize"),
    "run a command in a pod": ("POST", f"{PODS}/bound/exec?command=sh"),
    "attach to a pod": ("POST", f"{PODS}/bound/attach"),
    "forward a port": ("POST", f"{PODS}/bound/portforward"),
    "read logs": ("GET", f"{PODS}/bound/log"),
    "bind by the old resource": ("POST", "/api/v1/namespaces/{ns}/bindings"),
    "create a node": ("POST", NODES),
    "delete a node": ("DELETE", f"{NODES}/{{mine}}"),
    "reach kubelet": ("GET", f"{NODES}/{{mine}}/proxy/pods"),
    "create a namespace": ("POST", "/api/v1/namespaces"),
    "delete a namespace": ("DELETE", "/api/v1/namespaces/{ns}"),
    "list Secrets": ("GET", SECRETS),
    "list all Secrets": ("GET", "/api/v1/secrets"),
    "read another Secret": ("GET", f"{SECRETS}/another"),
    "list ConfigMaps": ("GET", "/api/v1/namespaces/{ns}/configmaps"),
    "get a token": ("POST", "/api/v1/namespaces/{ns}/serviceaccounts/default/token"),
    "create a ServiceAccount": ("POST", "/api/v1/namespaces/{ns}/serviceaccounts"),
    "create a role": ("POST", f"{RBAC}/clusterroles"),
    "grant a role": ("POST", f"{RBAC}/clusterrolebindings"),
    "grant a role in a namespace": ("POST", f"{RBAC}/namespaces/{{ns}}/rolebindings"),
    "delete the policies": ("DELETE", f"{ADMISSION}/validatingadmissionpolicies"),
    "change a policy": ("PATCH", f"{ADMISSION}/validatingadmissionpolicies/berth-agents"),
    "switch a policy off": ("PATCH", f"{ADMISSION}/validatingadmissionpolicybindings/berth-agents"),
    "change another webhook": ("PATCH", f"{ADMISSION}/mutatingwebhookconfigurations/another"),
    "create a webhook": ("POST", f"{ADMISSION}/validatingwebhookconfigurations"),
    "change a definition": ("PATCH", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/devices.berth.dev"),
    "create a Deployment": ("POST", "/apis/apps/v1/namespaces/{ns}/deployments"),
    "change a DaemonSet": ("PATCH", "/apis/apps/v1/namespaces/{ns}/daemonsets/any"),
    "approve a certificate": ("POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests"),
    "create a Device": ("POST", DEVICES),
    "delete a Device": ("DELETE", f"{DEVICES}/{{mine}}"),
    "delete all GpuPods": ("DELETE", GPU_PODS),
    "delete a PodGroup": ("DELETE", "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{ns}/podgroups/any"),
    "delete a LeaderLease": ("DELETE", f"{TERMS}/berth-operator"),
    "take another term": ("PUT", f"{TERMS}/another"),
    "delete a heartbeat": ("DELETE", f"{LEASES}/{{mine}}"),
    "list heartbeats of kubelets": ("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"),
    "evict by a budget": ("POST", "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets"),
    "delete Events": ("DELETE", EVENTS),
    "read metrics of the API server": ("GET", "/metrics"),
}
"""What no account may do. An agent may create Devices: its rows come below."""

CONTAINER: Final = {"name": "main", "image": "stolen"}
SUMS: Final = {"kubernetes.io/gpu": "800", "koordinator.sh/gpu-memory": "80Gi"}

OPERATOR: Final = [
    *patches(
        "operator",
        f"{PODS}/bound",
        {
            "change an image": {"spec": {"containers": [CONTAINER]}},
            "end a pod": {"spec": {"activeDeadlineSeconds": 1}},
            "label a pod": metadata(labels=STOLEN),
            "annotate a pod": metadata(annotations={"example.com/other": "1"}),
            "keep a pod from deletion": metadata(finalizers=["example.com/stuck"]),
            "give a pod to an owner": metadata(
                ownerReferences=[{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]
            ),
        },
    ),
    *patches("operator", f"{PODS}/gated", {"lift a gate": {"spec": {"schedulingGates": []}}}),
    *patches(
        "operator",
        f"{PODS}/bound",
        {"correct an allocation": metadata(annotations={ALLOCATED: "{}", VISIBLE: "GPU-1"})},
        is_allowed=True,
    ),
    *patches(
        "operator",
        f"{PODS}/bound/status",
        {
            "call a pod failed": {"status": {"phase": "Failed"}},
            "call a pod ready": {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
            "call containers started": {
                "status": {
                    "containerStatuses": [
                        {"name": "main", "image": "i", "imageID": "", "ready": True, "restartCount": 0}
                    ]
                }
            },
            "label a pod by its status": metadata(labels=STOLEN),
            "annotate a pod by its status": metadata(annotations={"example.com/other": "1"}),
            "correct an allocation by its status": metadata(annotations={ALLOCATED: "{}"}),
        },
    ),
    *patches(
        "operator",
        f"{PODS}/bound/status",
        {
            "say why a pod waits": {
                "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
            },
            "say why a pod is evicted": {"status": {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}},
        },
        is_allowed=True,
    ),
    *patches(
        "operator",
        f"{PODS}/waiting/status",
        {"give a pod an address": {"status": {"podIP": "10.0.0.99", "podIPs": [{"ip": "10.0.0.99"}]}}},
    ),
    *patches(
        "operator",
        f"{PODS}/waiting/status",
        {"nominate a node": {"status": {"nominatedNodeName": "{mine}"}}},
        is_allowed=True,
    ),
    *creates(
        "operator",
        f"{PODS}/waiting/binding",
        {
            "bind with another annotation": {
                "metadata": {"name": "waiting", "annotations": {"example.com/other": "1"}},
                "target": {"kind": "Node", "name": "{mine}"},
            },
            "bind with another label": {
                "metadata": {"name": "waiting", "labels": {"app": "stolen"}},
                "target": {"kind": "Node", "name": "{mine}"},
            },
            **{
                f"bind with the label {key}": {
                    "metadata": {"name": "waiting", "labels": {key: "1"}},
                    "target": {"kind": "Node", "name": "{mine}"},
                }
                for key in PROTECTED
            },
        },
    ),
    *creates(
        "operator",
        f"{PODS}/waiting/binding",
        {
            "bind": {
                "metadata": {
                    "name": "waiting",
                    "annotations": {ALLOCATED: "{}", "berth.dev/epoch": "1", VISIBLE: ""},
                    "labels": {"berth.dev/fenced-by": "berth-operator"},
                },
                "target": {"kind": "Node", "name": "{mine}"},
            },
            "bind with what other admission adds": {
                "metadata": {
                    "name": "waiting",
                    "annotations": {ADDED: "1"},
                    "labels": {ADDED: "1", "topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r"},
                },
                "target": {"kind": "Node", "name": "{mine}"},
            },
        },
        is_allowed=True,
    ),
    *patches(
        "operator",
        f"{NODES}/{{mine}}",
        {
            "evict all pods of a node": {"spec": {"taints": [{"key": "stolen", "effect": "NoExecute"}]}},
            "remove another taint": {
                "spec": {"taints": [{"key": "berth.dev/agent-not-ready", "effect": "NoSchedule"}]}
            },
            "evict all pods by the taint of preemption": {
                "spec": {"taints": [*TAINTS, PREEMPTING | {"effect": "NoExecute"}]}
            },
            "give the taint of preemption a value": {"spec": {"taints": [*TAINTS, PREEMPTING | {"value": "v"}]}},
            "cordon a node": {"spec": {"unschedulable": True}},
            "make a control plane": metadata(labels={"node-role.kubernetes.io/control-plane": ""}),
            "label a node for isolation": metadata(labels={"node-restriction.kubernetes.io/tenant": "a"}),
            "move a node to a zone": metadata(labels={"topology.kubernetes.io/zone": "z"}),
            "annotate a node": metadata(annotations={"example.com/other": "1"}),
            "keep a node from deletion": metadata(finalizers=["example.com/stuck"]),
        },
    ),
    *patches(
        "operator",
        f"{NODES}/{{mine}}",
        {
            "label models": metadata(
                labels={
                    "model.berth.dev/A100": "1",
                    "berth.dev/devices": "true",
                    "node.koordinator.sh/gpu-vendor": "nvidia",
                }
            ),
            "remove the startup taint": {"spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]}},
            "place the taint of preemption": {"spec": {"taints": [*TAINTS, PREEMPTING]}},
        },
        is_allowed=True,
    ),
    *patches(
        "operator",
        f"{NODES}/{{mine}}/status",
        {
            "change the cpus of a node": {"status": {"allocatable": {"cpu": "0"}}},
            "change what a device plugin offers": {"status": {"capacity": {"nvidia.com/gpu": "64"}}},
            "call a node not ready": {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
            "give a node another address": {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}},
            "give kubelet another port": {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}},
            "label a node by its status": metadata(labels={"node-role.kubernetes.io/control-plane": ""}),
            "annotate a node by its status": metadata(annotations={"example.com/other": "1"}),
        },
    ),
    *patches(
        "operator",
        f"{NODES}/{{mine}}/status",
        {"write sums": {"status": {"capacity": SUMS, "allocatable": SUMS}}},
        is_allowed=True,
    ),
    *patches(
        "operator",
        f"{CLAIMS}/claim",
        {
            "name the volume of a claim": {"spec": {"volumeName": "taken-{ns}"}},
            "label a claim": metadata(labels=STOLEN),
            "annotate a claim": metadata(annotations={"example.com/other": "1"}),
        },
    ),
    *patches(
        "operator",
        f"{CLAIMS}/claim",
        {"choose a node": metadata(annotations={"volume.kubernetes.io/selected-node": "{mine}"})},
        is_allowed=True,
    ),
    *patches(
        "operator",
        f"{VOLUMES}/free-{{ns}}",
        {
            "delete a volume's data": {"spec": {"persistentVolumeReclaimPolicy": "Delete"}},
            "mount with other options": {"spec": {"mountOptions": ["suid"]}},
            "annotate a volume": metadata(annotations={"example.com/other": "1"}),
        },
    ),
    *patches(
        "operator",
        f"{VOLUMES}/taken-{{ns}}",
        {
            "take a volume away": {"spec": {"claimRef": {"name": "claim", "namespace": "{ns}", "uid": "u"}}},
            "free a volume": {"spec": {"claimRef": None}},
        },
    ),
    *patches(
        "operator",
        f"{VOLUMES}/free-{{ns}}",
        {
            "reserve a volume": {
                "metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
                "spec": {"claimRef": {"name": "claim", "namespace": "{ns}", "uid": "u"}},
            }
        },
        is_allowed=True,
    ),
    *patches(
        "operator",
        f"{DEVICES}/{{mine}}",
        {"change a Device": {"spec": {"driverVersion": "2"}}},
    ),
    *others("operator", EVERYBODY),
]


def device_slice(node: str, *, pool: str = "", driver: str = "gpu.berth.dev", **more: object) -> Manifest:
    pools = {"name": pool or node, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}]
    spec = {"driver": driver, "nodeName": node, "pool": pools, "devices": devices}
    return {"metadata": {"generateName": "slice-", **more}, "spec": spec}


def untyped_slice(attributes: Mapping[str, object]) -> Manifest:
    """Return a slice of this node whose second device has other attributes than `type`, or another `type`."""
    made = device_slice("{mine}")
    spec = {**made["spec"], "devices": [*made["spec"]["devices"], {"name": "gpu-1", "attributes": attributes}]}
    return {**made, "spec": spec}


def mig_slice() -> Manifest:
    return untyped_slice({"type": {"string": "mig"}, "profile": {"string": "1g.10gb"}})


def gpu_pod(pod: str, node: str, *, uid: str = "u", **more: object) -> Manifest:
    return {
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "GpuPod",
        "metadata": {"name": f"{pod}.{node}", "ownerReferences": [pod_owner(pod, uid)], **more},
        "spec": {"nodeName": node, "podUID": uid},
    }


def pod_owner(pod: str, uid: str = "u", **more: object) -> Manifest:
    return {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, **more}


NODE_OWNER: Final = {"apiVersion": "v1", "kind": "Node", "name": "{mine}", "uid": "u"}
FALSE_OWNERS: Final[Mapping[str, list[Manifest]]] = {
    "no owner": [],
    "its Node as owner": [NODE_OWNER],
    "its Node as second owner": [pod_owner("new"), NODE_OWNER],
    "another pod as owner": [pod_owner("another")],
    "a pod of its whole name as owner": [pod_owner("new.{mine}")],
    "another UID as owner": [pod_owner("new", uid="another")],
    "an owner that it keeps": [pod_owner("new", blockOwnerDeletion=True)],
}


def device(node: str, **more: object) -> Manifest:
    return {
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "Device",
        "metadata": {"name": node, **more},
        "spec": {"driverVersion": "1"},
    }


def lease(node: str, **more: object) -> Manifest:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node, **more},
        "spec": {"holderIdentity": node},
    }


def event(**changes: object) -> Manifest:
    return {
        "metadata": {"generateName": "bound.", "namespace": "{ns}"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "{ns}", "name": "bound"},
        "type": "Warning",
        "reason": "DevicesRefused",
        "message": "m",
        "source": {"component": "berth-agent", "host": "{mine}"},
        **changes,
    }


def node_event(**changes: object) -> Manifest:
    """Return an Event about a Node, by default the agent's own."""
    about = {"apiVersion": "v1", "kind": "Node", "name": "{mine}", "uid": "{mine}", **changes}
    return event(metadata={"generateName": "node.", "namespace": "default"}, involvedObject=about)


KUBELET: Final = {"component": "kubelet", "host": "{mine}"}
POD_OWNER: Final = {"apiVersion": "v1", "kind": "Pod", "name": "bound", "uid": "another"}
STUCK: Final[Manifest] = {"finalizers": ["example.com/stuck"]}

AGENT: Final = [
    *patches(
        "agent",
        f"{NODES}/{{mine}}",
        {
            "make itself a control plane": metadata(labels={"node-role.kubernetes.io/control-plane": ""}),
            "take another tenant's label": metadata(labels={"node-restriction.kubernetes.io/tenant": "a"}),
            "move itself to a zone": metadata(labels={"topology.kubernetes.io/zone": "z"}),
            "have its cards partitioned": metadata(labels={"nvidia.com/mig.config": "all-1g.10gb"}),
            "switch the driver off": metadata(labels={"nvidia.com/gpu.deploy.driver": "false"}),
            "write the operator's labels": metadata(labels={"model.berth.dev/A100": "8"}),
            "remove taints": {"spec": {"taints": []}},
            "add a taint": {"spec": {"taints": [{"key": "stolen", "effect": "NoExecute"}]}},
            "uncordon itself": {"spec": {"unschedulable": True}},
            "annotate its node": metadata(annotations={"example.com/other": "1"}),
            "keep its node from deletion": metadata(**STUCK),
        },
    ),
    *patches(
        "agent", f"{NODES}/{{mine}}/status", {"write its node's status": {"status": {"allocatable": {"cpu": "1"}}}}
    ),
    *patches("agent", f"{NODES}/{{other}}", {"label another node": metadata(labels={"nvidia.com/gpu.count": "1"})}),
    *patches(
        "agent",
        f"{NODES}/{{mine}}",
        {
            "label its node": metadata(
                labels={
                    "nvidia.com/gpu.count": "1",
                    "nvidia.com/gpu.compute.major": "8",
                    "nvidia.com/cuda.driver-version.full": "550.1",
                    "nvidia.com/cuda.driver.rev": "1",
                    "nvidia.com/mig.capable": "true",
                    "nvidia.com/mig-1g.10gb.slices.gi": "1",
                    "nvidia.com/mig-1g.10gb.me.engines.copy": "1",
                    "nvidia.com/mps.capable": "false",
                    "nvidia.com/vgpu.present": "false",
                }
            )
        },
        is_allowed=True,
    ),
    *patches("agent", f"{DEVICES}/{{other}}", {"change another Device": {"spec": {"driverVersion": "2"}}}),
    *patches("agent", f"{DEVICES}/{{other}}/status", {"report about another node": {"status": {"withheld": [0]}}}),
    *patches("agent", f"{DEVICES}/{{mine}}", {"keep its Device from deletion": metadata(**STUCK)}),
    *patches("agent", f"{DEVICES}/{{mine}}", {"give its Device to a pod": metadata(ownerReferences=[POD_OWNER])}),
    *patches("agent", f"{DEVICES}/{{mine}}", {"write its Device": {"spec": {"driverVersion": "2"}}}, is_allowed=True),
    *patches("agent", f"{DEVICES}/{{mine}}/status", {"report": {"status": {"withheld": [0]}}}, is_allowed=True),
    *creates(
        "agent",
        GPU_PODS,
        {
            "report a pod of another node": gpu_pod("new", "{other}"),
            "keep a GpuPod from deletion": gpu_pod("new", "{mine}", **STUCK),
            "take the name of a GpuPod of another node": gpu_pod("new", "{mine}", name="new.{other}"),
            "name a GpuPod as a pod": gpu_pod("new", "{mine}", name="new"),
            "name a GpuPod as its node": gpu_pod("new", "{mine}", name="{mine}"),
            **{
                f"create a GpuPod with {what}": gpu_pod("new", "{mine}", ownerReferences=owners)
                for what, owners in FALSE_OWNERS.items()
            },
        },
    ),
    *creates("agent", GPU_PODS, {"report a pod": gpu_pod("new", "{mine}")}, is_allowed=True),
    *patches("agent", f"{GPU_PODS}/of-other", {"take a GpuPod over": {"spec": {"nodeName": "{mine}"}}}),
    *patches("agent", f"{GPU_PODS}/of-mine", {"give a GpuPod away": {"spec": {"nodeName": "{other}"}}}),
    *patches(
        "agent",
        f"{GPU_PODS}/of-mine",
        {
            "take the owner from an older agent's GpuPod": metadata(ownerReferences=None),
            "give an older agent's GpuPod to a Node": metadata(ownerReferences=[NODE_OWNER]),
            "give an older agent's GpuPod to another pod": metadata(ownerReferences=[pod_owner("of", "u")]),
            "give an older agent's GpuPod another UID": {"spec": {"podUID": "another"}},
        },
    ),
    *patches(
        "agent",
        f"{GPU_PODS}/of-mine",
        {
            "update an older agent's GpuPod": {
                "metadata": {"ownerReferences": [pod_owner("of-mine", "of-its-successor")]},
                "spec": {"podUID": "of-its-successor"},
            }
        },
        is_allowed=True,
    ),
    Attempt(
        account="agent",
        what="delete an older agent's GpuPod",
        method="DELETE",
        path=f"{GPU_PODS}/of-mine",
        is_allowed=True,
    ),
    *patches("agent", f"{GPU_PODS}/of-mine/status", {"call a GpuPod consistent": {"status": {"conditions": []}}}),
    *others("agent", {"delete a GpuPod of another node": ("DELETE", f"{GPU_PODS}/of-other")}),
    *creates(
        "agent",
        LEASES,
        {"beat for another node": lease("another"), "keep its Lease from deletion": lease("{mine}-new", **STUCK)},
    ),
    *patches("agent", f"{LEASES}/{{other}}", {"renew another Lease": {"spec": {"holderIdentity": "stolen"}}}),
    *patches("agent", f"{LEASES}/{{mine}}", {"renew its Lease": {"spec": {"holderIdentity": "it"}}}, is_allowed=True),
    *creates(
        "agent",
        EVENTS,
        {
            "report in the name of another node": event(source={"component": "berth-agent", "host": "{other}"}),
            "report in the name of kubelet": event(source=KUBELET),
            "report about a Node": event(involvedObject={"kind": "Node", "name": "{other}", "namespace": "{ns}"}),
        },
    ),
    *creates(
        "agent",
        NODE_EVENTS,
        {
            "report about another Node": node_event(name="{other}"),
            "report about its own Device": node_event(kind="Device"),
            "report about a Node of another group": node_event(apiVersion="example.com/v1"),
            "report about a Lease": node_event(kind="Lease", apiVersion="coordination.k8s.io/v1"),
            "report about its Node in the name of kubelet": node_event() | {"source": KUBELET},
        },
    ),
    *creates("agent", EVENTS, {"report about a pod": event()}, is_allowed=True),
    *creates("agent", NODE_EVENTS, {"report about its own Node": node_event()}, is_allowed=True),
    *patches("agent", f"{PODS}/bound", {"annotate pods": metadata(annotations={"example.com/other": "1"})}),
    *patches("agent", f"{PODS}/bound/status", {"write the status of pods": {"status": {"phase": "Failed"}}}),
    *others("agent", {"delete a pod": ("DELETE", f"{PODS}/bound"), "evict": ("POST", f"{PODS}/bound/eviction")}),
    *others(
        "agent", {"bind pods": ("POST", f"{PODS}/waiting/binding"), "read a term": ("GET", f"{TERMS}/berth-operator")}
    ),
    *others("agent", {what: how for what, how in EVERYBODY.items() if what != "create a Device"}),
    *creates("agent", DEVICES, {"create the Device of another node": device("{other}-new")}),
    *creates("agent", SLICES, {"list its cards for claims": device_slice("{mine}")}, is_allowed=True),
    *creates(
        "agent",
        SLICES,
        {
            "list cards of another node": device_slice("{other}"),
            "list cards in the pool of another node": device_slice("{mine}", pool="{other}"),
            "list cards of another driver": device_slice("{mine}", driver="gpu.nvidia.com"),
            "keep its slice from deletion": device_slice("{mine}", **STUCK),
            "give its slice to a pod": device_slice("{mine}", ownerReferences=[POD_OWNER]),
        },
    ),
    *creates(
        "agent",
        WRITTEN_SLICES,
        {
            "stop kube-scheduler by a device without a type": untyped_slice({}),
            "stop kube-scheduler by a type that is no string": untyped_slice({"type": {"int": 1}}),
            "stop kube-scheduler by one of two types": untyped_slice(
                {"type": {"version": "1.0.0"}, "gpu.berth.dev/type": {"string": "gpu"}}
            ),
            "stop kube-scheduler by a second type": untyped_slice(
                {"type": {"string": "gpu"}, "gpu.berth.dev/type": {"version": "1.0.0"}}
            ),
            "stop kube-scheduler by a profile": untyped_slice(
                {"type": {"string": "mig"}, "profile": {"version": "1.0.0"}}
            ),
        },
    ),
    *creates("agent", SLICES, {"test what the API server keeps": untyped_slice({})}, is_allowed=True),
    *creates("agent", SLICES, {"list a MIG instance": mig_slice()}, is_allowed=True),
]

STRAY: Final = [
    *patches("stray agent", f"{NODES}/{{mine}}", {"label a node": metadata(labels={"nvidia.com/gpu.count": "1"})}),
    *patches("stray agent", f"{DEVICES}/{{mine}}", {"change a Device": {"spec": {"driverVersion": "2"}}}),
    *creates("stray agent", GPU_PODS, {"report a pod": gpu_pod("new", "{mine}")}),
    *creates("stray agent", EVENTS, {"report about a pod": event()}),
    *creates("stray agent", NODE_EVENTS, {"report about a Node": node_event()}),
    *creates("stray agent", SLICES, {"list cards for claims": device_slice("{mine}")}),
]
"""A token of the agent's account that is bound to no pod names no node."""


def secret(name: str, **more: object) -> Manifest:
    data = {"tls.crt": "Yw==", "tls.key": "aw=="}
    return {"metadata": {"name": name}, "type": "kubernetes.io/tls", "data": data, **more}


def token_of_another(name: str) -> Manifest:
    annotations = {"kubernetes.io/service-account.name": "default"}
    metadata = {"name": name, "annotations": annotations}
    return secret(name, metadata=metadata, type="kubernetes.io/service-account-token")


def certificates() -> Iterator[Attempt]:
    accounts: dict[Account, str] = {"operator": "berth-visibility", "webhook": "berth-webhook", "api": "berth-api"}
    for account, name in accounts.items():
        yield from creates(
            account,
            SECRETS,
            {
                "have a token of another account written": token_of_another(name),
                "create a Secret of another type": secret(name, type="Opaque"),
                "create another certificate": secret("berth-extender"),
            },
        )
        yield from creates(account, SECRETS, {"create its certificate": secret(name)}, is_allowed=True)


WEBHOOK: Final[Manifest] = {
    "name": "injection.berth.dev",
    "admissionReviewVersions": ["v1"],
    "sideEffects": "None",
    "clientConfig": {"url": "https://127.0.0.1:1/inject"},
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "none"}},
    "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
}
"""Called for no pod."""
SERVED: Final[Mapping[Account, str]] = {
    "operator": "v1alpha1.visibility.berth.dev-{id}",
    "api": "v1.nvidia-gpu-scheduler-{id}",
}
"""Account -> name of the APIService of the API that it serves."""
VISIBILITY: Final = "v1alpha1.visibility.berth.dev"
SERVICE: Final = {"namespace": "berth-system", "name": "berth-visibility", "port": 443}
OWNER: Final = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "name": "berth-operator-visibility",
    "uid": "u",
}
ACCOUNTS: Final[tuple[Account, ...]] = ("operator", "agent", "stray agent", "webhook", "api")


def hook(**changes: object) -> Manifest:
    return {"webhooks": [{"name": WEBHOOK["name"], **changes}]}


def called() -> Iterator[Attempt]:
    secrets = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["secrets"]}]
    for path in WEBHOOKS:
        yield from patches(
            "webhook",
            path,
            {
                "see Secrets": hook(rules=secrets),
                "have another server called": hook(clientConfig={"url": "https://127.0.0.1:2/inject"}),
                "be called for all namespaces": hook(namespaceSelector={"matchLabels": None}),
                "be passed when it fails": hook(failurePolicy="Ignore"),
                "add a webhook": {"webhooks": [{**WEBHOOK, "name": "stolen.berth.dev"}]},
                "remove its webhooks": {"webhooks": None},
                "label its configuration": metadata(labels=STOLEN),
                "keep its configuration from deletion": metadata(**STUCK),
            },
        )
        bundle = hook(clientConfig={"caBundle": "{ca}"})
        yield from patches("webhook", path, {"write its bundle": bundle}, is_allowed=True)
    for account, name in SERVED.items():
        yield from patches(
            account,
            f"{API_SERVICES}/{name}",
            {
                "have another server asked": {"spec": {"service": {"namespace": "default", "name": "stolen"}}},
                "come before other APIs": {"spec": {"groupPriorityMinimum": 10000}},
                "label its APIService": metadata(labels=STOLEN),
            },
        )
    for account in ACCOUNTS:
        yield from creates(account, API_SERVICES, {"create an APIService": api_service("v1.stolen.example.com")})
    yield from creates(
        "operator",
        API_SERVICES,
        {
            "have another server answer": api_service(service={"namespace": "default", "name": "stolen"}),
            "have the API server answer itself": api_service(service=None),
            "have its pods come before those of Kubernetes": api_service(spec={"groupPriorityMinimum": 20000}),
            "have no certificate checked": api_service(spec={"caBundle": None, "insecureSkipTLSVerify": True}),
            "create an APIService that no uninstallation removes": api_service(ownerReferences=[]),
            "label what it creates": api_service(labels=STOLEN),
            "give it another owner": api_service(ownerReferences=[{**OWNER, "name": "cluster-admin"}]),
            "keep its owner from deletion": api_service(ownerReferences=[{**OWNER, "blockOwnerDeletion": True}]),
        },
    )
    yield from creates("operator", API_SERVICES, {"create its APIService": api_service()}, is_allowed=True)


def api_service(
    name: str = VISIBILITY, service: object = SERVICE, spec: Manifest | None = None, **fields: object
) -> Manifest:
    """Return the APIService that the operator creates, with changes."""
    bundle = "{ca}" if service else None
    whole = {**_api_service(name), "service": service, "caBundle": bundle, **(spec or {})}
    return {"metadata": {"name": name, "ownerReferences": [OWNER], **fields}, "spec": whole}


def _api_service(name: str) -> Manifest:
    """Return the spec of an APIService for which the API server answers itself."""
    version, _, group = name.partition(".")
    return {"version": version, "group": group, "groupPriorityMinimum": 100, "versionPriority": 100}


def servers() -> Iterator[Attempt]:
    for account in ("webhook", "api"):
        who: Account = "webhook" if account == "webhook" else "api"
        yield from others(who, EVERYBODY)
        yield from others(who, {"list pods": ("GET", "/api/v1/pods"), "list nodes": ("GET", NODES)})
        yield from patches(who, f"{PODS}/bound", {"change pods": metadata(annotations={"example.com/other": "1"})})
        yield from patches(who, f"{SECRETS}/another", {"change another Secret": {"stringData": {"key": "v"}}})


def added() -> Iterator[Attempt]:
    """Yield writes of keys that an administrator listed because other admission adds them."""
    rows: tuple[tuple[Account, str, str], ...] = (
        ("operator", f"{PODS}/bound", "labels"),
        ("operator", f"{PODS}/bound/status", "labels"),
        ("operator", f"{NODES}/{{mine}}", "annotations"),
        ("operator", f"{NODES}/{{mine}}/status", "annotations"),
        ("operator", f"{CLAIMS}/claim", "labels"),
        ("operator", f"{VOLUMES}/free-{{ns}}", "labels"),
        ("agent", f"{NODES}/{{mine}}", "labels"),
        ("agent", f"{NODES}/{{mine}}", "annotations"),
        *((account, f"{API_SERVICES}/{name}", "labels") for account, name in SERVED.items()),
    )
    for account, path, field in rows:
        where = f"to the {field} of {path.rpartition('v1/')[2]}"
        protected = {f"add {key} {where}": metadata(**{field: {key: "1"}}) for key in PROTECTED}
        yield from patches(account, path, protected)
        yield from patches(account, path, {f"add a key {where}": metadata(**{field: {ADDED: "1"}})}, is_allowed=True)
    for account in ("operator", "agent"):
        removed = {"remove what other admission added": metadata(annotations={ADDED: None})}
        yield from patches(account, f"{NODES}/{{mine}}", removed)


ATTEMPTS: Final = [*OPERATOR, *AGENT, *STRAY, *servers(), *certificates(), *called(), *added()]


@pytest.fixture(scope="module")
def nodes(arena: Arena) -> list[str]:
    return arena.nodes(2, taints=list(TAINTS), annotations={ADDED: "0"})


@pytest.fixture(scope="module")
def tokens(arena: Arena, nodes: list[str], accounts: Accounts) -> Iterator[Mapping[Account, Api]]:
    """Create what the attempts name, and return a client of each account."""
    mine, other = nodes
    api = arena.cluster.api
    made = {
        "operator": accounts.client("berth-operator"),
        "agent": accounts.client("berth-agent", node=mine),
        "stray agent": accounts.client("berth-agent"),
        "webhook": accounts.client("berth-webhook"),
        "api": accounts.client("berth-api"),
    }
    arena.create(
        [
            arena.pod("bound", nodeName=mine),
            arena.pod("waiting"),
            arena.pod("gated", schedulingGates=[{"name": "example.com/gate"}]),
        ]
    )
    for document in _volumes(arena):
        api.apply(document, namespace=arena.namespace)
    for node in nodes:
        api.post(DEVICES, device(node))
    # As older agents named them. Their pods exist, or the garbage collector would delete them.
    for node, name in ((mine, "of-mine"), (other, "of-other")):
        uid = arena.create([arena.pod(name, nodeName=node)])[0]["metadata"]["uid"]
        arena.create([gpu_pod(name, node, uid=uid, name=name)])
    arena.create([lease(node) for node in nodes])
    paths = list(_create_called(arena))
    labelled = {"metadata": {"labels": {"example.com/a": "b"}}}
    # Each policy comes into force by itself.
    accounts.wait(made["agent"], f"{NODES}/{mine}", labelled)
    accounts.wait(made["operator"], f"{PODS}/bound".replace("{ns}", arena.namespace), labelled)
    accounts.wait(made["webhook"], paths[0], labelled)
    yield made  # type: ignore[misc]
    for path in paths:
        api.delete(path)
    for name in ("free", "taken"):
        api.delete(f"{VOLUMES}/{name}-{arena.namespace}")


def _create_called(arena: Arena) -> Iterator[str]:
    """Create the webhook configurations and APIServices of the accounts, and yield their paths."""
    documents: dict[str, Manifest] = {each: {"webhooks": [WEBHOOK]} for each in WEBHOOKS}
    documents |= {f"{API_SERVICES}/{each}": {"spec": _api_service(each)} for each in SERVED.values()}
    for path, document in documents.items():
        collection, _, name = path.replace("{id}", arena.id).rpartition("/")
        text = json.dumps({"metadata": {"name": name}, **document}).replace("{id}", arena.id)
        arena.cluster.api.post(collection, json.loads(text))
        yield f"{collection}/{name}"


def _volumes(arena: Arena) -> Iterator[Manifest]:
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": f"none-{arena.id}"}
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "claim"},
        "spec": {**claim, "resources": {"requests": {"storage": "1Gi"}}},
    }
    taken = {"name": "other", "namespace": arena.namespace, "uid": "u"}
    for name, more in (("free", {}), ("taken", {"claimRef": taken})):
        yield {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{name}-{arena.namespace}"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": f"other-{arena.id}",
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": "/none"},
                "persistentVolumeReclaimPolicy": "Retain",
                **more,
            },
        }


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=str)
def test_a_token_reaches_what_its_program_writes_and_no_more(
    attempt: Attempt, arena: Arena, nodes: list[str], tokens: Mapping[Account, Api]
) -> None:
    bundle = base64.b64encode(arena.cluster.ca_file.read_bytes()).decode()
    names = {"{ns}": arena.namespace, "{id}": arena.id, "{mine}": nodes[0], "{other}": nodes[1], "{ca}": bundle}
    path, body = attempt.path, json.dumps(attempt.body)
    for placeholder, name in names.items():
        path, body = path.replace(placeholder, name), body.replace(placeholder, name)
    if attempt.is_allowed:
        _send(tokens[attempt.account], attempt, path, body)
        return
    with pytest.raises(ApiError) as refused:
        _send(tokens[attempt.account], attempt, path, body)
    assert refused.value.status == HTTPStatus.FORBIDDEN, str(refused.value)


def _send(client: Api, attempt: Attempt, path: str, body: str) -> None:
    query = {} if attempt.method == "GET" or "?" in path else {"dryRun": "All"}
    client.request(attempt.method, path, body=json.loads(body), query=query, content_type=attempt.content_type)


def test_the_policies_are_written_for_what_they_match(arena: Arena, accounts: Accounts) -> None:
    """Kubernetes checks expressions against the types of the objects, and reports what does not fit."""
    for policy in accounts.policies():

        def checked(path: str = arena.cluster.api.path_of(policy)) -> Manifest:
            status: Manifest = arena.cluster.api.get(path).get("status", {})
            return status.get("typeChecking", {}) if "observedGeneration" in status else {"unchecked": True}

        arena.wait(lambda: "unchecked" not in checked(), what="the check of the policy's types")
        assert checked() == {}
