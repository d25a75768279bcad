"""The visibility API over HTTPS: a leader and a standby replica, trusted headers, and limits of clients."""

import asyncio
import base64
import contextlib
import gzip
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from structlog.testing import capture_logs
from yarl import URL

from berth_api.objects.visibility import GROUP, VERSION
from berth_client.errors import ApiError
from berth_client.proxy import authority
from berth_client.reviews import ACCESS_REVIEWS, TOKEN_REVIEWS, Reviews
from berth_operator.apis.aggregated.access import Access, FrontProxy
from berth_operator.apis.aggregated.requests import PROBES, Limits
from berth_operator.apis.serving import certificates
from berth_operator.apis.serving.certificates import Pair, Shared
from berth_operator.apis.serving.connections import SHARE
from berth_operator.apis.serving.tls import Clients, ServedCertificate
from berth_operator.apis.visibility.certificate import PERIODS, ReplicaCertificate
from berth_operator.apis.visibility.explainer import Explainer
from berth_operator.apis.visibility.kinds import QUEUE
from berth_operator.apis.visibility.operator_settings import SettingsInUse
from berth_operator.apis.visibility.relay import CHECK_SECONDS, Relay
from berth_operator.apis.visibility.row_cache import KEPT_SECONDS, RowCache
from berth_operator.apis.visibility.service import connections
from berth_operator.apis.visibility.slices import LoopTurns
from berth_operator.apis.visibility.sources import FleetRows, HolderRows, QueueRows
from berth_operator.apis.visibility.visibility_server import MIN_COMPRESSED, Leading, VisibilityServer
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.metrics import counters
from berth_operator.settings.configuration import Configuration
from berth_operator.settings.flags import Settings
from berth_operator.state.cache.cluster import Cluster
from devcluster.control_plane import front_proxy
from tests.harness.ipv6 import needs_ipv6
from tests.objects.builders import device, entry, lease, node, pod

API = f"/apis/{GROUP}/{VERSION}"
HOST = "berth-visibility.berth-system.svc"
SECRET = "/api/v1/namespaces/ns/secrets/s"  # noqa: S105 - a path
PERIOD = 0.3
CONNECTIONS = 16
ANN = {"X-Remote-User": "ann", "X-Remote-Group": "dev"}
ADMIN = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}
MANY = {"kubernetes.io/gpu": "800"}
REFUSED = (aiohttp.ClientConnectionError, ConnectionError, ssl.SSLError)


class ApiServer:
    """The Secret, and reviews, which are recorded; one namespace is forbidden."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.reviewed: list[dict[str, Any]] = []

    async def get(self, path: str) -> Any:
        if path not in self.objects:
            raise ApiError(404, "NotFound", path)
        return self.objects[path]

    async def request(self, method: str, path: str, *, body: Any = None, **_: Any) -> Any:
        if path == TOKEN_REVIEWS:
            return {"status": {"authenticated": body["spec"]["token"] == "good", "user": {"username": "bob"}}}  # noqa: S105
        if path == ACCESS_REVIEWS:
            self.reviewed.append(body["spec"])
            namespace = (body["spec"].get("resourceAttributes") or {}).get("namespace")
            return {"status": {"allowed": namespace != "forbidden"}}
        if method in ("POST", "PUT"):
            self.objects[SECRET] = {**body, "metadata": {"name": "s"}}
        return body


class Replica:
    """One replica: its server, and its certificate."""

    def __init__(self, world: "World", host: str = "127.0.0.1") -> None:
        self.host = host
        self.certificate = ReplicaCertificate(world.shared, period=PERIOD)
        self.leading: Leading | None = None
        self.knows = ""
        """The leader's address that it knows."""
        self.port = 0
        self.is_elected = False

    @property
    def address(self) -> str:
        return authority(self.host, self.port)


