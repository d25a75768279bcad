"""Metrics of what kubelet calls, and of the claims that are prepared."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

PREPARE: Final = "prepare"
UNPREPARE: Final = "unprepare"


class CallMetrics(Collector):
    """The metrics of one driver."""

    def __init__(self) -> None:
        self._seconds: Final = Histogram(
            "berth_claim_call_duration_seconds",
            "Time in which the driver gpu.berth.dev prepared or released a claim, or failed (is_error)",
            ["call", "is_error"],
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 45.0),
            registry=None,
        )
        self._prepared: Final = Gauge(
            "berth_claims_prepared",
            "Claims that the driver gpu.berth.dev has prepared; none while the agent cannot read them",
            ["node"],
            registry=None,
        )

    @property
    def series(self) -> tuple[MetricWrapperBase, ...]:
        """Return the metrics."""
        return self._seconds, self._prepared

    def collect(self) -> Iterator[Metric]:
        """Return the samples."""
        for metric in self.series:
            yield from metric.collect()

    @contextmanager
    def timed(self, call: str) -> Iterator[None]:
        """Record how long a call took, and whether it failed or was broken off."""
        start, is_error = time.perf_counter(), "true"
        try:
            yield
            is_error = "false"
        finally:
            self._seconds.labels(call, is_error).observe(time.perf_counter() - start)

    def set_prepared(self, node: str, number: int | None) -> None:
        """Set how many claims are prepared; None if that is not known."""
        if number is None:
            self._prepared.clear()
        else:
            self._prepared.labels(node).set(number)
