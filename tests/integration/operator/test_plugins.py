"""The example plug-in, installed by pip from its own folder: its devices are published, allocated and released."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster import Arena, Cluster
from devcluster.errors import DevclusterError
from tests.integration.operator.test_debug_api import Door
from tests.integration.operator.test_simulation import Desk
from tests.integration.operator.world import World, allocation, condition, free_ports, minors
from tests.programs import policies

NPU, CORE = "example.com/npu", "example.com/npu-core"
EXAMPLE = Path(__file__).parents[3] / "examples" / "npu"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example into a folder of its own, so that the tests' environment does not have it."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--no-build-isolation", "--target", str(site), str(EXAMPLE)], check=True, timeout=120)
    return site


def plug_in(world: World, site: Path) -> Path:
    """Install the example for the world's programs; return the file from which they read their NPUs."""
    npu_file = world.fleet_file.with_name("npus.json")
    npu_file.write_text("{}")
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    world.processes.environment = {"PYTHONPATH": path, "EXAMPLE_NPUS": str(npu_file)}
    return npu_file


@pytest.fixture(scope="module")
def module_world(cluster: Cluster, site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Start an arena whose operator and agent have the example, for all tests of this module."""
    arena = Arena(cluster=cluster, folder=tmp_path_factory.mktemp("arena"))
    arena.open()
    own = World(arena=arena, folder=arena.folder)
    plug_in(own, site)
    own.agent()
    own.operator()
    yield own
    own.close()
    arena.close()


@pytest.fixture
def npus(shared: World, site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of NPUs, none at first; commands that the test runs have the example, too."""
    npu_file = plug_in(shared, site)
    for name, value in shared.processes.environment.items():
        monkeypatch.setenv(name, value)
    return npu_file


def write(file: Path, **nodes: dict[str, Any]) -> None:
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps(nodes))
    draft.replace(file)


def others(world: World, node: str) -> str:
    return str(world.shown(node).get("status", {}).get("others", ""))


def wait_others(world: World, node: str, text: str) -> None:
    world.wait(lambda: others(world, node) == text, what=f"{text} on {node}; it shows {others(world, node)!r}")


def holders(world: World, node: str) -> dict[int, list[str]]:
    devices = world.shown(node)["status"]["devices"]
    return {
        each["minor"]: [who["name"] for who in each.get("holders", [])] for each in devices if each["type"] == "npu"
    }


def test_npus_are_given_shown_and_given_back(shared: World, npus: Path) -> None:
    (node,) = shared.nodes(gpus=1)
    write(npus, **{node: {"count": 4, "broken": [1]}})
    wait_others(shared, node, "npu 0/4")
    shared.wait_sum(node, NPU, "3")
    shared.pod("two", {NPU: "2"})
    two = shared.bound("two")
    assert minors(two, "npu") == [0, 2]
    assert allocation(two)["npu"][0] == {
        "minor": 0,
        "resources": {"kubernetes.io/npu": "100"},
        "id": f"NPU-{node}-0",
    }
    wait_others(shared, node, "npu 2/4")
    assert holders(shared, node) == {0: ["two"], 1: [], 2: ["two"], 3: []}
    table = shared.arena.cluster.kubectl("get", "devices", node)
    assert "OTHERS" in table
    assert "npu 2/4" in table
    shared.pod("more", {NPU: "2"})
    assert "node(s) have too few free NPUs" in shared.waits("more")
    shared.remove("two")
    assert minors(shared.bound("more"), "npu") == [0, 2]
    shared.remove("more")
    wait_others(shared, node, "npu 0/4")


def test_commands_and_a_replica_that_stands_by_know_them(shared: World, npus: Path, tmp_path: Path) -> None:
    (node,) = shared.nodes(gpus=1)
    write(npus, **{node: {"count": 2}})
    wait_others(shared, node, "npu 0/2")
    shared.pod("one", {NPU: "1"})
    shared.bound("one")
    desk = Desk(shared, tmp_path)
    pods = [shared.arena.pod(name, requests={NPU: "1"}, limits={NPU: "1"}) for name in ("two", "three")]

    for where in (desk.live, ("--snapshot", desk.snapshot())):
        status, report = desk.ask("simulate", "-f", desk.file(*pods), *where)
        two, three = report["pods"]
        assert (status, two["node"], two["devices"]) == (1, node, {"npu": [1]})
        assert three["reason"] == (
            "0/1 nodes are available: 1 node(s) have too few free NPUs (1 requested with npu 100). "
            "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
        )
        assert {each["type"]: each["idle"] for each in report["devices"]}["npu"] == {"before": 1, "after": 0}

    (port,) = free_ports(1)
    shared.operator(debug_port=port, wait=False)
    shown = Door(port).opened().node(node)
    assert shown["deviceFreeDetail"]["npu"] == {"0": {"kubernetes.io/npu": "0"}, "1": {"kubernetes.io/npu": "100"}}
    assert list(shown["allocateSet"]["npu"]) == [f"{shared.arena.namespace}/one"]