class World:
    """Replicas with one Secret, their API server, and clients."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.api = folder, ApiServer()
        self.read: list[str] = []
        """The names of the pods that were read on the API server."""
        self.shared = Shared(
            api=self.api,  # type: ignore[arg-type]
            namespace="ns",
            secret="s",  # noqa: S106 - a name
            host=HOST,
            lifetime=timedelta(days=1),
            of_client=True,
        )
        self.limits = Limits(watches=3, watches_of_user=2, write_seconds=0.5)
        clock = asyncio.get_running_loop().time
        self.cluster = Cluster(grace=1e9, clock=clock)
        self.cluster.node_cache.put_node(node("n1"))
        self.cluster.node_cache.put_device(device("n1", entry()))
        self.cluster.node_cache.put_lease(lease("n1"))
        self.cluster.put_pending(pod("waits", MANY))
        for name in ("trusted", "foreign"):
            front_proxy.write(folder / name)

    def lead(self, replica: Replica) -> None:
        cluster = self.cluster
        sources = (FleetRows(cluster, lambda: ""), QueueRows(cluster), HolderRows(cluster))
        caches = {each.kind: RowCache(each, term=1, clock=cluster.clock, turns=LoopTurns()) for each in sources}
        explainer = Explainer(
            cluster=cluster,
            pods=self,
            policy=lambda _: Policy(switched_off=frozenset({"injected"})),
            managed=lambda: {"berth-scheduler"},
            ranking=lambda _uid: None,
            reservation=lambda _uid: "",
            refusal=lambda _uid: "",
            term=lambda: 1,
        )
        profiles = Configuration(
            policies={"berth-scheduler": Policy()},
            own_pools=OwnPools(drivers=frozenset({"gpu.example.com"})),
            namespace_limits={"ns": {"gpu": 200}, "forbidden": {"gpu": 800}},
        )
        flags = Settings(_cli_parse_args=[], genius_priorities="ns=5,*=2", trusted_schedulers="kai")
        in_use = SettingsInUse(
            settings=flags, configuration=lambda: profiles, mix=lambda: {"weight": 1.0}, reserved=lambda: {"uid": "n1"}
        )
        replica.leading = Leading(caches=caches, explainer=explainer, settings=in_use)
        replica.is_elected = True

    async def get_pod(self, namespace: str, name: str) -> Any:
        self.read.append(name)
        if name == "defect":
            raise RuntimeError(name)
        raise ApiError(404, "NotFound", f"{namespace}/{name}")

    @contextlib.asynccontextmanager
    async def served(self, replica: Replica, period: float = PERIOD) -> AsyncIterator[VisibilityServer]:
        proxy = FrontProxy(
            authorities=(self.folder / "trusted" / front_proxy.AUTHORITY).read_text(),
            allowed_names=frozenset({front_proxy.NAME}),
            username=("X-Remote-User",),
            group=("X-Remote-Group",),
        )
        clients = Clients(authorities=lambda: proxy.authorities + replica.certificate.bundle)
        certificate = ServedCertificate(source=replica.certificate, period=period, clients=clients, settle=0.0)
        await certificate.load()
        reviews = Reviews(api=self.api, clock=asyncio.get_running_loop().time)
        server = VisibilityServer(
            access=Access(front_proxy=proxy, reviews=reviews, group=GROUP, version=VERSION),
            certificate=replica.certificate,
            relay=Relay(
                certificate=replica.certificate,
                host=HOST,
                leader=lambda: replica.knows or None,
                heard=lambda: "2026-01-01T00:00:00Z",
            ),
            leading=lambda: replica.leading,
            leads=lambda: replica.is_elected,
            limits=self.limits,
        )
        runner = web.AppRunner(server.application(), handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        keeping = asyncio.create_task(certificate.keep())
        running = [
            asyncio.create_task(each.run()) for each in (replica.leading.caches if replica.leading else {}).values()
        ]
        try:
            async with connections(certificate.tls, CONNECTIONS, runner).listening(replica.host, 0) as replica.port:
                yield server
        finally:
            for task in (keeping, *running):
                task.cancel()
            await runner.cleanup()

    @contextlib.asynccontextmanager
    async def pair(self, period: float = PERIOD, host: str = "127.0.0.1") -> AsyncIterator[tuple[Replica, Replica]]:
        """Serve a leader that reads the Secret every `period` seconds, and a standby replica that knows it."""
        leader, standby = Replica(self, host), Replica(self, host)
        self.lead(leader)
        async with self.served(leader, period), self.served(standby):
            standby.knows = leader.address
            yield leader, standby

    def tls(self, chain: Path | None = None) -> ssl.SSLContext:
        """Return the TLS of a client with a certificate and its key, or with the folder of a front proxy."""
        bundle = base64.b64decode(self.api.objects[SECRET]["data"]["ca.crt"]).decode()
        tls = ssl.create_default_context(cadata=bundle)
        tls.check_hostname = False
        if chain is not None:
            pair = (chain / front_proxy.CERTIFICATE, chain / front_proxy.KEY) if chain.is_dir() else (chain, None)
            tls.load_cert_chain(*pair)
        return tls

    def file(self, pair: Pair) -> Path:
        """Write a certificate and its key."""
        file = self.folder / "client.pem"
        file.write_bytes(pair.certificate + pair.key)
        return file

    def of_secret(self) -> Pair:
        data = self.api.objects[SECRET]["data"]
        return Pair(certificate=base64.b64decode(data["tls.crt"]), key=base64.b64decode(data["tls.key"]))


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return World(tmp_path)


@contextlib.asynccontextmanager
async def client(replica: Replica, tls: ssl.SSLContext) -> AsyncIterator[Callable[..., Any]]:
    """Yield a function that sends a request: (status, JSON)."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session:

        async def ask(path: str, headers: dict[str, str] = ANN) -> tuple[int, Any]:
            async with session.get(f"https://{replica.address}{path}", headers=headers) as answer:
                return answer.status, orjson.loads(await answer.read())

        yield ask


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition is of a server that announces nothing
            await asyncio.sleep(0.01)


