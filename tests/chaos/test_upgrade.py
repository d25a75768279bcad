"""A rolling upgrade from the previous version, and back, while pods come and go: nothing is lost or booked twice.

Operators and agents are replaced one at a time, in the order of docs/upgrade.md. In between, both versions read one
snapshot of the cluster and must see the same devices free. `make upgrade-e2e` does this several times, with the
definitions, the fence and the images' programs of a release in place of this tree's.
"""

import functools
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from berth_client.objects import without_managed_fields
from devcluster import Arena
from devcluster.control_plane.api import Manifest
from devcluster.control_plane.nodes import Strings
from tests.integration.operator.world import EPOCH, World
from tests.programs import previous, released
from tests.programs.load import BOUND, Load, check
from tests.programs.processes import LEADING, Process

ROUNDS: Final = int(os.environ.get("BERTH_ROUNDS", "1"))
NODES: Final = 4
PERIOD: Final = 0.05
"""Seconds between two pods."""
LIFE: Final = 40
"""Pods that exist at a time: the oldest bound ones end, and about a third of them waits for cards."""
TERMS: Final = {"lease_duration": 12, "renew_deadline": 10, "retry_period": 0.2}
RECORD: Final = os.environ.get("BERTH_RECORD", "")
"""Folder for what the version before wrote, which unit tests read; empty to record nothing."""

OLD, NEW = "old", "new"
OPERATOR, AGENT = "berth_operator", "berth_agent"
IMAGES: Final = {OPERATOR: "berth-operator", AGENT: "berth-agent"}
"""Program -> its image."""

Environments = Mapping[str, Mapping[str, Strings]]
"""Version -> program -> variables with which Python runs it."""


@pytest.fixture
def environments(arena: Arena, tmp_path: Path) -> Environments:
    """Return the environments of both versions; apply a release's definitions."""
    new: dict[str, Strings] = {program: {} for program in IMAGES}
    if released.FOLDER:
        new = {program: released.environment(image, tmp_path / image) for program, image in IMAGES.items()}
        definitions = released.file(released.DEFINITIONS)
        arena.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(definitions))
    return {OLD: dict.fromkeys(IMAGES, previous.environment()), NEW: new}


class Fleet:
    """Two operators and two agents, each of one of the versions."""

    def __init__(self, world: World, load: Load, account: Path, folder: Path, environments: Environments) -> None:
        self._world, self._load, self._account, self._environments = world, load, account, environments
        self.operators: list[Process] = []
        self.agents: list[tuple[Process, Path]] = []
        self.versions: dict[str, str] = {}
        """Name of a process -> its version."""
        names = world.arena.nodes(NODES)
        for half in (names[::2], names[1::2]):
            file = folder / f"{half[0]}.yaml"
            file.write_text(yaml.safe_dump({"nodes": [{"names": name, "profile": "a100", "gpus": 4} for name in half]}))
            self.agents.append((self._agent(OLD, file), file))
        self.operators += [self._operator(OLD), self._operator(OLD)]
        world.wait(lambda: all(world.ready(name) == "True" for name in names), what="Devices to be ready")

    def replace_operators(self, version: str) -> None:
        """Replace one replica after the other, as a Deployment does; the leader is the last."""
        self.operators.sort(key=lambda process: LEADING in process.text())
        for _ in tuple(self.operators):
            self._end(self.operators.pop(0))
            self.operators.append(self._operator(version))
            self._load.until_bound()

    def replace_agents(self, version: str) -> None:
        """Replace one agent after the other, as a DaemonSet does."""
        for agent, file in tuple(self.agents):
            self._end(agent)
            self.agents.remove((agent, file))
            self.agents.append((self._agent(version, file), file))
            self._load.until_bound()

    def terms(self) -> Mapping[int, str]:
        """Return the version of the leader of each term; it binds pods before it logs that it leads."""
        return {
            int(term): self.versions[process.name]
            for process in self._world.processes.started
            for term in re.findall(r'"term": (\d+), "event": "term changed"', process.text())
        }

    def _end(self, process: Process) -> None:
        assert process.exit_code is None, process.tail()
        process.stop()

    def _operator(self, version: str) -> Process:
        with self._of(version, OPERATOR):
            # The version before does not know this flag of other tests.
            flags = {"node_startup_timeout": None, **TERMS}
            return self._named(version, self._world.operator(kubeconfig=self._account, wait=False, **flags))

    def _agent(self, version: str, file: Path) -> Process:
        with self._of(version, AGENT):
            # The version before does not know the flag of the nodes' tokens.
            return self._named(version, self._world.processes.agent(file, as_administrator=version == OLD))

    def _named(self, version: str, process: Process) -> Process:
        self.versions[process.name] = version
        return process

    @contextmanager
    def _of(self, version: str, program: str) -> Iterator[None]:
        self._world.processes.environment = self._environments[version][program]
        yield
        self._world.processes.environment = {}


