"""The shipped accounts on an API server with every optional admission plug-in of its binary.

The plug-in AlwaysDeny is left out. OpenShift has OwnerReferencesPermissionEnforcement. The test has its own cluster,
because plug-ins belong to the whole API server.
"""

import asyncio
import functools
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from berth_agent.cluster import client_of
from berth_agent.dra.devices import ListedDevice
from berth_agent.dra.publisher import SLICES, SlicePublisher
from berth_agent.publishing.node_cache import NodeCache
from berth_api import names
from berth_client import credentials
from devcluster import Cluster, waiting
from devcluster.additions import installation
from devcluster.building import programs
from devcluster.control_plane.api import Manifest
from tests.nvml.fixture import NvmlFixture, a100
from tests.programs.processes import Process
from tests.stand_ins.pod_resources import PodResourcesServer

NODES: Final = ("node-0", "node-1")
DEVICES: Final = "/apis/berth.dev/v1alpha1/devices"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/berth-node-lease/leases"
PODS: Final = "/api/v1/namespaces/default/pods"
AGENTS: Final = "/api/v1/namespaces/berth-agent-system"
COMPONENTS: Final = Path(__file__).parents[3] / "manifests/components"
FORBIDDEN: Final = re.compile(r"\b403\b")
"""An answer in a log line, and not a part of the line's time."""
WITHIN: Final = 60.0
"""Seconds within which an object with a wrong owner is created again."""


def flags(folder: Path) -> list[str]:
    """Return the flags of an API server with every plug-in that its help lists."""
    text = subprocess.run(
        [programs.ensure(["kube-apiserver"])["kube-apiserver"], "--help"], capture_output=True, text=True, check=True
    ).stdout
    listed = re.search(r"--enable-admission-plugins strings.*?list of admission plugins: ([\w, ]+)\.", text)
    assert listed is not None
    plugins = sorted(set(listed[1].split(", ")) - {"AlwaysDeny"})
    assert "OwnerReferencesPermissionEnforcement" in plugins
    cluster = {"name": "none", "cluster": {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True}}
    context = {"name": "none", "context": {"cluster": "none", "user": "none"}}
    kubeconfig = {"clusters": [cluster], "users": [{"name": "none", "user": {}}], "contexts": [context]}
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "none", **kubeconfig}
    webhook = folder / "image-policy.kubeconfig"
    webhook.write_text(yaml.safe_dump(config))
    # Nothing answers there, and that allows the image.
    images = {"kubeConfigFile": str(webhook), "allowTTL": 1, "denyTTL": 1, "retryBackoff": 1, "defaultAllow": True}
    rates = {"apiVersion": "eventratelimit.admission.k8s.io/v1alpha1", "kind": "Configuration"}
    configurations: dict[str, Manifest] = {
        "EventRateLimit": {**rates, "limits": [{"type": "Server", "qps": 5000, "burst": 5000}]},
        "ImagePolicyWebhook": {"imagePolicy": images},
        "PodNodeSelector": {"podNodeSelectorPluginConfig": {}},
    }
    admission = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{"name": name, "configuration": value} for name, value in configurations.items()],
    }
    file = folder / "admission.yaml"
    file.write_text(yaml.safe_dump(admission))
    return [f"--enable-admission-plugins={','.join(plugins)}", f"--admission-control-config-file={file}"]


