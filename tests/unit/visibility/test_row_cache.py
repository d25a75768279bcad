"""Rows from the state, in virtual time: lists, changes as watches see them, and when nothing is rendered."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from berth_api.names import DRA_DRIVER
from berth_operator.apis.aggregated import options
from berth_operator.apis.aggregated.frames import Form
from berth_operator.apis.aggregated.options import Selection
from berth_operator.apis.aggregated.statuses import StatusError
from berth_operator.apis.aggregated.watch import Watch
from berth_operator.apis.visibility.kinds import FLEET
from berth_operator.apis.visibility.row_cache import (
    COUNTER_BITS,
    IDLE_SECONDS,
    KEPT_SECONDS,
    PAUSES,
    Row,
    RowCache,
    Source,
)
from berth_operator.apis.visibility.slices import LoopTurns
from berth_operator.apis.visibility.sources import FleetRows, HolderRows, QueueRows
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster
from tests.objects.builders import device, entry, lease, node, pod, whole
from tests.objects.resource_claims import ClaimsInTurns, allocated, listed, resource_slice
from tests.unit.visibility.iterations import iterations

pytestmark = pytest.mark.looptime

TERM = 7
FIRST = (TERM << COUNTER_BITS) + 1
EVERYTHING = Selection()
WHOLE = {"kubernetes.io/gpu": "100"}
END = ("BOOKMARK", "")
LIST = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}


class State:
    """A cluster whose clock is that of the loop, and the caches of its rows."""

    def __init__(self) -> None:
        clock = asyncio.get_running_loop().time
        self.cluster = Cluster(grace=1e9, clock=clock, wall=clock)
        self.fleet = self._cache(FleetRows(self.cluster, lambda: "rack"))
        self.holders, self.queue = self._cache(HolderRows(self.cluster)), self._cache(QueueRows(self.cluster))

    def _cache(self, source: Source) -> RowCache:
        return RowCache(source, term=TERM, clock=self.cluster.clock, turns=LoopTurns())

    def add_node(self, name: str, cards: int = 1, **labels: str) -> None:
        self.cluster.node_cache.put_node(node(name, labels=labels))
        self.cluster.node_cache.put_device(device(name, *(entry(minor) for minor in range(cards))))
        self.cluster.node_cache.put_lease(lease(name))

    def add_waiting(self, *names: str, **fields: Any) -> None:
        for name in names:
            self.cluster.put_pending(pod(name, WHOLE, **fields))

    def bind(self, name: str, on: str = "n1", minor: int = 0, **fields: Any) -> None:
        self.cluster.put_bound(pod(name, WHOLE, on=on, allocated=whole(minor), **fields))


def bodies(cache: RowCache, selection: Selection = EVERYTHING) -> list[dict[str, Any]]:
    return [orjson.loads(found.body) for found in cache.select(selection)]


def names(cache: RowCache) -> list[str]:
    return [body["metadata"]["name"] for body in bodies(cache)]


def renders(cache: RowCache) -> float:
    return float(counters.VISIBILITY_RENDERS.labels(cache.kind.plural)._value.get())


async def later(cache: RowCache) -> RowCache:
    """Return the cache with rows that are fresh after a second."""
    await asyncio.sleep(KEPT_SECONDS)
    await cache.refresh()
    return cache


class Client:
    """Reads a watch."""

    def __init__(self, cache: RowCache, namespace: str = "", seconds: float = 100.0, **query: str) -> None:
        wanted = options.read(cache.kind, namespace, {"watch": "true", "allowWatchBookmarks": "true", **query})
        self._watch = Watch(cache, Form(cache.kind), wanted, seconds=seconds)
        self.frames: list[dict[str, Any]] = []
        self.at: list[float] = []
        self.task = asyncio.create_task(self._watch.run(cache.sending.paced(self._take)))

    async def _take(self, data: bytes) -> None:
        lines = data.splitlines()
        self.frames += [orjson.loads(line) for line in lines]
        self.at += [asyncio.get_running_loop().time()] * len(lines)

    @property
    def seen(self) -> list[tuple[str, str]]:
        return [(frame["type"], frame["object"]["metadata"].get("name", "")) for frame in self.frames]


@asynccontextmanager
async def watching(cache: RowCache, **options: Any) -> AsyncIterator[Client]:
    """Watch as the server does."""
    running = asyncio.create_task(cache.run())
    with cache.watched():
        await cache.refresh()
        client = Client(cache, **options)
        await asyncio.sleep(0.1)
        yield client
    for task in (client.task, running):
        task.cancel()


# --- rows -------------------------------------------------------------------------------------------------------


async def test_a_list_shows_the_state_of_at_most_a_second_ago() -> None:
    state = State()
    await state.fleet.refresh()
    assert (names(state.fleet), state.fleet.version) == ([], FIRST)
    state.add_node("n1")
    await state.fleet.refresh()
    assert names(state.fleet) == []
    assert names(await later(state.fleet)) == ["n1"]
    assert renders(state.fleet) > 0


async def test_a_list_of_the_queue_is_in_its_order_and_has_the_time_of_now() -> None:
    state = State()
    state.add_waiting("b", created="1970-01-01T00:00:00Z")
    state.add_waiting("a", created="1970-01-01T00:00:01Z")
    state.add_waiting("first", priority=5, created="1970-01-01T00:00:02Z")
    await state.queue.refresh()
    assert names(state.queue) == ["first", "b", "a"]
    version = state.queue.version
    await asyncio.sleep(7)
    await state.queue.refresh()
    assert [body["waitingSeconds"] for body in bodies(state.queue)] == [5, 7, 6]
    # Time alone is no change.
    assert state.queue.version == version


async def test_a_row_has_what_words_request_and_no_minimum_that_is_not_known() -> None:
    state = State()
    share = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "1000", "nvidia.com/gpucores": "30"}
    state.cluster.put_pending(pod("hami", share, labels={"pod-group.scheduling.sigs.k8s.io": "missing"}))
    state.add_waiting("own")
    await state.queue.refresh()
    rows = {body["metadata"]["name"]: body for body in bodies(state.queue)}
    own, expected = "kubernetes.io/gpu-", {"memory": 2000 * 2**20, "core": 60}
    assert {own + name: amount for name, amount in expected.items()}.items() <= rows["hami"]["requests"].items()
    assert rows["hami"]["gang"] == {"name": "missing"}
    assert not any(name.startswith(own) for name in rows["own"]["requests"])


async def test_a_gated_pod_is_listed_last_and_without_a_position() -> None:
    state = State()
    state.add_waiting("gated", priority=9, schedulingGates=[{"name": "one"}, {"name": "two"}])
    state.add_waiting("waits")
    await state.queue.refresh()
    assert [(body["metadata"]["name"], body["state"], body["position"]) for body in bodies(state.queue)] == [
        ("waits", "active", 1),
        ("gated", "gated", 0),
    ]
    assert [entry.rank for entry in state.queue.select(EVERYTHING)] == [1, sys.maxsize]
    gated = bodies(state.queue)[1]
    assert (gated["message"], gated["wakesOn"]) == ("scheduling is blocked by gates: one, two", [])
    async with watching(state.queue, **LIST) as client:
        assert client.seen == [("ADDED", "waits"), ("ADDED", "gated"), END]
        state.add_waiting("gated", priority=9)
        await asyncio.sleep(2)
        assert sorted(client.seen[3:]) == [("MODIFIED", "gated"), ("MODIFIED", "waits")]
        state.cluster.remove_pending("uid-gated")
        await asyncio.sleep(2)
    assert names(await later(state.queue)) == ["waits"]


async def test_one_rendering_serves_a_namespace_as_well() -> None:
    state = State()
    state.add_waiting("a")
    state.add_waiting("b", metadata={"namespace": "other", "uid": "b"})
    before = renders(state.queue)
    await state.queue.refresh()
    await state.queue.refresh()
    assert names(state.queue) == ["a", "b"]
    assert [body["metadata"]["name"] for body in bodies(state.queue, Selection(namespace="other"))] == ["b"]
    assert renders(state.queue) == before + 1


# --- watches ----------------------------------------------------------------------------------------------------


async def test_a_watch_begins_with_all_rows_and_a_bookmark_and_continues_with_changes() -> None:
    state = State()
    state.add_node("n1")
    state.add_node("n2")
    async with watching(state.fleet, **LIST) as client:
        assert client.seen == [("ADDED", "n1"), ("ADDED", "n2"), END]
        assert client.frames[-1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        state.bind("p")
        state.cluster.node_cache.remove_device("n2")
        state.add_node("n3")
        await asyncio.sleep(1.1)
        assert client.seen[3:] == [("MODIFIED", "n1"), ("ADDED", "n3"), ("DELETED", "n2")]
        changed = client.frames[3]["object"]["devices"][0]
        assert (changed["users"], changed["free"]["gpu-core"]) == (1, 0)
        versions = [int(frame["object"]["metadata"]["resourceVersion"]) for frame in client.frames[3:]]
        assert versions == [FIRST + 1, FIRST + 2, FIRST + 3]


async def test_changes_come_at_most_once_a_second() -> None:
    state = State()
    state.add_node("n1", cards=8)
    async with watching(state.fleet) as client:
        for number in range(8):
            state.bind(f"p{number}", minor=number)
            await asyncio.sleep(0.25)
        await asyncio.sleep(1.0)
    gaps = [after - before for before, after in zip(client.at, client.at[1:], strict=False)]
    assert 2 <= len(gaps) <= 3
    assert all(gap >= PAUSES[0] for gap in gaps[1:])
    assert client.frames[-1]["object"]["models"]


async def test_nothing_is_rendered_unless_somebody_asks() -> None:
    state = State()
    running = asyncio.create_task(state.queue.run())
    before = renders(state.queue)
    state.add_waiting("a")
    await asyncio.sleep(100)
    assert renders(state.queue) == before
    with state.queue.watched():
        await asyncio.sleep(3.5)
    rendered = renders(state.queue)
    assert 3 <= rendered - before <= 4
    await asyncio.sleep(100)
    assert renders(state.queue) == rendered
    running.cancel()


async def test_clients_that_leave_do_not_have_rows_rendered_again() -> None:
    state = State()
    for number in range(3_000):
        state.add_waiting(f"p{number}")
    before = renders(state.queue)
    for _ in range(5):
        client = asyncio.create_task(state.queue.refresh())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        client.cancel()
    await state.queue.refresh()
    assert renders(state.queue) == before + 1
    assert len(names(state.queue)) == 3_000


async def test_nothing_is_being_rendered_when_rows_have_been_refreshed() -> None:
    state = State()
    for number in range(3_000):
        state.add_waiting(f"p{number}")
    await state.queue.refresh()
    await asyncio.sleep(IDLE_SECONDS)
    refreshing = asyncio.create_task(state.queue.refresh())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    # Its turn is next, before the one of who waits for the refresh.
    state.add_waiting("new", priority=9)
    running = asyncio.create_task(state.queue.run())
    with state.queue.watched():
        await refreshing
        assert names(state.queue)[0] == "new" or state.queue.get(("ns", "new")) is None
    running.cancel()


async def test_a_rendering_that_was_cancelled_is_made_up_for() -> None:
    state = State()
    for number in range(3_000):
        state.add_waiting(f"p{number}")
    await state.queue.refresh()
    version = state.queue.version
    state.add_waiting("new", priority=9)
    rendering = asyncio.create_task(state.queue._try_render(complete=False))
    for _ in range(100):
        if state.queue.get(("ns", "new")) is not None:
            break
        await asyncio.sleep(0)
    assert not rendering.done()
    rendering.cancel()
    await asyncio.sleep(0)
    state.cluster.remove_pending("uid-new")
    await asyncio.sleep(IDLE_SECONDS)
    await state.queue.refresh()
    assert len(names(state.queue)) == 3_000
    seen = [(change.type, change.entry.key[1]) for change in state.queue.read(state.queue.place_after(version), 10_000)]
    assert [each for each in seen if each[1] == "new"] == [("ADDED", "new"), ("DELETED", "new")]


async def test_rows_that_no_request_reads_are_dropped() -> None:
    state = State()
    state.add_node("n1")
    running = asyncio.create_task(state.fleet.run())
    await state.fleet.refresh()
    version = state.fleet.version
    await asyncio.sleep(2 * IDLE_SECONDS + 1)
    assert state.fleet.get(("", "n1")) is None
    await state.fleet.refresh()
    assert names(state.fleet) == ["n1"]
    with pytest.raises(StatusError, match="too old resource version"):
        Client(state.fleet, resourceVersion=str(version))
    running.cancel()


async def test_unchanged_rows_are_not_sent_again() -> None:
    state = State()
    state.add_node("n1")
    state.add_waiting("a", created="1970-01-01T00:00:00Z")
    state.bind("p")
    for cache in (state.fleet, state.queue, state.holders):
        async with watching(cache) as client:
            state.cluster.node_cache.put_device(device("n1", entry(0), status={"free": "1"}))
            # What comes and goes between two renderings is not seen.
            state.bind("short")
            state.cluster.remove_bound("uid-short")
            await asyncio.sleep(5)
            assert len(client.frames) == 1


async def test_a_pod_that_was_created_again_is_another_one() -> None:
    state = State()
    state.add_node("n1")
    state.bind("p")
    async with watching(state.holders) as client:
        state.cluster.remove_bound("uid-p")
        state.bind("p", uid="another")
        await asyncio.sleep(1.1)
        assert client.seen == [("ADDED", "p"), ("DELETED", "p"), ("ADDED", "p")]
        assert [frame["object"]["metadata"]["uid"] for frame in client.frames] == ["uid-p", "uid-p", "another"]


async def test_a_pod_above_its_share_is_marked_from_the_report_of_its_node() -> None:
    state = State()
    state.add_node("n1")
    state.bind("p")
    named = {"type": "gpu", "minor": 0, "namespace": "ns", "pod": "p", "podUID": "uid-p"}
    use = {**named, "memory": "52Gi", "limit": "40Gi"}
    async with watching(state.holders) as client:
        for status in ({"exceeding": [use, {**use, "namespace": "forged"}, {**use, "podUID": "other"}]}, {}):
            state.cluster.node_cache.put_device(device("n1", entry(0), status=status))
            await asyncio.sleep(1.1)
        shown = {"type": "gpu", "minor": 0, "memory": 52 * 2**30, "limit": 40 * 2**30}
        assert [(frame["type"], frame["object"].get("exceeding")) for frame in client.frames] == [
            ("ADDED", []),
            ("MODIFIED", [shown]),
            ("MODIFIED", []),
        ]


async def test_a_card_shows_how_many_pods_use_it_and_do_not_hold_it() -> None:
    state = State()
    state.add_node("n1", cards=2)
    async with watching(state.fleet) as client:
        use = {"type": "gpu", "minor": 1, "id": "GPU-1", "namespace": "ns", "memory": "60Gi"}
        uses = [{**use, "pod": name, "podUID": f"uid-{name}"} for name in "pq"]
        for status in ({"unheld": uses}, {}):
            state.cluster.node_cache.put_device(device("n1", entry(0), entry(1), status=status))
            await asyncio.sleep(1.1)
        shown = [[card.get("unheld") for card in frame["object"]["devices"]] for frame in client.frames]
        assert shown == [[None, None], [None, 2], [None, None]]
        assert "uid-p" not in str(client.frames)


async def test_positions_move_up_as_pods_leave_the_queue() -> None:
    state = State()
    for number, name in enumerate("abc"):
        state.add_waiting(name, created=f"1970-01-01T00:00:0{number}Z")
    async with watching(state.queue, namespace="ns") as client:
        state.cluster.remove_pending("uid-a")
        await asyncio.sleep(1.1)
        changes = [(frame["type"], frame["object"]["metadata"]["name"]) for frame in client.frames[3:]]
        assert changes == [("MODIFIED", "b"), ("MODIFIED", "c"), ("DELETED", "a")]
        assert [frame["object"]["position"] for frame in client.frames[3:5]] == [1, 2]


async def test_a_watch_continues_after_a_list_even_if_nothing_was_rendered_in_between() -> None:
    state = State()
    state.add_node("n1")
    await state.fleet.refresh()
    version = state.fleet.version
    await asyncio.sleep(50)
    state.add_node("n2")
    async with watching(state.fleet, resourceVersion=str(version)) as client:
        assert client.seen == [("ADDED", "n2")]


async def test_a_watch_ends_in_time() -> None:
    state = State()
    state.add_node("n1")
    async with watching(state.fleet, seconds=30.0, **LIST) as client:
        await asyncio.wait_for(client.task, 31)
    assert asyncio.get_running_loop().time() < 31


@pytest.mark.parametrize("grace", [2**40, 2**62, 2**63 - 1])
async def test_a_pod_of_an_endless_grace_period_has_an_end_that_can_be_shown(grace: int) -> None:
    state = State()
    state.add_node("n1")
    status = {"startTime": "2026-01-01T00:00:00Z"}
    state.bind("p", activeDeadlineSeconds=1, terminationGracePeriodSeconds=grace, status=status)
    await state.holders.refresh()
    [holder] = bodies(state.holders)
    assert "2026" < holder["endsBy"] < "9999-12-31T23:59:59Z"


async def test_kinds_do_not_begin_to_render_in_the_same_iteration_of_the_loop() -> None:
    turns, began = LoopTurns(), list[int]()

    class Empty(Broken):
        def rows(self) -> Iterator[Row | None]:
            began.append(now())
            yield None

    caches = [RowCache(Empty(), term=TERM, clock=asyncio.get_running_loop().time, turns=turns) for _ in range(3)]
    async with iterations() as now:
        await asyncio.gather(*(each.refresh() for each in caches))
    assert len(set(began)) == len(caches)


# --- failures ---------------------------------------------------------------------------------------------------


class Broken:
    """A source of one row, which can be rendered or not."""

    kind = FLEET
    is_volatile = False

    def __init__(self) -> None:
        self.is_broken = True

    def rows(self) -> Iterator[Row | None]:
        yield Row(("", "n1"), None, self.is_broken, self._render)

    def _render(self) -> dict[str, Any]:
        if self.is_broken:
            raise ValueError("a defect")
        state = {"ready": True, "schedulable": True, "reporting": True, "blocked": ""}
        return {"metadata": {"name": "n1"}, **state, "devices": []}


def failures() -> float:
    return float(counters.VISIBILITY_FAILURES.labels("rendering")._value.get())


async def test_a_rendering_that_fails_is_logged_and_refuses_lists_until_one_succeeds() -> None:
    source, before = Broken(), failures()
    cache = RowCache(source, term=TERM, clock=asyncio.get_running_loop().time, turns=LoopTurns())
    with capture_logs() as logs:
        for _ in range(3):  # those within a second share a rendering
            with pytest.raises(StatusError, match="fleet cannot be shown") as refused:
                await cache.refresh()
    assert (refused.value.code, refused.value.reason) == (500, "InternalError")
    assert [(line["log_level"], line["event"]) for line in logs] == [("error", "rows not rendered")]
    assert failures() == before + 1
    source.is_broken = False
    assert names(await later(cache)) == ["n1"]


async def test_a_rendering_that_fails_ends_watches_and_no_more() -> None:
    source = Broken()
    source.is_broken = False
    cache = RowCache(source, term=TERM, clock=asyncio.get_running_loop().time, turns=LoopTurns())
    async with watching(cache) as client:
        assert client.seen == [("ADDED", "n1")]
        source.is_broken = True
        await asyncio.sleep(1.1)
        assert (client.frames[-1]["type"], client.frames[-1]["object"]["reason"]) == ("ERROR", "Expired")
        assert client.task.done()
        source.is_broken = False
        assert names(await later(cache)) == ["n1"]
        again = Client(cache)
        await asyncio.sleep(1.1)
        source.is_broken = True
        await asyncio.sleep(1.1)
        assert [frame["type"] for frame in again.frames] == ["ADDED", "ERROR"]


async def test_who_holds_a_card_by_claim() -> None:
    state = State()
    state.add_node("n1")
    claims = ClaimsInTurns(state.cluster)
    card = listed("gpu-0", {f"{DRA_DRIVER}/uuid": "GPU-0"})
    claims.put_slice(resource_slice(card, node="n1", driver=DRA_DRIVER))
    state.cluster.put_bound(pod("p", {}, on="n1", resourceClaims=[{"name": "c", "resourceClaimName": "c"}]))
    assert names(await later(state.holders)) == []
    claims.put_claim(allocated("c", "gpu-0", node="n1", driver=DRA_DRIVER, pods=["uid-p"]))
    [row] = bodies(await later(state.holders))
    assert (row["metadata"]["name"], [(part["minor"], part["id"]) for part in row["devices"]]) == ("p", [(0, "GPU-0")])
    # From when the card is in no slice, its name says which one it is.
    claims.remove_slice(f"n1-{DRA_DRIVER}")
    assert names(await later(state.holders)) == ["p"]
    claims.remove_claim("ns/c")
    assert names(await later(state.holders)) == []


async def test_rows_show_an_instance_that_a_claim_has_as_soon_as_a_slice_lists_it() -> None:
    state = State()
    state.add_node("n1")
    claims = ClaimsInTurns(state.cluster)
    state.cluster.put_bound(pod("p", {}, on="n1", resourceClaims=[{"name": "c", "resourceClaimName": "c"}]))
    claims.put_claim(allocated("c", "gpu-0-part", node="n1", driver=DRA_DRIVER, pods=["uid-p"]))
    [node_row], [pod_row] = bodies(await later(state.fleet)), bodies(await later(state.holders))
    assert (node_row["devices"][0]["mig"], "placement" in pod_row["devices"][0]) == ([], False)
    part = listed("gpu-0-part", {f"{DRA_DRIVER}/parentUUID": "GPU-0", f"{DRA_DRIVER}/profile": "1g.10gb"})
    part["consumesCounters"] = [{"counterSet": "gpu", "counters": {"memory-slice-1": {"value": "1"}}}]
    claims.put_slice(resource_slice(part, node="n1", driver=DRA_DRIVER, count=2))
    [node_row], [pod_row] = bodies(await later(state.fleet)), bodies(await later(state.holders))
    assert [instance["profile"] for instance in node_row["devices"][0]["mig"]] == ["1g.10gb"]
    assert pod_row["devices"][0]["amounts"] == {"nvidia.com/mig-1g.10gb": 1}
    counters = resource_slice(node="n1", driver=DRA_DRIVER, name="counters", count=2)
    sets = {f"memory-slice-{number}": {"value": "1"} for number in range(8)}
    counters["spec"] |= {"devices": None, "sharedCounters": [{"name": "gpu", "counters": sets}]}
    claims.put_slice(counters)
    [node_row], [pod_row] = bodies(await later(state.fleet)), bodies(await later(state.holders))
    placements = [node_row["devices"][0]["mig"][0].get("placement"), pod_row["devices"][0].get("placement")]
    assert placements == [{"start": 1, "size": 1, "of": 8}] * 2


async def test_rows_show_the_instances_that_slices_let_claims_make() -> None:
    state = State()
    state.add_node("n1")
    claims = ClaimsInTurns(state.cluster)
    state.cluster.set_own_pools(OwnPools(drivers=frozenset({DRA_DRIVER})))
    [node_row] = bodies(await later(state.fleet))
    assert "migOnDemand" not in node_row["devices"][0]
    part = listed("gpu-0-part", {f"{DRA_DRIVER}/parentUUID": "GPU-0", f"{DRA_DRIVER}/profile": "1g.10gb"})
    part["consumesCounters"] = [{"counterSet": "gpu", "counters": {"memory-slice-1": {"value": "1"}}}]
    counters = resource_slice(node="n1", driver=DRA_DRIVER, name="counters", count=2)
    sets = {"memory-slice-1": {"value": "1"}}
    counters["spec"] |= {"devices": None, "sharedCounters": [{"name": "gpu", "counters": sets}]}
    claims.put_slice(resource_slice(part, node="n1", driver=DRA_DRIVER, name="parts", count=2))
    await later(state.fleet)
    claims.put_slice(counters)
    [node_row] = bodies(await later(state.fleet))
    assert node_row["devices"][0]["migOnDemand"] == {"1g.10gb": 1}
    claims.remove_slice("counters")
    claims.remove_slice("parts")
    [node_row] = bodies(await later(state.fleet))
    assert "migOnDemand" not in node_row["devices"][0]
