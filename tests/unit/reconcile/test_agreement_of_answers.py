"""Rows of nodes, Devices, verbs and metrics agree on what is held, free and blocked of each card."""

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from berth_api import names
from berth_api.allocation import held, mig
from berth_api.device import DeviceStatus
from berth_kubectl.commands import devices as verb_devices
from berth_kubectl.commands import free, who
from berth_kubectl.reading import fleet as reading
from berth_operator.controllers.reconcile import status
from berth_operator.core.advice import free_report
from berth_operator.core.advice.fleet_figures import fleet_figures
from berth_operator.core.advice.fleet_rows import fleet_row
from berth_operator.core.advice.holders import holder_row, holds_devices
from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.state.cache.views import NodeView
from berth_operator.state.objects import devices, nodes
from berth_operator.state.objects.nodes import NodeRecord
from tests.objects.builders import GPU, MEMORY, NVIDIA, RATIO, add, charge, device, entry, instance, node, waiting

Raw = dict[str, Any]
FLEETS: Final = int(os.environ.get("BERTH_FLEETS", "60"))
"""Random fleets; more by the environment variable."""
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
GIB: Final = 2**30
PROFILES: Final = ("1g.10gb", "2g.20gb", "3g.40gb")
RDMA: Final = "kubernetes.io/rdma"
CORE: Final = "kubernetes.io/gpu-core"
PODS: Final[tuple[Raw, ...]] = (
    *({GPU: 100}, {GPU: 30}, {RATIO: 40}, {NVIDIA: 1}, {NVIDIA: 2}, {RDMA: 50}, {"nvidia.com/gpu.shared": 2}),
    *({CORE: 100, MEMORY: GIB}, {CORE: 60, RATIO: 10}, *({mig.resource(profile): 1} for profile in PROFILES)),
)


class Random:
    """One fleet: what the API server has of it, and what the operator makes of it."""

    def __init__(self, seed: int) -> None:
        self.chance, self.of = random.Random(seed), Fleet()
        self.raw = {name: device(name, *self._cards()) for name in ("a", "b")}
        self.nodes: dict[str, Raw] = {}
        self.alive = {name: self.chance.random() < 0.85 for name in self.raw}
        for name, raw in self.raw.items():
            unready = [{"type": "Ready", "status": "True" if self.chance.random() < 0.85 else "False"}]
            self.nodes[name] = node(name, unschedulable=self.chance.random() < 0.15, conditions=unready)
            add(self.of, nodes.info(self.nodes[name]), devices.record(raw).inventory, fresh=self.alive[name])
        self._charge()
        if self.chance.random() < 0.1:
            self.of.remove_node("a")
            del self.nodes["a"]

    def _cards(self) -> Iterator[Raw]:
        for minor in range(self.chance.randint(1, 3)):
            fields: Raw = {"id": f"GPU-{minor}", "health": self.chance.random() < 0.85}
            match self.chance.choice(("plain", "sliced", "MIG")):
                case "sliced":
                    fields["replicas"] = self.chance.choice((2, 3, 4, 7))
                case "MIG":
                    profiles = self.chance.sample(PROFILES, self.chance.randint(1, 3))
                    same = {"gpuInstance": 0, "computeInstance": 0, "memory": "9Gi"}
                    listed = [{"id": f"MIG-{minor}-{i}", "profile": each, **same} for i, each in enumerate(profiles)]
                    fields["mig"] = {"enabled": True, "instances": listed}
            yield entry(minor, **fields)
        if self.chance.random() < 0.5:
            yield {**entry(0), "type": "rdma", "id": "rdma-0", "resources": {RDMA: "100"}}

    def _charge(self) -> None:
        for number in range(self.chance.randint(0, 7)):
            outcome = decide(self.of, waiting(str(number), self.chance.choice(PODS)), Policy())
            if isinstance(outcome, Placement):
                self.of.charge(outcome.charge)
        if self.chance.random() < 0.2:
            unknown = self.chance.choice((("gpu",), ("rdma",), ("gpu", "rdma")))
            self.of.charge(charge("any", node="b", unknown=unknown))
        if self.chance.random() < 0.1:
            self.of.charge(charge("lost", replace(instance(9, 9), parent="", minor=70000), node="a"))

    def row(self, name: str) -> Any:
        """Return the row of the visibility API."""
        return fleet_row(self.of, name, {})

    def status(self, name: str) -> DeviceStatus:
        """Return the status that the Device gets."""
        raw, there = self.raw[name], self.nodes.get(name)
        record = None if there is None else NodeRecord(uid="u", info=nodes.info(there), capacity={}, allocatable={})
        charges, listed = tuple(self.of.on_node(name)), devices.record(raw)
        view = NodeView(name=name, node=record, device=listed, ours=True, alive=self.alive[name], charges=charges)
        return status.wanted(view, lambda: "2026-01-01T00:00:00Z")

    def read(self, name: str) -> Any:
        """Return the row that is made of the Device where the visibility API is not served."""
        shown = self.status(name).model_dump(by_alias=True, exclude_none=True, mode="json")
        [row] = reading.rows([{**self.raw[name], "status": shown}], self.nodes)
        return row


