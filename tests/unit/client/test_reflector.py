"""The reflector in virtual time: what reaches the sink, in which order, after what."""

import asyncio
import contextlib
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Mapping

import pytest
from structlog.testing import capture_logs

from berth_client import lists, reflector
from berth_client.errors import ApiError, PageTooLarge, Unreachable
from berth_client.objects import without_managed_fields
from tests.unit.client.watches import Recorder, ScriptedApi, Step, end_line, error_line, item, line, page

pytestmark = pytest.mark.looptime

BUSY = ApiError(429, "TooManyRequests", "later")
EXPIRED = ApiError(410, "Expired", "too old")
AWAY = Unreachable("away")
LARGE = 2**20


@contextlib.asynccontextmanager
async def reflecting(
    api: ScriptedApi, sink: Recorder, *, max_backoff: float = reflector.BACKOFF_SECONDS[1], **params: str
) -> AsyncIterator[reflector.Reflector]:
    made = reflector.Reflector(
        api=api,
        source=reflector.Source(path="/api/v1/pods", params=params),
        sink=sink,
        clock=asyncio.get_running_loop().time,
        on_bookmark=sink.bookmarks.append,
        max_backoff=max_backoff,
    )
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_all_pages_are_handed_over() -> None:
    api = ScriptedApi(lists=[page("a", "b", version=7, more="t"), page("c", version=7)])
    sink = Recorder()
    async with reflecting(api, sink, fieldSelector="x=y") as made:
        assert not made.is_synced
        await made.synced.wait()
        await asyncio.sleep(1)
    assert sink.calls == ["put a,b", "put c", "end"]
    assert api.list_params == [
        {"fieldSelector": "x=y", "limit": str(lists.PAGE)},  # no resourceVersion: at quorum
        {"fieldSelector": "x=y", "limit": str(lists.PAGE), "continue": "t"},
    ]
    watch = api.watch_params[0]
    assert 300 <= int(watch.pop("timeoutSeconds")) <= 600
    assert watch == {
        "fieldSelector": "x=y",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "7",
    }


async def test_the_list_is_dated_before_its_request() -> None:
    api = ScriptedApi(lists=[page(version=1)], list_seconds=3)
    sink = Recorder()
    async with reflecting(api, sink) as made:
        await made.synced.wait()
    assert (sink.requested, sink.times) == ([0], [3, 3])


async def test_managed_fields_are_dropped() -> None:
    assert without_managed_fields({"metadata": {"name": "a", "managedFields": []}}) == {"metadata": {"name": "a"}}


async def test_events_follow_the_list_and_a_watch_that_ends_goes_on_where_it_was() -> None:
    first: list[Step] = [line("ADDED", "b", 8), line("MODIFIED", "a", 9), 80.0, line("DELETED", "b", 11)]
    api = ScriptedApi(lists=[page("a", version=7)], watches=[first, [line("ADDED", "c", 12)]])
    sink = Recorder()
    async with reflecting(api, sink):
        await asyncio.sleep(85)
    assert sink.calls == ["put a", "end", "ADDED b", "MODIFIED a", "DELETED b", "ADDED c"]
    assert [params["resourceVersion"] for params in api.watch_params[:2]] == ["7", "11"]
    assert api.watched_at[1] == 80  # at once


async def test_a_bookmark_moves_the_version_and_calls_no_sink() -> None:
    api = ScriptedApi(lists=[page(version=7)], watches=[[line("BOOKMARK", "", 99)]])
    sink = Recorder()
    async with reflecting(api, sink):
        await asyncio.sleep(1)
    assert sink.calls == ["put", "end"]
    assert sink.bookmarks == ["99"]
    assert api.watch_params[1]["resourceVersion"] == "99"


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(error_line(410), id="ERROR event 410"),
        pytest.param(error_line(500), id="ERROR event 500"),
        pytest.param(b'{"type":"ADDED","object":{"me', id="half a line"),
        pytest.param(b'["not an event"]', id="not an event"),
        pytest.param(b'{"type":"ERROR","object":null}', id="ERROR without Status"),
        pytest.param(line("SURPRISE", "a", 9), id="unknown type"),
        pytest.param(EXPIRED, id="410"),
        pytest.param(ApiError(400, "BadRequest", "invalid version"), id="400"),
    ],
)
async def test_what_the_watch_cannot_survive_is_followed_by_a_new_list(end: bytes | Exception) -> None:
    api = ScriptedApi(lists=[page("a", version=7), page("b", version=20)], watches=[[end]])
    sink = Recorder()
    async with reflecting(api, sink):
        await asyncio.sleep(2)
    assert sink.calls == ["put a", "end", "put b", "end"]
    assert 0.25 <= sink.times[2] <= 0.5
    assert api.watch_params[1]["resourceVersion"] == "20"


