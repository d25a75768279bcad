"""The steps of `make kind` after the creation of its cluster, on a real node: images, chart, GPUs and the first pod.

`make kind-e2e` runs it.
"""

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from devcluster import Cluster, images, programs
from devcluster.real_node import RealNode
from tests.integration.operator.world import free_ports

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 600.0
ENABLED: Final = "BERTH_KIND_STEPS"


@pytest.fixture
def own_node(root_on_linux: None) -> Iterator[RealNode]:  # noqa: ARG001 - asked for its skip
    """A real node in a cluster of its own: the names of the chart belong to the whole cluster."""
    if not os.environ.get(ENABLED):
        pytest.skip("it takes half a minute, and the parts have tests of their own: run `make kind-e2e`")
    with Cluster() as cluster, RealNode(cluster=cluster) as running:
        yield running


def test_steps_of_make_kind_lead_to_a_pod_with_half_a_gpu(own_node: RealNode, tmp_path: Path) -> None:
    done = subprocess.run(
        ["demo/kind.sh", "steps"],
        cwd=ROOT,
        env={**os.environ, **_environment(own_node, tmp_path)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    header, row = done.stdout.splitlines()[-2:]
    assert header.split() == ["POD", "NODE", "GPU"]
    name, place, gpu = row.split()
    assert (name, place) == ("first", own_node.name)
    container = own_node.container(own_node.cluster.api.get("/api/v1/namespaces/default/pods/first"))
    assert container.environment["NVIDIA_VISIBLE_DEVICES"] == gpu


def _environment(node: RealNode, folder: Path) -> dict[str, str]:
    for name in images.IMAGES:
        (folder / f"{name}.tar").symlink_to(images.archive(name))
    enter = shlex.join(node._entering(node.setup.ctr("images", "import")))
    load = folder / "load"
    load.write_text(f'#!/bin/sh\nname=${{1##*/}}\nexec {enter} {folder}/"${{name%:*}}.tar"\n')
    load.chmod(0o700)
    paths = programs.ensure(("kubectl", "helm")).values()
    return {
        "KUBECONFIG": str(node.cluster.kubeconfig),
        "PATH": ":".join([*(str(path.parent) for path in paths), os.environ["PATH"]]),
        "LOAD": str(load),
        "VALUES": " ".join(f"--set={name}={value}" for name, value in _values(node).items()),
    }


def _values(node: RealNode) -> dict[str, object]:
    """Return what the chart has to know of this machine: its pods use the machine's network, because they have none."""
    address = urlsplit(node.cluster.server)
    health, metrics = free_ports(2)
    return {
        "apiServer.host": address.hostname,
        "apiServer.port": address.port,
        "operator.hostNetwork": "true",
        "operator.healthPort": health,
        "operator.metricsPort": metrics,
        "operator.extraArgs[0]": "--debug-port=0",
        "agent.hostNetwork": "true",
        "agent.metricsPort": 0,
    }
