"""Serve the API over HTTPS.

    GET /apis/nvidia-gpu-scheduler/v1/gpunodes[/NAME]
    GET /apis/nvidia-gpu-scheduler/v1/gpupods
    GET /apis/nvidia-gpu-scheduler/v1/namespaces/NAMESPACE/gpupods[/NAME]

A client of a watch that does not read fast enough is disconnected: nothing is kept for it except what the kernel and
one write buffer hold.
"""

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import orjson
import structlog
from aiohttp import web

from berth_client.errors import CallError
from berth_operator.list_watch import discovery, frames, openapi, options
from berth_operator.list_watch.access import Access
from berth_operator.list_watch.cache import WatchCache
from berth_operator.list_watch.frames import Form
from berth_operator.list_watch.kinds import API_VERSION, GROUP, Kind
from berth_operator.list_watch.options import EXACT, Options
from berth_operator.list_watch.statuses import StatusError, expired, not_found, too_many, unavailable
from berth_operator.list_watch.watch import Watch
from berth_operator.serving.reviews import User

WATCH_SECONDS: Final = (1800.0, 3600.0)
"""Range of a watch's duration, if the client names none; drawn at random, so that watches do not all end at once."""
JSON: Final = "application/json"
PROBES: Final = ("/healthz", "/livez", "/readyz")
DOCUMENTS: Final = {path: orjson.dumps(body) for path, body in {**discovery.DOCUMENTS, **openapi.DOCUMENTS}.items()}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
USER: Final = web.RequestKey("user", User)
log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What clients may take."""

    watches: int
    watches_of_user: int
    """One user cannot take all watches."""
    write_seconds: float = 10.0
    """For which the client of a watch may not read."""


class Server:
    """Answers requests from the caches.

    Attributes:
        watches: user -> number of watches.
    """

    def __init__(
        self,
        *,
        caches: Mapping[Kind, WatchCache],
        access: Access,
        is_ready: Callable[[], bool],
        limits: Limits,
    ) -> None:
        self._caches, self._access, self._is_ready, self._limits = caches, access, is_ready, limits
        self.watches: dict[str, int] = {}

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        application = web.Application(middlewares=[self._answer])
        for path in PROBES:
            application.router.add_get(path, self._probe)
        for path in DOCUMENTS:
            application.router.add_get(path, self._describe)
        for kind in self._caches:
            collection, one = functools.partial(self._collection, kind), functools.partial(self._one, kind)
            everywhere = f"/apis/{API_VERSION}/{kind.plural}"
            somewhere = f"/apis/{API_VERSION}/namespaces/{{namespace}}/{kind.plural}"
            application.router.add_get(everywhere, collection)
            if kind.namespaced:
                application.router.add_get(somewhere, collection)
            application.router.add_get(f"{somewhere if kind.namespaced else everywhere}/{{name}}", one)
        return application

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Authenticate, handle the request, and return every failure as a Status."""
        try:
            if request.path not in PROBES:
                peer = request.transport.get_extra_info("peercert") if request.transport else None
                request[USER] = await self._access.authenticate(request.headers, peer)
            return await handler(request)
        except StatusError as failure:
            return _failure(failure)
        except CallError as error:
            return _failure(unavailable(f"the API server does not answer: {error}"))
        except web.HTTPException as error:
            return _failure(_of_http(error, request))

    async def _probe(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/livez" or self._is_ready():
            return web.Response(text="ok")
        return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text="the custom resources are not known yet")

    async def _describe(self, request: web.Request) -> web.StreamResponse:
        await self._access.check_path(request[USER], request.path)
        return _json(DOCUMENTS[request.path])

    async def _one(self, kind: Kind, request: web.Request) -> web.StreamResponse:
        """Return one object."""
        namespace, name = request.match_info.get("namespace", ""), request.match_info["name"]
        await self._access.check_resource(request[USER], "get", kind.plural, namespace=namespace, name=name)
        form = _form(kind, request)
        cache = self._caches[kind]
        await cache.wait_for(0)
        entry = cache.get((namespace, name))
        if entry is None:
            raise not_found(f'{kind.plural}.{GROUP} "{name}" not found')
        return _json(form.one(entry))

    async def _collection(self, kind: Kind, request: web.Request) -> web.StreamResponse:
        """Return a list, or serve a watch."""
        namespace = request.match_info.get("namespace", "")
        wanted = options.read(kind, namespace, request.query)
        verb = "watch" if wanted.watch else "list"
        name = wanted.selection.name
        await self._access.check_resource(request[USER], verb, kind.plural, namespace=namespace, name=name)
        form = _form(kind, request)
        if wanted.watch:
            return await self._watch(self._caches[kind], form, wanted, request)
        return await _list(self._caches[kind], form, wanted)

    async def _watch(self, cache: WatchCache, form: Form, wanted: Options, request: web.Request) -> web.StreamResponse:
        """Serve a watch, unless there are too many."""
        user = request[USER].name
        if sum(self.watches.values()) >= self._limits.watches or self._of_user(user) >= self._limits.watches_of_user:
            raise too_many("too many watches, try again later")
        self.watches[user] = self._of_user(user) + 1
        try:
            return await _watch(cache, form, wanted, request, write_seconds=self._limits.write_seconds)
        finally:
            self.watches[user] -= 1
            if not self.watches[user]:
                del self.watches[user]

    def _of_user(self, user: str) -> int:
        return self.watches.get(user, 0)


