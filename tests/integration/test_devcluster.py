"""The development cluster behaves like a cluster, and leaves no process behind.

tests/node/test_clean_up.py kills the owner and the supervisor of a cluster.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from devcluster import Arena, Cluster, DevclusterError, waiting
from devcluster.control_plane.api import ApiError
from devcluster.processes import state
from tests.harness import leftovers
from tests.programs import shared_cluster

COMPONENTS = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"}


def test_pod_on_a_fake_node_runs_and_goes(arena: Arena) -> None:
    arena.nodes(2)
    arena.create([arena.pod("web", scheduler_name="default-scheduler", nodeSelector=arena.labels)])
    arena.wait(lambda: arena.get("pods", "web")["status"]["phase"] == "Running", what="the pod to run")

    arena.delete("pods", "web")

    arena.wait(lambda: not arena.list("pods"), what="the pod to go")


def test_what_a_test_leaves_in_the_whole_cluster_is_found(cluster: Cluster, arena: Arena) -> None:
    """A namespace is left until it is asked to end; the controllers may take minutes over its end."""
    api, name = cluster.api, f"left-{arena.id}"
    namespace = {"metadata": {"name": name, "finalizers": ["example.com/stays"]}}
    before = set(api.shared)
    api.request("POST", "/api/v1/namespaces", body=namespace, query={"dryRun": "All"})
    assert api.shared == before
    api.post("/api/v1/namespaces", namespace)
    left = api.shared - before
    assert left == {f"/api/v1/namespaces/{name}"}
    with pytest.raises(pytest.fail.Exception, match=name):
        leftovers.expect_gone(cluster, left, 0)

    api.delete(f"/api/v1/namespaces/{name}")

    leftovers.expect_gone(cluster, left, 0)
    assert api.shared == before
    api.merge(f"/api/v1/namespaces/{name}", {"metadata": {"finalizers": None}})


def test_owned_objects_go_with_their_owner(arena: Arena) -> None:
    arena.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: owner}}")
    owner = arena.get("configmaps", "owner")["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    owned = {"name": "owned", "ownerReferences": [reference]}
    arena.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": owned})

    arena.delete("configmaps", "owner")

    arena.wait(lambda: "owned" not in _names(arena, "configmaps"), what="the garbage collector")


def test_node_status_belongs_to_the_test_once_it_is_ready(arena: Arena) -> None:
    [node] = arena.nodes(1, capacity={"example.com/thing": "3"})
    down = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Broken"}]}}

    arena.merge("nodes", node, down, subresource="status")

    taint = "node.kubernetes.io/not-ready"
    arena.wait(lambda: taint in _taints(arena, node), what="the node lifecycle controller")
    assert arena.get("nodes", node)["status"]["allocatable"]["example.com/thing"] == "3"


def test_node_made_with_kubectl_becomes_ready(arena: Arena, cluster: Cluster) -> None:
    metadata = {"name": f"{arena.id}-plain", "labels": arena.labels, "annotations": {"kwok.x-k8s.io/node": "fake"}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}

    cluster.kubectl("create", "-f", "-", input=json.dumps(node))

    ready = ["wait", "node", "-l", arena.selector, "--for=condition=Ready", "--timeout=10s"]
    assert "condition met" in cluster.kubectl(*ready)


def test_kubectl_tells_what_failed(cluster: Cluster) -> None:
    with pytest.raises(DevclusterError, match=r'namespaces "nowhere" not found'):
        cluster.kubectl("get", "namespace", "nowhere")


def test_service_account_has_the_rights_of_its_role_only(arena: Arena, cluster: Cluster) -> None:
    kubeconfig = arena.service_account("reader", "view")

    assert kubeconfig.stat().st_mode & 0o777 == 0o600
    assert cluster.kubectl(f"--kubeconfig={kubeconfig}", "auth", "can-i", "list", "pods") == "yes\n"
    with pytest.raises(DevclusterError, match=r"can-i delete pods: no$"):
        cluster.kubectl(f"--kubeconfig={kubeconfig}", "auth", "can-i", "delete", "pods")


def test_closed_arena_leaves_no_nodes_bindings_or_pods(cluster: Cluster, tmp_path: Path) -> None:
    arena = Arena(cluster=cluster, folder=tmp_path)
    arena.open()
    arena.nodes(1)
    arena.create([arena.pod("waits")])
    arena.service_account("reader", "view")

    arena.close()

    assert arena.list("pods") == []
    assert arena.list("nodes", labelSelector=arena.selector) == []
    assert arena.list("clusterrolebindings", labelSelector=arena.selector) == []


def test_everything_listens_on_loopback(cluster: Cluster) -> None:
    pids = _processes(cluster.folder)
    # Other tests of the session may have had a real node, whose processes have ended.
    inodes = {inode for name in COMPONENTS for inode in _sockets(pids[name])}
    addresses = [address for inode, address in _listening() if inode in inodes]

    assert len(addresses) >= 3
    assert {address.rpartition(":")[0] for address in addresses} == {"0100007F"}


def test_second_cluster_lives_beside_the_first_and_takes_with_it_what_ran_in_it(cluster: Cluster) -> None:
    with Cluster() as other:
        assert other.server != cluster.server
        assert other.folder != cluster.folder
        other.create_nodes(["only-here"])
        with pytest.raises(ApiError, match="NotFound"):
            cluster.api.get("/api/v1/nodes/only-here")
        sleeper = _run_sleeper(other)
        pids = _processes(other.folder)

    assert set(pids) == COMPONENTS | {"sleeper"}
    assert pids["sleeper"] == sleeper
    assert not any(state.is_alive(pid) for pid in pids.values())
    assert not other.folder.exists()


def _run_sleeper(cluster: Cluster) -> int:
    """Run a program in a cluster, which has the administrator's KUBECONFIG and runs once; return its process id."""
    script = "import os, time; print(os.environ['KUBECONFIG'], flush=True); time.sleep(600)"
    pid = cluster.run("sleeper", [sys.executable, "-c", script])
    log = cluster.folder / "sleeper.log"
    # An unbuffered Python writes the end of the line by itself.
    waiting.until(lambda: log.read_text() == f"{cluster.kubeconfig}\n", what="the program's output")
    with pytest.raises(DevclusterError, match="sleeper already runs"):
        cluster.run("sleeper", [sys.executable, "-c", script])
    return pid


