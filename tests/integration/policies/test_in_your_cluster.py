"""The shipped manifests in clusters like OpenShift, GKE and EKS: with their plug-ins, labels and taints.

docs/in-your-cluster.md names what is tested here. Admission plug-ins are flags of the API server, so each has its own.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from devcluster import Cluster, waiting
from devcluster.additions import installation
from devcluster.control_plane.api import Manifest
from devcluster.processes import state

PATIENCE: Final = waiting.PATIENCE
PODS: Final = "/api/v1/namespaces/default/pods"
AGENT_PODS: Final = f"/api/v1/namespaces/{installation.AGENTS}/pods"
DAEMON_SET: Final = f"/apis/apps/v1/namespaces/{installation.AGENTS}/daemonsets/berth-agent"
NODE: Final = "gpu-0"
ZONE: Final = {"topology.kubernetes.io/region": "region-1", "topology.kubernetes.io/zone": "region-1a"}
TAINT: Final = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
IMAGES: Final = "images.kubeconfig"
EVERY_OPTIONAL_PLUGIN: Final = (
    "AlwaysAdmit",
    "AlwaysPullImages",
    "DenyServiceExternalIPs",
    "EventRateLimit",
    "ExtendedResourceToleration",
    "ImagePolicyWebhook",
    "LimitPodHardAntiAffinityTopology",
    "NamespaceAutoProvision",
    "NamespaceExists",
    "NodeRestriction",
    "OwnerReferencesPermissionEnforcement",
    "PodNodeSelector",
    "PodTolerationRestriction",
)
"""All that an API server of 1.36 has on only if its administrator says so, but for AlwaysDeny."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A kind of cluster."""

    plugins: tuple[str, ...] = ()
    """Admission plug-ins that are on besides the default ones."""
    configuration: Mapping[str, Manifest] = field(default_factory=dict)
    """Admission plug-in -> its configuration."""
    labels: Mapping[str, str]
    """Labels of the node with GPUs."""
    taints: tuple[Mapping[str, str], ...] = ()
    without_kubelet: Mapping[str, str] = field(default_factory=dict)
    """Labels of a node that runs no pods of DaemonSets."""
    share: Mapping[str, Any] = field(default_factory=dict)
    """What the spec of a pod with a share needs here."""


def tolerating(*taints: Mapping[str, str]) -> dict[str, Any]:
    return {"tolerations": [{"operator": "Exists", "key": each["key"], "effect": each["effect"]} for each in taints]}


OPENSHIFT: Final = Site(
    plugins=EVERY_OPTIONAL_PLUGIN,
    configuration={
        "EventRateLimit": {
            "apiVersion": "eventratelimit.admission.k8s.io/v1alpha1",
            "kind": "Configuration",
            "limits": [{"type": "Server", "qps": 1000, "burst": 1000}],
        },
        # No server answers: images are allowed, as with `defaultAllow`.
        "ImagePolicyWebhook": {"imagePolicy": {"kubeConfigFile": IMAGES, "retryBackoff": 1, "defaultAllow": True}},
        "PodSecurity": {
            "apiVersion": "pod-security.admission.config.k8s.io/v1",
            "kind": "PodSecurityConfiguration",
            "defaults": {"enforce": "restricted", "enforce-version": "latest"},
            "exemptions": {"namespaces": ["default"]},
        },
    },
    labels={**ZONE, "node-role.kubernetes.io/worker": "", "node.openshift.io/os_id": "rhel"},
    taints=(TAINT,),
    share=tolerating(TAINT),
)
GKE: Final = Site(
    plugins=("ExtendedResourceToleration",),
    configuration={
        "ResourceQuota": {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "ResourceQuotaConfiguration",
            "limitedResources": [
                {
                    "resource": "pods",
                    "matchScopes": [
                        {
                            "scopeName": "PriorityClass",
                            "operator": "In",
                            "values": ["system-node-critical", "system-cluster-critical"],
                        }
                    ],
                }
            ],
        }
    },
    labels={**ZONE, "cloud.google.com/gke-accelerator": "nvidia-tesla-a100", "cloud.google.com/gke-nodepool": "gpus"},
    taints=(TAINT,),
    share=tolerating(TAINT),
)
EKS: Final = Site(
    labels={
        **ZONE,
        "eks.amazonaws.com/nodegroup": "gpus",
        "node.kubernetes.io/instance-type": "p4d.24xlarge",
        "k8s.io/cloud-provider-aws": "0123456789abcdef",
    },
    without_kubelet={"eks.amazonaws.com/compute-type": "fargate"},
)
SITES: Final = {"openshift": OPENSHIFT, "gke": GKE, "eks": EKS}


