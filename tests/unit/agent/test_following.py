"""Followers' view of lists and watches, in virtual time."""

import asyncio
import contextlib

import pytest

from berth_agent.following import follow
from berth_client.agreement import Restores
from tests.unit.client.watches import ScriptedApi, error_line, line, page

pytestmark = pytest.mark.looptime


async def events_within(api: ScriptedApi, seconds: float, restores: Restores | None = None) -> list[str]:
    """Return the events within so many seconds."""
    events: list[str] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await follow(
                api,
                "/things",
                selector="x=y",
                read=lambda obj: str(obj["metadata"]["name"]),
                listed=lambda known, version: events.append(f"{''.join(known)} at {version}"),
                changed=lambda kind, obj: events.append(f"{kind} {obj['metadata']['name']}"),
                restores=restores or Restores(),
            )
    return events


async def test_changes_follow_a_whole_list_with_its_version() -> None:
    api = ScriptedApi(
        lists=[page("a", "b", version=7, more="t"), page("c", version=7)],
        watches=[[line("MODIFIED", "a", 8), line("DELETED", "b", 9)]],
    )
    assert await events_within(api, 60) == ["abc at 7", "MODIFIED a", "DELETED b"]
    assert {params["fieldSelector"] for params in (*api.list_params, *api.watch_params)} == {"x=y"}


async def test_an_expired_version_is_followed_by_a_whole_list() -> None:
    api = ScriptedApi(lists=[page("a", version=7), page(version=20)], watches=[[60.0, error_line(410)]])
    assert await events_within(api, 600) == ["a at 7", " at 20"]


async def test_a_restore_is_followed_by_a_whole_list() -> None:
    restores = Restores()
    api = ScriptedApi(lists=[page("a", version=70), page("b", version=20)], watches=[[600.0], [600.0]])
    asyncio.get_running_loop().call_later(60, restores.note)
    assert await events_within(api, 300, restores) == ["a at 70", "b at 20"]
    assert [params.get("resourceVersion") for params in api.watch_params][:2] == ["70", "20"]