@pytest.mark.parametrize("end", [pytest.param(AWAY, id="unreachable"), pytest.param(BUSY, id="429")])
async def test_what_says_nothing_about_the_version_is_not_followed_by_a_list(end: Exception) -> None:
    api = ScriptedApi(lists=[page("a", version=7)], watches=[[line("ADDED", "b", 8), end]])
    sink = Recorder()
    async with reflecting(api, sink):
        await asyncio.sleep(2)
    assert sink.calls == ["put a", "end", "ADDED b"]
    assert api.watch_params[1]["resourceVersion"] == "8"


async def test_a_silent_watch_is_taken_up_again_after_ninety_seconds() -> None:
    api = ScriptedApi(lists=[page(version=7)], watches=[[60.0, line("BOOKMARK", "", 8), 1000.0]])
    async with reflecting(api, Recorder()) as made:
        await asyncio.sleep(149)
        assert made.last_event_age() == 89
        await asyncio.sleep(2)
        assert made.last_event_age() < 1.5
    assert 150.25 <= api.watched_at[1] <= 150.5
    assert api.watch_params[1]["resourceVersion"] == "8"


@pytest.mark.parametrize("longest", [reflector.FEW_CLIENTS_BACKOFF, 30])
async def test_failures_are_retried_at_growing_intervals_up_to_a_limit(longest: float) -> None:
    api = ScriptedApi(lists=[page(version=7)], watches=[[AWAY]] * 4000)
    async with reflecting(api, Recorder(), max_backoff=longest) as made:
        await asyncio.sleep(3600)
        assert made.last_event_age() == 3600
    pairs = zip(api.watched_at, api.watched_at[1:], strict=False)
    gaps = [later - earlier for earlier, later in pairs]
    assert 0.25 <= gaps[0] <= 0.5
    assert all(longest / 2 <= gap <= longest for gap in gaps[7:])


async def test_a_watch_that_ended_in_peace_makes_the_next_failure_the_first() -> None:
    failing: list[list[Step]] = [[AWAY] for _ in range(8)]
    api = ScriptedApi(lists=[page(version=7)], watches=[*failing, [80.0], [AWAY], [1000.0]])
    async with reflecting(api, Recorder()):
        await asyncio.sleep(400)
    assert 0.25 <= api.watched_at[10] - api.watched_at[9] <= 0.5


async def test_a_failing_list_is_retried_and_nothing_is_synced_meanwhile() -> None:
    api = ScriptedApi(lists=[AWAY, BUSY, page("a", version=1, more="t"), EXPIRED, page("b", version=2)])
    sink = Recorder()
    async with reflecting(api, sink) as made:
        while sink.calls != ["put a"]:
            assert not made.is_synced
            await asyncio.sleep(0.1)
        await made.synced.wait()
    assert sink.calls == ["put a", "put b", "end"]


async def test_the_next_page_is_asked_for_before_one_is_read() -> None:
    api = ScriptedApi(lists=[page("a", version=7, more="t"), page("b", version=7, more="u"), page("c", version=7)])
    asked: list[int] = []
    async with reflecting(api, Recorder(on_put=lambda: asked.append(len(api.list_params)))) as made:
        await made.synced.wait()
    assert asked == [2, 3, 3]


async def test_a_page_that_was_asked_for_in_vain_is_let_go() -> None:
    api = ScriptedApi(lists=[page("a", version=7, more="t"), page("b", version=7)], list_seconds=3)
    made = reflector.Reflector(api=api, source=reflector.Source(path="/"), sink=Recorder(on_put=broken))
    with pytest.raises(ZeroDivisionError):
        await made.run()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_list_that_expires_begins_again_with_as_many_objects_as_could_be_read() -> None:
    too_large = PageTooLarge("too large")
    api = ScriptedApi(lists=[too_large, page("a", version=7, more="t"), EXPIRED, page("b", version=9)])
    async with reflecting(api, Recorder()) as made:
        await made.synced.wait()
    assert [params["limit"] for params in api.list_params] == ["250", "125", "125", "125"]


