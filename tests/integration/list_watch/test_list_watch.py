"""The list and watch API through the real aggregator: kubectl, access, other replicas, and restarts."""

import json
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pytest
import yaml

from devcluster import waiting
from devcluster.building import programs
from devcluster.control_plane.api import ApiError, Manifest
from tests.integration.list_watch.conftest import API, Installation

PODS = f"{API}/gpupods"
NODES = f"{API}/gpunodes"
WHOLE = {"kubernetes.io/gpu": "100"}
FRONT_PROXY = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
FORGED = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}


@pytest.fixture
def watch(installation: Installation) -> Iterator[subprocess.Popen[str]]:
    """Start kubectl with a watch of all GpuPods."""
    kubectl = str(programs.ensure(["kubectl"])["kubectl"])
    command = [kubectl, f"--kubeconfig={installation.arena.cluster.kubeconfig}", "get", "--raw", f"{PODS}?watch=true"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        yield running
        running.kill()


def shown(frame: str) -> tuple[str, str, list[str]]:
    """Return type, name and devices of a frame."""
    event = json.loads(frame)
    containers = event["object"]["spec"]["containers_device"]
    devices = [each["device_id"] for container in containers for each in container["device_info"]]
    return event["type"], event["object"]["metadata"]["name"], devices


def test_kubectl_watches_additions_changes_and_deletions(
    installation: Installation, watch: subprocess.Popen[str]
) -> None:
    assert watch.stdout is not None
    created = installation.gpu_pod("a", "GPU-0")
    first = watch.stdout.readline()
    assert json.loads(first)["object"]["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
    installation.gpu_pod("a", "GPU-0", "GPU-1")
    installation.delete_gpu_pod("a")
    assert [shown(line) for line in (first, watch.stdout.readline(), watch.stdout.readline())] == [
        ("ADDED", "a", ["GPU-0"]),
        ("MODIFIED", "a", ["GPU-0", "GPU-1"]),
        ("DELETED", "a", ["GPU-0", "GPU-1"]),
    ]


def test_kubectl_prints_tables_and_knows_the_fields(installation: Installation) -> None:
    kubectl, world = installation.arena.cluster.kubectl, installation.world
    [node] = installation.arena.nodes(1)
    world.device(node, [CARD])

    def is_discovered() -> bool:
        return "GpuNode" in kubectl("api-resources", "--api-group=nvidia-gpu-scheduler", "--cached=false")

    waiting.until(is_discovered, what="discovery")
    header, row = kubectl("get", "gpunodes.nvidia-gpu-scheduler", node).splitlines()
    assert header.split() == ["NAME", "HEALTH", "GPUS", "BUSY", "MODELS", "CREATED", "AT"]
    assert (row.split()[0], row.split()[2], "tesla t4" in row) == (node, "1", True)
    installation.gpu_pod("table", "GPU-t4")
    # The short name still means Berth's own kind.
    assert "CONSISTENT" in kubectl("get", "gpupods", "-A")
    installation.delete_gpu_pod("table")
    assert "device_busid" in kubectl("explain", "gpunodes.spec.device_infos", "--api-version=nvidia-gpu-scheduler/v1")


CARD: Manifest = {"type": "gpu", "minor": 0, "id": "GPU-t4", "health": True, "model": "Tesla T4"}


# --- access -----------------------------------------------------------------------------------------------------


def test_only_who_may_gets_an_answer(installation: Installation) -> None:
    arena, cluster = installation.arena, installation.arena.cluster
    mine = f"{API}/namespaces/{arena.namespace}/gpupods"
    kubeconfig = arena.service_account("reader", "system:basic-user")
    token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
    user = f"system:serviceaccount:{arena.namespace}:reader"
    headers = {"Authorization": f"Bearer {token}"}
    replica = installation.replicas[0]

    def may(*scope: str) -> bool:
        question = ("auth", "can-i", "watch", "gpupods.nvidia-gpu-scheduler", f"--as={user}", *scope)
        command = [str(programs.ensure(["kubectl"])["kubectl"]), f"--kubeconfig={cluster.kubeconfig}", *question]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == "yes"

    def through_the_api_server(path: str, sent: dict[str, str]) -> int:
        return status(cluster.server, cluster.ca_file, path, sent)

    # Before the role is bound nothing is allowed, and afterwards only in its namespace.
    assert not may(f"--namespace={arena.namespace}")
    assert [through_the_api_server(path, headers) for path in (mine, PODS, NODES)] == [403, 403, 403]
    assert [replica.get(path, headers)[0] for path in (PODS, NODES)] == [403, 403]
    binding = {
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "berth-api-view"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": arena.namespace}],
    }
    installation.api.post(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{arena.namespace}/rolebindings", binding)
    waiting.until(lambda: may(f"--namespace={arena.namespace}"), what="the role to be bound")
    assert not may("--all-namespaces")
    assert [through_the_api_server(path, headers) for path in (mine, PODS, NODES)] == [200, 403, 403]
    assert [replica.get(path, headers)[0] for path in (mine, PODS)] == [200, 403]

    # Unknown users, and headers that only the API server may send.
    bad = {"Authorization": "Bearer bad"}
    assert [through_the_api_server(PODS, sent) for sent in ({}, FORGED, bad)] == [403, 403, 401]
    for sent in ({}, FORGED, bad):
        code, [body] = replica.get(PODS, sent)
        assert (code, body["kind"], body["reason"]) == (401, "Status", "Unauthorized")
    assert replica.get(PODS, {**headers, **FORGED})[0] == 403


def status(server: str, ca_file: Any, path: str, headers: dict[str, str]) -> int:
    request = urllib.request.Request(server + path, headers=headers)  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=str(ca_file))) as response:  # noqa: S310
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_other_names_of_the_front_proxy_are_used_soon(installation: Installation) -> None:
    names = '["front-proxy-client", "another"]'
    installation.api.merge(FRONT_PROXY, {"data": {"requestheader-allowed-names": names}})

    def all_serve_again() -> bool:
        return all(replica.process.text().count("API served") > 1 for replica in installation.replicas)

    waiting.until(all_serve_again, what="the replicas to serve again")
    waiting.until(installation.is_available, what="the replica to be used")


# --- replicas and restarts --------------------------------------------------------------------------------------


def test_a_watch_continues_on_another_replica(installation: Installation) -> None:
    first, second = installation.replicas
    headers = {"Authorization": f"Bearer {installation.arena.cluster.token}"}
    installation.gpu_pod("a", "GPU-0")

    def listed() -> Manifest:
        body: Manifest = first.get(PODS, headers)[1][0]
        return body if body["items"] else {}

    version = waiting.until(listed, what="the first replica's list")["metadata"]["resourceVersion"]
    installation.gpu_pod("b", "GPU-1")
    installation.gpu_pod("a", "GPU-2")
    installation.delete_gpu_pod("b")
    expected = [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    query = f"?watch=true&resourceVersion={version}"
    frames = [replica.get(PODS + query, headers, lines=3)[1] for replica in (first, second)]
    assert frames[0] == frames[1]
    assert named(frames[1]) == expected
    # The same by the API server, which now passes on to the second.
    first.process.stop()
    installation.pass_on_to(second)
    waiting.until(installation.is_available, what="the second replica to be used")
    assert named(islice(installation.api.watch(PODS, version=version, seconds=60), 3)) == expected
    with pytest.raises(ApiError, match="too old resource version") as caught:
        list(installation.api.watch(PODS, version="1", seconds=60))
    assert caught.value.status == 410
    installation.delete_gpu_pod("a")


def named(frames: Iterable[Manifest]) -> list[tuple[str, str]]:
    """Return type and name of each frame."""
    return [(frame["type"], frame["object"]["metadata"]["name"]) for frame in frames]


def test_data_are_right_soon_after_any_restart(installation: Installation) -> None:
    world, replica = installation.world, installation.replicas[1]
    [node] = world.nodes(1, gpus=2)

    def busy() -> int:
        """Return the number of busy devices; -1 while the node is not shown as healthy, or no replica answers."""
        try:
            seen = installation.api.get(f"{NODES}/{node}")
        except ApiError:
            return -1
        return len(seen["spec"]["device_busy"]) if seen["status"]["health"] == "True" else -1

    def becomes(count: int) -> None:
        waiting.until(lambda: busy() == count, what=f"{count} busy devices", poll=0.02)

    installation.pass_on_to(replica)
    becomes(0)
    world.pod("one", WHOLE)
    becomes(1)
    # All at once; meanwhile the state changes.
    replica.process.kill()
    installation.operator.stop()
    installation.agent.stop()
    world.arena.delete("pods", "one", grace_seconds=0)
    world.operator(wait=False)
    world.agent()
    replica.process = installation.start(replica.port)
    becomes(0)
    world.pods(["two", "three"], WHOLE)
    becomes(2)
