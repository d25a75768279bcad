"""Serve the API over HTTPS.

GET /apis/nvidia-gpu-scheduler/v1/gpunodes[/NAME]
GET /apis/nvidia-gpu-scheduler/v1/gpupods
GET /apis/nvidia-gpu-scheduler/v1/namespaces/NAMESPACE/gpupods[/NAME]
"""

import functools
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

import orjson
from aiohttp import web

from berth_client.reviews import User
from berth_operator.apis.aggregated import frames, options, requests
from berth_operator.apis.aggregated.access import Access
from berth_operator.apis.aggregated.chunks import Chunk
from berth_operator.apis.aggregated.frames import Form
from berth_operator.apis.aggregated.requests import PROBES, USER, Handler, Limits, OpenWatches, as_json
from berth_operator.apis.aggregated.statuses import not_found
from berth_operator.apis.aggregated.watch import Watch
from berth_operator.apis.aggregated.watch_cache import WatchCache
from berth_operator.apis.list_watch.documents import DOCUMENTS
from berth_operator.apis.list_watch.kinds import API_VERSION, GROUP, SourcedKind

BODIES: Final = {path: orjson.dumps(body) for path, body in DOCUMENTS.items()}


class ListWatchServer:
    """Answers requests from the caches.

    Attributes:
        watches: the open watches.
    """

    def __init__(
        self,
        *,
        caches: Mapping[SourcedKind, WatchCache],
        access: Access,
        is_ready: Callable[[], bool],
        limits: Limits,
    ) -> None:
        self._caches, self._access, self._is_ready, self._limits = caches, access, is_ready, limits
        self.watches = OpenWatches(limits)

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        application = web.Application(middlewares=[self._answer])
        for path in PROBES:
            application.router.add_get(path, self._probe)
        for path in BODIES:
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
        return await requests.answer(request, handler, self._authenticate)

    async def _authenticate(self, request: web.Request) -> User:
        peer = request.transport.get_extra_info("peercert") if request.transport else None
        return await self._access.authenticate(request.headers, peer)

    async def _probe(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/livez" or self._is_ready():
            return web.Response(text="ok")
        return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text="the custom resources are not known yet")

    async def _describe(self, request: web.Request) -> web.StreamResponse:
        await self._access.check_path(request[USER], request.path)
        return as_json(BODIES[request.path])

    async def _one(self, kind: SourcedKind, request: web.Request) -> web.StreamResponse:
        """Return one object."""
        namespace, name = request.match_info.get("namespace", ""), request.match_info["name"]
        await self._access.check_resource(request[USER], "get", kind.plural, namespace=namespace, name=name)
        form = _form(kind, request)
        cache = self._caches[kind]
        await cache.wait_for(0)
        entry = cache.get((namespace, name))
        if entry is None:
            raise not_found(f'{kind.plural}.{GROUP} "{name}" not found')
        return as_json(form.one(entry))

    async def _collection(self, kind: SourcedKind, request: web.Request) -> web.StreamResponse:
        """Return a list, or serve a watch unless there are too many."""
        namespace = request.match_info.get("namespace", "")
        wanted = options.read(kind, namespace, request.query)
        verb = "watch" if wanted.watch else "list"
        name = wanted.selection.name
        await self._access.check_resource(request[USER], verb, kind.plural, namespace=namespace, name=name)
        form, cache = _form(kind, request), self._caches[kind]
        if not wanted.watch:
            await cache.wait_for(wanted.version)
            body = form.many(Chunk.of(cache, wanted))
            return await requests.send_list(request, body, self._limits.write_seconds)
        with self.watches.one_of(request[USER].name):
            # As in the API server, only a watch that begins with the state waits for its version.
            await cache.wait_for(wanted.version if wanted.begins_with_state else 0)
            watch = Watch(cache, form, wanted, seconds=requests.duration(wanted.seconds))
            return await requests.serve_watch(request, watch, self._limits.write_seconds)


def _form(kind: SourcedKind, request: web.Request) -> Form:
    return frames.form(kind, request.headers.get("Accept", ""), request.query.get("includeObject", ""))
