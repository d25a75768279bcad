"""The API server accepts what the chart renders, and the chart's account may apply the definitions."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from devcluster import Arena
from devcluster.control_plane.api import Api, Manifest
from tests.programs import chart, policies

pytestmark = pytest.mark.usefixtures("helm")

ON: Final = {"enabled": True}
TOLERATION: Final = {"key": "gpu", "operator": "Exists"}
WITHOUT_AGENT: Final = (
    {"kubernetes.io/os": "windows"},
    {"type": "virtual-kubelet"},
    {"eks.amazonaws.com/compute-type": "fargate"},
)
"""Labels of nodes on which no agent would start."""
NOT_SERVED: Final = {"PodMonitor", "PrometheusRule", "Issuer", "Certificate"}
"""Kinds of the Prometheus operator and cert-manager."""
VALUES: Final[dict[str, dict[str, Any]]] = {
    "defaults": {},
    "agent-alone": {"operator": {"enabled": False}, "agent": {"devicePlugin": True}},
    "operator-alone": {"agent": {"enabled": False}, "nodeSelectorDaemonSet": {"nodeinfo": "gpu"}},
    "webhook": {"admission": {"by": "webhook"}, "webhook": {"certManager": True, "hostNetwork": True, "replicas": 3}},
    "validation": {"validation": {"by": "webhook"}, "networkPolicy": ON},
    "unrouted": {
        "routing": {"enabled": False},
        "isolation": {"mps": ON, "hamiCore": {**ON, "image": "berth.dev/hami-core:1"}},
        "injection": {"runtimeClass": "nvidia"},
    },
    "extender": {"extender": {"enabled": True, "certManager": True, "extraArgs": ["--extender-nodes=2"]}},
    "webhook-extender": {"admission": {"by": "webhook"}, "extender": ON, "injection": {"runtimeClass": "nvidia"}},
    "servers": {
        "listWatchApi": ON,
        "visibility": {"enabled": True, "fleetForAll": True},
        "debugApi": ON,
        "operator": {"replicas": 3},
        "networkPolicy": ON,
    },
    "metrics": {"metrics": {"podMonitors": ON, "prometheusRule": ON, "dashboard": ON, "rules": ON}},
    "device-plugin": {
        "agent": {"devicePlugin": True, "runtimeClassName": "nvidia"},
        "migStrategy": "single",
        "failOnInitError": True,
        "deviceListStrategy": "envvar,cdi-cri",
        "deviceIDStrategy": "index",
        "compatWithCPUManager": True,
        "nvidiaDriverRoot": "/run/nvidia/driver",
        "nodeSelectorDaemonSet": {"nodeinfo": "gpu"},
        "devicePluginConfig": {"version": "v1", "flags": {"migStrategy": "single"}},
    },
    "partitions": {"agent": {"devicePlugin": True}, "dra": {**ON, "partitions": ON}},
    "no-kube-proxy": {"apiServer": {"host": "10.0.0.1", "port": 6443}, "operator": {"hostNetwork": True}},
    "private-registry": {
        "image": {
            "operator": {"repository": "registry.example.com/a/berth-operator", "tag": "1.2.3"},
            "agent": {"repository": "registry.example.com/a/berth-agent", "digest": f"sha256:{'0' * 64}"},
            "pullPolicy": "Always",
            "pullSecrets": [{"name": "registry"}],
        }
    },
    "own-namespace": {"agent": {"namespace": "default"}, "metrics": {"authentication": False, "podMonitors": ON}},
    "one-namespace": {
        "agent": {"namespace": "berth-system"},
        "metrics": {"podMonitors": ON},
        "networkPolicy": ON,
        "operator": {"pluginResources": ["example.com/npu"]},
    },
    "cleanup": {"crds": {"keep": False}, "cleanup": {"drain": True}, "operator": {"managedNodes": "pool in (a,b)"}},
    "placement": {
        "operator": {
            "nodeSelector": {"role": "control"},
            "tolerations": [TOLERATION],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "",
            "extraEnv": [{"name": "TZ", "value": "UTC"}],
            "extraArgs": ["--status-rate=50"],
            "extraVolumes": [{"name": "token", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "token", "mountPath": "/token"}],
            "securityContext": {"seccompProfile": None},
        },
        "agent": {"tolerations": [TOLERATION], "metricsPort": 0, "podLabels": {"team": "a"}},
        "priorityClassQuota": {"enabled": False},
    },
    "profiles": {
        "profiles": [{"schedulerName": "team-a", "plugins": {}}, {"schedulerName": "team-b"}],
        "modelAliases": {"big": ["*H100*"]},
        "trustedSchedulers": [
            {"name": "koord-scheduler", "account": "system:serviceaccount:koordinator-system:koord-scheduler"}
        ],
    },
    **{f"recommended-{file.stem}": yaml.safe_load(file.read_text()) for file in chart.RECOMMENDED},
}


@pytest.fixture(scope="module")
def accepted() -> set[str]:
    """Return where accepted objects are noted, so that each is sent once."""
    return set()


@pytest.mark.parametrize("name", VALUES)
def test_the_api_server_accepts(arena: Arena, accepted: set[str], name: str) -> None:
    api = arena.cluster.api
    objects = [each for each in chart.rendered(VALUES[name]).values() if each["kind"] not in NOT_SERVED]
    texts = {yaml.safe_dump(each): each for each in objects}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: dry_run(api, texts[text]), texts.keys() - accepted))
    accepted |= texts.keys()


def dry_run(api: Api, document: Manifest) -> None:
    query = {"fieldManager": "test", "force": "true", "dryRun": "All", "fieldValidation": "Strict"}
    api.request("PATCH", api.path_of(document), body=document, query=query, content_type="application/apply-patch+yaml")


def test_the_notes_warn_of_what_the_cluster_lacks(arena: Arena) -> None:
    arena.create([daemon_set("nvidia-device-plugin-daemonset")])
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    arena.merge("namespaces", arena.namespace, {"metadata": {"labels": label}})
    values = {
        "agent": {"devicePlugin": True, "namespace": arena.namespace, "runtimeClassName": "nvidia"},
        "injection": {"runtimeClass": arena.id},
        "debugApi": {"enabled": True, "certificateSecret": "missing"},
    }
    printed = notes(arena, values)
    for expected in (
        f"the DaemonSet {arena.namespace}/nvidia-device-plugin-daemonset may be another device plugin",
        f"injection.runtimeClass is {arena.id}, and the cluster has no such RuntimeClass",
        "agent.runtimeClassName is nvidia, and nodeSelectorDaemonSet is empty",
        f"debugApi.certificateSecret is missing, and the namespace {arena.namespace} has no such Secret",
        f"the namespace {arena.namespace} enforces the Pod Security level restricted",
        f"where the documents say berth-system, write {arena.namespace}",
    ):
        assert expected in printed
    assert "podgroups.scheduling.x-k8s.io is another project's" not in printed


def test_the_notes_do_not_warn_of_what_is_there(arena: Arena) -> None:
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    arena.cluster.api.post(classes, {"metadata": {"name": arena.id}, "handler": "runc"})
    arena.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "present"}})
    values = {
        "agent": {"runtimeClassName": arena.id},
        "nodeSelectorDaemonSet": {"nvidia.com/gpu.present": "true"},
        "injection": {"runtimeClass": arena.id},
        "debugApi": {"enabled": True, "certificateSecret": "present"},
    }
    try:
        printed = notes(arena, values)
    finally:
        arena.cluster.api.delete(f"{classes}/{arena.id}")
    assert "kubectl get devices" in printed
    for unexpected in (
        "no such RuntimeClass",
        "nodeSelectorDaemonSet is empty",
        "no such Secret",
        "Pod Security level",
    ):
        assert unexpected not in printed


def notes(arena: Arena, values: dict[str, Any]) -> str:
    """Return what Helm would print after an installation in the arena's namespace."""
    return installed(arena, values).partition("NOTES:")[2]


