"""Serve the API over HTTPS, in every replica.

    GET /apis/visibility.berth.dev/v1alpha1/fleet
    GET /apis/visibility.berth.dev/v1alpha1/[namespaces/NAMESPACE/](queue|holders)
    GET /apis/visibility.berth.dev/v1alpha1/namespaces/NAMESPACE/pods/NAME/explanation

With `settings=true`, the fleet and explanation endpoints return the operator's settings instead.

A replica authenticates and authorizes each request. The leader then answers the request. Other replicas relay it to the
leader.
"""

import asyncio
import functools
import gzip
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson
from aiohttp import web

from berth_api.objects.visibility import API_VERSION, OperatorSettings
from berth_client.reviews import User
from berth_operator.apis.aggregated import frames, options, requests
from berth_operator.apis.aggregated.access import Access
from berth_operator.apis.aggregated.chunks import Chunk
from berth_operator.apis.aggregated.frames import Form
from berth_operator.apis.aggregated.options import EXACT, ListOptions
from berth_operator.apis.aggregated.requests import PROBES, USER, Handler, Limits, OpenWatches, as_json
from berth_operator.apis.aggregated.statuses import expired, unavailable
from berth_operator.apis.aggregated.watch import Watch
from berth_operator.apis.visibility import operator_settings
from berth_operator.apis.visibility.certificate import ReplicaCertificate
from berth_operator.apis.visibility.documents import DOCUMENTS
from berth_operator.apis.visibility.explainer import Explainer
from berth_operator.apis.visibility.kinds import EXPLANATIONS, FLEET, KINDS, PODS, SETTINGS, RowKind
from berth_operator.apis.visibility.operator_settings import SettingsInUse
from berth_operator.apis.visibility.relay import REPLICA, Relay
from berth_operator.apis.visibility.row_cache import RowCache
from berth_operator.apis.visibility.slices import Slices, TurnBudget
from berth_operator.metrics import counters