def broken() -> None:
    raise ZeroDivisionError


async def test_a_watch_that_is_always_refused_does_not_list_in_a_hurry() -> None:
    forbidden = ApiError(403, "Forbidden", "may not watch")
    api = ScriptedApi(lists=[page(version=1)] * 50, watches=[[forbidden]] * 50)
    async with reflecting(api, Recorder()):
        await asyncio.sleep(300)
    assert len(api.list_params) < 25


async def test_a_watch_that_ends_as_soon_as_it_begins_is_not_repeated_in_a_hurry() -> None:
    api = ScriptedApi(lists=[page(version=1)], watches=[[]] * 50)
    async with reflecting(api, Recorder()):
        await asyncio.sleep(300)
    assert len(api.watch_params) < 25
    assert len(api.list_params) == 1


async def test_a_sink_that_fails_ends_the_reflector() -> None:
    api = ScriptedApi(lists=[page(version=1)], watches=[[line("ADDED", "a", 2)]])
    sink = Recorder(failure=ZeroDivisionError())
    made = reflector.Reflector(api=api, source=reflector.Source(path="/"), sink=sink)
    with pytest.raises(ZeroDivisionError):
        await made.run()


async def test_only_what_is_kept_reaches_the_sink() -> None:
    api = ScriptedApi(lists=[page("a", version=1)], watches=[[line("ADDED", "b", 2)]])
    sink = Recorder()
    source = reflector.Source(path="/", transform=lambda obj: item(obj["metadata"]["name"].upper()))
    made = reflector.Reflector(api=api, source=source, sink=sink)
    task = asyncio.create_task(made.run())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert sink.calls == ["put A", "end", "ADDED B"]


async def test_many_events_at_once_leave_turns_to_others() -> None:
    now, seen, turns = 0.0, 0, 0

    class Slow(Recorder):
        def apply(self, *_: object) -> None:
            nonlocal now, seen
            now, seen = now + reflector.TURN_SECONDS / 2, seen + 1

    async def others() -> None:
        nonlocal turns
        while seen < 30:
            turns += seen > 0
            await asyncio.sleep(0)

    api = ScriptedApi(lists=[page(version=1)], watches=[[line("ADDED", f"p{number}", number) for number in range(30)]])
    source = reflector.Source(path="/api/v1/pods")
    made = reflector.Reflector(api=api, source=source, sink=Slow(), clock=lambda: now)
    task = asyncio.create_task(made.run())
    await others()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert turns >= 9


async def test_a_watch_that_waits_keeps_no_line() -> None:
    """A pod may have a megabyte, and there are many watches."""

    class Large(ScriptedApi):
        async def stream(
            self, path: str, params: Mapping[str, str], *, idle_timeout: float
        ) -> AsyncGenerator[bytes, None]:
            if "sendInitialEvents" in params:
                async for first in super().stream(path, params, idle_timeout=idle_timeout):
                    yield first
            yield line("ADDED", "x" * LARGE, 2)
            await asyncio.sleep(float("inf"))

    class Forgetful(Recorder):
        def apply(self, *_: object) -> None:
            self.note("ADDED")

    sink = Forgetful()
    tracemalloc.start()
    async with reflecting(Large(lists=[page(version=1)]), sink):
        await asyncio.sleep(1)
        kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sink.calls == ["put", "end", "ADDED"]
    assert kept < LARGE


# --- kinds that the server may not know ---------------------------------------------------------------------------


UNKNOWN = ApiError(404, "NotFound", "the server could not find the requested resource")


