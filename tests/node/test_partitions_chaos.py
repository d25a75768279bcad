"""Pods with MIG instances on demand, by claim and by name, while the programs of their node are killed.

The audit reads the simulated cards, the claims' allocations and the containers' own /dev. `make partitions-chaos
PODS=300 SEED=1` runs long, and prints its findings as JSON. `make e2e` runs a short part, whose seed is the date.
"""

import contextlib
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, Self

import pytest

from devcluster import Arena
from devcluster.control_plane.api import Manifest
from devcluster.real_node import RealNode
from tests.chaos.device_auditor import place_of
from tests.chaos.partitions_auditor import Auditor, Part
from tests.node.boxes import box
from tests.node.driver_audit import claim_of, listed
from tests.node.stage import Stage
from tests.node.test_driver_chaos import BATCH, PODS, SEED, Chaos, in_turn
from tests.node.test_own_driver import classes, give_by, own_pools
from tests.node.test_partitions import make_class, make_template, open_cards, resource
from tests.nvml import mig_profiles
from tests.nvml.fixture import h100, with_profiles
from tests.programs.processes import Process, Processes

CARDS: Final = 2 * BATCH
"""One for each pod of a round and each that stays from earlier rounds, so that all can run."""
TEMPLATES: Final = {"1g.10gb": "small", "1g.10gb+me": "media", "3g.40gb": "large"}
"""Profile -> the ResourceClaimTemplate for it."""
KINDS: Final = ("claim", "claim", "name", "whole")
SHARED: Final = {"nvidiactl", "nvidia-uvm"}


class InstancesStage(Stage):
    """A node with H100 and the process that makes their instances."""

    def __init__(self, node: RealNode, arena: Arena, folder: Path) -> None:
        socket = folder / "partitions"
        options = {"dra": True, "dra_partitions": socket, "kubelet_folder": node.root, "resync_interval": 1.0}
        gpus = [with_profiles(h100(index), mig_profiles.H100_80) for index in range(CARDS)]
        super().__init__(node, arena, folder, gpus=gpus, **options)
        self._makers = Processes(arena=arena, folder=folder)
        self.record = folder / "record"
        self.start_maker = partial(self._makers.partitions, self.machine, state=self.record, socket=socket)
        self.maker: Process

    def __enter__(self) -> Self:
        self.machine.write()
        self.maker = self.start_maker()
        super().__enter__()
        return self

    def close(self) -> None:
        """End everything; instances cannot go without the process."""
        super().close()
        self._makers.close()


