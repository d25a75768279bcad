"""The webhook on a real port, while others hold its connections."""

import asyncio
import contextlib
from pathlib import Path

import aiohttp
import orjson

from berth_base import sockets
from berth_operator.apis.serving.certificates import Files
from berth_operator.apis.serving.tls import ServedCertificate
from berth_operator.apis.webhook import review
from berth_operator.apis.webhook.mutations import Isolation, Mutations, Routing
from berth_operator.apis.webhook.validation import Validation
from berth_operator.apis.webhook.webhook_server import CONNECTIONS, WebhookServer
from tests.objects.builders import GPU, pod
from tests.stand_ins.certificates import Authority

HOST = "127.0.0.1"
ADDRESSES = range(2, 6)


async def test_an_api_server_is_answered_while_pods_hold_all_connections(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = ServedCertificate(source=Files(certificate=authority.issue(HOST)), period=60.0, settle=0.0)
    responders = review.responders(Mutations(), Routing(scheduler="berth-scheduler"), Validation(), Isolation())
    with sockets.listener(HOST, 0) as free:
        port: int = free.getsockname()[1]
    serving = asyncio.create_task(WebhookServer(certificate=certificate, responders=responders).serve(HOST, port))
    await reach(port)
    silent = [
        await asyncio.open_connection(HOST, port, local_addr=(f"127.0.0.{number}", 0))
        for number in ADDRESSES
        for _ in range(CONNECTIONS // len(ADDRESSES))
    ]
    body = orjson.dumps({"request": {"uid": "u", "object": pod("a", {GPU: "50"})}})
    # A connection for each review, from an address that has none.
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=8)) as session:
        answers = [await post(session, port, body, authority) for _ in range(5)]
    assert answers == ["u"] * 5
    for _, writer in silent:
        writer.close()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def post(session: aiohttp.ClientSession, port: int, body: bytes, authority: Authority) -> str:
    url = f"https://{HOST}:{port}/inject"
    async with session.post(url, data=body, ssl=authority.client(), headers={"Connection": "close"}) as answer:
        uid: str = (await answer.json())["response"]["uid"]
        return uid


async def reach(port: int) -> None:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(ConnectionError):
                _, writer = await asyncio.open_connection(HOST, port)
                writer.close()
                return
            await asyncio.sleep(0.01)