# --- the relay --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
async def test_a_standby_answers_what_the_leader_answers_to_the_same_user(world: World, host: str) -> None:
    async with world.pair(host=host) as (leader, standby):
        tls = world.tls(world.folder / "trusted")
        for path in (f"{API}/fleet", f"{API}/namespaces/ns/queue", f"{API}/namespaces/ns/pods/waits/explanation"):
            answers = []
            for replica in (leader, standby):
                async with client(replica, tls) as ask:
                    answers.append(await ask(path))
            assert answers[0][0] == 200
            assert answers[0] == answers[1]
        assert {review["user"] for review in world.api.reviewed} == {"ann"}
        assert all(review["groups"] == ["dev", "system:authenticated"] for review in world.api.reviewed)
        async with client(standby, tls) as ask:
            assert (await ask(f"{API}/namespaces/forbidden/queue"))[0] == 403
            status, body = await ask(f"{API}/namespaces/ns/pods/none/explanation")
            assert (status, body["reason"]) == (404, "NotFound")
            future = f"resourceVersion={2**60}"
            for query in ("watch=true&resourceVersion=1", f"watch=true&{future}", future):
                status, body = await ask(f"{API}/fleet?{query}")
                assert (status, body["reason"]) == (410, "Expired"), query


async def test_settings_take_the_right_for_explanations_and_those_of_the_cluster_that_for_the_fleet(
    world: World,
) -> None:
    async with world.pair() as (_, standby), client(standby, world.tls(world.folder / "trusted")) as ask:
        status, body = await ask(f"{API}/namespaces/ns/pods/-/explanation?settings=true")
        assert (status, body["kind"], body["geniusPriorities"]) == (200, "OperatorSettings", {"ns": 5})
        assert [each["schedulerName"] for each in body["configuration"]["profiles"]] == ["berth-scheduler"]
        of_namespace = {"apiVersion", "kind", "profiles", "modelAliases", "namespaceLimits"}
        assert set(body["configuration"]) == of_namespace
        assert body["configuration"]["namespaceLimits"] == {"ns": {"gpu": 200}}
        of_cluster = {"trustedSchedulers", "nodeSelector", "agentNamespace", "chargeForeign", "chargeUnheld"}
        of_cluster |= {"podMix", "reservedNodes"}
        assert not of_cluster & set(body)
        right = {"resource": "pods", "subresource": "explanation", "verb": "get", "namespace": "ns", "name": "-"}
        assert right.items() <= world.api.reviewed[-1]["resourceAttributes"].items()
        status, body = await ask(f"{API}/fleet?settings=true")
        assert (status, body["geniusPriorities"], body["trustedSchedulers"]) == (200, {"ns": 5, "*": 2}, ["kai"])
        assert (body["podMix"], body["reservedNodes"]) == ({"weight": 1.0}, {"uid": "n1"})
        assert body["configuration"]["claims"]["drivers"] == ["gpu.example.com"]
        assert body["configuration"]["namespaceLimits"].keys() == {"ns", "forbidden"}
        assert of_cluster <= set(body)
        reviewed = world.api.reviewed[-1]["resourceAttributes"]
        assert {"resource": "fleet", "verb": "list"}.items() <= reviewed.items()
        assert (await ask(f"{API}/namespaces/forbidden/pods/-/explanation?settings=true"))[0] == 403
        assert (await ask(f"{API}/fleet?settings=false"))[1]["kind"] == "FleetNodeList"


