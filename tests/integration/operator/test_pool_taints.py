"""kube-scheduler is kept from Berth's pools of ResourceSlices, where the API server serves DeviceTaintRules."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from devcluster import Arena, Cluster
from tests.conftest import prepare
from tests.integration.operator.test_claims import BY_NAME, CARDS, Driver, holders
from tests.integration.operator.world import World
from tests.resource_claims import NVIDIA_DRIVER

GATE: Final = "--feature-gates=DRADeviceTaintRules=true"
ARGUMENTS: Final = {
    "kube-apiserver": [GATE, "--runtime-config=resource.k8s.io/v1beta2=true"],
    "kube-controller-manager": [GATE],
    "kube-scheduler": [GATE],
}
RULES: Final = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
COMPONENT: Final = Path(__file__).parents[3] / "manifests/components/claims/rbac.yaml"


@pytest.fixture
def tainted(tmp_path: Path) -> Iterator[World]:
    """Return an arena on an API server with DeviceTaintRules."""
    with Cluster(folder=tmp_path / "cluster", extra_args=ARGUMENTS) as running:
        prepare(running)
        arena = Arena(cluster=running, folder=tmp_path)
        arena.open()
        own = World(arena=arena, folder=tmp_path)
        yield own
        own.close()
        # pytest shows the output if the test failed.
        sys.stdout.write(own.processes.tails())


def test_other_schedulers_are_kept_from_the_pools_of_berth(tainted: World, tmp_path: Path) -> None:
    [role, _] = yaml.safe_load_all(COMPONENT.read_text())
    tainted.arena.apply([role])
    ours, theirs = f"{tainted.arena.id}-0", f"{tainted.arena.id}-1"
    file = tmp_path / "berth.yaml"
    configuration = {
        "apiVersion": "config.berth.dev/v1alpha1",
        "kind": "BerthSchedulerConfiguration",
        "profiles": [
            {"schedulerName": tainted.arena.scheduler_name, "plugins": {"filters": {"disabled": ["injected"]}}}
        ],
        "claims": {"pools": [f"{NVIDIA_DRIVER}/{ours}"]},
    }
    file.write_text(yaml.safe_dump(configuration))
    tainted.operator(config=file, scheduler_names=None, taint_own_pools=True)
    tainted.agent()
    assert tainted.nodes(2, gpus=CARDS) == [ours, theirs]
    [rule] = tainted.wait(lambda: tainted.api.get(RULES)["items"], what="the rule")
    assert rule["spec"]["deviceSelector"] == {"driver": NVIDIA_DRIVER, "pool": ours}
    driver = Driver(tainted)
    for node in (ours, theirs):
        driver.lists(node, range(CARDS))
    tainted.wait_condition(theirs, "GivenByName", "False")
    claims = driver.pods(2 * CARDS)
    tainted.pods([f"by-name-{number}" for number in range(2 * CARDS)], BY_NAME)
    tainted.wait(lambda: len(tainted.bound_names()) == 2 * CARDS, what="all cards to be given")
    found = holders(tainted)
    assert {len(pods) for pods in found.values()} == {1}
    assert {node for (node, _), [name] in found.items() if name.startswith(tuple(claims))} == {theirs}
    assert {node for (node, _), [name] in found.items() if name.startswith("by-name")} == {ours}

    tainted.api.delete(f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{role['metadata']['name']}")
    configuration["claims"] = {}
    file.write_text(yaml.safe_dump(configuration))
    tainted.wait(lambda: not tainted.api.get(RULES)["items"], what="the end of the rule")