class InstancesChaos(Chaos):
    """One run."""

    def __init__(self, stage: InstancesStage) -> None:
        super().__init__(stage, Path())
        self._node = stage
        self.on_demand = frozenset(gpu.uuid for gpu in stage.machine.gpus)
        records = {stage.record / "partitions.json": "partitions", stage.checkpoint.with_name("claims.json"): "claims"}
        self.auditor = Auditor(stage.machine, cdi=stage.node.cdi, records=records)
        self.faults |= {"maker": self._kill_maker, "maker and agent": self._kill_both}

    def round(self, what: str) -> None:
        """Start pods while something happens, compare what runs, and end some."""
        names = [f"pod-{self.pods + number}" for number in range(BATCH)]
        self.pods += BATCH
        self.stage.arena.create([self._instance_pod(name) for name in names])
        time.sleep(self.random.uniform(0, 2))
        self.happen(what, self.stage.agent)
        for name in names:
            self.within(partial(self.runs, name), f"{name} ({what}) does not run")
        self._audit(f"round {self.pods // BATCH} ({what})")
        self.end(self.random.sample(sorted(self.stage.names()), max(0, len(self.stage.names()) - BATCH)))
        self.be_quiet(f"round {self.pods // BATCH} ({what})")

    def _instance_pod(self, name: str) -> Manifest:
        kind, profile = self.random.choice(KINDS), self.random.choice([*TEMPLATES])
        limits = {resource(profile): "1"} if kind == "name" else None
        pod = box(
            self.stage.arena,
            name,
            limits=limits,
            scheduler_name=self.stage.arena.scheduler_name,
            restartPolicy="Always",
        )
        if kind != "name":
            template = "one" if kind == "whole" else TEMPLATES[profile]
            pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template}]
            pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        return pod

    def _audit(self, when: str) -> None:
        """Compare the instances on the cards, and the device nodes of containers, with the allocations of claims."""
        prepared: dict[str, list[Part]] = {}
        for pod in self.stage.arena.list("pods"):
            if not self.runs(pod["metadata"]["name"]):
                continue
            claim = self.stage.arena.get("resourceclaims", claim_of(pod))
            [result] = claim["status"]["allocation"]["devices"]["results"]
            [gpu] = [gpu for gpu in self.stage.machine.gpus if result["device"].startswith(gpu.uuid.lower())]
            part = Part(card=gpu.uuid)
            if place := place_of(result["device"], gpu.uuid):
                number, start = place.split("-")
                [profile] = [profile for profile in gpu.profiles if profile.id == int(number)]
                slices = frozenset(range(int(start), int(start) + profile.size))
                part = Part(card=gpu.uuid, profile=profile.name, slices=slices)
            prepared[claim["metadata"]["name"]] = [part]
            nodes = {name for name in self.stage.node.container(pod).devices if name.startswith("nvidia")}
            if nodes != {*SHARED, f"nvidia{gpu.minor}"}:
                self.findings.double.append(f"{when}: {pod['metadata']['name']} has {nodes}, not those of {part}")
        self.auditor.look(prepared)

    def _kill_maker(self) -> None:
        self._node.maker.kill()
        self._start_maker()

    def _kill_both(self) -> None:
        """Kill both programs, and start both again, in any order."""
        for kill in self.random.sample([self._node.maker.kill, self.stage.agent.kill], 2):
            kill()
            time.sleep(self.random.uniform(0, 1))
        for start in self.random.sample([self._start_maker, self.stage.start_agent], 2):
            start()
            time.sleep(self.random.uniform(0, 2))

    def _start_maker(self) -> None:
        self._node.maker = self._node.start_maker()


@pytest.fixture
def stage(node: RealNode, arena: Arena, tmp_path: Path) -> Iterator[InstancesStage]:
    """Return a node whose cards are open for instances, and the operator with the driver's pools."""
    with InstancesStage(node, arena, tmp_path) as made, classes(arena), contextlib.ExitStack() as ends:
        for profile, template in TEMPLATES.items():
            ends.callback(arena.cluster.api.delete, make_class(arena, profile))
            make_template(arena, profile, template)
        made.operator.stop()
        made.start_operator(config=own_pools(arena, tmp_path), scheduler_names=None)
        open_cards(made, "all")
        give_by(made, "claims")
        made.wait(lambda: len(listed(made)) > CARDS, what="what can be made in slices")
        yield made
        open_cards(made, None)
        give_by(made, None)
        made.wait(lambda: listed(made) == [], what="the slices to go")


@pytest.mark.safety
@pytest.mark.timeout(600 + 30 * PODS)
def test_no_instance_has_two_owners_or_is_left_over_whatever_is_killed(stage: InstancesStage) -> None:
    chaos = InstancesChaos(stage)
    sys.stderr.write(f"BERTH_SEED={SEED}\n")
    for what in itertools.islice(in_turn(chaos), max(2, PODS // BATCH)):
        chaos.round(what)
        sys.stderr.write(f"{chaos.pods} pods, {what}: {chaos.findings} {chaos.auditor.findings}\n")
    chaos.end(sorted(stage.names()))
    stage.wait(lambda: not chaos.auditor.rest(), what=f"nothing to be left over: {chaos.auditor.rest()}")
    found: Counter[str] = Counter()
    for findings in (chaos.findings, chaos.auditor.findings):
        found.update({kind: len(texts) for kind, texts in vars(findings).items()})
    sys.stdout.write(json.dumps({"seed": SEED, "pods": chaos.pods, "happened": chaos.counts} | found) + "\n")
    assert not any(found.values()), (chaos.findings, chaos.auditor.findings)
