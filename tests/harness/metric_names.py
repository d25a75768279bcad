"""The metrics that programs register: name, type and labels."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase

import berth_base.request_metrics
import berth_operator.metrics
from berth_agent.dra.calls import CallMetrics
from berth_agent.metrics import series as agent_series
from berth_agent.publishing.publish import TAKE_BACKS
from berth_operator.metrics.gauges import FAMILIES

SUFFIXES = {"counter": "_total", "histogram": "", "gauge": ""}


@dataclass(frozen=True, slots=True)
class Series:
    """A metric as it is exposed."""

    name: str
    type: str
    labels: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """Return the names of its samples."""
        ends = ("_bucket", "_sum", "_count") if self.type == "histogram" else ("",)
        return frozenset(self.name + end for end in ends)


def of_agent() -> frozenset[str]:
    """Return the names of the agent's samples."""
    families = agent_series.families(agent_series.Snapshot())
    described = [metric for collector in (TAKE_BACKS, *CallMetrics().series) for metric in collector.describe()]
    return frozenset(family.name + SUFFIXES[family.type] for family in (*families, *described))


def of_operator() -> Mapping[str, Series]:
    """Return the operator's metrics by name."""
    for module in pkgutil.iter_modules(berth_operator.metrics.__path__, "berth_operator.metrics."):
        importlib.import_module(module.name)
    assert berth_base.request_metrics
    return {series.name: series for series in (*_registered(), *_of_state())}


def _registered() -> Iterator[Series]:
    for collector in list(REGISTRY._collector_to_names):
        if isinstance(collector, MetricWrapperBase):
            [described] = collector.describe()
            name = described.name + SUFFIXES[described.type]
            if name.startswith(("berth_", "scheduler_", "rest_client_")):
                yield Series(name, described.type, tuple(collector._labelnames))


def _of_state() -> Iterator[Series]:
    for family in FAMILIES:
        yield Series(family.name, "counter" if family.counter else "gauge", family.labels)
