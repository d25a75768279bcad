"""Pods that arrive all the time, and end some time after their bind: the load that an upgrade must not disturb."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from demo.audit import audit
from devcluster import Arena
from devcluster.control_plane.api import ApiError, Manifest
from devcluster.control_plane.nodes import Strings

KINDS: Final[Sequence[Strings]] = (
    {"nvidia.com/gpu": "1"},
    {"kubernetes.io/gpu": "50"},
    {"kubernetes.io/gpu-memory-ratio": "30"},
)
"""What pods request in turn."""
BACKLOG: Final = 2
"""No pod is created while this many times the usual number exist, because nothing binds them."""
BOUND: Final = 5
"""Pods that have to be bound before the next step."""


class Load:
    """One stream of pods.

    Attributes:
        created: name of each pod -> its UID.
        ended: pods that were deleted here, as they were last.
    """

    def __init__(
        self,
        arena: Arena,
        pod: Callable[[str, Strings], Manifest],
        *,
        prefix: str,
        period: float,
        life: int,
        grace_seconds: int | None = 0,
    ) -> None:
        """Describe it.

        Args:
            arena: where the pods are.
            pod: makes the manifest of a pod of a name that requests devices.
            prefix: of the pods' names.
            period: seconds between two pods.
            life: pods that exist at a time; the oldest bound one ends when there are more.
            grace_seconds: with which they are deleted; None for their own.
        """
        self.arena = arena
        self.created: dict[str, str] = {}
        self.ended: dict[str, Manifest] = {}
        self._pod, self._prefix, self._period, self._life = pod, prefix, period, life
        self._grace_seconds = grace_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._problems: list[BaseException] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Create and end pods within the block."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()
        assert not self._problems

    def listed(self) -> dict[str, Manifest]:
        """Return its pods that exist, by name."""
        return {
            name: pod for pod in self.arena.list("pods") if (name := pod["metadata"]["name"]).startswith(self._prefix)
        }

    def bound_names(self) -> set[str]:
        """Return the names of its pods that exist and are bound."""
        return {name for name, pod in self.listed().items() if pod["spec"].get("nodeName")}

    def pods(self) -> list[Manifest]:
        """Return all its pods that ever were bound, as they were last."""
        return [pod for pod in {**self.listed(), **self.ended}.values() if pod["spec"].get("nodeName")]

    def messages(self) -> dict[str, str]:
        """Return why its pods wait, by name."""
        return {
            name: condition.get("message", "")
            for name, pod in self.listed().items()
            for condition in pod["status"].get("conditions", ())
            if condition["type"] == "PodScheduled" and condition["status"] == "False"
        }

    def until_bound(self) -> None:
        """Wait until some more pods are bound."""
        before = self.bound_names()
        self.arena.wait(lambda: len(self.bound_names() - before) >= BOUND, what=f"pods {self._prefix}* to be bound")

    def check_nothing_is_lost(self) -> None:
        """Check that each pod exists unless it was ended here, and that each is bound once cards are free."""
        left = {name: uid for name, uid in self.created.items() if name not in self.ended}
        while left:
            listed = self.listed()
            assert {name: listed[name]["metadata"]["uid"] for name in left if name in listed} == left
            bound = [name for name in left if listed[name]["spec"].get("nodeName")]
            for name in bound:
                self._end(listed[name])
                del left[name]
            self._wait_for_any(frozenset(left))

    def _wait_for_any(self, waiting: frozenset[str]) -> None:
        """Wait until one of these pods is bound, if there are any."""
        self.arena.wait(lambda: not waiting or bool(waiting & self.bound_names()), what="the others to be bound")

    def _run(self) -> None:
        try:
            for number in itertools.count():
                if self._stop.wait(self._period):
                    return
                if len(self.created) - len(self.ended) < BACKLOG * self._life:
                    self._create(number)
                if len(self.created) - len(self.ended) > self._life:
                    self._end_oldest()
        except (ApiError, OSError) as error:
            self._problems.append(error)

    def _create(self, number: int) -> None:
        name = f"{self._prefix}{number}"
        [created] = self.arena.create([self._pod(name, KINDS[number % len(KINDS)])])
        self.created[name] = created["metadata"]["uid"]

    def _end_oldest(self) -> None:
        """Delete the bound pod that was created first, if there is one."""
        bound = (pod for name, pod in self.listed().items() if pod["spec"].get("nodeName") and name not in self.ended)
        oldest: Any = min(bound, key=lambda pod: int(pod["metadata"]["name"].removeprefix(self._prefix)), default=None)
        if oldest is not None:
            self._end(oldest)

    def _end(self, pod: Manifest) -> None:
        name = pod["metadata"]["name"]
        self.ended[name] = pod
        self.arena.delete("pods", name, grace_seconds=self._grace_seconds)


def check(arena: Arena) -> None:
    """Run the independent audit on a view of one moment: pods that were deleted while it was read are left out."""
    pods, devices = arena.list("pods"), arena.list("devices")
    still = {pod["metadata"]["uid"] for pod in arena.list("pods")}
    nodes = arena.list("nodes", labelSelector=arena.selector)
    names = {node["metadata"]["name"] for node in nodes}
    findings = audit(
        pods=[pod for pod in pods if pod["metadata"]["uid"] in still],
        nodes=nodes,
        devices=[device for device in devices if device["metadata"]["name"] in names],
        scheduler=arena.scheduler_name,
    )
    assert not findings, "\n".join(map(str, findings))
