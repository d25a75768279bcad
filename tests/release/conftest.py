"""Releases of the chart on clusters of their own, whose API server has a version of Kubernetes."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import Cluster
from tests.release.site import Site

OWN = "1.36"
"""The version of the development cluster."""
REQUESTED = os.environ.get("TEST_KUBERNETES", "").split()


@pytest.fixture
def version(request: pytest.FixtureRequest) -> str:
    """Return the version of Kubernetes that a test is for; others than the requested ones are skipped."""
    wanted: str = getattr(request, "param", OWN)
    if wanted not in REQUESTED:
        pytest.skip(f"TEST_KUBERNETES does not request {wanted} (make chart-e2e, make test-versions)")
    return wanted


@pytest.fixture
def api_server_flags() -> list[str]:
    """Return more flags of the API server; modules of tests override it."""
    return []


@pytest.fixture
def site(version: str, tmp_path: Path, helm: Path, api_server_flags: list[str]) -> Iterator[Site]:
    """Start a cluster with two nodes, into which the test installs Berth."""
    replaced = {} if version == OWN else {"kube-apiserver": f"kube-apiserver-{version}"}
    with Cluster(replaced=replaced, extra_args={"kube-apiserver": api_server_flags}) as cluster:
        assert cluster.api.get("/version")["minor"] == version.partition(".")[2]
        cluster.create_nodes(["node-0", "node-1"])
        own = Site(cluster=cluster, folder=tmp_path, helm=helm)
        yield own
        sys.stdout.write(own.tails())
        own.stop()
