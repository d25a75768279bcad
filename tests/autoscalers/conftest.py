"""A cluster with Berth and Karpenter, which adds and removes nodes: `make autoscaler-e2e`."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from devcluster import Arena, Cluster
from devcluster.additions import karpenter
from devcluster.additions.instances import InstanceType
from tests.autoscalers.scaled import Scaled
from tests.programs.processes import Processes

ROOT: Final = Path(__file__).parents[2]
ENABLED: Final = "BERTH_AUTOSCALERS"
TYPES: Final = (
    InstanceType(name="g6.12xlarge", profile="l4", gpus=4, cpu="48", memory="192Gi", price=4.6),
    InstanceType(name="p4de.24xlarge", profile="a100", gpus=8, cpu="96", memory="1152Gi", price=40.97),
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster with Berth's operator, Karpenter and the pools of the example, without any node."""
    if not os.environ.get(ENABLED):
        pytest.skip("building Karpenter takes minutes: run `make autoscaler-e2e`")
    folder = tmp_path_factory.mktemp("autoscalers")
    with Cluster(folder=folder / "cluster", keep=True) as cluster:
        cluster.install_crds(ROOT / "crds")
        cluster.play_device_plugins()
        karpenter.start(cluster, types=TYPES)
        cluster.api.apply(karpenter.NODE_CLASS)
        for manifest in yaml.safe_load_all((ROOT / "manifests/examples/autoscalers/karpenter.yaml").read_text()):
            cluster.api.apply(with_kwok(manifest))
        arena = Arena(cluster=cluster, folder=folder)
        arena.open()
        processes = Processes(arena=arena, folder=folder)
        processes.operator(scheduler_names="berth-scheduler", node_selector=None, node_startup_timeout=600)
        yield cluster
        processes.close()


def with_kwok(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return an object of the example for Karpenter's provider for kwok instead of that for AWS."""
    if manifest["kind"] == "NodePool":
        manifest["spec"]["template"]["spec"]["nodeClassRef"] = karpenter.NODE_CLASS_REF
    return manifest


@pytest.fixture
def scaled(running: Cluster, tmp_path: Path) -> Iterator[Scaled]:
    """Return a namespace of the test's own; its nodes are removed at the end."""
    arena = Arena(cluster=running, folder=tmp_path)
    arena.open()
    own = Scaled(arena)
    yield own
    own.clear()
    arena.close()
