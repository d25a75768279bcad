"""Pods whose selectors take long wait for the worker process, and no other pod waits for them."""

import asyncio
import copy
from collections.abc import Sequence
from typing import Any

import pytest

from berth_api import names
from berth_operator.binding.selectors.process import Evaluated, SelectorProcess, StartError, WorkerError
from berth_operator.binding.selectors.slow import MAX_TRIES, SlowSelectors
from berth_operator.core.claims.objects import status
from berth_operator.core.claims.selectors import DeviceView
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.state.watches.claims import ResourceClaims
from tests.component.claims import claim_server
from tests.component.claims.claim_server import LAG
from tests.component.claims.test_scheduling_with_claims import Server
from tests.component.world import World
from tests.objects.builders import pod, pod_group
from tests.objects.resource_claims import NVIDIA_DRIVER, claim, gpu, resource_slice

PATH = 'device.attributes["gpu.nvidia.com"]'
SLOW = f"[{', '.join(['1'] * 95)}].all(x, [{', '.join(['1'] * 95)}].all(y, x == y))"


class Worker:
    """A worker process that gives fixed answers, each after five seconds."""

    def __init__(self, *answers: Evaluated | WorkerError) -> None:
        self.answers, self.asked, self.closed = list(answers), list[tuple[str, int]](), False

    async def evaluate(self, expression: str, views: Sequence[DeviceView]) -> Evaluated:
        self.asked.append((expression, len(views)))
        await asyncio.sleep(5)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, WorkerError):
            raise answer
        return answer

    async def close(self) -> None:
        self.closed = True


class Claims:
    """A node of ten GPUs, whose pool is Berth's."""

    def __init__(self, worker: Worker) -> None:
        self.server = Server()
        self.world = World(api=self.server, slow=lambda cluster: SlowSelectors(cluster, worker))
        self.watch = watch = ResourceClaims(self.world.cluster)
        self.server.claims = self.claims = claim_server.Server(
            lambda raw: watch.put_claim(status.with_writers(raw)), watch.remove_claim
        )
        self.world.cluster.set_own_pools(OwnPools(drivers=frozenset({NVIDIA_DRIVER})))
        watch.put_class({"metadata": {"name": NVIDIA_DRIVER}, "spec": {}})
        self.world.add_node(cards=0, allocatable={"cpu": "9"})
        watch.put_slice(resource_slice(*map(gpu, range(10))))

    def pod(self, name: str, expression: str, **fields: Any) -> None:
        """Create a pod whose claim selects a device by an expression."""
        raw = claim(name)
        raw["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
        self.claims.change(name, **raw)
        self.watch.put_claim(status.with_writers(copy.deepcopy(self.claims.claims[name])))
        self.world.submit(pod(name, {}, resourceClaims=[{"name": "c", "resourceClaimName": name}], **fields))


@pytest.mark.looptime
async def test_a_pod_is_bound_when_the_worker_has_found_its_device_and_others_do_not_wait_for_it() -> None:
    worker = Worker(Evaluated(results=[False] * 4), Evaluated(results=[False] * 5 + [True]))
    claims = Claims(worker)
    async with claims.world.running() as api:
        claims.pod("slow", SLOW)
        claims.pod("quick", f'{PATH}.uuid == "GPU-3"')
        claims.world.submit(pod("plain", {"cpu": "1"}))
        await asyncio.sleep(4.9)
        assert set(api.bound()) == {"quick", "plain"}
        await asyncio.sleep(5.1 + 4 * LAG)
        assert set(api.bound()) == {"slow", "quick", "plain"}
        assert worker.asked == [(SLOW, 10), (SLOW, 6)]
    assert worker.closed


@pytest.mark.looptime
async def test_a_gang_is_bound_when_the_worker_has_answered() -> None:
    claims = Claims(Worker(Evaluated(results=[True] * 10)))
    async with claims.world.running() as api:
        claims.world.groups.apply("ADDED", pod_group(minimum=2))
        for name in ("a", "b"):
            claims.pod(name, SLOW, labels={names.POD_GROUP_LABEL: "g"})
        await asyncio.sleep(5 + 4 * LAG)
        assert set(api.bound()) == {"a", "b"}


@pytest.mark.looptime
async def test_an_expression_that_ends_the_worker_fails_and_one_for_which_none_starts_waits() -> None:
    worker = Worker(StartError("no process"), WorkerError("no answer within 60 s"))
    claims = Claims(worker)
    async with claims.world.running() as api:
        claims.pod("slow", SLOW)
        await asyncio.sleep(90)
        assert len(worker.asked) == 1 + MAX_TRIES
        failed = f"CEL runtime error: its evaluation failed {MAX_TRIES} times: no answer within 60 s"
        assert failed in api.messages("slow")[-1]


# --- the process itself -----------------------------------------------------------------------------------------

VIEW = DeviceView("gpu.io", {"model": "H100"}, {}, allow_multiple_allocations=False)


async def test_the_worker_process_answers_and_is_started_again_after_it_was_killed() -> None:
    process = SelectorProcess()
    try:
        found = await process.evaluate('device.attributes["gpu.io"].model == "H100" && ' + SLOW, [VIEW])
        assert found == Evaluated(results=[True])
        missing = await process.evaluate('device.attributes["gpu.io"].none == "a"', [VIEW])
        assert missing == Evaluated(results=["no such key: none"])
        assert (await process.evaluate("unknown", [VIEW])).invalid.endswith("undeclared reference to 'unknown'")
        doubled = "cel.bind(a, lists.range(9999), cel.bind(b, a.map(x, a), b.map(x, b)).size() > 0)"
        assert "more than" in str((await process.evaluate(doubled, [VIEW])).results[0])
        process._process.kill()  # type: ignore[union-attr]
        with pytest.raises(WorkerError, match="the worker process ended"):
            await process.evaluate("true", [VIEW])
        assert await process.evaluate("true", [VIEW]) == Evaluated(results=[True])
    finally:
        await process.close()


async def test_a_worker_process_that_does_not_answer_is_killed() -> None:
    process = SelectorProcess(("sleep", "60"), timeout=0.05)
    with pytest.raises(WorkerError, match="no answer within"):
        await process.evaluate("true", [VIEW])
    assert process._process is None
    with pytest.raises(StartError, match="cannot be started"):
        await SelectorProcess(("/nowhere",)).evaluate("true", [VIEW])
