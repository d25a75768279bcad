"""A real kubelet and containerd on the worker's own control plane, with one node for each test file."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import Arena, Cluster
from devcluster.building import images
from devcluster.real_node import RealNode, obstacle
from tests.conftest import prepare
from tests.programs import released, versions

REQUIRED = "BERTH_REQUIRE_REAL_NODE"
"""Set where a machine without a real node is a mistake, as in CI."""

VERSION = os.environ.get("TEST_NODE_KUBERNETES", versions.OWN)
"""The version of the control plane, such as `1.37`; its programs are built first."""
KUBELET = os.environ.get("TEST_KUBELET", VERSION)
"""The version of kubelet, which may be older."""

REPEAT = int(os.environ.get("BERTH_REPEAT", "1"))
"""How often tests repeat what may go well by chance; `make node-e2e REPEAT=20`, but `make e2e` once."""
repeats = pytest.mark.timeout(240 + 240 * REPEAT)
"""Marks a test that does so."""


@pytest.fixture(scope="session")
def root_on_linux() -> None:
    """What a real node cannot do without; a test that asks for it is skipped elsewhere."""
    _skip_if(obstacle())


@pytest.fixture(scope="session")
def image_archives(root_on_linux: None) -> list[Path]:  # noqa: ARG001 - asked for its skip
    """The OCI archives of operator and agent in the release."""
    return [released.file(f"{image}-*.tar") for image in images.IMAGES]


def _skip_if(reason: str | None) -> None:
    if reason and os.environ.get(REQUIRED):
        pytest.fail(f"{reason}; {REQUIRED} is set")
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Return a control plane that this process owns: its supervisor runs kubelet and containerd."""
    replaced = versions.replaced(VERSION, "kube-apiserver", "kube-controller-manager", "kube-scheduler")
    with Cluster(replaced=replaced) as running:
        prepare(running)
        yield running


@pytest.fixture(scope="module")
def real_node(root_on_linux: None, cluster: Cluster) -> Iterator[RealNode]:  # noqa: ARG001 - asked for its skip
    """A real node in the session's cluster; it goes with the last test of the file."""
    with RealNode(cluster=cluster, replaced=versions.replaced(KUBELET, "kubelet")) as running:
        yield running


@pytest.fixture
def node(real_node: RealNode, arena: Arena) -> Iterator[RealNode]:
    """The real node, in the test's arena; every pod on it goes with the test."""
    arena.merge("nodes", real_node.name, {"metadata": {"labels": arena.labels}})
    yield real_node
    for daemon in ("containerd", "kubelet"):
        if real_node.pid(daemon) is None:
            real_node.start_daemon(daemon)
    real_node.clear()
    # The arena takes with it what has its label.
    arena.merge("nodes", real_node.name, {"metadata": {"labels": dict.fromkeys(arena.labels)}})
