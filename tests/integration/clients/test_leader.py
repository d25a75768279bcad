"""The election against real LeaderLeases."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from berth_client.errors import ApiError
from berth_operator.clients import kube, leader
from devcluster import Arena, waiting
from tests.proxy import FaultProxy


def path(arena: Arena) -> str:
    return f"/apis/berth.dev/v1alpha1/namespaces/{arena.namespace}/leaderleases/{arena.lease_name}"


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


async def test_take_release_take(admin: kube.KubeClient, arena: Arena) -> None:
    async with running(candidate(admin, arena, "a")) as first:
        spec = (await admin.request("GET", path(arena)))["spec"]
        assert (spec["holderIdentity"], spec["term"]) == ("a", first)
    spec = (await admin.request("GET", path(arena)))["spec"]
    assert spec.get("holderIdentity", "") == ""
    assert spec["leaseDurationSeconds"] == 1
    async with running(candidate(admin, arena, "b")) as second:
        assert second > first  # a write whose answer was lost increments the number too


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


async def test_renewing_a_deleted_lease_does_not_bring_it_back(admin: kube.KubeClient, arena: Arena) -> None:
    election = candidate(admin, arena, "a")
    async with running(election) as term:
        lease = await admin.request("GET", path(arena))
        await admin.request("DELETE", path(arena))
        with pytest.raises(ApiError) as refused:
            await admin.request("PUT", path(arena), body=lease)
        assert refused.value.status in {404, 409}
        await election.lost(term)
        assert await election.acquired() > term
