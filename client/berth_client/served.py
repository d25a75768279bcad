"""Check the API server at a program's start: its version, and whether it serves the kinds that are needed."""

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

from berth_client.errors import ApiError, CallError

SECONDS: Final = 5.0
"""Seconds that the check may take; a program waits for a slow API server itself, and retries."""

_MINOR: Final = re.compile(r"[0-9]{1,4}")

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class NotServedError(Exception):
    """The API server does not serve a kind that the program needs."""


class DiscoveryApi(Protocol):
    """The subset of `ApiClient` that the check uses."""

    async def request(self, method: str, path: str, *, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - its name
        """Return the decoded answer."""


async def check(api: DiscoveryApi, version: str, kinds: Iterable[str]) -> None:
    """Check the kinds of one group and version by the API server's discovery.

    If there is no answer, or no right to read it, the check passes: that is no mistake in the installation.

    Raises:
        NotServedError: some kinds are not served.
    """
    if not_served := await missing(api, version, kinds):
        raise NotServedError(
            f"the API server does not serve {version} {', '.join(f'{kind}s' for kind in not_served)}: apply crds/ first"
        )


async def missing(api: DiscoveryApi, version: str, kinds: Iterable[str]) -> list[str]:
    """Return the kinds of one group and version that the API server does not serve; none if it does not answer."""
    try:
        served = await _kinds(api, version)
    except CallError as error:
        _log.warning("served kinds not checked", version=version, error=str(error))
        return []
    return [kind for kind in kinds if kind not in served]


async def minor_version(api: DiscoveryApi) -> int | None:
    """Return the API server's minor version; None if the server does not report it."""
    try:
        version = await api.request("GET", "/version", timeout=SECONDS)
    except CallError as error:
        _log.warning("version of the API server unknown", error=str(error))
        return None
    # Some providers add a mark, as in "37+".
    digits = _MINOR.match(str(version.get("minor")))
    return int(digits[0]) if digits else None


async def _kinds(api: DiscoveryApi, version: str) -> set[str]:
    try:
        listed = await api.request("GET", f"/apis/{version}", timeout=SECONDS)
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return set()
    return {resource["kind"] for resource in listed["resources"]}
