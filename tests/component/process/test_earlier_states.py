"""An API server that shows earlier states, in virtual time: its etcd is restored, or a balancer alternates between two.

The leader is modelled by what it does with its terms: it lists when a term begins, binds pods to cards that are free by
its list and its own writes, and creates an Event for each. Pods end, so the older server shows owners of free cards.
Each server has a fence, which compares the term and the renewal of a Binding with its own LeaderLease.
"""

import asyncio
import contextlib
import copy
import itertools
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from berth_client.versions import Versions
from berth_operator.clients.leader import LAG, PAUSES, LeaderElection
from tests.component.world import now
from tests.unit.clients.leases import LeaseClient, LeaseStore

pytestmark = pytest.mark.looptime

CARDS = 8
TEN_MINUTES = 600.0


@dataclass
class Server:
    """One API server with its own etcd: LeaderLeases, and the owner of each card."""

    leases: LeaseStore = field(default_factory=LeaseStore)
    owners: dict[int, list[str]] = field(default_factory=dict)

    def bind(self, pod: str, card: int, term: int, known: str) -> None:
        """Bind a pod, unless the fence refuses the term or lacks the renewal."""
        spec = self.leases.leases["berth"]["spec"]
        if spec["term"] == term and known.partition("/")[2] <= spec["renewTime"]:
            self.owners.setdefault(card, []).append(pod)

    def end(self, card: int) -> None:
        """End the pods of a card."""
        self.owners.pop(card, None)
        self.leases.version += 1

    def event(self) -> dict[str, Any]:
        """Create an Event."""
        self.leases.version += 1
        return {"metadata": {"resourceVersion": str(self.leases.version)}}

    def copy(self) -> "Server":
        return Server(
            leases=LeaseStore(leases=copy.deepcopy(self.leases.leases), version=self.leases.version),
            owners=copy.deepcopy(self.owners),
        )


class Balancer:
    """The address of several servers: `choose` returns which one answers now."""

    def __init__(self, choose: Callable[[], Server]) -> None:
        self.choose = choose
        self.others: list[Server] = []
        self.lists = 0
        self.versions = Versions()

    async def request(self, method: str, path: str, *, body: Any = None, timeout: float = 30.0) -> Any:  # noqa: ASYNC109
        return await LeaseClient(store=self.choose().leases).request(method, path, body=body, timeout=timeout)

    async def stream(
        self, path: str, params: Mapping[str, str], *, idle_timeout: float = 30.0
    ) -> AsyncGenerator[bytes, None]:
        # The connection of a watch stays with its server.
        async for line in LeaseClient(store=self.choose().leases).stream(path, params, idle_timeout=idle_timeout):
            yield line

    def list(self) -> set[int]:
        """Return the cards with owners."""
        self.lists += 1
        self.versions.forget()
        return set(self.choose().owners)

    def event(self) -> None:
        """Create an Event, and compare its version."""
        requested = self.versions.request("POST", "/api/v1/events", {})
        assert requested is not None
        self.versions.compare(requested, self.choose().event())


async def lead(balancer: Balancer, election: LeaderElection) -> None:
    """Bind a pod each second, each to a free card; if there is none, one ends."""
    balancer.versions.on_earlier = election.doubt
    for number in itertools.count():
        term = await election.acquired()
        taken = balancer.list()
        while election.term == term:
            await asyncio.sleep(1)
            await election.confirmed(term)
            if election.term != term:
                break
            if not (free := set(range(CARDS)) - taken):
                gone = random.choice(sorted(taken))
                for server in (balancer.choose(), *balancer.others):
                    server.end(gone)  # its kubelet reports it to all servers, in the end
                taken.discard(gone)
                continue
            card = min(free)
            balancer.choose().bind(f"pod-{number}-{now()}", card, term, election.known_renewal)
            taken.add(card)
            balancer.event()


@contextlib.asynccontextmanager
async def leading(balancer: Balancer) -> AsyncIterator[LeaderElection]:
    election = LeaderElection(balancer, namespace="ns", name="berth", identity="a", clock=now)
    tasks = [asyncio.create_task(election.run()), asyncio.create_task(lead(balancer, election))]
    try:
        yield election
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def doubled(*servers: Server) -> list[list[str]]:
    """Return the owners of each card that has several."""
    return [owners for server in servers for owners in server.owners.values() if len(owners) > 1]


@pytest.mark.parametrize("is_later", [False, True], ids=["lower versions", "versions that went on"])
async def test_after_a_restore_all_is_listed_again_and_bound_in_a_new_term(*, is_later: bool) -> None:
    server = Server()
    balancer = Balancer(lambda: server)
    async with leading(balancer) as election:
        term = await election.acquired()
        await asyncio.sleep(10)
        backup = server.copy()
        await asyncio.sleep(2 * LAG)
        if is_later:
            backup.leases.version += 1000
            backup.leases.touch("berth")
        server = backup
        before = copy.deepcopy(server.owners)
        await election.lost(term)
        assert await election.acquired() > term
        await asyncio.sleep(10)
    assert balancer.lists == 2
    assert doubled(server) == []
    assert server.owners != before


@pytest.mark.parametrize("seconds", [0.7, 7, 31, 101, 299])
async def test_servers_that_take_turns_for_ten_minutes_cost_five_lists_at_most(seconds: float) -> None:
    newer = Server()
    balancer = Balancer(lambda: newer)
    async with leading(balancer):
        await asyncio.sleep(10)
        servers = newer.copy(), newer
        await asyncio.sleep(30)
        balancer.others = [*servers]
        before, began = balancer.lists, now()
        balancer.choose = lambda: servers[int((now() - began) / seconds) % 2]
        await asyncio.sleep(TEN_MINUTES)
        assert balancer.lists - before <= 5
        assert doubled(*servers) == []
        # They agree at last.
        balancer.choose = lambda: newer
        await asyncio.sleep(PAUSES[-1] + 10)
    assert balancer.lists > before
    assert doubled(*servers) == []


@pytest.mark.parametrize("parity", [0, 1])
async def test_requests_that_alternate_between_servers_cost_five_lists_at_most(parity: int) -> None:
    newer = Server()
    balancer = Balancer(lambda: newer)
    async with leading(balancer):
        await asyncio.sleep(10)
        servers = [newer.copy(), newer]
        await asyncio.sleep(30)
        balancer.others = [*servers]

        def alternate() -> Server:
            servers.reverse()
            return servers[0]

        before, balancer.choose = balancer.lists, alternate
        if parity:
            alternate()
        await asyncio.sleep(TEN_MINUTES)
        assert balancer.lists - before <= 5
    assert doubled(*servers) == []


async def test_a_restore_long_after_the_last_is_the_first_one_again() -> None:
    server = Server()
    balancer = Balancer(lambda: server)
    async with leading(balancer) as election:
        for _ in range(2):
            await asyncio.sleep(10)
            backup = server.copy()
            await asyncio.sleep(2 * TEN_MINUTES)
            server, restored_at = backup, now()
            await election.lost(await election.acquired())
            await election.acquired()
            assert now() - restored_at < 10
