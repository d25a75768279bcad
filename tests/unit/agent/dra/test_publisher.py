"""The node's slices on an API server that collects the slices of Nodes that are gone, in virtual time."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import orjson
import pytest

from berth_agent.dra.devices import ListedDevice
from berth_agent.dra.publisher import ASK_AGAIN, SlicePublisher
from berth_agent.dra.slices import TAINT
from berth_client.agreement import Restores
from berth_client.errors import ApiError, Unreachable
from berth_client.lists import StreamedLists
from berth_client.versions import Versions

pytestmark = pytest.mark.looptime
CARD = ListedDevice(name="gpu-0", id="GPU-0", card="GPU-0", place="")


class Api:
    """Deletes each slice a moment after its creation if its owner is not the Node that is there."""

    def __init__(self) -> None:
        self.restores, self.versions, self.streamed_lists = Restores(), Versions(), StreamedLists()
        self.node: str | None = "new"
        self.slices: dict[str, dict[str, Any]] = {}
        self.created = self.asked = 0
        self.keeps_taints: bool | None = True
        """None: it does not answer whether it does."""
        self.keeps_shares = True
        self.is_cut = False
        """Whether a deletion is done, and has no answer."""
        self._version = 1
        self._events: asyncio.Queue[bytes] = asyncio.Queue()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        timeout: float = 0,  # noqa: ASYNC109, ARG002 - part of the interface
    ) -> dict[str, Any]:
        if method == "POST":
            assert params == {"dryRun": "All"}
            self.asked += 1
            if self.keeps_taints is None:
                raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailable", "not now")
            return self._kept(body)
        if method == "PUT":
            name = path.rpartition("/")[2]
            self.slices[name] = self._kept(body) | {"metadata": body["metadata"] | self._next()}
            return self.slices[name]
        return {"metadata": {"resourceVersion": str(self._version)}, "items": list(self.slices.values())}

    async def stream(
        self,
        _path: str,
        params: Mapping[str, str],
        *,
        idle_timeout: float,  # noqa: ARG002
    ) -> AsyncGenerator[bytes, None]:
        if "sendInitialEvents" in params:
            raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", "sendInitialEvents is forbidden")
        yield b""
        while True:
            yield await self._events.get()

    async def create(self, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.created += 1
        name = f"slice-{self.created}"
        self.slices[name] = self._kept(body) | {
            "metadata": body["metadata"] | {"name": name, "uid": name} | self._next()
        }
        if body["metadata"]["ownerReferences"][0]["uid"] != self.node:
            asyncio.get_running_loop().call_later(0.1, self.collect, name)
        return self.slices[name]

    def _kept(self, body: dict[str, Any]) -> dict[str, Any]:
        dropped = {"taints": not self.keeps_taints, "allowMultipleAllocations": not self.keeps_shares}
        devices = [
            {key: field for key, field in one.items() if not dropped.get(key)} for one in body["spec"]["devices"]
        ]
        return body | {"spec": body["spec"] | {"devices": devices}}

    async def delete(self, path: str, *, uid: str) -> None:  # noqa: ARG002 - part of the interface
        self.collect(path.rpartition("/")[2])
        if self.is_cut:
            await asyncio.sleep(0.1)
            raise Unreachable("no answer")

    def taints(self) -> list[list[str]]:
        """Return the keys of the taints of each listed device."""
        devices = [device for one in self.slices.values() for device in one["spec"]["devices"]]
        return [[taint["key"] for taint in device.get("taints", ())] for device in devices]

    def collect(self, name: str) -> None:
        gone = self.slices.pop(name)
        gone = gone | {"metadata": gone["metadata"] | self._next()}
        self._events.put_nowait(orjson.dumps({"type": "DELETED", "object": gone}))

    def _next(self) -> dict[str, str]:
        self._version += 1
        return {"resourceVersion": str(self._version)}


class Published:
    """A publisher that runs; `owner` is the UID of the Node as the agent knows it."""

    def __init__(self) -> None:
        self.api = Api()
        client: Any = self.api
        self.owner: str | None = "new"
        self.publisher = SlicePublisher(client=client, node="node", owner=self._reference)

    def _reference(self) -> dict[str, str] | None:
        return None if self.owner is None else {"uid": self.owner}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        task = asyncio.create_task(self.publisher.run())
        yield
        task.cancel()


async def test_slices_are_written_when_the_node_is_known_again() -> None:
    published = Published()
    published.owner = None
    with published.running():
        published.publisher.publish([CARD])
        await asyncio.sleep(60)
        assert (len(published.api.slices), published.publisher.failure) == (0, "the Node node is not known")
        published.owner = "new"
        published.publisher.publish([CARD])
        await asyncio.sleep(1)
        assert (len(published.api.slices), published.publisher.failure) == (1, "")


async def test_slices_of_a_node_that_was_replaced_are_written_less_and_less_often() -> None:
    published = Published()
    published.owner = "old"
    with published.running():
        published.publisher.publish([CARD])
        await asyncio.sleep(300)
        assert 10 <= published.api.created <= 16
        assert "deleted" in published.publisher.failure
        published.owner = "new"
        await asyncio.sleep(60)
        assert (len(published.api.slices), published.publisher.failure) == (1, "")
        # One that is lost later is there again at once.
        published.api.collect(*published.api.slices)
        await asyncio.sleep(0.1)
        assert len(published.api.slices) == 1


async def test_a_slice_whose_deletion_had_no_answer_is_written_again() -> None:
    published = Published()
    with published.running():
        published.publisher.publish([CARD])
        await asyncio.sleep(60)
        published.api.is_cut = True
        published.publisher.publish([])
        await asyncio.sleep(0.2)
        published.publisher.publish([CARD])
        await asyncio.sleep(60)
        assert (len(published.api.slices), published.publisher.failure) == (1, "")


async def test_taints_come_and_go_with_the_versions_of_the_api_server() -> None:
    published = Published()
    api, publisher = published.api, published.publisher
    api.keeps_taints = False
    with published.running():
        publisher.publish([replace(CARD, fault="Xid79")])
        await asyncio.sleep(1)
        # A faulty card is left out, and the API server is not asked for each reading.
        for _ in range(100):
            await publisher.probe()
        assert (api.taints(), api.asked) == ([], 0)
        # An API server that does not answer changes nothing.
        api.keeps_taints = None
        await asyncio.sleep(ASK_AGAIN)
        await publisher.probe()
        assert (api.taints(), api.asked, publisher.keeps_taints) == ([], 1, False)
        api.keeps_taints = True
        await asyncio.sleep(ASK_AGAIN)
        await publisher.probe()
        await asyncio.sleep(1)
        assert api.taints() == [[TAINT]]
        # A downgrade is seen by the next write.
        api.keeps_taints = False
        publisher.publish([replace(CARD, fault="Xid48")])
        await asyncio.sleep(1)
        assert (api.taints(), publisher.keeps_taints) == ([], False)


async def test_shares_come_and_go_with_the_versions_of_the_api_server() -> None:
    published = Published()
    api, publisher = published.api, published.publisher
    shared = replace(CARD, memory="1Gi", shared=True)
    with published.running():
        await publisher.probe(shares=True)
        publisher.publish([shared])
        await asyncio.sleep(1)
        assert publisher.keeps_shares
        # A downgrade is seen by the next write, and an upgrade when the API server is asked again.
        api.keeps_shares = False
        publisher.publish([replace(shared, memory="2Gi")])
        await asyncio.sleep(1)
        assert (publisher.keeps_shares, publisher.keeps_taints) == (False, True)
        api.keeps_shares = True
        await publisher.probe(shares=True)
        assert publisher.keeps_shares is False
        await asyncio.sleep(ASK_AGAIN)
        await publisher.probe(shares=True)
        assert publisher.keeps_shares
