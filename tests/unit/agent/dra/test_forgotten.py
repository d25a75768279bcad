"""Claims that kubelet has forgotten are released, and no others: what is not known costs no claim its card."""

import asyncio
import copy
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from berth_agent.dra.forgotten import FORGOTTEN_SECONDS, INTERVAL, ForgottenClaims
from berth_agent.vendor import RefusedError
from berth_api.device import ClaimedDevice
from berth_client.errors import ApiError
from tests.unit.agent.dra.test_preparation import Node

pytestmark = pytest.mark.looptime

POD = "1f2e3d4c-5b6a-4788-9900-aabbccddeeff"


class World(Node):
    """A node with a prepared claim that a pod reserves, and whose containers have ended."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.preparation = self.restart(wait=0)
        self.key = self.allocate("one", "gpu-0")
        self.refusal: ApiError | None = None
        self.reported: list[ClaimedDevice] | None = []
        self.on_answer: Callable[[], object] = lambda: None
        self.lingering = frozenset[str]()
        self.reserve()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        if self.refusal:
            raise self.refusal
        answer = copy.deepcopy(await super().get(path, params))
        self.on_answer()
        return answer

    def reserve(self, *pods: str) -> None:
        self.claims["one"]["status"]["reservedFor"] = [{"resource": "pods", "name": pod} for pod in pods]

    def report(self, claim: str, device: str = "gpu-0") -> None:
        reported = ClaimedDevice(namespace="ns", claim=claim, driver="gpu.berth.dev", pool="node", device=device)
        self.reported = [reported]

    def replace(self) -> None:
        """Have another claim of this name, whose container runs on another card."""
        self.allocate("one", "gpu-1", uid="other")
        self.report("one", "gpu-1")

    def deallocate(self) -> None:
        del self.claims["one"]["status"]["allocation"]

    def delete_by_force(self) -> None:
        self.claims.clear()
        self.lingering = frozenset({POD})

    def forgotten(self) -> ForgottenClaims:
        return ForgottenClaims(
            self.preparation,
            api=self,
            pool="node",
            by_claim=lambda: self.reported,
            lingering=lambda: self.lingering,
        )

    def refuse(self, status: HTTPStatus, message: str, reason: str = "Unknown") -> None:
        self.refusal = ApiError(status, reason, message)

    def is_held(self) -> bool:
        return bool(self.preparation.cards() and self.files() and self.recorded())


CASES: dict[str, tuple[Callable[[World], object], bool]] = {
    "it is gone": (lambda world: world.claims.clear(), False),
    "another has its name": (lambda world: world.allocate("one", "gpu-0", uid="other"), False),
    "another has its name and another card": (lambda world: world.replace(), False),
    "no pod reserves it": (lambda world: world.reserve(), False),
    "it is allocated elsewhere": (lambda world: world.allocate("one", "gpu-0", pool="other"), False),
    "it is not allocated": (lambda world: world.deallocate(), False),
    "a container of another claim runs": (lambda world: world.report("two"), False),
    "a pod reserves it": (lambda world: world.reserve("pod"), True),
    "a container has it": (lambda world: world.report("one"), True),
    "its pod was deleted by force, and a process of it still runs": (lambda world: world.delete_by_force(), True),
    "kubelet does not answer": (lambda world: setattr(world, "reported", None), True),
    "the API server fails": (lambda world: world.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "one not now"), True),
    "the agent lacks the right": (lambda world: world.refuse(HTTPStatus.FORBIDDEN, "one forbidden"), True),
    "claims are not served": (lambda world: world.refuse(HTTPStatus.NOT_FOUND, "404 page one not found"), True),
    "their group is not served": (
        lambda world: world.refuse(HTTPStatus.NOT_FOUND, "the server could not find the one resource", "NotFound"),
        True,
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_claim_that_nobody_needs_for_minutes_is_released(tmp_path: Path, case: str) -> None:
    world = World(tmp_path)
    await world.preparation.prepare(world.key)
    happens, is_kept = CASES[case]
    happens(world)
    forgotten = world.forgotten()
    looking = asyncio.create_task(forgotten.run())
    await asyncio.sleep(FORGOTTEN_SECONDS + INTERVAL / 2)
    assert world.is_held()
    await asyncio.sleep(INTERVAL)
    assert world.is_held() is is_kept
    assert not looking.done()
    looking.cancel()


async def test_the_time_begins_again_when_somebody_may_need_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.preparation.prepare(world.key)
    forgotten = world.forgotten()

    async def look(times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(INTERVAL)
            await forgotten.look()

    await look(5)
    world.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "not now")
    await look(1)
    world.refusal = None
    await look(5)
    world.reserve("pod")
    await look(1)
    world.reserve()
    await look(5)
    assert world.is_held()
    # Another claim gets the card at last.
    other = world.allocate("two", "gpu-0")
    with pytest.raises(RefusedError, match="still prepared for ResourceClaim ns/one"):
        await world.preparation.prepare(other)
    await look(1)
    await world.preparation.prepare(other)


async def test_a_pod_that_comes_at_the_last_moment_keeps_its_claim(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.preparation.prepare(world.key)
    forgotten = world.forgotten()
    for _ in range(5):
        await asyncio.sleep(INTERVAL)
        await forgotten.look()
    await asyncio.sleep(INTERVAL)
    # The pod reserves the claim when the first question is answered. The last one is asked while kubelet's calls wait.
    world.on_answer = lambda: world.reserve("pod")
    await forgotten.look()
    assert world.is_held()
