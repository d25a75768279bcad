"""A real node runs pods as Kubernetes promises, whichever of its daemons ends meanwhile."""

import pytest

from devcluster import Arena, Cluster, DevclusterError
from devcluster.control_plane import nodes
from devcluster.real_node import RealNode
from devcluster.real_node.node import Daemon
from tests.node.boxes import box, running

VISIBLE = "main.devices.berth.dev/visible"


def test_annotation_is_in_the_environment(arena: Arena, node: RealNode) -> None:
    pod = box(
        arena,
        words=["env", "wait"],
        annotations={VISIBLE: "GPU-1,GPU-2"},
        environment={"NVIDIA_VISIBLE_DEVICES": f"metadata.annotations['{VISIBLE}']"},
        scheduler_name="default-scheduler",
        nodeSelector=arena.labels,
    )

    arena.create([pod])

    ready = running(arena)
    assert ready["spec"]["nodeName"] == node.name
    assert node.container(ready).environment["NVIDIA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    arena.wait(lambda: "NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-2\n" in node.output(ready), what="the output")


@pytest.mark.parametrize(
    ("daemon", "end"),
    [("kubelet", RealNode.kill_daemon), ("containerd", RealNode.stop_daemon)],
    ids=["kubelet", "containerd"],
)
def test_container_outlives_a_daemon(arena: Arena, node: RealNode, daemon: Daemon, end: object) -> None:
    assert callable(end)
    arena.create([box(arena, "before", nodeName=node.name)])
    before = node.container(running(arena, "before"))
    started = before.started
    old = node.pid(daemon)

    end(node, daemon)
    assert node.pid(daemon) is None
    node.start_daemon(daemon)

    arena.create([box(arena, "after", nodeName=node.name)])
    running(arena, "after")
    assert node.pid(daemon) != old
    assert node.container(running(arena, "before")) == before
    assert before.started == started


def test_node_has_the_rights_of_a_node(cluster: Cluster, node: RealNode) -> None:
    kubeconfig = f"--kubeconfig={node.folder / 'kubeconfig'}"

    assert cluster.kubectl(kubeconfig, "get", "node", node.name, "-o", "name") == f"node/{node.name}\n"
    with pytest.raises(DevclusterError, match="Forbidden"):
        cluster.kubectl(kubeconfig, "get", "secrets", "-A")


def test_kwok_leaves_it_alone(cluster: Cluster, node: RealNode) -> None:
    live_node = cluster.api.get(f"/api/v1/nodes/{node.name}")

    assert nodes.is_ready(live_node)
    assert "kwok.x-k8s.io/node" not in live_node["metadata"]["annotations"]
    assert live_node["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.36.")
    assert live_node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://2.")
