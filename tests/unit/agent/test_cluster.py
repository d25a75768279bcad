"""The agent's client: through the environment's proxy, with the current token, and each call once."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from berth_agent import cluster
from berth_agent.configuration.settings import Settings
from berth_client.credentials import Login
from berth_client.errors import ApiError, Unreachable
from tests.unit.client.server import Server, started


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    runners: list[web.ServerRunner] = []
    yield await started(runners)
    for runner in runners:
        await runner.cleanup()


async def test_each_request_reads_the_token_file(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    client = cluster.client_of(Login(server=server.url, token=token), timeout=30, connections=1)
    for text in ("one", "two"):
        token.write_text(text)
        headers = (await client.get("/"))["headers"]
        assert (headers["Authorization"], headers["User-Agent"]) == (f"Bearer {text}", "berth-agent")
    client.close()


async def test_each_simulated_node_has_a_token_of_its_own(server: Server, tmp_path: Path) -> None:
    settings = Settings(inventory="simulated", fleet=tmp_path / "fleet.yaml", fleet_tokens=tmp_path)
    (tmp_path / "own").write_text("own")
    own = cluster.client_of(Login(server=server.url, token=tmp_path / "own"), timeout=30, connections=1)
    client_of = cluster.client_of_node(own, settings)
    with pytest.raises(Unreachable, match="no token of the simulated node a"):
        client_of("a")

    for node, text in (("a", "first"), ("b", "other"), ("a", "renewed")):
        (tmp_path / node).write_text(text)
        assert (await client_of(node).get("/"))["headers"]["Authorization"] == f"Bearer {text}"

    assert (await own.get("/"))["headers"]["Authorization"] == "Bearer own"
    assert cluster.client_of_node(own, Settings(node_name="a"))("a") is own
    own.close()


async def test_a_call_is_sent_once(server: Server) -> None:
    server.always(429, **{"Retry-After": "0"})
    client = cluster.client_of(Login(server=server.url), timeout=30, connections=1)
    with pytest.raises(ApiError):
        await client.get("/")
    assert len(server.seen) == 1
    client.close()


async def test_the_environment_s_proxy_is_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", server.url)
    client = cluster.client_of(Login(server="http://api.example"), timeout=30, connections=1)
    assert (await client.get("/x"))["headers"]["Host"] == "api.example"
    client.close()


async def test_metadata_is_listed_by_name(server: Server) -> None:
    items = [{"metadata": {"name": name, "uid": f"u-{name}"}} for name in "ab"]
    server.always(200, {"metadata": {"resourceVersion": "1"}, "items": items})
    client = cluster.client_of(Login(server=server.url), timeout=30, connections=1)
    assert await cluster.list_metadata(client, cluster.NODES) == {
        obj["metadata"]["name"]: obj["metadata"] for obj in items
    }
    assert "fieldSelector" not in server.seen[-1].query
    await cluster.list_metadata(client, cluster.NODES, only="a")
    assert server.seen[-1].query["fieldSelector"] == "metadata.name=a"
    client.close()
