"""A small kubelet, and the API server that it and the agent watch, each at its own pace.

`Kubelet` does what the device manager of Kubernetes 1.36 does. It admits pods one by one, init containers first. It
reuses devices of init containers that have ended, and requests the rest with GetPreferredAllocation and Allocate.
PodResources lists containers and init containers that stay.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from berth_agent.event_writer import DEVICES_REFUSED, InvolvedObject
from berth_agent.kubelet.admission.admission import Admission, UnavailableError
from berth_agent.kubelet.admission.checkpoint import Checkpoint
from berth_agent.kubelet.admission.mirror import ContainerReport
from berth_agent.kubelet.admission.pods import ContainerSpec, Pod
from berth_agent.kubelet.admission.units import Units
from berth_agent.kubelet.device_plugin.chooser import AllocationRefusedError, Chooser
from berth_agent.readings import ClaimedByContainer
from berth_api.allocation import Grant

GPU = "nvidia.com/gpu"


def units(count: int) -> Units:
    """Return whole cards `GPU-0` and so on."""
    ids = [f"GPU-{minor}" for minor in range(count)]
    return Units(minors={unit: minor for minor, unit in enumerate(ids)}, cards=frozenset(ids))


def whole(*minors: int) -> tuple[Grant, ...]:
    """Return whole cards of an annotation."""
    return tuple(Grant(type="gpu", minor=minor, amounts=(("gpu-core", 100),), id=f"GPU-{minor}") for minor in minors)


def share(minor: int) -> tuple[Grant, ...]:
    """Return half a card of an annotation."""
    return (Grant(type="gpu", minor=minor, amounts=(("gpu-core", 50),), id=f"GPU-{minor}"),)


def wants(*sizes: int, init: Sequence[int] = (), sidecars: Sequence[int] = ()) -> tuple[ContainerSpec, ...]:
    """Return containers that want so many cards each: init containers that end, such that stay, then the others."""
    ending = [ContainerSpec(name=f"init{place}", wants=_of(size), ends=True) for place, size in enumerate(init)]
    staying = [ContainerSpec(name=f"side{place}", wants=_of(size)) for place, size in enumerate(sidecars)]
    return (*ending, *staying, *(ContainerSpec(name=f"c{place}", wants=_of(size)) for place, size in enumerate(sizes)))


def _of(size: int) -> dict[str, int]:
    return {GPU: size} if size else {}


def pod(name: str, *sizes: int, grants: Iterable[Grant] = (), **fields: Any) -> Pod:
    """Return a pod whose containers want so many cards each."""
    containers = fields.pop("containers", None) or wants(*sizes)
    values = {"uid": f"uid-{name}", "namespace": "ns", "name": name, "version": 1, **fields}
    return Pod(**values, containers=containers, grants=tuple(grants))


class Api:
    """The pods of one node, and every change of them in its order."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, Pod]] = []
        self.now: dict[str, Pod] = {}
        self.warned: list[tuple[str, str]] = []
        self.lists = 0
        self.is_away = False
        self.meanwhile: Callable[[], object] = lambda: None
        """Called between the server's answer to a list and its arrival."""

    def put(self, fresh: Pod) -> Pod:
        created = replace(fresh, version=len(self.changes) + 1)
        self.now[created.uid] = created
        self.changes.append(("MODIFIED", created))
        return created

    def remove(self, uid: str) -> None:
        gone = replace(self.now.pop(uid), version=len(self.changes) + 1)
        self.changes.append(("DELETED", gone))

    async def pods(self) -> tuple[list[Pod], int]:
        if self.is_away:
            raise UnavailableError("no answer")
        self.lists += 1
        answer = list(self.now.values()), len(self.changes)
        self.meanwhile()
        return answer

    def warn(self, involved: InvolvedObject, reason: str, message: str) -> None:
        assert reason == DEVICES_REFUSED
        self.warned.append((involved.name, message))


