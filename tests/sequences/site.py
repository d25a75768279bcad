"""A cluster in memory for recorded sequences: the component tests' world, with claims, an extender and next leaders."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from berth_api.objects.leader_lease import LeaderLeaseStatus
from berth_operator.core.claims.objects import status
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.state.watches.claims import ResourceClaims
from tests.component.claims import claim_server
from tests.component.extender.extender_stage import Stage
from tests.component.world import EPOCH, NOTHING, Api, Raw, World, now
from tests.objects.builders import device, entry, node
from tests.objects.resource_claims import NVIDIA_DRIVER, gpu, resource_slice

HOSTNAME: Final = "kubernetes.io/hostname"
RACK: Final = "example.com/rack"


class Server(Api):
    """Pods, Events and ResourceClaims in memory; the conditions of pods are stored."""

    claims: claim_server.Server

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Raw:
        """Read a claim."""
        return await self.claims.get(path, params)

    async def request(
        self, method: str, path: str, *, params: Mapping[str, str] | None, body: Any, **options: Any
    ) -> Any:
        """Write a claim."""
        return await self.claims.request(method, path, params=params, body=body, **options)


class Site:
    """Nodes, and the parts of an operator that decide and bind, from one leader to the next."""

    def __init__(self) -> None:
        self.api = Server()
        self.nodes: dict[str, Raw] = {}
        self.cards: dict[str, list[Raw]] = {}
        self.of_claims: set[str] = set()
        """Nodes whose cards a driver lists for claims."""
        self.groups: list[Raw] = []
        self.workloads: dict[str, Any] = {}
        self.foreign: dict[str, Raw] = {}
        """Pods of kube-scheduler that wait."""
        self.terms = 0
        self.lead(NOTHING)

    def lead(self, inherited: LeaderLeaseStatus) -> None:
        """Begin a term: a new leader reads what there is."""
        self.terms += 1
        self.api.on_bound.clear()
        self.api.on_deleted.clear()
        self.world = world = World(api=self.api, wall=lambda: EPOCH + now())
        world.inherited, world.term = inherited, self.terms
        self.stage = Stage(world)
        self.watch = watch = ResourceClaims(world.cluster)
        kept = self.api.claims.claims if hasattr(self.api, "claims") else {}
        self.api.claims = self.claims = claim_server.Server(
            lambda raw: watch.put_claim(status.with_writers(raw)), watch.remove_claim
        )
        self.claims.term = self.terms
        world.cluster.set_own_pools(OwnPools(drivers=frozenset({NVIDIA_DRIVER})))
        watch.put_class({"metadata": {"name": NVIDIA_DRIVER}, "spec": {}})
        for name, raw in kept.items():
            self.claims.change(name, **raw)
        for name in self.nodes:
            self._show(name)
        for group in self.groups:
            world.groups.apply("ADDED", group)
        for raw in self.api.pods.values():
            if raw["spec"].get("schedulerName") == "default-scheduler" and not raw["spec"].get("nodeName"):
                self.stage.watch.apply("ADDED", copy.deepcopy(raw))
            else:
                world.pods.apply("ADDED", copy.deepcopy(raw))
        for workload in self.workloads.values():
            world.cluster.workloads.put(workload)

    def add_node(self, name: str, cards: int, rack: str, *, of_claims: bool) -> None:
        """Add a node; with `of_claims`, a driver lists its cards."""
        self.nodes[name] = node(name, labels={HOSTNAME: name, RACK: rack}, allocatable={"cpu": "16", "pods": "40"})
        self.cards[name] = [entry(minor) for minor in range(cards)]
        if of_claims:
            self.of_claims.add(name)
        self._show(name)

    def break_card(self, name: str, minor: int) -> None:
        """Make a card unhealthy, or healthy again."""
        cards = self.cards[name]
        cards[minor] = entry(minor, health=cards[minor].get("health") is False)
        self.world.cluster.node_cache.put_device(device(name, *cards))

    def remove_node(self, name: str) -> None:
        """Remove a node and its device."""
        del self.nodes[name]
        self.world.cluster.node_cache.remove_node(name)
        self.world.cluster.node_cache.remove_device(name)
        if name in self.of_claims:
            self.watch.remove_slice(f"{name}-{NVIDIA_DRIVER}")

    def group(self, raw: Raw) -> None:
        """Add a PodGroup."""
        self.groups.append(raw)
        self.world.groups.apply("ADDED", raw)

    def leave(self, names: Sequence[str]) -> None:
        """Delete pods."""
        for name in names:
            if name in self.foreign and not self.api.pods[name]["spec"].get("nodeName"):
                self.stage.delete(self.foreign.pop(name))
            else:
                self.world.delete(name)

    def _show(self, name: str) -> None:
        cache = self.world.cluster.node_cache
        cache.put_node(self.nodes[name])
        cache.put_device(device(name, *self.cards[name]))
        if name in self.of_claims:
            self.watch.put_slice(resource_slice(*map(gpu, range(len(self.cards[name]))), node=name))