def arguments(site: Site, folder: Path) -> list[str]:
    """Return the API server's arguments; write the configuration of its plug-ins."""
    cluster = {"name": "images", "cluster": {"server": "https://127.0.0.1:9/"}}
    context = {"name": "images", "context": {"cluster": "images", "user": "images"}}
    lists = {"clusters": [cluster], "users": [{"name": "images"}], "contexts": [context]}
    kubeconfig = {"apiVersion": "v1", "kind": "Config", "current-context": "images", **lists}
    (folder / IMAGES).write_text(yaml.safe_dump(kubeconfig))
    plugins = [{"name": name, "configuration": each} for name, each in site.configuration.items()]
    kind = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration"}
    text = yaml.safe_dump({**kind, "plugins": plugins}).replace(IMAGES, str(folder / IMAGES))
    (folder / "admission.yaml").write_text(text)
    enabled = [f"--enable-admission-plugins={','.join(site.plugins)}"] if site.plugins else []
    return [*enabled, f"--admission-control-config-file={folder / 'admission.yaml'}"]


@pytest.fixture(scope="module", params=list(SITES.values()), ids=list(SITES))
def site(request: pytest.FixtureRequest) -> Site:
    chosen: Site = request.param
    return chosen


@pytest.fixture(scope="module")
def own_cluster(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster of a kind, with the shipped manifests but for the Deployments."""
    extra = {"kube-apiserver": arguments(site, tmp_path_factory.mktemp("admission"))}
    with Cluster(extra_args=extra) as running:
        running.create_nodes([NODE], labels=site.labels, taints=site.taints)
        if site.without_kubelet:
            running.create_nodes(["without-kubelet"], labels=site.without_kubelet)
        installation.apply(running)
        # They read Devices, so the definitions come first.
        running.play_device_plugins()
        for document in installation.documents(installation.BASE / "agent.yaml"):
            if document["kind"] == "DaemonSet":
                running.api.apply(document)
        yield running


def agent_pod(cluster: Cluster) -> Manifest:
    """Return the agent's pod once it runs on the node with GPUs."""

    def running() -> Manifest | None:
        listed: list[Manifest] = cluster.api.get(AGENT_PODS)["items"]
        return next((pod for pod in listed if pod["status"].get("phase") == "Running"), None)

    pod = waiting.until(
        running, deadline=PATIENCE, what="the agent's pod", details=lambda: cluster.kubectl("get", "events", "-A")
    )
    assert pod is not None
    return pod


def start_agent(cluster: Cluster, pod: Manifest) -> None:
    """Start an agent with the token of its pod; the cards are simulated."""
    path = f"/api/v1/namespaces/{installation.AGENTS}/serviceaccounts/berth-agent/token"
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    answer = cluster.api.post(path, {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}})
    kubeconfig, fleet = cluster.folder / "agent.kubeconfig", cluster.folder / "fleet.yaml"
    state.write_private(kubeconfig, cluster.kubeconfig_for(answer["status"]["token"]))
    fleet.write_text(yaml.safe_dump({"nodes": [{"names": NODE, "profile": "a100", "gpus": 2}]}))
    command = [sys.executable, "-m", "berth_agent", "--inventory=simulated", f"--fleet={fleet}"]
    cluster.run("agent", [*command, f"--kubeconfig={kubeconfig}", "--poll-interval=0.5", "--log-format=text"])


def bound(cluster: Cluster, name: str, limits: Mapping[str, str], **spec: Any) -> Manifest:
    """Create a pod of Berth, and return it once it is bound."""
    container = {"name": "main", "image": "none", "resources": {"limits": dict(limits)}}
    fields = {"schedulerName": installation.SCHEDULER, "containers": [container], **spec}
    cluster.api.post(PODS, {"metadata": {"name": name}, "spec": fields})

    def placed() -> Manifest | None:
        pod = cluster.api.get(f"{PODS}/{name}")
        return pod if pod["spec"].get("nodeName") else None

    def why() -> str:
        logs = (f"--- {each}\n" + "\n".join(installation.last_lines(cluster, each)) for each in ("agent", "operator"))
        return "\n".join([str(cluster.api.get(f"{PODS}/{name}")["status"]), *logs])

    pod = waiting.until(placed, deadline=PATIENCE, what=f"{name} to be bound", details=why)
    assert pod is not None
    return pod


def test_a_card_and_a_share_are_bound(own_cluster: Cluster, site: Site) -> None:
    cluster = own_cluster
    pod = agent_pod(cluster)
    assert pod["spec"]["nodeName"] == NODE
    start_agent(cluster, pod)
    installation.wait(cluster, installation.start(cluster), nodes=[NODE])
    # The plug-in adds what tolerates the taint of the vendor's resource, where the cluster has it.
    card = bound(cluster, "card", {"nvidia.com/gpu": "1"})
    share = bound(cluster, "share", {"kubernetes.io/gpu": "50"}, **site.share)
    for each in (card, share):
        assert each["metadata"]["annotations"]["scheduling.koordinator.sh/device-allocated"]
        assert ZONE.items() <= each["metadata"]["labels"].items()
    daemons = cluster.api.get(DAEMON_SET)["status"]
    assert (daemons["desiredNumberScheduled"], daemons["numberReady"]) == (1, 1)
