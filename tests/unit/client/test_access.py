"""Access to the debug API: only with a token that the API server allows, and with few reviews for many requests."""

import asyncio
from typing import Any

import pytest

from berth_client import reviews
from berth_client.access import Guard, MetricsAccess, RefusedError
from berth_client.errors import ApiError
from berth_client.reviews import Reviews

PATH = "/apis/v1/plugins/DeviceShare/nodeDeviceSummaries"
READER = {"username": "reader", "uid": "1", "groups": ["g"], "extra": {"k": ["v"]}}


class Api:
    """An API server that knows some tokens, and allows some users all requests."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {"good": READER, "poor": {"username": "poor"}}
        self.allowed = {"reader"}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.fault: ApiError | None = None
        self.at_once = self.most_at_once = 0

    async def request(self, method: str, path: str, *, body: Any = None) -> Any:
        assert method == "POST"
        self.requests.append((path, body["spec"]))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.fault is not None:
            raise self.fault
        if path == reviews.TOKEN_REVIEWS:
            user = self.known.get(body["spec"]["token"])
            return {"status": {"authenticated": True, "user": user} if user else {"user": {}}}
        return {"status": {"allowed": body["spec"]["user"] in self.allowed}}


class Gate:
    """A guard and its clock."""

    def __init__(self) -> None:
        self.api, self.now = Api(), 0.0
        self.reviews = Reviews(api=self.api, clock=lambda: self.now)
        self.guard = Guard(self.reviews, below="/debug")

    async def answer(self, authorization: str, path: str = PATH) -> int:
        try:
            await self.guard.check(authorization, path)
        except RefusedError as refused:
            return refused.status
        return 200


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        pytest.param("Bearer good", 200, id="known and allowed"),
        pytest.param("bearer  good ", 200, id="however it is written"),
        pytest.param("Bearer poor", 403, id="known"),
        pytest.param("Bearer bad", 401, id="unknown"),
        pytest.param("", 401, id="nothing"),
        pytest.param("Bearer", 401, id="no token"),
        pytest.param("Bearer  ", 401, id="an empty token"),
        pytest.param("Basic good", 401, id="another scheme"),
        pytest.param("good", 401, id="no scheme"),
    ],
)
async def test_only_the_known_and_allowed_are_let_in(authorization: str, status: int) -> None:
    assert await Gate().answer(authorization) == status


async def test_the_api_server_is_asked_about_the_very_user_and_path() -> None:
    gate = Gate()
    await gate.answer("Bearer good", "/a")
    attributes = {"nonResourceAttributes": {"path": "/debug/a", "verb": "get"}}
    user = {"user": "reader", "uid": "1", "groups": ["g"], "extra": {"k": ["v"]}}
    assert gate.api.requests == [
        (reviews.TOKEN_REVIEWS, {"token": "good"}),
        (reviews.ACCESS_REVIEWS, {**user, **attributes}),
    ]


@pytest.mark.parametrize(("token", "questions"), [("good", 2), ("poor", 2), ("bad", 1)])
async def test_an_answer_is_kept_for_a_while(token: str, questions: int) -> None:
    gate = Gate()
    first = await gate.answer(f"Bearer {token}")
    gate.now = reviews.KEPT_SECONDS - 0.1
    assert await gate.answer(f"Bearer {token}") == first
    assert len(gate.api.requests) == questions
    gate.now = reviews.KEPT_SECONDS
    gate.api.known, gate.api.allowed = {}, set()
    assert await gate.answer(f"Bearer {token}") == 401


async def test_what_is_allowed_on_one_path_says_nothing_of_another() -> None:
    gate = Gate()
    assert await gate.answer("Bearer good", "/a") == 200
    gate.api.allowed = set()
    assert await gate.answer("Bearer good", "/b") == 403
    assert await gate.answer("Bearer good", "/a") == 200


async def test_foreign_pods_cost_little_however_many_they_are() -> None:
    gate = Gate()
    answers = await asyncio.gather(*(gate.answer(f"Bearer {number}") for number in range(reviews.MAX_CACHED + 10)))
    assert set(answers) == {401}
    assert gate.api.most_at_once <= reviews.AT_ONCE
    assert len(gate.reviews._users._kept) <= reviews.MAX_CACHED


async def test_without_an_answer_no_one_is_admitted() -> None:
    gate = Gate()
    gate.api.fault = ApiError(500, "InternalError", "no")
    with pytest.raises(ApiError):
        await gate.guard.check("Bearer good", PATH)
    gate.api.fault = None
    assert await gate.answer("Bearer good") == 200


def metrics_access(api: Api | None, *, address: str = "192.0.2.1", is_required: bool = True) -> MetricsAccess:
    access = MetricsAccess(address=address, is_required=is_required, clock=lambda: 0.0)
    if api is not None:
        access.connect(api)
    return access


@pytest.mark.parametrize(
    ("authorization", "refusal"),
    [
        ("", (401, "a bearer token is required")),
        ("Bearer bad", (401, "the API server does not know this token")),
        ("Bearer poor", (403, "poor may not get the nonResourceURL /metrics")),
        ("Bearer good", None),
    ],
)
async def test_metrics_are_read_by_who_may_get_them(authorization: str, refusal: tuple[int, str] | None) -> None:
    assert await metrics_access(Api()).refusal(authorization) == refusal


async def test_no_metrics_are_read_while_tokens_cannot_be_reviewed() -> None:
    api = Api()
    api.fault = ApiError(500, "InternalError", "no")
    assert await metrics_access(None).refusal("Bearer good") == (503, "the program is starting")
    refused = await metrics_access(api).refusal("Bearer good")
    assert refused is not None
    assert refused[0] == 503


@pytest.mark.parametrize(("address", "is_required"), [("127.0.0.1", True), ("::1", True), ("192.0.2.1", False)])
async def test_by_loopback_and_without_authentication_everybody_reads_metrics(
    address: str, *, is_required: bool
) -> None:
    assert await metrics_access(None, address=address, is_required=is_required).refusal("") is None