def installed(arena: Arena, values: dict[str, Any], *options: str) -> str:
    """Return what Helm prints of an installation in the arena's namespace, which it does not perform."""
    # Other tests of this cluster apply the agents' rights.
    place = (f"--namespace={arena.namespace}", "--dry-run=server", "--take-ownership")
    return chart.helm(
        "install", "berth", chart.CHART, *place, *options, values=values, kubeconfig=arena.cluster.kubeconfig
    )


def daemon_set(name: str) -> Manifest:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


def test_an_agent_of_an_earlier_version_is_never_next_to_the_new_one(arena: Arena) -> None:
    """Helm creates the new DaemonSet before it deletes that of the release before, which was in another namespace."""
    affinity = {"affinity": {"podAffinity": {}}, "namespace": f"agents-{arena.id}"}

    def of_agent() -> Manifest:
        printed = installed(arena, {"agent": affinity}, "--no-hooks")
        manifest = printed.partition("MANIFEST:")[2].partition("NOTES:")[0]
        [agent] = [each for each in yaml.safe_load_all(manifest) if each and each["kind"] == "DaemonSet"]
        spec: Manifest = agent["spec"]["template"]["spec"]
        return spec

    assert of_agent()["affinity"].keys() == {"nodeAffinity", "podAffinity"}
    arena.create([daemon_set("berth-agent")])
    term = {
        "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "berth-agent"}},
        "namespaces": [arena.namespace],
        "topologyKey": "kubernetes.io/hostname",
    }
    apart = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    assert of_agent()["affinity"]["podAntiAffinity"] == apart


@pytest.mark.parametrize("by", ["chart", "chart with a user's affinity", "kustomize"])
def test_agents_run_only_on_nodes_with_kubelet_and_linux(arena: Arena, tmp_path: Path, by: str) -> None:
    [node] = arena.nodes()
    for labels in WITHOUT_AGENT:
        arena.nodes(labels=labels)
    values: dict[str, Any] = {"nodeSelectorDaemonSet": arena.labels, "agent": {"namespace": arena.namespace}}
    if by == "chart with a user's affinity":
        fields = [{"key": "metadata.name", "operator": "In", "values": [f"{arena.id}-{number}"]} for number in range(4)]
        required = {"nodeSelectorTerms": [{"matchFields": [field]} for field in fields]}
        values["agent"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    if by == "kustomize":
        [agent] = [each for each in policies.built(tmp_path) if each["kind"] == "DaemonSet"]
        agent["spec"]["template"]["spec"]["nodeSelector"] |= arena.labels
        del agent["metadata"]["namespace"]
    else:
        agent = chart.rendered(values)["DaemonSet/berth-agent"]
    arena.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "berth-agent"}})
    arena.apply(agent)

    def status() -> Manifest:
        shown: Manifest = arena.get("daemonsets", "berth-agent").get("status", {})
        return shown

    arena.wait(lambda: status().get("numberReady") == 1, what="the agent")
    assert status()["desiredNumberScheduled"] == 1
    assert {pod["spec"].get("nodeName") for pod in arena.list("pods")} == {node}