class Kubelet:
    """A device manager with one resource, its pods, and their containers."""

    def __init__(self, *, devices: Iterable[str], chance: random.Random) -> None:
        self.devices = set(devices)
        self.unhealthy: set[str] = set()
        self.given: dict[tuple[str, str], set[str]] = {}
        """(UID, container) -> what it has, kept over restarts."""
        self.pods: dict[str, Pod] = {}
        self.failed: dict[str, str] = {}
        self.is_away = False
        self.claim_users: tuple[ClaimedByContainer, ...] = ()
        self._chance = chance
        self._heard = 0

    async def list_containers(self) -> tuple[ContainerReport, ...]:
        """Answer PodResources' List."""
        if self.is_away:
            raise UnavailableError("no such socket")
        return tuple(self._reports())

    def _reports(self) -> Iterable[ContainerReport]:
        for pod in self.pods.values():
            for container in pod.containers:
                ids = self.given.get((pod.uid, container.name))
                if ids and not container.ends:
                    yield ContainerReport(
                        namespace=pod.namespace,
                        pod=pod.name,
                        container=container.name,
                        by_resource={GPU: frozenset(ids)},
                    )

    async def hear(self, api: Api, plugin: Chooser, count: int | None = None) -> None:
        """Take changes one by one, as a watch brings them."""
        until = len(api.changes) if count is None else min(self._heard + count, len(api.changes))
        while self._heard < until:
            kind, changed = api.changes[self._heard]
            self._heard += 1
            await self._take(kind, changed, api, plugin)

    async def restart(self, api: Api, plugin: Chooser) -> None:
        """Begin a new watch: all pods at once, in the order of their creation."""
        self._heard = len(api.changes)
        for uid in self.pods.keys() - api.now.keys():
            self._forget(uid)
        for pod in sorted(api.now.values(), key=lambda pod: pod.created):
            await self._take("MODIFIED", pod, api, plugin)

    async def _take(self, kind: str, changed: Pod, api: Api, plugin: Chooser) -> None:
        if kind == "DELETED" or changed.ended:
            self._forget(changed.uid)
        elif changed.uid not in self.pods and changed.uid not in self.failed:
            self.pods[changed.uid] = changed
            await self._admit(changed, api, plugin)

    def end(self, uid: str) -> None:
        """End a pod's containers before the server removes it; older events of it change nothing."""
        self._forget(uid)
        self.failed[uid] = "ended"

    def _forget(self, uid: str) -> None:
        self.pods.pop(uid, None)
        self.given = {key: ids for key, ids in self.given.items() if key[0] != uid}

    async def _admit(self, fresh: Pod, api: Api, plugin: Chooser) -> None:
        reusable: set[str] = set()
        for container in fresh.containers:
            try:
                await self._allocate(fresh, container, reusable, plugin)
            except (AllocationRefusedError, RuntimeError) as error:
                self._forget(fresh.uid)
                self.failed[fresh.uid] = str(error)
                if fresh.uid in api.now:
                    api.put(replace(api.now[fresh.uid], ended=True))
                return
            held = self.given.get((fresh.uid, container.name), set())
            reusable = reusable | held if container.ends else reusable - held
        if fresh.uid in api.now:
            api.put(replace(api.now[fresh.uid], started=True))

    async def _allocate(self, fresh: Pod, container: ContainerSpec, reusable: set[str], plugin: Chooser) -> None:
        size = container.wants.get(GPU, 0)
        if not size:
            return
        if (fresh.uid, container.name) in self.given:
            return
        picked = self._some(reusable, size)
        if len(picked) < size:
            taken = set().union(*self.given.values())
            available = self.devices - self.unhealthy - taken
            if len(available) < size - len(picked):
                raise RuntimeError(f"only {len(available)} are available")
            preferred = await plugin.prefer(GPU, self._shuffled(available | picked), self._shuffled(picked), size)
            picked |= self._some(available & set(preferred), size - len(picked))
            picked |= self._some(available - picked, size - len(picked))
        await plugin.admit(GPU, self._shuffled(picked))
        self.given[fresh.uid, container.name] = picked

    def _some(self, of: set[str], count: int) -> set[str]:
        return set(self._shuffled(of)[: max(count, 0)])

    def _shuffled(self, of: set[str]) -> list[str]:
        return self._chance.sample(sorted(of), len(of))


class Agent:
    """The agent's admission with a watch that may be late, and a checkpoint that outlives it."""

    def __init__(
        self, *, api: Api, kubelet: Kubelet, path: Path, cards: int, clock: Callable[[], float] | None = None
    ) -> None:
        """Start it; without a `clock`, time passes with each look at it."""
        self.api = api
        self._clock = clock or self._tick
        self.kubelet = kubelet
        self._path = path
        self._cards = cards
        self.time = 0.0
        self.running: set[str] = set()
        """UIDs of pods that have processes."""
        self.start()

    def start(self) -> None:
        """Restart with what the checkpoint holds."""
        self.admission = Admission(
            kubelet=self.kubelet,
            server=self.api,
            events=self.api,
            memory=Checkpoint(path=self._path, boot_id="boot"),
            running=lambda: frozenset(self.running),
            clock=self._clock,
        )
        self.admission.mirror.units = units(self._cards)
        self._heard = len(self.api.changes)
        self.admission.replace_pods(list(self.api.now.values()), self._heard)

    def hear(self, count: int | None = None) -> None:
        """Take changes one by one, as a watch brings them."""
        until = len(self.api.changes) if count is None else min(self._heard + count, len(self.api.changes))
        for kind, changed in self.api.changes[self._heard : until]:
            if kind == "DELETED":
                self.admission.mirror.remove(changed)
            else:
                self.admission.mirror.put(changed)
        self._heard = until

    def _tick(self) -> float:
        self.time += 0.001
        return self.time
