"""The cluster of upstream's e2e tests: real nodes, each in its own zone, and kube-scheduler or Berth."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from devcluster import Cluster, waiting
from devcluster.control_plane.api import Manifest
from devcluster.errors import DevclusterError
from devcluster.processes import state
from devcluster.real_node import RealNode, image, tools
from tests.upstream import berth

API_SERVER: Final = "kube-apiserver"
SCHEDULER: Final = "kube-scheduler"
COMPONENTS: Final = (API_SERVER, "kube-controller-manager", SCHEDULER)
"""What has the version of the tests; kubelet has that of devcluster."""
NODES: Final = ("node-a", "node-b", "node-c")
ZONE: Final = "topology.kubernetes.io/zone"
IMAGES: Final = ("pause", "agnhost", "busybox")
SHELL: Final = "bin/sh"
GATE: Final = "--feature-gates=GenericWorkload=true"
SYSTEM_PODS: Final = "/api/v1/namespaces/kube-system/pods"
WORKLOADS: Final = {"kube-apiserver": "v1alpha2", "kube-apiserver-1.37": "v1beta1"}
"""The version of the API of workloads that the tests of an API server's version use."""


@contextlib.contextmanager
def running(api_server: str, tests: Path, logs: Path, *, with_berth: bool, has_workloads: bool) -> Iterator[Cluster]:
    """Run a cluster for a program of tests, with an API server of devcluster's programs.

    Raises:
        DevclusterError: there can be no real node here.
    """
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(_control_plane(api_server, has_workloads=has_workloads))
        if with_berth:
            _stop_kube_scheduler(cluster)
        archives = _archives(_images(tests), Path(stack.enter_context(tempfile.TemporaryDirectory())))
        for name in NODES:
            node = stack.enter_context(RealNode(cluster=cluster, name=name, labels={ZONE: name}))
            node.import_images(*archives)
            cluster.api.post(SYSTEM_PODS, _system_pod(name))
        if with_berth:
            stack.enter_context(berth.running(cluster.kubeconfig, logs))
        yield cluster


def _control_plane(api_server: str, *, has_workloads: bool) -> Cluster:
    version = api_server.removeprefix(API_SERVER)
    return Cluster(
        replaced={name: f"{name}{version}" for name in COMPONENTS},
        extra_args=_workloads(WORKLOADS[api_server]) if has_workloads else {},
    )


def _workloads(version: str) -> Mapping[str, Sequence[str]]:
    served = [f"--runtime-config=scheduling.k8s.io/{version}=true"]
    return {name: [GATE, *(served if name == API_SERVER else ())] for name in COMPONENTS}


def _stop_kube_scheduler(cluster: Cluster) -> None:
    running = state.read(cluster.folder)
    if running is None:
        raise DevclusterError("the cluster does not run")
    pid = running.processes[SCHEDULER]
    os.kill(pid, signal.SIGTERM)
    waiting.until(lambda: not state.is_alive(pid), what="the end of kube-scheduler")


def _system_pod(node: str) -> Manifest:
    """Return a pod with the names of those that the tests expect on each node; they wait a minute for them."""
    container = {"name": "main", "image": image.NAME, "imagePullPolicy": "Never"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"kube-proxy-fluentd-elasticsearch-node-problem-detector-{node}"},
        "spec": {"nodeName": node, "containers": [container]},
    }


def _images(tests: Path) -> list[str]:
    """Return the names of the images that the tests of scheduling run."""
    listed = subprocess.run([tests, "--list-images"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [name for name in listed.split() if name.rpartition("/")[2].partition(":")[0] in IMAGES]


def _archives(images: Sequence[str], folder: Path) -> list[Path]:
    """Write images whose programs, and whose shell, only wait."""
    program = tools.ensure() / "stand-in"
    archives = []
    for number, name in enumerate(images):
        archives.append(folder / f"{number}.tar")
        image.write(archives[-1], program=program, name=name, libraries={SHELL: program.read_bytes()})
    return archives
