"""Pods that are being deleted and that a finalizer keeps: their devices are free after their end."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from berth_agent.kubelet.admission import pods
from berth_agent.kubelet.admission.admission import STOPPED_SECONDS
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.readings import ClaimedByContainer
from berth_api.device import ClaimedDevice
from tests.unit.agent.kubelet.admission.kubelets import GPU, Agent, Api, Kubelet, pod, share, whole

OTHER = "0123456789abcdef0123456789abcdef"
KEPT = pod("kept", 1, grants=whole(0), deleting=True)


class World:
    """A node of two cards, and its agent."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.api = Api()
        self.kubelet = Kubelet(devices=["GPU-0", "GPU-1"], chance=random.Random(1))
        self.agent = Agent(
            api=self.api, kubelet=self.kubelet, path=folder / "checkpoint", cards=2, clock=lambda: self.now
        )

    def put(self, *fresh: Pod) -> None:
        for each in fresh:
            self.api.put(each)
        self.agent.hear()

    async def looks(self, count: int = 2) -> frozenset[str]:
        """Return which pods have stopped after some looks."""
        for _ in range(count):
            await self.agent.admission.refresh()
            self.now += STOPPED_SECONDS
        return self.agent.admission.mirror.stopped


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_pod_has_stopped_when_two_looks_find_no_process_and_no_device(world: World) -> None:
    world.put(KEPT)
    assert await world.looks(1) == frozenset()
    assert await world.looks(1) == {KEPT.uid}
    world.agent.running.add(KEPT.uid)
    assert await world.looks(1) == frozenset()


@pytest.mark.parametrize(
    "forged", [replace(KEPT, static_uid=OTHER), KEPT, replace(KEPT, grants=share(0), containers=())], ids=str
)
async def test_kubelet_may_get_the_card_of_a_pod_that_has_stopped(world: World, forged: Pod) -> None:
    world.put(forged)
    await world.looks()
    snapshot = world.agent.admission.mirror.snapshot()
    assert (snapshot.held(), snapshot.withheld(), snapshot.pods) == (frozenset(), frozenset(), ())
    world.put(pod("next", 1, grants=whole(0)))
    assert await world.agent.admission.prefer(GPU, ["GPU-0", "GPU-1"], [], 1) == ["GPU-0"]
    await world.agent.admission.admit(GPU, ["GPU-0"])


@pytest.mark.parametrize(
    "kept",
    [replace(KEPT, deleting=False), replace(KEPT, ended=True)],
    ids=["it is not being deleted", "it has ended, which its phase shows"],
)
async def test_other_pods_do_not_count_as_stopped(world: World, kept: Pod) -> None:
    world.put(kept)
    assert await world.looks() == frozenset()


async def test_a_pod_with_a_device_of_kubelet_has_not_stopped(world: World) -> None:
    world.kubelet.given[KEPT.uid, "c0"] = {"GPU-0"}
    world.kubelet.pods[KEPT.uid] = KEPT
    world.put(KEPT)
    assert await world.looks() == frozenset()


async def test_a_pod_with_a_claim_of_kubelet_has_not_stopped(world: World) -> None:
    device = ClaimedDevice(namespace="ns", claim="c", driver="d", pool="p", device="x")
    world.kubelet.claim_users = (ClaimedByContainer(pod=KEPT.name, container="c0", device=device),)
    world.put(KEPT)
    assert await world.looks() == frozenset()


async def test_nothing_stops_while_kubelet_does_not_answer(world: World) -> None:
    world.kubelet.is_away = True
    world.put(KEPT)
    assert await world.looks(4) == frozenset()


async def test_a_forged_mirror_pod_does_not_run_by_the_processes_of_another_pod(world: World) -> None:
    forged = replace(KEPT, static_uid="uid-runs")
    world.put(pod("runs", 0), forged)
    world.agent.running.add("uid-runs")
    assert await world.looks() == {forged.uid}


async def test_a_static_pod_whose_mirror_pod_is_kept_runs_on(world: World) -> None:
    world.put(replace(KEPT, static_uid=OTHER))
    world.agent.running.add(OTHER)
    assert await world.looks() == frozenset()


async def test_a_new_agent_goes_on_from_what_the_last_one_published(world: World) -> None:
    world.put(KEPT)
    world.agent.admission.restore_stopped([KEPT.uid])
    assert await world.looks(1) == {KEPT.uid}
    world.agent.admission.restore_stopped([KEPT.uid])
    world.agent.running.add(KEPT.uid)
    assert await world.looks(1) == frozenset()


@pytest.mark.parametrize("deleted", ["2026-01-01T00:00:00Z", None])
def test_the_deletion_of_a_pod_is_read(deleted: str | None) -> None:
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "deletionTimestamp": deleted}
    raw = {"metadata": metadata, "spec": {"containers": []}}
    assert pods.of_object(raw).deleting is (deleted is not None)
    assert pods.unreadable(raw).deleting is (deleted is not None)