async def test_of_an_optional_kind_that_is_unknown_there_are_none_until_it_is_known() -> None:
    api = ScriptedApi(
        lists=[UNKNOWN, UNKNOWN, page("a", version=3), UNKNOWN, page(version=9)],
        watches=[[error_line(410)], [float("inf")]],
    )
    sink, loop = Recorder(), asyncio.get_running_loop()
    source = reflector.Source(path="/apis/x/v1/things", optional=True)
    made = reflector.Reflector(api=api, source=source, sink=sink, clock=loop.time)
    with capture_logs() as lines:
        task = asyncio.create_task(made.run())
        await made.synced.wait()
        assert loop.time() == 0
        await asyncio.sleep(29)
        assert made.last_event_age() == 14
        await asyncio.sleep(30)
    assert sum(line["event"].startswith("kind not served") for line in lines) == 2
    assert sink.calls == ["end", "end", "put a", "end", "end", "put", "end"]
    assert sink.times[:3] == [0, 15, 30]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


FORBIDDEN = ApiError(403, "Forbidden", "cannot list resource")


async def test_of_a_kind_that_may_be_forbidden_there_are_none_until_it_is_allowed() -> None:
    api = ScriptedApi(lists=[FORBIDDEN, FORBIDDEN, page("a", version=3)], streams=[[FORBIDDEN]])
    source = reflector.Source(path="/api/v1/resourcequotas", may_be_forbidden=True)
    sink = Recorder()
    made = reflector.Reflector(api=api, source=source, sink=sink, clock=asyncio.get_running_loop().time)
    task = asyncio.create_task(made.run())
    await made.synced.wait()
    assert not made.is_served
    await asyncio.sleep(31)
    assert made.is_served
    assert sink.calls == ["end", "end", "put a", "end"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_any_other_kind_must_be_allowed() -> None:
    api = ScriptedApi(lists=[FORBIDDEN, page("a", version=3)])
    sink = Recorder()
    async with reflecting(api, sink) as made:
        await made.synced.wait()
    assert sink.calls == ["put a", "end"]


async def test_any_other_kind_must_be_known() -> None:
    api = ScriptedApi(lists=[UNKNOWN, page("a", version=3)])
    sink = Recorder()
    async with reflecting(api, sink) as made:
        await made.synced.wait()
    assert sink.calls == ["put a", "end"]


# --- lists that are streamed --------------------------------------------------------------------------------------


async def test_a_list_is_streamed_by_the_watch_that_follows() -> None:
    first: list[Step] = [line("ADDED", "a", 5), line("ADDED", "b", 3), end_line(7), line("MODIFIED", "a", 8), 80.0]
    api = ScriptedApi(streams=[first])
    sink = Recorder()
    async with reflecting(api, sink, fieldSelector="x=y") as made:
        await made.synced.wait()
        assert (made.listed, sink.calls[:3]) == (2, ["put a", "put b", "end"])
        await asyncio.sleep(85)
    assert sink.calls == ["put a", "put b", "end", "MODIFIED a"]
    [params] = api.stream_params
    assert 300 <= int(params.pop("timeoutSeconds")) <= 600
    assert params == {
        "fieldSelector": "x=y",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",  # no resourceVersion: at quorum
    }
    assert [params["resourceVersion"] for params in api.watch_params] == ["8"]
    assert api.list_params == []


async def test_nothing_is_synced_before_the_end_of_a_streamed_list() -> None:
    api = ScriptedApi(streams=[[line("ADDED", "a", 5), 60.0, end_line(7), 1000.0]])
    sink = Recorder()
    async with reflecting(api, sink) as made:
        await asyncio.sleep(59)
        assert (made.is_synced, sink.calls) == (False, ["put a"])
        await asyncio.sleep(2)
        assert (made.is_synced, sink.calls, sink.requested) == (True, ["put a", "end"], [0])


async def test_a_server_that_streams_no_lists_is_asked_once() -> None:
    api = ScriptedApi(lists=[page("a", version=7), page("b", version=20)], watches=[[error_line(410)]])
    sink = Recorder()
    async with reflecting(api, sink) as made:
        await made.synced.wait()
        assert asyncio.get_running_loop().time() == 0
        await asyncio.sleep(2)
    assert sink.calls == ["put a", "end", "put b", "end"]
    assert len(api.stream_params) == 1


async def test_a_role_that_may_only_list_gets_a_list_in_pages() -> None:
    forbidden = ApiError(403, "Forbidden", "may not watch")
    api = ScriptedApi(lists=[page("a", version=7)], streams=[[forbidden]])
    async with reflecting(api, Recorder()) as made:
        await made.synced.wait()
        assert asyncio.get_running_loop().time() == 0


async def test_an_expired_version_is_followed_by_a_streamed_list() -> None:
    streams: list[list[Step]] = [
        [line("ADDED", "a", 5), end_line(7), error_line(410)],
        [line("ADDED", "b", 9), end_line(20), 1000.0],
    ]
    sink = Recorder()
    async with reflecting(ScriptedApi(streams=streams), sink):
        await asyncio.sleep(2)
    assert sink.calls == ["put a", "end", "put b", "end"]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([line("ADDED", "a", 5), AWAY], id="unreachable"),
        pytest.param([line("ADDED", "a", 5), 0.0], id="ended"),
        pytest.param([line("ADDED", "a", 5), 1000.0], id="silent"),
        pytest.param([line("ADDED", "a", 5), error_line(500)], id="ERROR event"),
    ],
)
async def test_streams_that_end_early_begin_again_twice_and_then_come_in_pages(steps: list[Step]) -> None:
    api = ScriptedApi(lists=[page("a", version=7)], streams=[list(steps) for _ in range(4)])
    sink = Recorder()
    async with reflecting(api, sink) as made:
        await made.synced.wait()
        assert sink.calls == ["put a", "put a", "put a", "end"]
    assert (len(api.stream_params), len(api.list_params)) == (reflector.STREAMS, 1)