async def test_a_queue_that_moves_on_is_listed_in_chunks_of_one_version(world: World) -> None:
    for name in ("second", "third", "fourth"):
        world.cluster.put_pending(pod(name, MANY))
    async with world.pair() as (leader, standby), client(standby, world.tls(world.folder / "trusted")) as ask:
        whole = (await ask(f"{API}/queue"))[1]
        status, first = await ask(f"{API}/queue?limit=2")
        assert (status, first["metadata"]["remainingItemCount"]) == (200, 2)
        # A pod in front leaves, so that all others have other positions.
        assert leader.leading is not None
        cache = leader.leading.caches[QUEUE]
        world.cluster.remove_pending(whole["items"][0]["metadata"]["uid"])
        await asyncio.sleep(KEPT_SECONDS)
        assert len((await ask(f"{API}/queue"))[1]["items"]) == 3
        token, renders = first["metadata"]["continue"], cache.version
        status, second = await ask(f"{API}/queue?limit=2&continue={token}")
        assert (status, second["metadata"]) == (200, {"resourceVersion": whole["metadata"]["resourceVersion"]})
        assert named(first) + named(second) == named(whole)
        assert cache.version == renders


def named(listed: Any) -> list[tuple[int, str]]:
    return [(row["position"], row["metadata"]["name"]) for row in listed["items"]]


async def test_discovery_and_probes_need_no_leader(world: World) -> None:
    alone = Replica(world)
    async with world.served(alone), client(alone, world.tls(world.folder / "trusted")) as ask:
        status, body = await ask(API)
        names = [resource["name"] for resource in body["resources"]]
        assert (status, names) == (200, ["fleet", "queue", "holders", "pods/explanation"])
        assert (await ask("/openapi/v3"))[0] == 200
        status, body = await ask(f"{API}/fleet")
        assert (status, body["message"]) == (
            503,
            "no replica leads; a leader was last heard of at 2026-01-01T00:00:00Z",
        )
        alone.is_elected = True
        assert (await ask(f"{API}/fleet"))[1]["message"] == "the leader has just started and reads the cluster"
        async with aiohttp.ClientSession() as session:
            for path in PROBES:
                async with session.get(f"https://{alone.address}{path}", ssl=False) as answer:
                    assert answer.status == 200


async def test_a_request_is_relayed_once(world: World) -> None:
    one, other = Replica(world), Replica(world)
    async with world.served(one), world.served(other):
        one.knows, other.knows = other.address, one.address
        async with client(one, world.tls(world.folder / "trusted")) as ask:
            status, body = await ask(f"{API}/fleet")
            assert (status, body["message"]) == (503, "this replica does not lead")


