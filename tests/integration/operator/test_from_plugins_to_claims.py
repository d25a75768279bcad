"""The steps of docs/tasks/claims.md: a node gives its cards by name and by claim, then only by claim, and back."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.control_plane.api import ApiError
from tests.integration.operator.test_claims import GROUP
from tests.integration.operator.test_claims_of_pods import CARDS, Claims
from tests.integration.operator.world import World

EXAMPLE = Path(__file__).parents[3] / "manifests/examples/claims/one.yaml"
BY_NAME = {"nvidia.com/gpu": "1"}


@pytest.fixture
def claims(world: World, tmp_path: Path) -> Iterator[Claims]:
    own = Claims(world, tmp_path)
    yield own
    own.driver.withdraw()


def simulated(claims: Claims, file: Path) -> list[dict[str, Any]]:
    """Return what is said of the pods of a file before they are created."""
    arena = claims.world.arena
    options = ("-o", "json", "--config", claims.file, "-n", arena.namespace, "--node-selector", arena.selector)
    command = [sys.executable, "-m", "berth_operator", "simulate", "-f", file, *options]
    done = subprocess.run(
        [*map(str, command), f"--kubeconfig={arena.cluster.kubeconfig}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stderr
    pods: list[dict[str, Any]] = json.loads(done.stdout)["pods"]
    return pods


def test_a_cluster_changes_pod_by_pod_and_back(claims: Claims, tmp_path: Path) -> None:
    world, arena, file = claims.world, claims.world.arena, tmp_path / "one.yaml"
    template, pod = yaml.safe_load_all(EXAMPLE.read_text())
    template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = claims.driver.name
    pod["spec"] |= {"schedulerName": arena.scheduler_name, "nodeSelector": dict([arena.selector.split("=")])}
    file.write_text(yaml.safe_dump_all([template, pod]))
    claims.start()
    for number in range(CARDS - 1):
        world.pod(f"by-name-{number}", BY_NAME)
        world.bound(f"by-name-{number}")
    [expected] = simulated(claims, file)
    assert expected["fits"]
    arena.create([template])
    arena.create([pod])
    world.bound("by-claim")
    assert claims.held() == [each.rpartition("/")[2] for [each] in expected["claims"].values()]
    [refused] = simulated(claims, _renamed(file, "next"))
    assert "cannot allocate all claims" in refused["reason"]
    world.pod("last", BY_NAME)
    world.waits("last", "too few free GPUs")
    world.remove("by-claim")
    world.bound("last")
    assert not claims.held()


def test_a_quota_counts_names_and_claims_of_a_class_that_names_them(claims: Claims) -> None:
    """Kubernetes counts both as `requests.…` only where the class names the resource."""
    world, arena, resource = claims.world, claims.world.arena, f"example.com/{claims.world.arena.id}"
    path = f"{GROUP}/deviceclasses/{claims.driver.name}"
    current = world.api.get(path)
    world.api.request("PUT", path, body={**current, "spec": {**current["spec"], "extendedResourceName": resource}})
    names = (f"requests.{resource}", f"{claims.driver.name}.deviceclass.resource.k8s.io/devices")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "cards"}}
    arena.create([{**quota, "spec": {"hard": dict.fromkeys(names, "2")}}])

    def used() -> list[str]:
        shown = arena.get("resourcequotas", "cards").get("status", {}).get("used", {})
        return [shown.get(name, "") for name in names]

    world.wait(lambda: used() == ["0", "0"], what="the quota to be counted")
    claims.create("one")
    world.wait(lambda: used() == ["1", "1"], what="a claim to be counted under both names")
    world.pod("by-name", {resource: "1"})
    world.wait(lambda: used() == ["2", "1"], what="a pod to be counted by name")
    with pytest.raises(ApiError, match="exceeded quota"):
        claims.create("two")


def _renamed(file: Path, name: str) -> Path:
    template, pod = yaml.safe_load_all(file.read_text())
    pod["metadata"]["name"] = name
    file.write_text(yaml.safe_dump_all([template, pod]))
    return file
