"""`make trial` leads to a pod with half a GPU. After the start of the cluster, `make kind` has the same steps.

`make kind-e2e` runs it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from devcluster import Cluster
from devcluster.real_node import RealNode

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 900.0
ENABLED: Final = "BERTH_KIND_STEPS"
UNINSTALL: Final = """eval "$($PYTHON -m devcluster env)"
helm uninstall berth --namespace berth-system
kubectl get pods --namespace berth-system --no-headers"""
"""As the README has it, and what is left."""


@pytest.fixture
def home(root_on_linux: None, tmp_path: Path) -> Iterator[dict[str, str]]:  # noqa: ARG001 - asked for its skip
    """Return an environment in which the cluster is the test's own; it ends with the test."""
    if not os.environ.get(ENABLED):
        pytest.skip("it takes minutes, and the parts have tests of their own: run `make kind-e2e`")
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHON": sys.executable}
    yield environment
    subprocess.run([sys.executable, "-m", "devcluster", "down"], cwd=ROOT, env=environment, check=True)


@pytest.mark.timeout(SECONDS + 120)
def test_steps_of_make_kind_lead_to_a_pod_with_half_a_gpu(home: dict[str, str]) -> None:
    printed = run(["demo/kind.sh", "devcluster"], home)
    header, row, hint = printed.splitlines()[-3:]
    assert header.split() == ["POD", "NODE", "GPU"]
    pod, place, gpu = row.split()
    assert "devcluster down" in hint
    node = RealNode(cluster=Cluster(folder=Path(home["XDG_STATE_HOME"]) / "berth/devcluster/berth")).attach()
    assert (pod, place) == ("first", node.name)
    container = node.container(node.cluster.api.get("/api/v1/namespaces/default/pods/first"))
    assert container.environment["NVIDIA_VISIBLE_DEVICES"] == gpu
    assert run(["bash", "-euc", UNINSTALL], home).splitlines() == ['release "berth" uninstalled']
    assert node.container(node.cluster.api.get("/api/v1/namespaces/default/pods/first")) == container
    node.cluster.api.close()


def run(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a command to its end; return what it prints."""
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
