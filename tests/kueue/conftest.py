"""A cluster with Berth and Kueue: `make kueue-e2e`."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from devcluster import Cluster, waiting
from devcluster.additions import fleet, installation, kueue
from tests.kueue.team import Team, apply_queues

ENABLED: Final = "BERTH_KUEUE"


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster with Kueue as it is configured for hard quotas, and the controllers whose workloads it holds."""
    with started(tmp_path_factory.mktemp("kueue"), neighbours=True) as cluster:
        yield cluster


@contextlib.contextmanager
def started(folder: Path, **options: Any) -> Iterator[Cluster]:
    """Start a cluster with two nodes of four A100, Berth as it is shipped, Kueue, and the quotas of the example.

    Args:
        folder: where it keeps its files.
        options: those of `kueue.start`.
    """
    if not os.environ.get(ENABLED):
        pytest.skip("building Kueue takes minutes: run `make kueue-e2e`")
    with Cluster(folder=folder / "cluster", keep=True) as cluster:
        installation.apply(cluster)
        kueue.apply_component(cluster)
        operator = installation.start(cluster, "--kueue")
        nodes = fleet.start(cluster, fleet.generated(cluster, count=2, gpus=4, profile="a100"))
        kueue.start(cluster, **options)
        apply_queues(cluster, "quotas")
        installation.wait(cluster, operator, nodes=nodes)
        waiting.until(lambda: are_active(cluster), deadline=60.0, what="the LocalQueues")
        yield cluster


def are_active(cluster: Cluster) -> bool:
    """Return whether Kueue knows all LocalQueues: before, workloads that name none get none."""
    queues = cluster.api.get("/apis/kueue.x-k8s.io/v1beta2/localqueues")["items"]
    conditions = [each for queue in queues for each in queue.get("status", {}).get("conditions", ())]
    active = [each for each in conditions if each["type"] == "Active" and each["status"] == "True"]
    return len(active) == len(queues)


@pytest.fixture
def unchecked(running: Cluster) -> Iterator[None]:
    """Take the AdmissionCheck off the queues, so that Kueue admits by quota alone."""
    path = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues"
    before = {each["metadata"]["name"]: each["spec"] for each in running.api.get(path)["items"]}
    for name in before:
        running.api.merge(f"{path}/{name}", {"spec": {"admissionChecksStrategy": None}})
    yield
    for name, spec in before.items():
        strategy = spec.get("admissionChecksStrategy")
        running.api.merge(f"{path}/{name}", {"spec": {"admissionChecksStrategy": strategy}})


@pytest.fixture
def team_a(running: Cluster) -> Iterator[Team]:
    """Return the first team of the example, without any workload."""
    team = Team(running, "team-a")
    yield team
    team.clear()


@pytest.fixture
def team_b(running: Cluster) -> Iterator[Team]:
    """Return the second team, which has no quota for memory by bytes."""
    team = Team(running, "team-b")
    yield team
    team.clear()
