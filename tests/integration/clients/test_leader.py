"""The election against real LeaderLeases."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from berth_operator.clients import kube, leader
from devcluster import Arena, waiting
from tests.stand_ins.proxy import FaultProxy


def candidate(client: kube.KubeClient, arena: Arena, identity: str) -> leader.LeaderElection:
    return leader.LeaderElection(
        client,
        namespace=arena.namespace,
        name=arena.lease_name,
        identity=identity,
        lease_duration=2,
        renew_deadline=1.5,
        retry_period=0.2,
    )


@contextlib.asynccontextmanager
async def running(election: leader.LeaderElection) -> AsyncIterator[int]:
    task = asyncio.create_task(election.run())
    try:
        async with waiting.limit("the term"):
            term = await election.acquired()
        yield term
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_leader_that_cannot_renew_is_succeeded(
    admin: kube.KubeClient, proxied: kube.KubeClient, proxy: FaultProxy, arena: Arena
) -> None:
    old = candidate(proxied, arena, "old")
    async with running(old) as first:
        held = proxy.hold("PUT", r"/leaderleases/")
        new = candidate(admin, arena, "new")
        async with running(new) as second:
            assert old.term is None
            assert second > first  # a write whose answer was lost increments the number too
            held.release()  # the renewals that were under way arrive late, and are refused
            await asyncio.sleep(0.5)
            assert (old.term, new.term) == (None, second)
