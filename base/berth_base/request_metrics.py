"""Metrics of requests to the API server, under client-go's names."""

from collections.abc import Callable
from functools import cache
from typing import Final

from prometheus_client import Counter, Histogram, disable_created_metrics

# Samples of when each series was created would nearly double the series of a program, and no dashboard uses them.
disable_created_metrics()  # type: ignore[no-untyped-call]

REQUESTS: Final = Counter(
    "rest_client_requests_total",
    "Requests to the API server, by code of the answer; <error> if there was none",
    ["code", "method", "host"],
)
DURATION: Final = Histogram(
    "rest_client_request_duration_seconds",
    "Time until the answer was read, or a watch was accepted",
    ["verb", "host"],
    buckets=(0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0),
)

REFUSED: Final = "berth_refused_writes"
REFUSED_TEXT: Final = (
    "Number of namespaces, 1 for objects without one, in which the API server refuses writes until a person acts, "
    "by verb, resource, code, refuser and scope: own, cluster or namespaced"
)
REFUSED_LABELS: Final = ("verb", "resource", "code", "refuser", "scope")
"""The series of refused writes; of both programs."""


def count(host: str, method: str, code: str, _seconds: float) -> None:
    """Count a request; a client's `observe`, where a histogram for each node would be too much."""
    _of(host, method, code)[0]()


def observe(host: str, method: str, code: str, seconds: float) -> None:
    """Count a request and observe its duration; a client's `observe`."""
    increase, record = _of(host, method, code)
    increase()
    record(seconds)


@cache
def _of(host: str, method: str, code: str) -> tuple[Callable[[], None], Callable[[float], None]]:
    """Return what counts these requests; looking a child up by its labels takes longer than counting."""
    return REQUESTS.labels(code, method, host).inc, DURATION.labels(method, host).observe
