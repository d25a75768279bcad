"""The fence on the real API server: which accounts and terms are refused, and how soon."""

import asyncio
import statistics
import time

import pytest

from berth_client.errors import ApiError
from berth_operator.clients import kube
from devcluster import Arena, waiting
from tests.integration.clients.conftest import Fenced
from tests.integration.clients.test_leader import candidate, running
from tests.stand_ins.proxy import FaultProxy

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
TAKEOVER_PAUSE = 1.0
"""Seconds that a new leader waits before it reads; the fence must be in force well before."""


def leases(arena: Arena) -> str:
    return f"/apis/berth.dev/v1alpha1/namespaces/{arena.namespace}/leaderleases"


async def set_term(admin: kube.KubeClient, arena: Arena, term: int) -> None:
    body = {"spec": {"term": term}}
    try:
        await admin.merge_patch(f"{leases(arena)}/{arena.lease_name}", body)
    except ApiError as error:
        if error.status != 404:
            raise
        kind = {"apiVersion": "berth.dev/v1alpha1", "kind": "LeaderLease"}
        await admin.request("POST", leases(arena), body={**kind, "metadata": {"name": arena.lease_name}, **body})


async def until_seen(fenced: Fenced, term: int) -> None:
    async def is_bound() -> bool:
        return await fenced.bind(term=term, label=fenced.arena.lease_name) == 201

    await waiting.until_async(is_bound, what=f"term {term} to be in force")


async def test_only_the_present_term_binds(fenced: Fenced, admin: kube.KubeClient) -> None:
    ours = fenced.arena.lease_name
    await set_term(admin, fenced.arena, 7)
    await until_seen(fenced, 7)
    assert await fenced.bind(term=6, label=ours) == 403
    assert await fenced.bind(term=8, label=ours) == 403
    assert await fenced.bind(term=None, label=ours) == 403
    assert await fenced.bind(term=7, label=None) == 403
    assert await fenced.bind(term=7, label="another-lease") == 403
    await set_term(admin, fenced.arena, 8)
    await until_seen(fenced, 8)
    assert await fenced.bind(term=7, label=ours) == 403


async def test_the_refusal_says_which_term_it_is(fenced: Fenced, admin: kube.KubeClient) -> None:
    await set_term(admin, fenced.arena, 7)
    await until_seen(fenced, 7)
    pod = fenced.pod()
    with pytest.raises(ApiError, match=r"epoch 6 is over, the LeaderLease berth-\w+ is in term 7"):
        await fenced.client.bind(
            fenced.arena.namespace, pod, fenced.binding(pod, term=6, label=fenced.arena.lease_name)
        )


async def test_an_api_server_that_lacks_a_renewal_binds_nothing(fenced: Fenced, admin: kube.KubeClient) -> None:
    arena, ours = fenced.arena, fenced.arena.lease_name
    await set_term(admin, arena, 7)
    await admin.merge_patch(f"{leases(arena)}/{ours}", {"spec": {"renewTime": "2026-01-01T00:00:10.000000Z"}})
    await until_seen(fenced, 7)
    for known in ("09.999999", "10.000000"):
        fenced.client.known_renewal = lambda at=known: f"{ours}/2026-01-01T00:00:{at}Z"  # type: ignore[misc]
        assert await fenced.bind(term=7, label=ours) == 201
    fenced.client.known_renewal = lambda: f"{ours}/2026-01-01T00:00:10.000001Z"
    pod = fenced.pod()
    with pytest.raises(ApiError, match="this API server has an earlier state"):
        await fenced.client.bind(arena.namespace, pod, fenced.binding(pod, term=7, label=ours))


async def test_a_missing_lease_stops_only_us(fenced: Fenced, admin: kube.KubeClient) -> None:
    arena = fenced.arena
    assert await fenced.bind(term=1, label=arena.lease_name) == 422
    assert await fenced.bind(client=admin) == 201
    assert await fenced.bind(client=admin, term=1, label="another-lease") == 201
    await set_term(admin, arena, 3)
    await until_seen(fenced, 3)
    await admin.request("DELETE", f"{leases(arena)}/{arena.lease_name}")
    await fenced.until_active(term=3, label=arena.lease_name)
    assert await fenced.bind(client=admin) == 201


async def test_without_the_kind_of_the_lease_others_bind(fenced: Fenced, admin: kube.KubeClient) -> None:
    """The definitions may go before the policies; the API server then denies what a policy's constraints match."""
    arena = fenced.arena
    await set_term(admin, arena, 3)
    await until_seen(fenced, 3)
    path = f"{POLICIES}/berth-fence-{arena.id}-epoch"
    await admin.merge_patch(path, {"spec": {"paramKind": {"kind": "LeaderLeaseThatIsNotDefined"}}})
    await fenced.until_active(term=3, label=arena.lease_name)
    assert await fenced.bind(client=admin) == 201


