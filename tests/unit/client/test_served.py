"""A program does not start if the API server lacks kinds that it needs. Other failures do not keep it from starting."""

from typing import Any

import pytest

from berth_client import served
from berth_client.errors import ApiError, CallError, Unreachable
from berth_client.served import NotServedError

VERSION = "berth.dev/v1alpha1"
KINDS = ("Device", "GpuPod")


class Discovery:
    """Answers with a list of kinds, or an error."""

    def __init__(self, answer: list[str] | CallError) -> None:
        self._answer = answer

    async def request(self, method: str, path: str, *, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        assert (method, path) == ("GET", f"/apis/{VERSION}")
        assert timeout is not None
        if isinstance(self._answer, CallError):
            raise self._answer
        return {"resources": [{"name": f"{kind}s/status", "kind": kind} for kind in self._answer]}


@pytest.mark.parametrize(
    ("answer", "missing"),
    [
        (["GpuPod", "LeaderLease"], "Devices"),
        ([], "Devices, GpuPods"),
        (ApiError(404, "Unknown", "404 page not found"), "Devices, GpuPods"),
    ],
)
async def test_a_missing_kind_is_named_with_what_to_do(answer: Any, missing: str) -> None:
    message = f"^the API server does not serve {VERSION} {missing}: apply crds/ first$"
    with pytest.raises(NotServedError, match=message):
        await served.check(Discovery(answer), VERSION, KINDS)


@pytest.mark.parametrize(
    "answer", [["Device", "GpuPod"], Unreachable("no answer"), ApiError(403, "Forbidden", "no"), ApiError(503, "", "")]
)
async def test_all_else_is_no_mistake(answer: Any) -> None:
    await served.check(Discovery(answer), VERSION, KINDS)


class Versioned:
    """Answers with a version, or an error."""

    def __init__(self, answer: dict[str, str] | CallError) -> None:
        self._answer = answer

    async def request(self, method: str, path: str, *, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        assert (method, path) == ("GET", "/version")
        assert timeout is not None
        if isinstance(self._answer, CallError):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("answer", "minor"),
    [
        ({"major": "1", "minor": "36"}, 36),
        ({"major": "1", "minor": "37+"}, 37),
        ({"major": "1", "minor": ""}, None),
        ({}, None),
        (Unreachable("no answer"), None),
        (ApiError(403, "Forbidden", "no"), None),
    ],
)
async def test_the_minor_version_is_read(answer: Any, minor: int | None) -> None:
    assert await served.minor_version(Versioned(answer)) == minor
