"""Other clients write the Device of a node: no card is given wrongly, and what the agent found comes back."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth_api import names
from devcluster import Arena
from tests.nvml.fixture import NvmlFixture, Process, a100
from tests.programs.processes import Processes
from tests.stand_ins.pod_resources import PodResourcesServer

Start = Callable[..., Any]
GPU = "kubernetes.io/gpu"
SOON = 20.0
"""Longest time in seconds until a change is reported on a busy machine."""
PAUSE = 0.5
"""Seconds between two writes of a client that does not stop."""


class Site:
    """A node with four cards, its agent and an operator, each with the administrator's rights."""

    def __init__(self, *, arena: Arena, folder: Path, start: Start) -> None:
        self.arena, self._folder = arena, folder
        [self.node] = arena.nodes(1)
        self.fixture = NvmlFixture(folder, gpus=[a100(minor) for minor in range(4)])
        self.agent = start(self.node, self.fixture)
        self.processes = Processes(arena=arena, folder=folder)
        self.operator()
        path = f"/apis/{names.API_VERSION}/devices/{self.node}"
        arena.wait(lambda: arena.cluster.api.exists(path), what="the Device")
        self.wait_ready("True")

    def operator(self) -> None:
        self.running = self.processes.operator(agent_namespace=f"{self.arena.id}-leases")

    @property
    def device(self) -> dict[str, Any]:
        return self.arena.get("devices", self.node)

    def kubectl(self, *args: str, **manifest: Any) -> None:
        self.arena.cluster.kubectl(*args, input=yaml.safe_dump(manifest) if manifest else None)

    def patch_health(self, minor: int, *, health: bool) -> None:
        patch = [{"op": "replace", "path": f"/spec/devices/{minor}/health", "value": health}]
        self.kubectl("patch", "device", self.node, "--type=json", "-p", json.dumps(patch))

    def health(self) -> list[bool]:
        return [card["health"] for card in self.device["spec"]["devices"]]

    def ready(self) -> dict[str, Any]:
        conditions = self.device.get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == "Ready"), {})

    def wait_ready(self, status: str) -> None:
        self.arena.wait(lambda: self.ready().get("status") == status, what=f"Ready={status}")

    def wait_broken(self, *minors: int) -> None:
        """Wait until exactly these cards are shown as unhealthy."""
        health = [minor not in minors for minor in range(4)]
        self.arena.wait(lambda: self.health() == health, deadline=SOON, what=f"the health {health}")

    def pod(self, name: str, cards: int = 1) -> None:
        amount = {GPU: str(100 * cards)}
        self.arena.create([self.arena.pod(name, requests=amount, limits=amount)])

    def cards(self, name: str) -> list[int]:
        """Return the minors that a pod was given; empty while it waits."""
        annotations = self.arena.get("pods", name)["metadata"].get("annotations", {})
        given = json.loads(annotations.get(names.ALLOCATED, "{}"))
        return sorted(grant["minor"] for grant in given.get("gpu", []))

    def message(self, name: str) -> str:
        conditions = self.arena.get("pods", name).get("status", {}).get("conditions", [])
        return next((each.get("message", "") for each in conditions if each["type"] == "PodScheduled"), "")

    def given(self, name: str) -> list[int]:
        return self.arena.wait(lambda: self.cards(name), deadline=SOON, what=f"cards for {name}")


@pytest.fixture
def site(arena: Arena, start_nvml: Start, tmp_path: Path) -> Iterator[Site]:
    own = Site(arena=arena, folder=tmp_path, start=start_nvml)
    yield own
    own.processes.close()


def test_one_patched_field_freezes_no_other_and_a_broken_card_is_not_given(site: Site) -> None:
    site.kubectl("label", "device", site.node, "team=ml")
    site.patch_health(3, health=False)
    site.wait_broken()
    site.fixture.lose(2)
    site.wait_broken(2)
    site.pod("p", 3)
    assert site.given("p") == [0, 1, 3]
    assert site.device["metadata"]["labels"]["team"] == "ml"