class Site:
    """Two nodes with two cards each, in a cluster with Berth."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.api, self._folder = cluster, cluster.api, folder
        self.agents: list[Process] = []
        installation.apply(cluster)
        for file in sorted((COMPONENTS / "dra").glob("*.yaml")):
            for document in installation.documents(file):
                if document["kind"] not in {"Component", "Kustomization"}:
                    cluster.api.apply(document)
        cluster.create_nodes(NODES)
        self.operator = installation.start(cluster)

    def uid(self, node: str) -> str:
        return str(self.api.get(f"/api/v1/nodes/{node}")["metadata"]["uid"])

    def account(self, node: str) -> Path:
        """Return a kubeconfig with the token of the agent's pod on a node."""
        container = {"name": "agent", "image": "berth.dev/berth-agent"}
        spec = {"nodeName": node, "serviceAccountName": "berth-agent", "containers": [container]}
        pod = self.api.post(f"{AGENTS}/pods", {"metadata": {"name": f"agent-{node}"}, "spec": spec})["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["name"], "uid": pod["uid"]}
        request = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
        answer = self.api.post(f"{AGENTS}/serviceaccounts/berth-agent/token", request)
        file = self._folder / f"{node}.kubeconfig"
        file.touch(mode=0o600)
        file.write_text(self.cluster.kubeconfig_for(answer["status"]["token"]))
        return file

    def agent(self, node: str, kubeconfig: Path, resources: PodResourcesServer) -> None:
        folder = self._folder / node
        folder.mkdir()
        fixture = NvmlFixture(folder, gpus=[a100(0), a100(1)])
        fixture.write()
        paces = ("--poll-interval=1", "--renew-interval=2", "--pod-resources-interval=0.5")
        own = (f"--node-name={node}", f"--kubeconfig={kubeconfig}", f"--checkpoint={folder / 'checkpoint.json'}")
        command = [*own, *paces, *fixture.agent_options(), f"--pod-resources-socket={resources.socket}"]
        program = installation.operator(kubeconfig)[0]
        process = Process(
            name=f"agent-{node}",
            command=[program, "-m", "berth_agent", *command],
            folder=self._folder,
            environment={"BERTH_NVML_STATE": str(fixture.state)},
        )
        self.agents.append(process)

    def pod(self, name: str, requests: dict[str, str], **labels: str) -> None:
        container = {"name": "main", "image": "none", "resources": {"limits": requests}}
        metadata = {"name": name, "labels": labels}
        self.api.post(PODS, {"metadata": metadata, "spec": {"containers": [container]}})

    def bound(self, name: str) -> Manifest | None:
        pod = self.api.get(f"{PODS}/{name}")
        return pod if pod["spec"].get("nodeName") else None

    def until(self, condition: Callable[[], Any], what: str, *, deadline: float = waiting.PATIENCE) -> Any:
        def details() -> str:
            logs = [process.tail() for process in self.agents]
            return "\n".join([*logs, *installation.last_lines(self.cluster, installation.OPERATOR)])

        return waiting.until(condition, deadline=deadline, what=what, details=details, poll=0.2)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Cluster(folder=tmp_path / "cluster", extra_args={"kube-apiserver": flags(tmp_path)}) as cluster:
        own = Site(cluster, tmp_path)
        yield own
        for process in own.agents:
            process.kill()


@pytest.fixture
def resources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodResourcesServer]:
    with PodResourcesServer(tmp_path_factory.mktemp("k") / "kubelet.sock") as running:
        yield running


def left_by_an_older_agent(site: Site, node: str, uid: str) -> Manifest:
    """Write a Device and a Lease as versions before wrote them, and return their reference."""
    owner: Manifest = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    owner |= {"controller": True, "blockOwnerDeletion": True}
    device = {"apiVersion": names.API_VERSION, "kind": "Device", "metadata": {"name": node, "ownerReferences": [owner]}}
    query = {"fieldManager": names.AGENT, "force": "true"}
    site.api.request(
        "PATCH",
        f"{DEVICES}/{node}",
        body={**device, "spec": {"devices": []}},
        query=query,
        content_type="application/apply-patch+yaml",
    )
    lease = {"metadata": {"name": node, "ownerReferences": [owner]}, "spec": {"holderIdentity": "before"}}
    site.api.post(LEASES, lease)
    return owner


def has_references(site: Site, path: str, owners: list[Manifest]) -> bool:
    return site.api.exists(path) and bool(site.api.get(path)["metadata"].get("ownerReferences") == owners)