MIN_COMPRESSED: Final = 128 * 1024
"""Bytes from which an answer is compressed for clients that accept compression, as the API server does."""
GZIP_LEVEL: Final = 1
BODIES: Final = {path: orjson.dumps(body) for path, body in DOCUMENTS.items()}
IS_RELAYED: Final = web.RequestKey("is_relayed", bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leading:
    """What a leader answers from."""

    caches: Mapping[RowKind, RowCache]
    explainer: Explainer
    settings: SettingsInUse


class VisibilityServer:
    """Answers requests.

    Attributes:
        watches: the open watches.
    """

    def __init__(
        self,
        *,
        access: Access,
        certificate: ReplicaCertificate,
        relay: Relay,
        leading: Callable[[], Leading | None],
        leads: Callable[[], bool],
        limits: Limits,
    ) -> None:
        """Create a server. `leading` returns the data to answer from; None until this replica has read the cluster."""
        self._access, self._certificate, self._relay = access, certificate, relay
        self._leading, self._leads, self._limits = leading, leads, limits
        self.watches = OpenWatches(limits)
        self._lists = TurnBudget(time.monotonic)

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        application = web.Application(middlewares=[self._answer])
        for path in PROBES:
            application.router.add_get(path, self._probe)
        for path in BODIES:
            application.router.add_get(path, self._describe)
        of_namespace = f"/apis/{API_VERSION}/namespaces/{{namespace}}"
        for kind in KINDS:
            collection = functools.partial(self._collection, kind)
            application.router.add_get(f"/apis/{API_VERSION}/{kind.plural}", collection)
            if kind.namespaced:
                application.router.add_get(f"{of_namespace}/{kind.plural}", collection)
        application.router.add_get(f"{of_namespace}/{PODS}/{{name}}/{EXPLANATIONS}", self._explanation)
        return application

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await requests.answer(request, handler, self._authenticate)
        except ConnectionError:  # the client has gone
            raise
        except Exception:
            # aiohttp logs it, and ends this request alone.
            counters.VISIBILITY_FAILURES.labels("request").inc()
            raise

    async def _authenticate(self, request: web.Request) -> User:
        transport = request.transport
        tls = None if transport is None else transport.get_extra_info("ssl_object")
        if tls is not None and self._certificate.is_replica(tls.getpeercert(binary_form=True)):
            request[IS_RELAYED] = True
            user = REPLICA.user(request.headers, tls.getpeercert())
            if user is not None:
                return user
        return await self._access.authenticate(request.headers, None if tls is None else tls.getpeercert())

    async def _probe(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok")

    async def _describe(self, request: web.Request) -> web.StreamResponse:
        await self._access.check_path(request[USER], request.path)
        return as_json(BODIES[request.path])

    async def _collection(self, kind: RowKind, request: web.Request) -> web.StreamResponse:
        """Return a list, or serve a watch."""
        namespace = request.match_info.get("namespace", "")
        wanted = options.read(kind, namespace, request.query)
        verb, name = "watch" if wanted.watch else "list", wanted.selection.name
        await self._access.check_resource(request[USER], verb, kind.plural, namespace=namespace, name=name)
        if kind is FLEET and not wanted.watch and operator_settings.are_wanted(request.query):
            return await self._settings(request, SettingsInUse.of_cluster)
        form = frames.form(kind, request.headers.get("Accept", ""), request.query.get("includeObject", ""))
        if wanted.watch:
            with self.watches.one_of(request[USER].name):
                counters.VISIBILITY_WATCHES.set(len(self.watches))
                try:
                    return await self._collected(kind, form, wanted, request)
                finally:
                    counters.VISIBILITY_WATCHES.set(len(self.watches) - 1)
        return await self._collected(kind, form, wanted, request)

    async def _collected(
        self, kind: RowKind, form: Form, wanted: ListOptions, request: web.Request
    ) -> web.StreamResponse:
        if (leading := self._ours(request)) is None:
            return await self._relay.send(request)
        cache = leading.caches[kind]
        if not wanted.watch:
            async with self._lists.turn():
                if wanted.match != EXACT:
                    # Each rendering takes room in the history, from which the rest of a list comes.
                    await cache.refresh()
                    if wanted.version > cache.version:
                        raise expired(wanted.version, cache.oldest)
                began, slices = time.thread_time(), Slices()
                chunk = Chunk.of(cache, wanted)
                slices.spent += time.thread_time() - began
                try:
                    body = b"".join([part async for part in slices.of(form.parts(chunk))])
                finally:
                    # Also if the client has left meanwhile.
                    self._lists.spend(slices.spent)
            if len(body) < MIN_COMPRESSED or "gzip" not in request.headers.get("Accept-Encoding", ""):
                return await requests.send_list(request, body, self._limits.write_seconds)
            compressed = await asyncio.to_thread(gzip.compress, body, GZIP_LEVEL)
            headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
            return await requests.send_list(request, compressed, self._limits.write_seconds, headers)
        with cache.watched():
            await cache.refresh()
            if wanted.version > cache.version:
                # Of another leader: no client knows a version of ours that we do not know.
                raise expired(wanted.version, cache.oldest)
            watch = Watch(cache, form, wanted, seconds=requests.duration(wanted.seconds))
            return await requests.serve_watch(request, watch, self._limits.write_seconds, cache.sending.paced)

    async def _explanation(self, request: web.Request) -> web.StreamResponse:
        """Return the explanation of a pod."""
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        user = request[USER]
        await self._access.check_resource(user, "get", PODS, subresource=EXPLANATIONS, namespace=namespace, name=name)
        if operator_settings.are_wanted(request.query):
            return await self._settings(request, lambda in_use: in_use.of_namespace(namespace))
        frames.wants_table(request.headers.get("Accept", ""))
        if (leading := self._ours(request)) is None:
            return await self._relay.send(request)
        return as_json(await leading.explainer.explain(user.name, namespace, name))

    async def _settings(
        self, request: web.Request, render: Callable[[SettingsInUse], OperatorSettings]
    ) -> web.StreamResponse:
        """Return the operator's settings."""
        if (leading := self._ours(request)) is None:
            return await self._relay.send(request)
        return as_json(orjson.dumps({"kind": SETTINGS, "apiVersion": API_VERSION, **render(leading.settings)}))

    def _ours(self, request: web.Request) -> Leading | None:
        """Return the source that answers a request; None if the request must be relayed.

        Raises:
            StatusError: this replica cannot answer it yet, or it has been relayed to the wrong replica.
        """
        leading = self._leading()
        if leading is None and self._leads():
            raise unavailable("the leader has just started and reads the cluster")
        if leading is None and request.get(IS_RELAYED):
            raise unavailable("this replica does not lead")
        return leading
