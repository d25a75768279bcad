"""An agent authenticates to a real API server."""

from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth_agent import cluster
from berth_client import credentials
from berth_client.client import ApiClient
from berth_client.errors import CallError
from devcluster import Arena, waiting

Start = Callable[..., Any]
START = 60.0
"""Longest time in seconds for an agent to start, or to retry, on a busy machine."""


def token_of(arena: Arena, account: str) -> str:
    """Create an account with all rights, and return a token of it."""
    return str(yaml.safe_load(arena.service_account(account, "cluster-admin").read_text())["users"][0]["user"]["token"])


def exchange(file: Path, token: str) -> None:
    """Replace the contents of a token file atomically, as kubelet does."""
    fresh = file.with_suffix(".new")
    fresh.write_text(token)
    fresh.rename(file)


def test_an_agent_takes_up_each_token_that_its_file_holds(arena: Arena, start: Start, fleet_file: Start) -> None:
    (node,) = arena.nodes(1)
    token = arena.folder / "token"
    exchange(token, token_of(arena, "first"))
    kubeconfig = arena.folder / "agent.kubeconfig"
    document = yaml.safe_load(arena.cluster.kubeconfig_for("none"))
    document["users"][0]["user"] = {"tokenFile": token.name}
    kubeconfig.write_text(yaml.safe_dump(document))
    fleet = fleet_file(f"- {{names: {node}, profile: a100, gpus: 1}}")
    agent = start("--inventory=simulated", f"--fleet={fleet}", f"--kubeconfig={kubeconfig}")
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{agent.lease_namespace}/leases/{node}"

    def renewed() -> str:
        current = arena.cluster.api.get(lease) if arena.cluster.api.exists(lease) else {}
        return str(current.get("spec", {}).get("renewTime", ""))

    arena.wait(renewed, deadline=START, what="the first heartbeat")
    exchange(token, "worn-out")
    arena.wait(lambda: "Unauthorized" in agent.log, deadline=START, what="the end of the first token")
    last = renewed()
    exchange(token, token_of(arena, "second"))
    arena.wait(lambda: renewed() > last, deadline=START, what="a heartbeat by the second token")


async def allowed(client: ApiClient) -> bool:
    """Return whether Nodes can be read; a new account has no rights for a moment."""
    try:
        await cluster.list_metadata(client, cluster.NODES)
    except CallError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        return False
    return True


async def test_the_service_account_of_a_pod_opens_the_server(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = arena.cluster.server.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    (tmp_path / "ca.crt").write_bytes(arena.cluster.ca_file.read_bytes())
    exchange(tmp_path / "token", token_of(arena, "pod"))
    login = credentials.load(None, pod=tmp_path)
    client = cluster.client_of(login, timeout=START, connections=1)
    await waiting.until_async(lambda: allowed(client), deadline=START, what="the token to be accepted")
    exchange(tmp_path / "token", "worn-out")
    with pytest.raises(CallError, match="Unauthorized") as raised:
        await client.get(cluster.NODES)
    assert raised.value.status == HTTPStatus.UNAUTHORIZED
    client.close()