def test_a_spec_that_another_manager_applied_unchanged_is_not_frozen(site: Site) -> None:
    spec = site.device["spec"]
    manifest = {"apiVersion": names.API_VERSION, "kind": "Device", "metadata": {"name": site.node}, "spec": spec}
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager=argocd", "-f", "-")
    site.kubectl(*apply, **manifest)
    site.fixture.lose(0)
    site.fixture.lose(1)
    site.wait_broken(0, 1)
    site.pod("p", 2)
    assert site.given("p") == [2, 3]
    # A pod that waits for a card is woken by the old spec, and must not get one.
    site.pod("waits")
    site.arena.wait(lambda: site.message("waits"), deadline=SOON, what="the reason why it waits")
    site.kubectl(*apply, **manifest)
    site.wait_broken(0, 1)
    assert site.cards("waits") == []


def test_a_client_that_writes_all_the_time_keeps_pods_away_and_is_not_answered_each_time(site: Site) -> None:
    site.fixture.lose(2)
    site.wait_broken(2)
    site.pod("p", 3)
    site.given("p")
    site.pod("waits")
    site.arena.wait(lambda: site.message("waits"), deadline=SOON, what="the reason why it waits")
    written = site.agent.log.count("Device published")
    deadline = time.monotonic() + SOON
    while time.monotonic() < deadline and "in_seconds=60" not in site.agent.log:
        site.patch_health(2, health=True)
        time.sleep(PAUSE)
    assert site.agent.log.count("Device published") - written == 3
    site.patch_health(2, health=True)
    site.wait_ready("False")
    assert "kubectl-patch wrote spec.devices[minor=2,type=gpu].health" in site.ready()["message"]
    site.arena.wait(
        lambda: "node(s) have a Device that another client changed" in site.message("waits"),
        deadline=SOON,
        what="the reason",
    )
    assert (site.cards("waits"), site.health()[2]) == ([], True)


def test_a_restored_status_heals(
    arena: Arena, start_nvml: Start, resources: PodResourcesServer, tmp_path: Path
) -> None:
    kernel = tmp_path / "proc/sys/kernel/random"
    kernel.mkdir(parents=True)
    (kernel / "boot_id").write_text("boot-1\n")
    proc = tmp_path / "proc/77"
    proc.mkdir()
    (proc / "cgroup").write_text("0::/system.slice/x.service\n")

    def start(node: str, fixture: NvmlFixture) -> Any:
        fixture.gpus[3].processes = [Process(pid=77, used=1 << 30)]
        own = ("--pod-resources-socket", str(resources.socket), "--proc-root", str(tmp_path / "proc"))
        return start_nvml(node, fixture, *own)

    site = Site(arena=arena, folder=tmp_path, start=start)
    try:
        arena.wait(lambda: site.device["status"].get("foreign"), deadline=SOON, what="the foreign process")
        site.pod("p", 3)
        assert site.given("p") == [0, 1, 2]
        site.pod("waits")
        arena.wait(lambda: site.message("waits"), deadline=SOON, what="the reason why it waits")

        def shown() -> tuple[object, ...]:
            status = site.device["status"]
            holders = [[each["name"] for each in use["holders"]] for use in status["devices"]]
            foreign = [each["minor"] for each in status["foreign"]]
            return holders, foreign, status["withheld"] == [1], status["devices"][-1].get("held")

        expected = ([["p"], ["p"], ["p"], []], [3], False, 100)
        arena.wait(lambda: shown() == expected, deadline=SOON, what="the status", details=lambda: str(shown()))
        backup = site.device
        backup["metadata"] = {"name": site.node}
        backup["status"]["foreign"] = []
        backup["status"]["withheld"] = [1]
        uses = backup["status"]["devices"]
        uses[0]["holders"], uses[3]["holders"] = [], [{**uses[0]["holders"][0], "name": "old"}]
        uses[3]["held"] = 50
        uses.append({**uses[3], "minor": 9})

        site.kubectl("replace", "--subresource=status", "--field-manager=velero", "-f", "-", **backup)
        arena.wait(lambda: shown() == expected, deadline=SOON, what="the status before the restore")
        site.wait_ready("True")
        assert site.cards("waits") == []
        # While the operator is away, too.
        site.running.stop()
        site.kubectl("replace", "--subresource=status", "--field-manager=velero", "-f", "-", **backup)
        site.operator()
        arena.wait(lambda: shown() == expected, deadline=SOON, what="the status before the second restore")
        assert site.cards("waits") == []
    finally:
        site.processes.close()
