"""Releases of the chart, each on its own cluster, whose API server has a certain version of Kubernetes."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import Cluster
from tests.programs import versions
from tests.release.site import Site


@pytest.fixture
def version(request: pytest.FixtureRequest) -> str:
    """Return the version of Kubernetes that a test is for; others than the requested ones are skipped."""
    wanted: str = getattr(request, "param", versions.OWN)
    versions.skip_unless(wanted)
    return wanted


@pytest.fixture
def api_server_flags() -> list[str]:
    """Return more flags of the API server; modules of tests override it."""
    return []


@pytest.fixture
def site(version: str, tmp_path: Path, helm: Path, api_server_flags: list[str]) -> Iterator[Site]:
    """Start a cluster with two nodes, into which the test installs Berth."""
    programs = versions.replaced(version, "kube-apiserver")
    with Cluster(replaced=programs, extra_args={"kube-apiserver": api_server_flags}) as cluster:
        assert cluster.api.get("/version")["minor"] == version.partition(".")[2]
        cluster.create_nodes(["node-0", "node-1"])
        own = Site(cluster=cluster, folder=tmp_path, helm=helm)
        yield own
        sys.stdout.write(own.tails())
        own.stop()