async def test_a_server_that_is_no_replica_is_not_believed(world: World) -> None:
    standby, server = Replica(world), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    impostor = certificates.issue(HOST, datetime.now(UTC), timedelta(days=1), of_client=True)
    server.load_cert_chain(world.file(impostor))
    application = web.Application()
    asked: list[str] = []

    async def take(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(text="{}")

    application.router.add_get("/{path:.*}", take)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server).start()
    standby.knows = f"127.0.0.1:{runner.addresses[0][1]}"
    async with world.served(standby), client(standby, world.tls(world.folder / "trusted")) as ask:
        status, body = await ask(f"{API}/fleet")
        assert status == 503
        assert body["message"].endswith("does not answer; a leader was last heard of at 2026-01-01T00:00:00Z")
    assert asked == []
    await runner.cleanup()


async def test_watches_are_relayed_and_end_with_their_client(world: World) -> None:
    leader, standby = Replica(world), Replica(world)
    world.lead(leader)
    async with world.served(leader) as leading, world.served(standby) as relaying:
        standby.knows = leader.address
        tls = world.tls(world.folder / "trusted")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session:
            url = f"https://{standby.address}{API}/queue?watch=true"
            async with session.get(url, headers=ANN) as answer:
                assert orjson.loads(await answer.content.readline())["object"]["metadata"]["name"] == "waits"
                world.cluster.put_pending(pod("later", MANY))
                assert orjson.loads(await answer.content.readline())["type"] == "ADDED"
                assert (leading.watches.by_user, relaying.watches.by_user) == ({"ann": 1}, {"ann": 1})
        await until(lambda: leading.watches.by_user == {} and relaying.watches.by_user == {})


async def test_a_silent_watch_is_relayed_until_another_replica_leads(world: World) -> None:
    async with world.pair() as (_, standby):
        tls = world.tls(world.folder / "trusted")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session:
            url = f"https://{standby.address}{API}/queue?watch=true"
            async with session.get(url, headers=ANN) as answer:
                await answer.content.readline()
                await asyncio.sleep(1.5 * CHECK_SECONDS)
                assert not answer.content.at_eof()
                standby.knows = "127.0.0.1:1"
                with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientOSError)):
                    await asyncio.wait_for(answer.content.read(), 10 * CHECK_SECONDS)


# --- who is believed --------------------------------------------------------------------------------------------


async def test_only_replicas_and_the_front_proxy_may_name_users(world: World) -> None:
    async with world.pair() as (leader, _):
        stranger = certificates.issue(HOST, datetime.now(UTC), timedelta(days=1), of_client=True)
        async with client(leader, world.tls(world.file(world.of_secret()))) as ask:
            assert (await ask(f"{API}/fleet", ADMIN))[0] == 200
            # A replica's certificate alone names no user.
            assert (await ask(f"{API}/fleet", {}))[0] == 401
        async with client(leader, world.tls()) as ask:
            assert (await ask(f"{API}/fleet", ADMIN))[0] == 401
            assert (await ask(f"{API}/fleet", {**ADMIN, "Authorization": "Bearer good"}))[0] == 200
        assert {review["user"] for review in world.api.reviewed} == {"admin", "bob"}
        # An authority that the leader does not know.
        for chain in (world.file(stranger), world.folder / "foreign"):
            async with client(leader, world.tls(chain)) as ask:
                with pytest.raises(REFUSED):
                    await ask(f"{API}/fleet", ADMIN)


async def test_requests_are_relayed_while_the_certificate_is_renewed(world: World) -> None:
    # The standby learns of it before the leader does.
    async with world.pair(PERIODS * PERIOD) as (_, standby):
        tls = world.tls(world.folder / "trusted")
        before = world.of_secret()
        # Another replica renews it.
        bundle = world.api.objects[SECRET]["data"]["ca.crt"]
        renewed = certificates.issue(HOST, datetime.now(UTC), timedelta(days=1), of_client=True)
        data = {
            "tls.crt": base64.b64encode(renewed.certificate).decode(),
            "tls.key": base64.b64encode(renewed.key).decode(),
            "ca.crt": base64.b64encode(renewed.certificate + base64.b64decode(bundle)).decode(),
        }
        world.api.objects[SECRET] = {**world.api.objects[SECRET], "data": data}
        ends = asyncio.get_running_loop().time() + (PERIODS + 2) * PERIOD
        while asyncio.get_running_loop().time() < ends:
            async with client(standby, world.tls(world.folder / "trusted")) as ask:
                assert (await ask(f"{API}/fleet"))[0] == 200
            await asyncio.sleep(0.05)
        assert standby.certificate._shown == renewed != before
        async with client(standby, tls) as ask:
            # The old bundle no longer has what is served.
            with pytest.raises(REFUSED):
                await ask(f"{API}/fleet")


