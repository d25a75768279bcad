"""The exporters of GPU metrics: names, labels and units of their series."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from berth_operator.core.values.gpu_metrics import UNKNOWN, CardSample, Quantity, Values

MIB: Final = float(2**20)
PERCENT: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The series of one quantity."""

    name: str
    quantity: Quantity
    unit: float = 1.0
    """What one of the exporter's units is in bytes, watts, or as a ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """The series of one exporter."""

    name: str
    uuid_label: str
    node_label: str
    series: tuple[Series, ...]
    """The first series is expected for every card. Its age is the age of the card's values."""
    selector: str = ""
    """Label matchers that leave out series that are not of a whole card."""

    def by_name(self) -> Mapping[str, Series]:
        """Return the series by their names."""
        return {series.name: series for series in self.series}


AGENT: Final = MetricFamily(
    name="berth-agent",
    uuid_label="UUID",
    node_label="node",
    series=(
        Series(name="berth_gpu_memory_free_bytes", quantity=Quantity.FREE_MEMORY),
        Series(name="berth_gpu_memory_used_bytes", quantity=Quantity.USED_MEMORY),
        Series(name="berth_gpu_sm_utilization_ratio", quantity=Quantity.MULTIPROCESSORS),
        Series(name="berth_gpu_encoder_utilization_ratio", quantity=Quantity.ENCODER),
        Series(name="berth_gpu_decoder_utilization_ratio", quantity=Quantity.DECODER),
        Series(name="berth_gpu_power_watts", quantity=Quantity.POWER),
        Series(name="berth_gpu_power_limit_watts", quantity=Quantity.POWER_LIMIT),
    ),
)
DCGM: Final = MetricFamily(
    name="dcgm-exporter",
    uuid_label="UUID",
    node_label="Hostname",
    # MIG instances have the UUID of their card.
    selector='{GPU_I_ID=""}',
    series=(
        Series(name="DCGM_FI_DEV_FB_USED", quantity=Quantity.USED_MEMORY, unit=MIB),
        Series(name="DCGM_FI_DEV_FB_FREE", quantity=Quantity.FREE_MEMORY, unit=MIB),
        Series(name="DCGM_FI_DEV_GPU_UTIL", quantity=Quantity.MULTIPROCESSORS, unit=PERCENT),
        Series(name="DCGM_FI_DEV_ENC_UTIL", quantity=Quantity.ENCODER, unit=PERCENT),
        Series(name="DCGM_FI_DEV_DEC_UTIL", quantity=Quantity.DECODER, unit=PERCENT),
        Series(name="DCGM_FI_DEV_POWER_USAGE", quantity=Quantity.POWER),
        Series(name="DCGM_FI_DEV_POWER_MGMT_LIMIT", quantity=Quantity.POWER_LIMIT),
    ),
)
OBSERVER_WARD: Final = MetricFamily(
    name="observerward",
    uuid_label="uuid",
    node_label="kubernetes_node",
    series=(
        Series(name="observerward_dynamic_gpu_used_global_memory_MiB", quantity=Quantity.USED_MEMORY, unit=MIB),
        Series(name="observerward_dynamic_gpu_free_global_memory_MiB", quantity=Quantity.FREE_MEMORY, unit=MIB),
        Series(name="observerward_dynamic_gpu_encoder_utilization", quantity=Quantity.ENCODER, unit=PERCENT),
        Series(name="observerward_dynamic_gpu_decoder_utilization", quantity=Quantity.DECODER, unit=PERCENT),
        Series(name="observerward_dynamic_gpu_power_usage_W", quantity=Quantity.POWER),
    ),
)
FAMILIES: Final = (AGENT, DCGM, OBSERVER_WARD)
"""All families; of a card that several measure, the values of the first count."""


class Collector:
    """What one family measured of the cards, series by series."""

    def __init__(self, family: MetricFamily, max_age: float) -> None:
        """Create an empty collector. Measurements older than `max_age` seconds are left out."""
        self._family, self._max_age = family, max_age
        self._ages: dict[tuple[str, str], float] = {}
        """(UUID, node) of each card -> seconds since it was measured."""
        self._values: dict[tuple[str, str], dict[Quantity, float]] = {}

    @property
    def knows_cards(self) -> bool:
        """Return whether the family measured any card lately."""
        return bool(self._ages)

    def add_age(self, labels: Mapping[str, str], age: float) -> None:
        """Add the age of a card's values."""
        if age <= self._max_age:
            self._ages[self._card(labels)] = max(age, 0.0)

    def add(self, series: Series, labels: Mapping[str, str], value: float) -> None:
        """Add a value of a card whose age is known."""
        card = self._card(labels)
        if card in self._ages:
            self._values.setdefault(card, {})[series.quantity] = value * series.unit

    def samples(self) -> Iterator[CardSample]:
        """Yield a sample of each card."""
        for (uuid, node), values in self._values.items():
            yield CardSample(uuid=uuid, node=node, age=self._ages[uuid, node], values=of_values(values))

    def _card(self, labels: Mapping[str, str]) -> tuple[str, str]:
        return labels.get(self._family.uuid_label, ""), labels.get(self._family.node_label, "")


def of_values(values: Mapping[Quantity, float]) -> Values:
    """Return known values in the order of the quantities."""
    return tuple(values.get(quantity, UNKNOWN) for quantity in Quantity)


def ages(family: MetricFamily) -> str:
    """Return the PromQL query for the seconds since each card was measured, by the clock of Prometheus."""
    return f"time() - max by {_labels(family)} (timestamp({family.series[0].name}{family.selector}))"


def values(family: MetricFamily, series: Series, seconds: float) -> str:
    """Return the PromQL query for each card's value, if it is not older than `seconds`.

    If a card is scraped several times, the query returns the worst value.
    """
    worst = "min" if series.quantity is Quantity.FREE_MEMORY else "max"
    return f"{worst} by {_labels(family)} (last_over_time({series.name}{family.selector}[{round(seconds)}s]))"


def _labels(family: MetricFamily) -> str:
    return f"({family.uuid_label}, {family.node_label})"
