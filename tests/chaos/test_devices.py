"""Cards are renumbered, lost, replaced and returned, and programs are killed, while pods come and go.

Every bind is audited by the UUIDs in the allocations of all bound pods, by code that the product does not share. The
killed programs are operator and agent. BERTH_BINDS sets the number of binds. The test prints one line of JSON:
`{"chaos": "devices", "binds", "faults", "double_bookings"}`.
"""

import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from devcluster import Cluster
from tests.bench.cluster.watcher import Watcher
from tests.integration.operator.world import ALLOCATED, World
from tests.nvml.fixture import Gpu, NvmlFixture, a100
from tests.programs.processes import LEADING, Process

BINDS: Final = int(os.environ.get("BERTH_BINDS", "120"))
SEED: Final = int(os.environ.get("BERTH_SEED", "13"))
NODES: Final = 3
CARDS: Final = 5
"""Cards on each node at first."""
WAITING: Final = 12
"""Number of pods that wait at any time, so that any device that seems free is allocated at once."""
TURN: Final = 1.0
"""Longest time in seconds between two faults."""
OPERATOR_EVERY: Final = 12
"""Turns between two kills of the operator."""
REQUESTS: Final = (
    {"nvidia.com/gpu": "1"},
    {"kubernetes.io/gpu": "100"},
    {"kubernetes.io/gpu": "60"},
    {"kubernetes.io/gpu": "40"},
)


class DeviceAudit(Watcher):
    """Checks at each bind, in the order of the API server, that no UUID is charged more than a whole card."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        super().__init__(cluster, namespace)
        self.binds = 0
        self.double_bookings: list[str] = []
        self.held: dict[str, Mapping[str, Counter[str]]] = {}
        """Pod -> UUID -> resource -> hundredths."""

    def _record(self, event: dict[str, Any], times: Mapping[str, dict[str, float]]) -> None:
        super()._record(event, times)
        metadata = event["object"]["metadata"]
        if ALLOCATED in (annotations := metadata.get("annotations") or {}):
            self._look(event["type"], metadata["name"], json.loads(annotations[ALLOCATED]))

    def _look(self, kind: str, pod: str, allocation: Mapping[str, Any]) -> None:
        self.held.pop(pod, None)
        if kind == "DELETED":
            return
        self.held[pod] = {each["id"]: _hundredths(each["resources"]) for each in allocation["gpu"]}
        if kind == "ADDED":
            self.binds += 1
            self.double_bookings += [
                f"{pod}: {uuid}: {self._taken(uuid)}" for uuid in self.held[pod] if self._over(uuid)
            ]

    def _taken(self, uuid: str) -> Counter[str]:
        return sum((held[uuid] for held in self.held.values() if uuid in held), Counter[str]())

    def _over(self, uuid: str) -> bool:
        return any(amount > 100 for amount in self._taken(uuid).values())


def _hundredths(resources: Mapping[str, str]) -> Counter[str]:
    counted = ("kubernetes.io/gpu-core", "kubernetes.io/gpu-memory-ratio")
    return Counter({name: int(value) for name, value in resources.items() if name in counted})


class Machine:
    """One node's cards and its agent."""

    def __init__(self, world: World, node: str, fixture: NvmlFixture) -> None:
        self._world, self._node, self._fixture = world, node, fixture
        self._drawer: list[Gpu] = []
        """Cards that were removed, and may come back."""
        fixture.write()
        self._agent = self._started()

    def _started(self) -> Process:
        return self._world.processes.node_agent(self._node, self._fixture, poll_interval=0.2, resync_interval=2.0)

    def kill_agent(self) -> None:
        self._agent.kill()

    def start_agent(self) -> None:
        self._agent = self._started()

    def change(self, fault: str, chance: random.Random, fresh: str) -> None:
        """Lose, replace or return a card, and number the cards in another order."""
        cards = self._fixture.gpus
        chance.shuffle(cards)
        if fault in ("lose", "replace") and len(cards) > 1:
            self._drawer.append(cards.pop(0))
        if fault == "replace":
            cards.append(self._card(fresh))
        if fault == "return" and self._drawer:
            cards.insert(chance.randrange(len(cards) + 1), self._drawer.pop(chance.randrange(len(self._drawer))))
        del cards[2 * CARDS :], self._drawer[:-CARDS]
        for minor, card in enumerate(cards):
            card.minor = minor
        self._fixture.write()

    def _card(self, uuid: str) -> Gpu:
        """Return a new card in a slot of the machine that is free."""
        taken = {each.bus_id for each in (*self._fixture.gpus, *self._drawer)}
        card = next(card for card in map(a100, itertools.count()) if card.bus_id not in taken)
        card.uuid = uuid
        return card