async def _list(cache: WatchCache, form: Form, wanted: Options) -> web.StreamResponse:
    await cache.wait_for(wanted.version)
    if wanted.match == EXACT and wanted.version != cache.version:
        raise expired(wanted.version, cache.version)
    return _json(form.many(cache.select(wanted.selection), cache.version))


async def _watch(
    cache: WatchCache, form: Form, wanted: Options, request: web.Request, *, write_seconds: float
) -> web.StreamResponse:
    """Serve a watch until its time is over, the client goes, or it cannot continue."""
    # As in the API server, only a watch that begins with the state waits for its version.
    await cache.wait_for(wanted.version if wanted.begins_with_state else 0)
    watch = Watch(cache, form, wanted, seconds=wanted.seconds or random.uniform(*WATCH_SECONDS))  # noqa: S311 - no secret
    response = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": "no-cache, private"})
    await response.prepare(request)
    try:
        await watch.run(functools.partial(_write, response, write_seconds))
    except (TimeoutError, ConnectionError) as error:
        log.info("watch closed", resource=cache.kind.plural, user=request[USER].name, error=str(error) or "slow reader")
        if request.transport is not None:
            request.transport.abort()
    return response


async def _write(response: web.StreamResponse, seconds: float, data: bytes) -> None:
    """Write, or raise a TimeoutError if the client does not read."""
    async with asyncio.timeout(seconds):
        await response.write(data)


def _form(kind: Kind, request: web.Request) -> Form:
    return frames.form(kind, request.headers.get("Accept", ""), request.query.get("includeObject", ""))


def _json(body: bytes, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, content_type=JSON, headers=headers)


def _failure(failure: StatusError) -> web.Response:
    headers = {"Retry-After": str(failure.retry_after)} if failure.retry_after else {}
    return _json(orjson.dumps(failure.status), failure.code, headers)


def _of_http(error: web.HTTPException, request: web.Request) -> StatusError:
    """Return the failure of a request that no handler takes."""
    code = HTTPStatus(error.status)
    if code is HTTPStatus.NOT_FOUND:
        return not_found("the server could not find the requested resource")
    if code is HTTPStatus.METHOD_NOT_ALLOWED:
        message = f"the server does not allow {request.method} on the requested resource"
        return StatusError(code, "MethodNotAllowed", message)
    return StatusError(code, code.phrase.replace(" ", ""), error.reason or code.phrase)
