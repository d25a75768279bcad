"""Profiles of a configuration file, and what happens to pods when it changes under a running operator."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devcluster import waiting
from tests.integration.operator import world as words
from tests.integration.operator.world import World
from tests.programs.processes import Process

CARD = {"nvidia.com/gpu": "1"}
HALF = {"kubernetes.io/gpu": "50"}


class Profiles:
    """An operator with a configuration file."""

    def __init__(self, world: World, folder: Path, *profiles: Mapping[str, Any], **flags: Any) -> None:
        self.world, self.path = world, folder / "berth.yaml"
        self.first, self.second = world.arena.scheduler_name, f"{world.arena.scheduler_name}-b"
        self._write(self._file(*profiles))
        self.operator: Process = world.operator(config=self.path, scheduler_names=None, **flags)

    def _file(self, *profiles: Mapping[str, Any]) -> str:
        # These nodes run no containers.
        plugins = {"filters": {"disabled": ["injected"]}}
        named = [{"schedulerName": self.first, "plugins": plugins, **each} for each in profiles]
        head = {"apiVersion": "config.berth.dev/v1alpha1", "kind": "BerthSchedulerConfiguration"}
        return json.dumps({**head, "profiles": named})

    def change(self, *profiles: Mapping[str, Any]) -> None:
        """Write other profiles and wait until they are in use."""
        before = self._times("configuration in use")
        self._write(self._file(*profiles))
        waiting.until(lambda: self._times("configuration in use") > before, what="the new configuration")

    def _write(self, text: str) -> None:
        draft = self.path.with_suffix(".draft")
        draft.write_text(text)
        draft.replace(self.path)

    def _times(self, event: str) -> int:
        return self.operator.text().count(event)


def test_scheduler_names_come_and_go(world: World, tmp_path: Path) -> None:
    world.agent()
    profiles = Profiles(world, tmp_path, {})
    world.nodes(1, gpus=1)
    world.pod("first", CARD)
    world.pod("other", {"cpu": "1"}, scheduler_name=profiles.second)
    world.bound("first")
    world.pod("parked", CARD)
    world.waits("parked", "too few free GPUs")
    assert world.bound_names() == {"first"}

    # A new scheduler name: pods that wait for it are bound, with Events from it.
    profiles.change({}, {"schedulerName": profiles.second})
    world.bound("other")
    assert _teller(world, "other", "Scheduled") == profiles.second
    assert _teller(world, "first", "Scheduled") == profiles.first
    assert _teller(world, "parked", "FailedScheduling") == profiles.first

    # A name that is gone: its pods are not scheduled, even those that had been read.
    profiles.change({"schedulerName": profiles.second})
    world.pod("unread", {"cpu": "1"})
    world.arena.delete("pods", "first", grace_seconds=0)
    world.pod("heir", CARD, scheduler_name=profiles.second)
    world.bound("heir")
    assert world.bound_names() == {"other", "heir"}

    # It comes back.
    world.arena.delete("pods", "heir", grace_seconds=0)
    profiles.change({}, {"schedulerName": profiles.second})
    world.bound("parked")
    world.bound("unread")


def _teller(world: World, pod: str, reason: str) -> str:
    events = world.wait(lambda: world.events(pod, reason), what=f"an Event {reason} of {pod}")
    return str(events[0]["reportingComponent"])


def test_strategies_place_differently(world: World, tmp_path: Path) -> None:
    world.agent()
    profiles = Profiles(world, tmp_path, {})
    world.nodes(2, gpus=2)
    spread = {"schedulerName": profiles.second, "strategy": {"nodes": "LeastAllocated", "cards": "LeastAllocated"}}
    profiles.change({"strategy": {"nodes": "MostAllocated", "cards": "MostAllocated"}}, spread)

    assert _cards(world, "packed", HALF, 2) == 1
    world.arena.delete("pods", "packed-0", grace_seconds=0)
    world.arena.delete("pods", "packed-1", grace_seconds=0)
    assert _cards(world, "spread", HALF, 4, scheduler_name=profiles.second) == 4
    assert _nodes(world, "spread", 4) == 2


def _cards(world: World, stem: str, requests: Mapping[str, str], count: int, **options: Any) -> int:
    """Create pods one after the other; count the cards that they are given."""
    chosen = set()
    for number in range(count):
        world.pod(f"{stem}-{number}", requests, **options)
        [card] = words.allocation(world.bound(f"{stem}-{number}"))["gpu"]
        chosen.add(card["id"])
    return len(chosen)


def _nodes(world: World, stem: str, count: int) -> int:
    return len({world.arena.get("pods", f"{stem}-{number}")["spec"]["nodeName"] for number in range(count)})


def test_a_filter_that_is_switched_off_lets_parked_pods_go(world: World, tmp_path: Path) -> None:
    [node] = world.arena.nodes(1)
    world.arena.merge("nodes", node, {"spec": {"unschedulable": True}})
    profiles = Profiles(world, tmp_path, {})
    world.pod("pod", {"cpu": "1"})
    world.waits("pod", "unschedulable")

    profiles.change({"plugins": {"filters": {"disabled": ["cordon", "taints"]}}})
    assert world.bound("pod")["spec"]["nodeName"] == node