def test_shares_of_an_npu_survive_a_restart_next_to_gpus(shared: World, npus: Path) -> None:
    (node,) = shared.nodes(gpus=1)
    write(npus, **{node: {"count": 1}})
    wait_others(shared, node, "npu 0/1")
    shared.pod("half", {CORE: "60", "nvidia.com/gpu": "1"})
    assert {kind: [each["minor"] for each in cards] for kind, cards in allocation(shared.bound("half")).items()} == {
        "gpu": [0],
        "npu": [0],
    }
    for process in shared.processes.started:
        if process.name.startswith("operator") and process.exit_code is None:
            process.kill()
    shared.free_lease()
    shared.operator()
    shared.pod("too-much", {CORE: "50"})
    assert "node(s) have too few free NPUs (1 requested with npu 50)" in shared.waits("too-much")
    shared.pod("rest", {CORE: "40"})
    assert minors(shared.bound("rest"), "npu") == [0]


def test_a_plug_in_that_fails_is_reported_and_leaves_the_gpus_alone(shared: World, npus: Path) -> None:
    (node,) = shared.nodes(gpus=2)
    write(npus, **{node: {"count": 1}})
    wait_others(shared, node, "npu 0/1")
    npus.unlink()
    message = shared.wait_condition(node, "InventoryRead.npu", "False")
    assert "FileNotFoundError" in message
    assert condition(shared.shown(node), "InventoryRead")["status"] == "True"
    shared.pod("none", {NPU: "1"})
    assert "node(s) have too few healthy NPUs (1 requested)" in shared.waits("none")
    shared.pod("gpu", {"nvidia.com/gpu": "2"})
    assert minors(shared.bound("gpu")) == [0, 1]
    write(npus, **{node: {"count": 1}})
    shared.bound("none")


def test_a_plug_in_whose_resources_the_policy_does_not_name_is_reported_and_leaves_the_gpus_alone(
    world: World, site: Path
) -> None:
    plugged = plug_in(world, site)
    world.agent()
    account = world.arena.service_account("berth-operator", "cluster-admin")
    (node,) = world.arena.nodes(1)
    with policies.enforced("limits.yaml", world.arena):
        world.arena.wait(lambda: is_limited(world, account, node), what="the policy to be in force")
        world.operator(kubeconfig=account, node_startup_timeout=600)
        world.fleet[node] = {"profile": "a100"}
        world.change(node, gpus=1)
        write(plugged, **{node: {"count": 2}})
        message = world.wait_condition(node, "ResourcesWritten.npu", "False")
        assert re.match(
            r"ValidatingAdmissionPolicy berth-operator-writes refuses example.com/npu, example.com/npu-core on Nodes, "
            r"so no pod gets them: add each to the chart's value operator.pluginResources, or to plugins in "
            r"manifests/base/limits.yaml \(it answered: 403 Forbidden: .*berth-operator-writes",
            message,
        )
        world.pod("half", {"kubernetes.io/gpu": "50"})
        assert minors(world.bound("half")) == [0]
        world.pod("npu", {NPU: "1"})
        assert world.waits("npu") == (
            "0/1 nodes are available: 1 node(s) do not have example.com/npu (policy berth-operator-writes refuses it: "
            "add it to the chart's value operator.pluginResources, or to plugins in manifests/base/limits.yaml)."
        )
        world.arena.apply(policies.policies("limits.yaml", world.arena, {"plugins": json.dumps([NPU, CORE])}))
        assert minors(world.bound("npu"), "npu") == [0]
        world.wait_condition(node, "ResourcesWritten.npu", "True")


def is_limited(world: World, account: Path, node: str) -> bool:
    """Return whether the policy is in force for the operator's account."""
    try:
        world.arena.cluster.kubectl(f"--kubeconfig={account}", "label", "node", node, "team=a", "--dry-run=server")
    except DevclusterError as error:
        return "berth-operator-writes" in str(error)
    return False