def answer(card: Any) -> tuple[Any, ...]:
    """Return what a row and the verb `devices` show of a card."""
    instances = sorted(each["profile"] for each in card["mig"] if each["free"])
    allocatable = card["healthy"] and not card["blocked"]
    free_ = {name: amount for name, amount in card["free"].items() if amount} if allocatable else {}
    return card["type"], card["minor"], card["held"], card["users"], free_, instances, verb_devices.health(card)


@pytest.mark.parametrize("block", range(6))
def test_all_answers_about_a_card_agree(block: int) -> None:
    for seed in range(block, FLEETS, 6):
        world = Random(seed)
        for name in world.raw:
            _agree(world, name, seed)
        _sums_agree(world, seed)


def _agree(world: Random, name: str, seed: int) -> None:
    row, read, of_device = world.row(name), world.read(name), world.status(name)
    listed = [card for card in read["devices"] if card["minor"] >= 0]
    assert [answer(card) for card in row["devices"]] == [answer(card) for card in listed], (seed, name)
    for card in row["devices"]:
        if not card["healthy"] or card["blocked"]:
            assert not any(card["free"].values()), (seed, name, card)
    holders = [
        holder_row(world.of, charge, drifted=False) for charge in world.of.on_node(name) if holds_devices(charge)
    ]
    by_card = {tuple(row[1:3]): row[4] for row in who.report(holders, by="card", now=NOW).rows}
    for card in row["devices"]:
        if card["type"] == names.GPU:
            cell = f"{card['held'] / held.CARD:g}"
            assert by_card.get((card["type"], str(card["minor"])), "0") == cell, (seed, name, card)
    every = [(holder, part) for holder in holders for part in holder["devices"]]
    assert of_device.allocated == f"{round(who.hundredths(every)) / held.CARD:g}", (seed, name)


def _sums_agree(world: Random, seed: int) -> None:
    rows, read = [world.row(name) for name in world.raw], [world.read(name) for name in world.raw]
    serving = [row for row in rows if row["ready"] and row["schedulable"] and row["reporting"]]
    reported = sum((sum(dict(left.free).values()) for left in free_report.free_capacity(world.of).values()), 0)
    assert reported == sum(sum(card["free"].values()) for row in serving for card in row["devices"]), seed
    pools = [{kind: pool.free for kind, pool in free.pooled(each).items() if pool.free} for each in (rows, read)]
    assert pools[0] == pools[1], seed
    there = [row for row in rows if row["metadata"]["name"] in world.nodes]
    in_metrics = sum(gpus.allocated for gpus in fleet_figures(world.of).gpus.values())
    in_rows = sum(card["held"] for row in there for card in row["devices"] if card["type"] == names.GPU)
    assert abs(in_metrics * held.CARD - in_rows) <= len(there) * 3, seed
