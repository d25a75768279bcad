"""Sources against small servers on loopback: what they request from which server, and what they refuse."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from berth_client.client import ApiClient
from berth_client.credentials import Login
from berth_client.tokens import TokenSource
from berth_operator.core.values.gpu_metrics import Quantity
from berth_operator.metrics.gpu.families import DCGM, FAMILIES
from berth_operator.metrics.gpu.fetching import Fetcher, FetchError
from berth_operator.metrics.gpu.sources import Agents, Prometheus, PrometheusAddress, SourceError, agents_of
from tests.stand_ins.certificates import Authority
from tests.unit.client.server import Server, started

TOKEN = "secret-of-prometheus"  # noqa: S105 -- opens nothing


@pytest.fixture
async def runners() -> AsyncIterator[list[web.ServerRunner]]:
    runners: list[web.ServerRunner] = []
    yield runners
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def server(runners: list[web.ServerRunner]) -> Server:
    return await started(runners)


@pytest.fixture
async def api(runners: list[web.ServerRunner]) -> AsyncIterator[tuple[Server, ApiClient]]:
    """Start an API server that has no objects; a test adds lists by path."""
    server = await started(runners)
    listing(server, {})
    with connected(server) as client:
        yield server, client


@contextlib.contextmanager
def connected(server: Server) -> Iterator[ApiClient]:
    client = ApiClient.of(TokenSource(login=Login(server=server.url)), user_agent="berth-test/1")
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
async def fetcher() -> AsyncIterator[Fetcher]:
    async with Fetcher(limit=4, seconds=5.0) as made:
        yield made


def listing(server: Server, by_path: dict[str, list[Any]]) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.json_response({"items": by_path.get(request.path, []), "metadata": {"resourceVersion": "1"}})

    server.handler = answer


def prometheus(server: Server, nodes: int = 1) -> None:
    """Answer queries as a Prometheus that scrapes DCGM exporter, with one card on each node."""

    async def answer(request: web.BaseRequest) -> web.Response:
        query = request.query["query"]
        value = "4.5" if query.startswith("time()") else "1024"
        labels = [{"UUID": f"GPU-{number}", "Hostname": f"node-{number}"} for number in range(nodes)]
        result = [{"metric": each, "value": [1.5, value]} for each in labels if "DCGM" in query]
        body = {"status": "success", "data": {"resultType": "vector", "result": result}}
        return web.Response(body=orjson.dumps(body))

    server.handler = answer


def source(api: ApiClient, fetcher: Fetcher, **address: Any) -> Prometheus:
    return Prometheus(api=api, fetcher=fetcher, address=PrometheusAddress(**address), max_age=60.0)


Api = tuple[Server, ApiClient]


# --- Prometheus -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 50])
async def test_the_number_of_queries_is_that_of_the_series(
    api: Api, fetcher: Fetcher, server: Server, nodes: int
) -> None:
    prometheus(server, nodes)
    samples = list(await source(api[1], fetcher, url=f"{server.url}/below/").read())
    assert len(samples) == nodes
    assert (samples[0].uuid, samples[0].node, samples[0].age) == ("GPU-0", "node-0", 4.5)
    assert samples[0].values[Quantity.FREE_MEMORY] == 2**30
    assert len(server.seen) == len(FAMILIES) + len(DCGM.series)
    assert {each.path for each in server.seen} == {"/below/api/v1/query"}


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        pytest.param(302, b"", "HTTP 302", id="a redirect"),
        pytest.param(503, b"", "HTTP 503", id="an error"),
        pytest.param(200, b"<html>", "no instant vector", id="no Prometheus"),
    ],
)
async def test_another_answer_is_an_error(api: Api, server: Server, status: int, body: bytes, text: str) -> None:
    server.always(status, body, Location=f"{server.url}/elsewhere")
    with pytest.raises(SourceError, match=text):
        async with Fetcher(limit=1, seconds=5.0) as fetcher:
            await source(api[1], fetcher, url=server.url).read()
    assert len(server.seen) == 1


async def test_an_answer_has_a_limit_of_size_and_time(server: Server) -> None:
    server.always(200, b"x" * 1001)
    async with Fetcher(limit=1, seconds=0.2) as fetcher:
        with pytest.raises(FetchError, match="more than 1000 bytes"):
            await fetcher.get(server.url, max_bytes=1000)
        assert len(await fetcher.get(server.url, max_bytes=1001)) == 1001

        async def never(_request: web.BaseRequest) -> web.Response:
            await asyncio.sleep(60)
            return web.Response()

        server.handler = never
        with pytest.raises(FetchError, match="no answer in time"):
            await fetcher.get(server.url)


async def test_a_compressed_answer_is_not_unpacked(server: Server) -> None:
    server.always(200, b"\x1f\x8b bomb", **{"Content-Encoding": "gzip"})
    async with Fetcher(limit=1, seconds=5.0) as fetcher:
        assert await fetcher.get(server.url) == b"\x1f\x8b bomb"
    assert server.seen[0].headers["Accept-Encoding"] == "identity"


async def test_a_token_is_sent_by_https_only(
    api: Api, fetcher: Fetcher, server: Server, runners: list[web.ServerRunner], tmp_path: Path
) -> None:
    authority, token = Authority(tmp_path), tmp_path / "token"
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.issue("localhost", names=["localhost"]))
    secured = await started(runners, context)
    url = secured.url.replace("127.0.0.1", "localhost")
    for each in (server, secured):
        prometheus(each)
    token.write_text(f"{TOKEN}\n")
    await source(api[1], fetcher, url=server.url, token=token).read()
    assert all("Authorization" not in each.headers for each in server.seen)
    with pytest.raises(SourceError, match="certificate"):
        await source(api[1], fetcher, url=url, token=token).read()
    assert secured.seen == []
    async with Fetcher(limit=1, seconds=5.0, authority=authority.file) as trusting:
        reader = source(api[1], trusting, url=url, token=token)
        await reader.read()
        token.write_text("renewed")
        await reader.read()
        assert [each.headers["Authorization"] for each in (secured.seen[0], secured.seen[-1])] == [
            f"Bearer {TOKEN}",
            "Bearer renewed",
        ]
        token.unlink()
        with pytest.raises(SourceError, match="No such file"):
            await reader.read()


async def test_a_rotated_authority_is_used_by_the_next_connection(
    runners: list[web.ServerRunner], tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def rotate() -> Path:
        current = Authority(tmp_path)
        context.load_cert_chain(current.issue("localhost", names=["localhost"]))
        return current.file

    authority = rotate()
    server = await started(runners, context)
    server.always(200, b"{}", Connection="close")
    async with Fetcher(limit=1, seconds=5.0, authority=authority) as fetcher:
        for _ in range(2):
            assert await fetcher.get(server.url.replace("127.0.0.1", "localhost")) == b"{}"
            rotate()


# --- Services ---------------------------------------------------------------------------------------------------


def service(namespace: str, url: str) -> dict[str, Any]:
    """Return a Service of a Prometheus that listens where this URL is."""
    port = int(url.rpartition(":")[2])
    metadata = {"name": "prometheus", "namespace": namespace, "labels": {"app.kubernetes.io/name": "prometheus"}}
    return {"metadata": metadata, "spec": {"clusterIP": "10.0.0.1", "ports": [{"name": "web", "port": port}]}}


async def test_a_tenants_service_that_claims_to_be_prometheus_is_not_asked(
    api: Api, fetcher: Fetcher, server: Server
) -> None:
    prometheus(server)
    listing(api[0], {"/api/v1/namespaces/tenant/services": [service("tenant", server.url)]})
    with pytest.raises(SourceError, match="no Service of Prometheus in the namespaces monitoring, observability"):
        await source(api[1], fetcher, namespaces=("monitoring", "observability")).read()
    # Its namespace is not even listed.
    assert [each.path for each in api[0].seen] == [
        "/api/v1/namespaces/monitoring/services",
        "/api/v1/namespaces/observability/services",
    ]
    assert server.seen == []


async def test_a_service_that_does_not_answer_is_searched_again(api: Api, fetcher: Fetcher) -> None:
    reader = source(api[1], fetcher, namespaces=("monitoring",))
    listing(api[0], {"/api/v1/namespaces/monitoring/services": [service("monitoring", "http://x:9090")]})
    for searches in (1, 2):
        # No name of the cluster can be resolved here.
        with pytest.raises(SourceError, match=r"prometheus\.monitoring\.svc"):
            await reader.read()
        assert len(api[0].seen) == searches


# --- agents -----------------------------------------------------------------------------------------------------


def agent_pod(node: str = "a", **changes: Any) -> dict[str, Any]:
    owner = {"kind": "DaemonSet", "name": "berth-agent", "controller": True}
    status = {"phase": "Running", "podIP": changes.get("address", "127.0.0.1")}
    return {
        "metadata": {"name": f"agent-{node}", "ownerReferences": changes.get("owners", [owner])},
        "spec": {"nodeName": node},
        "status": {**status, **changes.get("status", {})},
    }


@pytest.mark.parametrize(
    ("pod", "urls"),
    [
        pytest.param(agent_pod(), ["http://127.0.0.1:9405/metrics"], id="an agent"),
        pytest.param(agent_pod(address="fd00::7"), ["http://[fd00::7]:9405/metrics"], id="IPv6"),
        pytest.param(agent_pod(owners=[]), [], id="of no controller"),
        pytest.param(agent_pod(owners=[{"kind": "ReplicaSet", "controller": True}]), [], id="of another controller"),
        pytest.param(agent_pod(status={"phase": "Failed"}), [], id="ended"),
        pytest.param(agent_pod(address=""), [], id="without an address"),
        pytest.param(agent_pod(address="evil.example.com/x#"), [], id="no address"),
        pytest.param(agent_pod(node=""), [], id="without a node"),
    ],
)
def test_agents_are_pods_of_a_daemonset_that_run(pod: dict[str, Any], urls: list[str]) -> None:
    assert [each.url for each in agents_of([pod], 9405)] == urls


async def test_agents_that_answer_count_for_their_own_nodes(api: Api, fetcher: Fetcher, server: Server) -> None:
    text = 'berth_gpu_power_watts{node="%s",UUID="GPU-%s"} 5\n'
    server.always(200, b"".join((text % (node, node)).encode() for node in "ab"))
    path = "/api/v1/namespaces/berth-system/pods"
    pods = [agent_pod("a"), agent_pod("b", address="127.0.0.9")]
    listing(api[0], {path: pods})
    port = int(server.url.rpartition(":")[2])
    agents = Agents(api=api[1], fetcher=fetcher, namespace="berth-system", port=port)
    assert [(each.uuid, each.node) for each in await agents.read()] == [("GPU-a", "a")]
    await agents.read()
    assert [(each.path, each.query["labelSelector"]) for each in api[0].seen] == [
        (path, "app.kubernetes.io/name=berth-agent")
    ]
    listing(api[0], {path: pods[1:]})
    with pytest.raises(SourceError, match="none of 1 agents answers"):
        await Agents(api=api[1], fetcher=fetcher, namespace="berth-system", port=port).read()