class Chaos:
    """Pods that come and go, and faults of the cards and programs that they depend on."""

    def __init__(self, world: World, folder: Path, audit: DeviceAudit) -> None:
        self._world, self._audit = world, audit
        self._chance = random.Random(SEED)
        self._numbers = itertools.count()
        self._created: set[str] = set()
        self.faults: Counter[str] = Counter()
        self._uuids = itertools.count(NODES * CARDS)
        self._machines = [
            Machine(world, node, NvmlFixture(folder / node, gpus=[a100(number * CARDS + i) for i in range(CARDS)]))
            for number, node in enumerate(world.arena.nodes(NODES))
        ]
        self._operator = world.operator(wait=False)
        self._operator.logged(LEADING)

    def turn(self, number: int) -> None:
        """Delete some pods and create others, inject a fault, and wait for binds."""
        before = self._audit.binds
        self._come_and_go()
        self._harm()
        is_due = number % OPERATOR_EVERY == OPERATOR_EVERY - 1 and LEADING in self._operator.text()
        if is_due or self._operator.exit_code is not None:
            self._kill_operator()
        deadline = time.monotonic() + TURN
        while self._audit.binds < before + WAITING and time.monotonic() < deadline:
            self._audit.check()
            time.sleep(0.02)

    def _come_and_go(self) -> None:
        bound = sorted(self._created & self._audit.held.keys())
        for name in self._chance.sample(bound, len(bound) // 2):
            self._world.arena.delete("pods", name, grace_seconds=0)
            self._created.discard(name)
        waiting = len(self._created - self._audit.bound.keys())
        pods = [self._pod() for _ in range(max(WAITING - waiting, 0))]
        if pods:
            self._world.arena.create(pods)
            self._created |= {each["metadata"]["name"] for each in pods}

    def _pod(self) -> Any:
        requests = self._chance.choice(REQUESTS)
        return self._world.arena.pod(f"p-{next(self._numbers)}", requests=requests, limits=requests)

    def _harm(self) -> None:
        machine, kills = self._chance.choice(self._machines), self._chance.random() < 0.5
        fault = self._chance.choice(("permute", "lose", "replace", "return"))
        fresh = a100(next(self._uuids)).uuid
        if kills:
            # As after a reboot: the agent sees the cards only once they have other numbers.
            machine.kill_agent()
            self.faults["agent killed"] += 1
        machine.change(fault, self._chance, fresh)
        self.faults[fault] += 1
        if kills:
            machine.start_agent()

    def _kill_operator(self) -> None:
        self._operator.kill()
        self._world.free_lease()
        self._operator = self._world.operator(wait=False)
        self.faults["operator killed"] += 1


@pytest.mark.timeout(300 + 2 * BINDS)
def test_no_card_is_given_out_twice_whatever_becomes_of_it(world: World, tmp_path: Path) -> None:
    with DeviceAudit(world.arena.cluster, world.arena.namespace) as audit:
        chaos = Chaos(world, tmp_path, audit)
        for number in itertools.count():
            if audit.binds >= BINDS or audit.double_bookings:
                break
            chaos.turn(number)
    result = {"binds": audit.binds, "faults": dict(chaos.faults), "double_bookings": len(audit.double_bookings)}
    print(json.dumps({"chaos": "devices", **result}))  # noqa: T201 - the result
    assert not audit.double_bookings, "\n".join(audit.double_bookings)
    assert chaos.faults.total() > 0
