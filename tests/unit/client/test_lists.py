"""Lists in pages of objects of any size, read up to a number of bytes."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson
import pytest
from aiohttp import web

from berth_client import lists
from berth_client.client import BEGINNINGS, ApiClient
from berth_client.credentials import Login
from berth_client.errors import ApiError, PageTooLarge
from berth_client.lists import PAGE, PageLimit
from berth_client.objects import Object
from berth_client.tokens import TokenSource
from tests.unit.client.server import Server

CAP = 2**16
"""Bytes of a page that the client reads."""
LARGE = "x" * (CAP // 3)
"""Two objects with it are a page, three are too many."""


class Collection:
    """Objects in an API server's order, served in pages; remembers each request's first object and limit."""

    def __init__(self, *objects: Object) -> None:
        self.objects = objects
        self.asked: list[tuple[int, int]] = []
        self.expires_at: int | None = None
        """The object whose token is answered with 410, once."""

    async def fetch(self, params: Mapping[str, str]) -> Object:
        """Return a page, as a client does that reads CAP bytes of a page with several objects."""
        answer = self.page(params)
        if int(params["limit"]) > 1 and len(orjson.dumps(answer)) > CAP:
            raise PageTooLarge("too large")
        return answer

    def page(self, params: Mapping[str, str]) -> Object:
        first, limit = int(params.get("continue", "0")), int(params["limit"])
        self.asked.append((first, limit))
        if first == self.expires_at:
            self.expires_at = None
            raise ApiError(410, "Expired", "the token is too old")
        end = first + limit
        more = {"continue": str(end)} if end < len(self.objects) else {}
        return {"metadata": {"resourceVersion": "7", **more}, "items": list(self.objects[first:end])}


def objects(count: int, text: str = "") -> list[Object]:
    return [{"metadata": {"name": str(number)}, "text": text} for number in range(count)]


async def names(collection: Collection, limit: PageLimit | None = None) -> list[str]:
    listed = [page async for page in lists.pages(collection.fetch, {}, limit)]
    return [obj["metadata"]["name"] for page in listed for obj in page["items"]]


async def test_a_page_that_is_too_large_is_asked_for_with_half_the_objects() -> None:
    collection = Collection(*objects(9, LARGE))
    assert await names(collection) == [str(number) for number in range(9)]
    halves = [250, 125, 62, 31, 15, 7, 3, 1]
    assert collection.asked[: len(halves)] == [(0, limit) for limit in halves]
    # One at a time, and after some pages two.
    assert collection.asked[len(halves) :] == [(1, 1), (2, 1), (3, 1), (4, 2), (6, 2), (8, 2)]


async def test_small_objects_after_large_ones_come_in_large_pages_again() -> None:
    collection = Collection(*objects(20, LARGE), *objects(20 * PAGE))
    assert len(await names(collection)) == 20 + 20 * PAGE
    assert collection.asked[-1][1] == PAGE
    assert len(collection.asked) < 8 + 20 + 5 * lists.GROWS_AFTER + 20 + 20


async def test_a_single_object_of_any_size_is_read() -> None:
    collection = Collection(*objects(3, "x" * 2 * CAP))
    assert await names(collection) == ["0", "1", "2"]


async def test_no_page_is_asked_for_ahead_after_one_that_was_too_large() -> None:
    collection = Collection(*objects(9, LARGE))
    async for page in lists.pages(collection.fetch, {}):
        last = int(page["items"][0]["metadata"]["name"])
        assert max(first for first, _ in collection.asked) == last


# --- the client ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def client(server: Server) -> AsyncIterator[ApiClient]:
    made = ApiClient.of(TokenSource(login=Login(server=server.url)), user_agent="berth-test/1", page_bytes=CAP)
    yield made
    made.close()


def serve(server: Server, collection: Collection) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        try:
            return web.json_response(collection.page(request.query))
        except ApiError as error:
            return web.json_response({"code": error.status, "reason": error.reason}, status=error.status)

    server.handler = answer


def name(obj: Object) -> Any:
    return obj["metadata"]["name"]


async def test_the_client_reads_no_more_of_a_page_than_it_may(server: Server, client: ApiClient) -> None:
    collection = Collection(*objects(6, LARGE))
    serve(server, collection)
    with pytest.raises(PageTooLarge, match="more than 65536 bytes"):
        await client.get("/api/v1/pods", {"limit": "6"})
    assert await client.read_list("/api/v1/pods", read=name) == (list("012345"), "7")
    assert collection.asked[-1] == (4, 2)
    # A single object has no bound, whether it is a page of its own, or was read by its name.
    serve(server, Collection(*objects(1, "x" * 2 * CAP)))
    assert await client.read_list("/api/v1/pods", read=name) == (["0"], "7")


async def test_a_list_whose_token_expires_begins_again_with_as_many_objects(server: Server, client: ApiClient) -> None:
    collection = Collection(*objects(6, LARGE))
    collection.expires_at = 3
    serve(server, collection)
    assert await client.read_list("/api/v1/pods", read=name) == (list("012345"), "7")
    expired = collection.asked.index((3, 1))
    assert collection.asked[expired + 1] == (0, 1)
    assert [limit for _, limit in collection.asked].count(PAGE) == 1


async def test_a_list_whose_token_always_expires_ends(server: Server, client: ApiClient) -> None:
    server.always(410, {"code": 410, "reason": "Expired"})
    with pytest.raises(ApiError, match="410 Expired"):
        await client.read_list("/api/v1/pods", read=name)
    assert len(server.seen) == BEGINNINGS
