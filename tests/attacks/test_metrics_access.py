"""Access to metrics with real tokens: operator and agent review clients with the rights of their shipped accounts."""

import asyncio
import http.client
import time
from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest

from berth_base import metrics_server
from berth_client.access import MetricsAccess
from berth_operator.clients.kube import KubeClient
from tests.attacks.accounts import Accounts
from tests.integration.operator.world import free_ports

TEXT = b"berth_leading 1.0\n"
HOST = "127.0.0.1"
ELSEWHERE = "192.0.2.1"
"""As if they were served on another address than loopback."""


@pytest.fixture(params=["berth-operator", "berth-agent"])
async def port(request: pytest.FixtureRequest, accounts: Accounts) -> AsyncIterator[int]:
    """Serve metrics as a program does that has the rights of an account."""
    [number] = free_ports(1)
    client = await KubeClient.connect(accounts.kubeconfig(request.param), "berth-test/metrics")
    access = MetricsAccess(address=ELSEWHERE, is_required=True, clock=time.monotonic)
    access.connect(client)

    async def render() -> bytes:
        return TEXT

    async with metrics_server.serving(render, address=HOST, port=number, refuse=access.refusal):
        yield number
    client.close()


def read(port: int, token: str | None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request("GET", "/metrics", headers={} if token is None else {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


async def test_who_may_get_metrics_reads_them_and_nobody_else(accounts: Accounts, port: int) -> None:
    tokens = {
        None: HTTPStatus.UNAUTHORIZED,
        "forged": HTTPStatus.UNAUTHORIZED,
        accounts.token("default"): HTTPStatus.FORBIDDEN,
        accounts.token("berth-webhook"): HTTPStatus.FORBIDDEN,
        accounts.token("berth-metrics"): HTTPStatus.OK,
    }
    answers = {token: await asyncio.to_thread(read, port, token) for token in tokens}
    assert {token: status for token, (status, _) in answers.items()} == tokens
    assert [token for token, (_, body) in answers.items() if TEXT in body] == [accounts.token("berth-metrics")]