async def test_an_interrupted_stream_that_succeeds_later_is_no_reason_for_pages() -> None:
    good: list[Step] = [line("ADDED", "a", 5), end_line(7), error_line(410)]
    api = ScriptedApi(streams=[[AWAY], good, [AWAY], good, [end_line(20), 1000.0]])
    sink = Recorder()
    async with reflecting(api, sink):
        await asyncio.sleep(20)
    assert sink.calls == ["put a", "end", "put a", "end", "end"]
    assert api.list_params == []


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(line("BOOKMARK", "", 9), id="usual bookmark"),
        pytest.param(line("MODIFIED", "a", 9), id="MODIFIED"),
        pytest.param(line("DELETED", "a", 9), id="DELETED"),
    ],
)
async def test_a_server_that_ignores_the_parameters_is_asked_in_pages(event: bytes) -> None:
    api = ScriptedApi(lists=[page("b", version=7)], streams=[[line("ADDED", "a", 5), event, 1000.0]])
    sink = Recorder()
    async with reflecting(api, sink) as made:
        await made.synced.wait()
    assert sink.calls == ["put a", "put b", "end"]
    assert not api.streamed_lists.may("/api/v1/pods")


async def test_a_streamed_list_shows_an_earlier_state_too() -> None:
    api = ScriptedApi(streams=[[line("ADDED", "a", 5), end_line(70), error_line(410)], [end_line(20), 1000.0]])
    reasons: list[str] = []
    api.versions.on_earlier = reasons.append
    async with reflecting(api, Recorder()):
        await asyncio.sleep(2)
    assert reasons == ["/api/v1/pods has the version 20, it had 70"]


async def test_a_kind_that_is_not_served_is_looked_for_by_one_request() -> None:
    api = ScriptedApi(lists=[UNKNOWN] * 10, streams=[[UNKNOWN]])
    source = reflector.Source(path="/apis/x/v1/things", optional=True)
    made = reflector.Reflector(api=api, source=source, sink=Recorder())
    task = asyncio.create_task(made.run())
    await made.synced.wait()
    await asyncio.sleep(40)
    assert (len(api.stream_params), len(api.list_params)) == (1, 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_streamed_list_is_held_one_object_at_a_time() -> None:
    """Fifty pods of a megabyte with a character beyond the BMP have 200 MB as Python's text."""

    class Endless(ScriptedApi):
        async def stream(self, *_: object, **__: object) -> AsyncGenerator[bytes, None]:
            yield b""
            for number in range(50):
                yield line("ADDED", "\N{GRINNING FACE}" + "x" * LARGE, number)
            yield end_line(99)
            await asyncio.sleep(float("inf"))

    class Forgetful(Recorder):
        def note(self, words: str) -> None:
            super().note(words[:3])

    sink = Forgetful()
    tracemalloc.start()
    async with reflecting(Endless(), sink) as made:
        await made.synced.wait()
        _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sink.calls == ["put"] * 50 + ["end"]
    # One line, its text, and copies of both by the server and the recorder.
    assert peak < 40 * LARGE