def test_everything_works_with_every_plug_in(site: Site, resources: PodResourcesServer) -> None:
    kept = left_by_an_older_agent(site, "node-0", site.uid("node-0"))
    accounts = {node: site.account(node) for node in NODES}
    left_by_an_older_agent(site, "node-1", "00000000-0000-4000-8000-000000000000")
    began = time.monotonic()
    for node, kubeconfig in accounts.items():
        site.agent(node, kubeconfig, resources)
    installation.wait(site.cluster, site.operator, nodes=["node-0"])

    def is_ready(node: str) -> bool:
        conditions = site.api.get(f"{DEVICES}/{node}").get("status", {}).get("conditions", [])
        return ("Ready", "True") in {(each["type"], each["status"]) for each in conditions}

    site.until(lambda: is_ready("node-0"), "a Device that is ready")
    # What stands keeps its owner. What has a wrong one is collected, and the new object does not block the Node.
    new = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": site.uid("node-1"), "controller": True}
    for path in (DEVICES, LEASES):
        assert has_references(site, f"{path}/node-0", [kept])
        site.until(functools.partial(has_references, site, f"{path}/node-1", [new]), f"the new owner in {path}")
    assert time.monotonic() - began < WITHIN
    before = site.api.get(f"{LEASES}/node-0")["spec"]["renewTime"]
    site.until(lambda: site.api.get(f"{LEASES}/node-0")["spec"]["renewTime"] > before, "a renewal")

    # Bindings, Events, conditions, GpuPods and PodGroups.
    site.pod("half", {"kubernetes.io/gpu": "50"})
    site.until(lambda: site.bound("half"), "a pod with a share")
    group = {"apiVersion": names.POD_GROUP_API.removeprefix("/apis/"), "kind": "PodGroup"}
    site.api.apply({**group, "metadata": {"name": "train", "namespace": "default"}, "spec": {"minMember": 2}})
    for number in range(2):
        site.pod(f"train-{number}", {"kubernetes.io/gpu": "100"}, **{names.POD_GROUP_LABEL: "train"})
    site.until(lambda: all(site.bound(f"train-{number}") for number in range(2)), "the gang")
    site.until(lambda: is_ready("node-1"), "the Device that was created again")
    path = f"{names.POD_GROUP_API}/namespaces/default/podgroups/train"
    site.until(lambda: site.api.get(path).get("status", {}).get("scheduled") == 2, "the status of the PodGroup")
    gpu_pods = "/apis/berth.dev/v1alpha1/namespaces/default/gpupods"
    site.until(lambda: len(site.api.get(gpu_pods)["items"]) == 3, "the GpuPods")
    site.pod("waits", {"kubernetes.io/gpu": "1000"})
    site.until(lambda: site.api.get(f"{PODS}/waits").get("status", {}).get("conditions"), "why a pod waits")
    events = "/apis/events.k8s.io/v1/namespaces/default/events"
    site.until(
        lambda: {"Scheduled", "FailedScheduling"} <= {each["reason"] for each in site.api.get(events)["items"]},
        "Events",
    )
    asyncio.run(write_slices(site, accounts["node-0"], kept))
    refused = [line for process in site.agents for line in process.text().splitlines() if FORBIDDEN.search(line)]
    assert refused == []


async def write_slices(site: Site, kubeconfig: Path, owner: Manifest) -> None:
    """Write the slices of a node with the agent's account; an earlier version has left one of them."""
    cards = [
        ListedDevice(name=name, id=name, card=name, place="", attributes={"type": {"string": "gpu"}})
        for name in ("gpu-0", "gpu-1")
    ]
    pool = {"name": "node-0", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": names.DRA_DRIVER, "nodeName": "node-0", "pool": pool, "devices": []}
    metadata = {"name": "before", "labels": {f"{names.DRA_DRIVER}/card": "gpu-0"}, "ownerReferences": [owner]}
    site.api.post(SLICES, {"metadata": metadata, "spec": spec})
    client = client_of(credentials.load(kubeconfig), timeout=10, connections=4)
    nodes = NodeCache(client=client)
    await nodes.refresh(["node-0"])
    publisher = SlicePublisher(client=client, node="node-0", owner=lambda: nodes.owner_reference("node-0"))
    task = asyncio.create_task(publisher.run())
    try:
        publisher.publish(cards)

        def listed() -> set[str]:
            slices = site.api.get(SLICES, fieldSelector="spec.nodeName=node-0")["items"]
            return {device["name"] for one in slices for device in one["spec"].get("devices", [])}

        await waiting.until_async(
            lambda: asyncio.to_thread(lambda: listed() == {"gpu-0", "gpu-1"}),
            what="the slices",
        )
        assert publisher.failure == ""
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        client.close()
