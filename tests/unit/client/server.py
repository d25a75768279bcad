"""A small HTTP server on loopback that acts as an API server."""

import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Start = Callable[..., Awaitable["Server"]]


class Server:
    """Answers with `handler`; remembers the requests."""

    def __init__(self) -> None:
        self.handler: Handler = self.echo
        self.seen: list[web.BaseRequest] = []
        self.bodies: list[Any] = []
        self.url = ""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.seen.append(request)
        self.bodies.append(orjson.loads(await request.read() or b"null"))
        return await self.handler(request)

    async def echo(self, request: web.BaseRequest) -> web.Response:
        """Answer with the request."""
        answer = {"method": request.method, "path": request.path_qs, "body": self.bodies[-1]}
        return web.json_response({**answer, "headers": dict(request.headers)})

    def always(self, status: int, body: Any = b"", **headers: str) -> None:
        """Return one answer from now on."""

        async def answer(_request: web.BaseRequest) -> web.Response:
            data = body if isinstance(body, bytes) else orjson.dumps(body)
            return web.Response(status=status, body=data, headers=headers)

        self.handler = answer


async def started(runners: list[web.ServerRunner], tls: ssl.SSLContext | None = None) -> Server:
    """Start a server, and add its runner to those that the caller ends."""
    made = Server()
    runner = web.ServerRunner(web.Server(made.handle), shutdown_timeout=0.1)
    runners.append(runner)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    made.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    return made