@pytest.mark.timeout(300 + 300 * ROUNDS)
def test_an_upgrade_and_the_way_back_lose_nothing(
    environments: Environments, world: World, account: Path, tmp_path: Path
) -> None:
    load = Load(world.arena, functools.partial(pod, world.arena), prefix="p", period=PERIOD, life=LIFE)
    fleet = Fleet(world, load, account, tmp_path, environments)
    started = time.monotonic()
    with load.running():
        load.until_bound()
        for _ in range(ROUNDS):
            fleet.replace_operators(NEW)
            fleet.replace_agents(NEW)
            check(world.arena)
            check_both_read_alike(world, tmp_path, environments)
            fleet.replace_agents(OLD)
            fleet.replace_operators(OLD)
            check(world.arena)
    check(world.arena)
    check_both_read_alike(world, tmp_path, environments)
    if RECORD:
        record(world, tmp_path, Path(RECORD), environments)
    load.check_nothing_is_lost()
    terms = fleet.terms()
    bound = Counter(terms[int(pod["metadata"]["annotations"][EPOCH])] for pod in load.pods())
    seconds = time.monotonic() - started
    sys.stdout.write(f"{len(load.created)} pods, bound by {dict(bound)} in {len(terms)} terms, {seconds:.1f} s\n")
    assert min(bound[OLD], bound[NEW]) >= BOUND * ROUNDS


def pod(arena: Arena, name: str, requests: Strings) -> Manifest:
    """Return the manifest of a pod that requests devices."""
    return arena.pod(name, requests=requests, limits=requests)


def run(environment: Strings, *arguments: str) -> str:
    """Run a command of a version's operator; return what it prints. It fails where a pod would get no place."""
    command = [sys.executable, "-m", OPERATOR, *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=False).stdout


def snapshot(world: World, folder: Path, environment: Strings) -> tuple[Path, list[str]]:
    """Take a snapshot by this version; return its file, and the options by which both versions read it."""
    file, config, workload = folder / "cluster.jsonl", folder / "config.yaml", folder / "workload.yaml"
    options = [f"--kubeconfig={world.arena.cluster.kubeconfig}", f"--node-selector={world.arena.selector}"]
    file.write_text(run(environment, "snapshot", *options))
    profiles = {"profiles": [{"schedulerName": world.arena.scheduler_name}]}
    kind = {"apiVersion": "config.berth.dev/v1alpha1", "kind": "BerthSchedulerConfiguration"}
    config.write_text(yaml.safe_dump({**kind, **profiles}))
    workload.write_text(yaml.safe_dump(world.arena.pod("none", requests={"cpu": "1m"})))
    return file, ["simulate", f"--snapshot={file}", f"--config={config}", f"--file={workload}", "--output=json"]


def free(report: str) -> list[Any]:
    """Return what a report says is free of each device, before its workload."""
    return [
        {**row, "idle": row["idle"]["before"], "free": row["free"]["before"]} for row in json.loads(report)["devices"]
    ]


def check_both_read_alike(world: World, folder: Path, environments: Environments) -> None:
    """Check that both versions see the same of the objects that either of them wrote."""
    ours = environments[NEW][OPERATOR]
    file, options = snapshot(world, folder, ours)
    expected = free(run(ours, *options))
    assert expected
    # The version before knows no lines about the operator and the API server.
    unknown = ('{"of":"operator"', '{"of":"version"')
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith(unknown)))
    assert free(run(environments[OLD][OPERATOR], *options)) == expected


def record(world: World, folder: Path, into: Path, environments: Environments) -> None:
    """Write objects of the version before, and what it reads in them, for `tests/unit/upgrade`."""
    file, options = snapshot(world, folder, environments[NEW][OPERATOR])
    into.mkdir(exist_ok=True)
    rows = free(run(environments[OLD][OPERATOR], *options))
    (into / "free.json").write_text(json.dumps(rows, indent=1) + "\n")
    (into / "cluster.jsonl").write_bytes(file.read_bytes())
    (into / "config.yaml").write_text((folder / "config.yaml").read_text())
    kinds = ("devices", "leaderleases")
    objects = {
        kind: [
            without_managed_fields(each) for each in world.arena.list(kind) if world.arena.id in str(each["metadata"])
        ]
        for kind in kinds
    }
    (into / "objects.json").write_text(json.dumps(objects) + "\n")