def test_shared_cluster_is_started_once_and_ends_with_its_last_user(tmp_path: Path) -> None:
    prepared: list[Cluster] = []
    with shared_cluster.opened(tmp_path, prepare=prepared.append) as second:
        with shared_cluster.opened(tmp_path, prepare=prepared.append) as first:
            assert first.server == second.server
        assert second.api.is_ready()
        pids = _processes(second.folder)

    assert len(prepared) == 1
    waiting.until(lambda: not second.folder.exists(), what="the end of the supervisor, and of the data folder with it")
    assert not any(state.is_alive(pid) for pid in pids.values())


def test_failed_start_tells_the_last_lines_of_the_log() -> None:
    broken = Cluster(extra_args={"kube-apiserver": ["--no-such-flag"]})

    with pytest.raises(DevclusterError, match=r"kube-apiserver ended with code 1(.|\n)*unknown flag: --no-such-flag"):
        broken.start()

    assert not broken.folder.exists()


def test_named_cluster_comes_and_goes(tmp_path: Path) -> None:
    command = _CommandLine(tmp_path)
    try:
        assert "round is ready: https://127.0.0.1:" in command("up", "--name", "round")
        assert "already runs" in command("up", "--name", "round", status=1)
        assert "kube-scheduler" in command("status")
        lines = command("env", "--name", "round")
        use = ["sh", "-c", f"{lines}\nkubectl get namespace default -o name"]
        assert subprocess.run(use, capture_output=True, text=True, check=True).stdout == "namespace/default\n"
        pids = _processes(tmp_path / "berth" / "devcluster" / "round")
    finally:
        gone = command("down", "--name", "round")

    assert gone == "round is gone\n"
    assert not any(state.is_alive(pid) for pid in pids.values())
    assert "there is no cluster round" in command("down", "--name", "round", status=1)


class _CommandLine:
    """`python -m devcluster` with a state folder of the test's own."""

    def __init__(self, state_home: Path) -> None:
        # Wide enough that no table cell is wrapped.
        self._environment = {**os.environ, "XDG_STATE_HOME": str(state_home), "COLUMNS": "200"}

    def __call__(self, *args: str, status: int = 0) -> str:
        command = [sys.executable, "-m", "devcluster", *args]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr


def _processes(folder: Path) -> Mapping[str, int]:
    processes = state.read(folder)
    assert processes is not None
    return processes.processes


def _names(arena: Arena, resource: str) -> set[str]:
    return {item["metadata"]["name"] for item in arena.list(resource)}


def _taints(arena: Arena, node: str) -> set[str]:
    return {taint["key"] for taint in arena.get("nodes", node)["spec"].get("taints", [])}


def _sockets(pid: int) -> set[str]:
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        # A descriptor may have been closed since it was listed.
        with suppress(FileNotFoundError):
            links.append(str(entry.readlink()))
    return {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:")}


def _listening() -> list[tuple[str, str]]:
    """Return inode and local address of every listening TCP socket, with addresses in the kernel's hexadecimal."""
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()]
    return [(row[9], row[1]) for row in rows if row[3] == "0A"]