@pytest.mark.parametrize("bundle", [None, "nothing", "é"])
async def test_a_secret_without_a_bundle_delays_the_server_and_is_named(world: World, bundle: str | None) -> None:
    pair = certificates.issue(HOST, datetime.now(UTC), timedelta(days=1), of_client=True)
    # As `kubectl create secret tls` makes it.
    data = {"tls.crt": base64.b64encode(pair.certificate).decode(), "tls.key": base64.b64encode(pair.key).decode()}
    if bundle is not None:
        data["ca.crt"] = base64.b64encode(bundle.encode()).decode()
    world.api.objects[SECRET] = {"metadata": {"name": "s"}, "data": data}
    source = ReplicaCertificate(world.shared, period=PERIOD)
    loading = asyncio.create_task(ServedCertificate(source=source, period=PERIOD).load())
    with capture_logs() as logs:
        await until(lambda: len(logs) > 1 or loading.done())
    assert not loading.done()
    assert logs[0]["error"] == "Secret ns/s: ca.crt has no certificates; delete the Secret to renew it"
    del world.api.objects[SECRET]
    await asyncio.wait_for(loading, 60)
    assert source.is_replica(ssl.PEM_cert_to_DER_cert(world.of_secret().certificate.decode()))


async def test_what_is_no_certificate_does_not_outlast_a_renewal(world: World) -> None:
    data = dict.fromkeys(("tls.crt", "tls.key", "ca.crt"), base64.b64encode(b"nothing").decode())
    world.api.objects[SECRET] = {"metadata": {"name": "s"}, "data": data}
    source = ReplicaCertificate(world.shared, period=PERIOD)
    await source.current()
    assert source.bundle == world.of_secret().certificate.decode()
    assert source.client_tls() is not None


async def test_a_request_that_meets_a_defect_fails_alone(world: World) -> None:
    counted = counters.VISIBILITY_FAILURES.labels("request")._value
    async with world.pair() as replicas:
        tls = world.tls(world.folder / "trusted")
        for replica in replicas:
            before = counted.get()
            url = f"https://{replica.address}{API}/namespaces/ns/pods/defect/explanation"
            connector = aiohttp.TCPConnector(ssl=tls)
            async with aiohttp.ClientSession(connector=connector) as session, session.get(url, headers=ANN) as answer:
                assert answer.status == 500
            assert counted.get() == before + 1
            async with client(replica, tls) as ask:
                assert (await ask(f"{API}/namespaces/ns/pods/waits/explanation"))[0] == 200


@pytest.mark.parametrize("name", ["x%20HTTP%2F1.1%0D%0AHost:%20a%0D%0A%0D%0ADELETE%20%2Fapi", "x%2Flog", "x%3Fa", "X"])
async def test_a_name_that_no_pod_can_have_is_not_read(world: World, name: str) -> None:
    async with world.pair() as replicas:
        tls = world.tls(world.folder / "trusted")
        for replica in replicas:
            url = URL(f"https://{replica.address}{API}/namespaces/ns/pods/{name}/explanation", encoded=True)
            connector = aiohttp.TCPConnector(ssl=tls)
            async with aiohttp.ClientSession(connector=connector) as session, session.get(url, headers=ANN) as answer:
                assert answer.status == 404
    assert world.read == []