async def test_the_older_way_to_bind_is_fenced_as_well(fenced: Fenced, admin: kube.KubeClient) -> None:
    arena = fenced.arena
    await set_term(admin, arena, 7)
    await until_seen(fenced, 7)
    path = f"/api/v1/namespaces/{arena.namespace}/bindings"
    for term, label in ((7, None), (6, arena.lease_name)):
        body = fenced.binding(fenced.pod(), term=term, label=label)
        with pytest.raises(ApiError, match="403 Forbidden"):
            await fenced.client.request("POST", path, body=body)


async def test_a_bind_that_was_under_way_when_the_term_ended_is_refused(
    fenced: Fenced, admin: kube.KubeClient, proxy: FaultProxy
) -> None:
    arena = fenced.arena
    await set_term(admin, arena, 7)
    await until_seen(fenced, 7)
    token = arena.cluster.token  # any account's Binding with our label is fenced
    sender = await kube.KubeClient.connect(proxy.kubeconfig(token), "berth-test/paused")
    pod = fenced.pod()
    held = proxy.hold("POST", r"/binding$", count=1)
    bind = asyncio.create_task(sender.bind(arena.namespace, pod, fenced.binding(pod, term=7, label=arena.lease_name)))
    await asyncio.to_thread(held.wait)
    await set_term(admin, arena, 8)
    await until_seen(fenced, 8)
    held.release()
    with pytest.raises(ApiError, match="epoch 7 is over"):
        await bind
    assert "nodeName" not in (await admin.get_pod(arena.namespace, pod))["spec"]
    sender.close()


async def test_an_old_term_is_refused_long_before_a_new_leader_reads(fenced: Fenced, admin: kube.KubeClient) -> None:
    arena = fenced.arena
    ours = arena.lease_name
    pods = [fenced.pod() for _ in range(100)]
    delays = []
    await set_term(admin, arena, 1)
    await until_seen(fenced, 1)
    for term in range(2, 22):
        await set_term(admin, arena, term)
        began = last = time.monotonic()
        while await fenced.bind(pod=pods.pop(), term=term - 1, label=ours) == 201:
            last = time.monotonic()
        delays.append(last - began)
    print(f"an old term binds until p50 {statistics.median(delays):.4f} s, max {max(delays):.4f} s")  # noqa: T201
    assert max(delays) < TAKEOVER_PAUSE / 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"term": 9}, "spec.term must not decrease"),
        ({"term": 10, "holderIdentity": "b"}, "a new holderIdentity needs a higher spec.term"),
        ({"term": None}, "spec.term: Required value"),
    ],
)
async def test_the_definition_keeps_terms_growing(
    admin: kube.KubeClient, arena: Arena, change: dict[str, object], why: str
) -> None:
    path = f"{leases(arena)}/{arena.lease_name}"
    await set_term(admin, arena, 7)
    await admin.merge_patch(path, {"spec": {"term": 8, "holderIdentity": "a"}})
    await admin.merge_patch(path, {"spec": {"holderIdentity": ""}})
    await admin.merge_patch(path, {"spec": {"term": 9, "holderIdentity": "b"}})
    await admin.merge_patch(path, {"spec": {"holderIdentity": "b"}})
    await admin.merge_patch(path, {"spec": {"term": 10, "holderIdentity": "a"}})
    with pytest.raises(ApiError, match=why):
        await admin.merge_patch(path, {"spec": change})


async def test_a_candidate_stopped_before_its_write_binds_nothing_two_terms_later(
    fenced: Fenced, admin: kube.KubeClient, proxied: kube.KubeClient, proxy: FaultProxy
) -> None:
    arena = fenced.arena
    await set_term(admin, arena, 7)
    held = proxy.hold("PUT", r"/leaderleases/")
    stopped = candidate(proxied, arena, "stopped")
    task = asyncio.create_task(stopped.run())
    await asyncio.to_thread(held.wait)
    async with running(candidate(admin, arena, "second")) as its_number:
        pass  # the same number as in the held write
    async with running(candidate(admin, arena, "third")) as term:
        await until_seen(fenced, term)
        held.release()
        for _ in range(20):
            assert await fenced.bind(term=its_number, label=arena.lease_name) == 403
            assert stopped.term is None
        spec = (await admin.request("GET", f"{leases(arena)}/{arena.lease_name}"))["spec"]
        # On a slow machine it may have lost its term, and won the next one.
        assert spec["holderIdentity"] == "third"
        assert spec["term"] >= term
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
