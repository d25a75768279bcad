"""A leader tests its fence, on API servers in every state of loading the policies."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from berth_api import names
from berth_client.client import Params
from berth_client.errors import ApiError, Unreachable
from berth_client.objects import Object
from berth_operator.process import fence

pytestmark = pytest.mark.looptime

TERM = 7
Answers = Callable[[int], Exception | None]


def missing(_: int = 0) -> ApiError:
    return ApiError(404, "NotFound", f'pods "{fence.NO_POD}" not found')


def refused(why: str, status: int = 403) -> ApiError:
    policy = "ValidatingAdmissionPolicy 'berth-fence-epoch' with binding 'berth-fence-epoch' denied request"
    return ApiError(status, "Forbidden", f'pods "{fence.NO_POD}" is forbidden: {policy}: {why}')


def in_force(term: int) -> ApiError:
    return missing() if term == TERM else refused(f"epoch {term} is over")


def unloaded(_: int) -> ApiError:
    return refused("failed to configure binding: failed to find resource referenced by paramKind", 422)


def stale(term: int) -> ApiError:
    return missing() if term == TERM - 1 else refused(f"epoch {term} is over")


def forbidden(_: int) -> ApiError:
    return ApiError(403, "Forbidden", 'User "x" cannot create resource "pods/binding"')


def webhook(term: int) -> ApiError:
    denied = 'admission webhook "x.example.com" denied the request: no such pod'
    return ApiError(403, "Forbidden", denied) if term == TERM else in_force(term)


def other_policy(_: int) -> ApiError:
    return ApiError(422, "Invalid", "ValidatingAdmissionPolicy 'other' denied request")


def busy(_: int) -> ApiError:
    return ApiError(429, "TooManyRequests", "try again later")


def unreachable(_: int) -> Unreachable:
    return Unreachable("no answer")


class Server:
    """An API server whose answers change after a while of virtual time."""

    def __init__(self, first: Answers, later: Answers, seconds: float) -> None:
        self.first, self.later, self.seconds = first, later, seconds
        self.sent: list[Object] = []

    async def request(self, method: str, path: str, *, params: Params, body: Any) -> Any:
        assert (method, path) == ("POST", f"/api/v1/namespaces/ns/pods/{fence.NO_POD}/binding")
        assert params == {"dryRun": "All"}
        self.sent.append(body)
        late = asyncio.get_running_loop().time() >= self.seconds
        error = (self.later if late else self.first)(int(body["metadata"]["annotations"][names.EPOCH]))
        if error is not None:
            raise error
        return {}


def fence_of(server: Server, *, required: bool = True) -> fence.Fence:
    return fence.Fence(api=server, namespace="ns", lease="berth", required=required)


@pytest.mark.parametrize("answers", [in_force, webhook])
@pytest.mark.parametrize("required", [True, False])
async def test_fence_that_stands_takes_two_requests_and_no_wait(answers: Answers, *, required: bool) -> None:
    server = Server(answers, answers, 0)
    assert not await fence_of(server, required=required).loaded(TERM)
    assert len(server.sent) == 2
    assert {each["metadata"]["labels"][names.FENCED_BY] for each in server.sent} == {"berth"}


@pytest.mark.parametrize("first", [unloaded, stale, forbidden, other_policy, busy, unreachable, missing])
async def test_leader_waits_until_the_fence_stands_and_says_why(first: Answers) -> None:
    server = Server(first, in_force, 30)
    with structlog.testing.capture_logs() as logs:
        assert await fence_of(server).loaded(TERM)
    assert 30 <= asyncio.get_running_loop().time() <= 31
    assert len(server.sent) < 100
    waiting, loaded = logs  # one line for each, not one for each test
    assert waiting["event"] == "waiting for the API server to load the fence"
    assert waiting["why"]
    assert loaded["event"] == "fence loaded"


async def test_without_a_fence_a_leader_goes_on_at_once_unless_it_is_required() -> None:
    server = Server(missing, missing, 0)
    with structlog.testing.capture_logs() as logs:
        assert not await fence_of(server, required=False).loaded(TERM)
    assert "no fence is installed" in logs[0]["event"]


@pytest.mark.parametrize("first", [unloaded, stale, busy])
async def test_a_fence_that_is_loading_is_waited_for_also_if_it_is_not_required(first: Answers) -> None:
    assert await fence_of(Server(first, in_force, 30), required=False).loaded(TERM)
    assert asyncio.get_running_loop().time() >= 30
