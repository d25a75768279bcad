"""The series that programs expose, with their name, type, labels and meaning."""

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client import REGISTRY
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase

import berth_operator.metrics
from berth_agent.dra.calls import CallMetrics
from berth_agent.metrics import series as of_agent
from berth_agent.publishing.publish import TAKE_BACKS
from berth_operator.metrics.gauges import FAMILIES
from reference.markdown import code, page, section, table

PREFIXES: Final = ("berth_", "scheduler_", "rest_client_")
HEAD: Final = ("series", "type", "labels", "meaning")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Series:
    """A metric as it is exposed."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str


def text() -> str:
    """Return the page."""
    return page(
        "Metrics",
        "Every series with the text that Prometheus shows for it. [Metrics of the operator](../metrics.md) explains "
        "the values of labels, access, dashboard and alerts; [metrics of the agent](../agent-metrics.md) has queries.",
        section("The operator", _table(operator())),
        section("The agent", _table(agent())),
    )


def operator() -> Iterator[Series]:
    """Yield the operator's series."""
    for module in pkgutil.iter_modules(berth_operator.metrics.__path__, "berth_operator.metrics."):
        importlib.import_module(module.name)
    importlib.import_module("berth_base.request_metrics")
    for family in FAMILIES:
        kind = "counter" if family.counter else "gauge"
        yield Series(name=family.name, type=kind, labels=family.labels, meaning=family.text)
    for collector in list(REGISTRY._collector_to_names):  # noqa: SLF001 - no public way shows labels without values
        if isinstance(collector, MetricWrapperBase):
            yield from (series for series in _of_wrapper(collector) if series.name.startswith(PREFIXES))


def agent() -> Iterator[Series]:
    """Yield the agent's series."""
    for metric in of_agent.families(of_agent.Snapshot()):
        yield _series(metric, tuple(getattr(metric, "_labelnames", ())))
    for collector in (TAKE_BACKS, *CallMetrics().series):
        yield from _of_wrapper(collector)


def _of_wrapper(wrapper: MetricWrapperBase) -> Iterator[Series]:
    labels = tuple(wrapper._labelnames)  # noqa: SLF001 - the same
    return (_series(metric, labels) for metric in wrapper.describe())


def _series(metric: Metric, labels: tuple[str, ...]) -> Series:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    return Series(name=name, type=metric.type, labels=labels, meaning=metric.documentation)


def _table(series: Iterable[Series]) -> str:
    rows = [(code(one.name), one.type, ", ".join(map(code, one.labels)), one.meaning) for one in sorted(series)]
    return table(HEAD, rows)