# --- limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accepts", [True, False])
async def test_large_lists_are_compressed_for_clients_that_accept_it(world: World, *, accepts: bool) -> None:
    for number in range(600):
        world.cluster.put_pending(pod(f"p{number:04}", MANY))
    async with world.pair() as replicas:
        for replica in replicas:
            tls = world.tls(world.folder / "trusted")
            headers = {**ANN, "Accept-Encoding": "gzip" if accepts else "identity"}
            connector = aiohttp.TCPConnector(ssl=tls)
            async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
                async with session.get(f"https://{replica.address}{API}/queue", headers=headers) as answer:
                    raw = await answer.read()
                async with session.get(f"https://{replica.address}{API}/fleet", headers=headers) as small:
                    assert "Content-Encoding" not in small.headers
            assert answer.headers.get("Content-Encoding", "") == ("gzip" if accepts else "")
            body = gzip.decompress(raw) if accepts else raw
            assert (len(body) > MIN_COMPRESSED, len(orjson.loads(body)["items"])) == (True, 601)


async def test_connections_beyond_the_limit_are_told_so(world: World) -> None:
    refused, alone, streams = counters.VISIBILITY_REFUSED._value, Replica(world), []
    async with world.served(alone), client(alone, world.tls()) as ask, contextlib.AsyncExitStack() as stack:
        for _ in range(CONNECTIONS // SHARE):
            _, writer = stream = await asyncio.open_connection("127.0.0.1", alone.port, ssl=world.tls())
            stack.callback(writer.close)
            streams.append(stream)
        before = refused.get()
        status, body = await ask(f"{API}/fleet")
        assert (status, body["reason"]) == (429, "TooManyRequests")
        assert body["message"] == "too many connections, try again later"
        assert refused.get() == before + 1


async def test_a_user_has_so_many_watches(world: World) -> None:
    async with world.pair() as (leader, _), client(leader, world.tls(world.folder / "trusted")) as ask:
        watches = [asyncio.create_task(ask(f"{API}/queue?watch=true&timeoutSeconds=60")) for _ in range(2)]
        await asyncio.sleep(0.3)
        status, body = await ask(f"{API}/fleet?watch=true")
        assert (status, body["reason"]) == (429, "TooManyRequests")
        for watch in watches:
            watch.cancel()


async def test_a_client_that_does_not_read_is_disconnected(world: World) -> None:
    leader = Replica(world)
    world.lead(leader)
    # More than the kernel's buffers hold.
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "x" * 10_000}
    for number in range(2_000):
        world.cluster.put_pending(pod(f"p{number}", MANY, status={"conditions": [condition]}))
    async with world.served(leader) as server:
        tls = world.tls(world.folder / "trusted")
        reader, writer = await asyncio.open_connection("127.0.0.1", leader.port, ssl=tls, limit=1024)
        writer.write(f"GET {API}/queue?watch=true HTTP/1.1\r\nHost: x\r\nX-Remote-User: ann\r\n\r\n".encode())
        assert b"200 OK" in await reader.readline()
        await until(lambda: server.watches.by_user == {})
        writer.transport.abort()


async def test_a_client_that_does_not_read_its_list_is_disconnected(world: World) -> None:
    leader = Replica(world)
    world.lead(leader)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "x" * 10_000}
    for number in range(2_000):
        world.cluster.put_pending(pod(f"p{number}", MANY, status={"conditions": [condition]}))
    async with world.served(leader):
        tls = world.tls(world.folder / "trusted")
        reader, writer = await asyncio.open_connection("127.0.0.1", leader.port, ssl=tls, limit=1024)
        writer.write(f"GET {API}/queue HTTP/1.1\r\nHost: x\r\nX-Remote-User: ann\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        [length] = [int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        await asyncio.sleep(4 * world.limits.write_seconds)
        received = 0
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while received < length and (data := await reader.read(2**20)):
                received += len(data)
        assert received < length
        writer.transport.abort()


async def test_a_watch_ends_in_time(world: World) -> None:
    async with world.pair() as (_, standby), client(standby, world.tls(world.folder / "trusted")) as ask:
        began = asyncio.get_running_loop().time()
        status, frame = await ask(f"{API}/queue?watch=true&timeoutSeconds=1")
        assert (status, frame["type"]) == (200, "ADDED")
        assert 0.9 <= asyncio.get_running_loop().time() - began < 30
