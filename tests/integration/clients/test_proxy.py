"""The faulty network applies the faults that it is given, and no others."""

import contextlib
import time

import pytest

from berth_client.errors import ApiError, Unreachable
from berth_operator.clients import kube
from devcluster import Arena, Cluster, waiting
from tests.stand_ins.proxy import FaultProxy


async def test_everything_else_passes_with_its_identity(
    proxied: kube.KubeClient, proxy: FaultProxy, arena: Arena
) -> None:
    arena.create([arena.pod("p")])
    pods = f"/api/v1/namespaces/{arena.namespace}/pods"
    page = await proxied.request("GET", pods, params={"fieldSelector": "metadata.name!=x,spec.nodeName="})
    assert [item["metadata"]["name"] for item in page["items"]] == ["p"]
    assert proxy.requests[-1].agent == "berth-test/proxied"
    anonymous = await kube.KubeClient.connect(proxy.kubeconfig("wrong"), "stranger")
    with pytest.raises(ApiError, match="401"):
        await anonymous.request("GET", pods)
    anonymous.close()


async def test_a_watch_is_cut_within_a_line(proxied: kube.KubeClient, proxy: FaultProxy, arena: Arena) -> None:
    path = f"/api/v1/namespaces/{arena.namespace}/configmaps"
    for name in ("a1", "a2"):
        await proxied.request("POST", path, body={"metadata": {"name": name}})
    proxy.cut("GET", r"watch=true", count=1)
    stream = proxied.stream(path, {"watch": "true", "resourceVersion": "0"})
    async with contextlib.aclosing(stream), waiting.limit("the stream"):
        assert [line async for line in stream if line] == []


async def test_a_held_request_arrives_although_its_sender_has_gone(
    proxied: kube.KubeClient, proxy: FaultProxy, arena: Arena
) -> None:
    path = f"/api/v1/namespaces/{arena.namespace}/configmaps"
    held = proxy.hold("POST", r"/configmaps$")
    with pytest.raises(Unreachable):
        await proxied.request("POST", path, body={"metadata": {"name": "late"}}, timeout=0.2)
    held.wait()
    assert not arena.cluster.api.exists(f"{path}/late")
    held.release()
    arena.wait(lambda: arena.cluster.api.exists(f"{path}/late"), what="the late request")


def test_it_ends_at_once_whatever_is_held(cluster: Cluster, proxy: FaultProxy) -> None:
    assert proxy.url.startswith("http://127.0.0.1:")
    rule = proxy.hold("GET", "/never")
    with pytest.raises(waiting.WaitError, match="1 requests GET /never"):
        rule.wait(timeout=0.01)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(FaultProxy(server=cluster.server, ca_file=cluster.ca_file, folder=cluster.folder))
    assert time.monotonic() - began < 20
