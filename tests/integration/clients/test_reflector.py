"""The reflector against the real API server: its view equals the server's."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from berth_client import lists, reflector
from berth_client.objects import Object
from berth_operator.clients import kube
from devcluster import Arena, waiting
from tests.stand_ins.proxy import FaultProxy

MANY = 2 * lists.PAGE + 1


class Snapshot:
    """A sink that keeps the names and versions of all objects."""

    def __init__(self) -> None:
        self.objects: dict[str, str] = {}
        self.lists = 0

    def listing(self, *, requested_at: float) -> "Snapshot":
        assert requested_at > 0
        self.objects = {}
        return self

    def put(self, objects: list[Object]) -> None:
        self.objects |= {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in objects}

    def end(self, _version: str, /) -> None:
        self.lists += 1

    def apply(self, event_type: reflector.EventType, obj: Object) -> None:
        name = obj["metadata"]["name"]
        assert "managedFields" not in obj["metadata"]
        if event_type == "DELETED":
            del self.objects[name]
        else:
            self.objects[name] = obj["metadata"]["resourceVersion"]


async def until(true: Callable[[], bool]) -> None:
    async def is_true() -> bool:
        return true()

    await waiting.until_async(is_true, what="the reflector", poll=0.01)


@contextlib.asynccontextmanager
async def reflecting(client: kube.KubeClient, arena: Arena) -> AsyncIterator[Snapshot]:
    snapshot = Snapshot()
    source = reflector.Source(path=config_maps(arena), params={"labelSelector": "test=yes"})
    running = reflector.Reflector(api=client, source=source, sink=snapshot)
    task = asyncio.create_task(running.run())
    try:
        async with waiting.limit("the first list"):
            await running.synced.wait()
        yield snapshot
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def config_maps(arena: Arena) -> str:
    return f"/api/v1/namespaces/{arena.namespace}/configmaps"


def config_map(name: str) -> Object:
    return {"metadata": {"name": name, "labels": {"test": "yes"}}}


async def test_pages_changes_and_deletions(admin: kube.KubeClient, arena: Arena) -> None:
    maps = [config_map(f"c{number}") for number in range(MANY)]
    await asyncio.gather(*(admin.request("POST", config_maps(arena), body=body) for body in maps))
    async with reflecting(admin, arena) as snapshot:
        assert len(snapshot.objects) == MANY
        changed = await admin.merge_patch(f"{config_maps(arena)}/c0", {"data": {"k": "v"}})
        await until(lambda: snapshot.objects["c0"] == changed["metadata"]["resourceVersion"])
        await admin.request("POST", config_maps(arena), body=config_map("late"))
        await until(lambda: "late" in snapshot.objects)
        await admin.request("DELETE", config_maps(arena), params={"labelSelector": "test=yes"})
        await until(lambda: not snapshot.objects)
        assert snapshot.lists == 1


async def test_leaving_the_selection_reads_as_a_deletion(admin: kube.KubeClient, arena: Arena) -> None:
    await admin.request("POST", config_maps(arena), body=config_map("c"))
    async with reflecting(admin, arena) as snapshot:
        assert set(snapshot.objects) == {"c"}
        await admin.merge_patch(f"{config_maps(arena)}/c", {"metadata": {"labels": {"test": "no"}}})
        await until(lambda: not snapshot.objects)


async def test_what_happened_while_the_watch_was_away_is_not_missed(
    proxied: kube.KubeClient, proxy: FaultProxy, arena: Arena
) -> None:
    # The watch after a streamed list needs no request.
    proxy.answer("GET", r"configmaps\?.*sendInitialEvents=true", status=422)
    held = proxy.hold("GET", r"configmaps\?.*watch=true")
    async with reflecting(proxied, arena) as snapshot:
        await asyncio.to_thread(held.wait)
        await proxied.request("POST", config_maps(arena), body=config_map("gone"))
        await proxied.request("POST", config_maps(arena), body=config_map("there"))
        await proxied.request("DELETE", f"{config_maps(arena)}/gone")
        assert snapshot.objects == {}
        held.release()
        await until(lambda: set(snapshot.objects) == {"there"})
        assert snapshot.lists == 1
