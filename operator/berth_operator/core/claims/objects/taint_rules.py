"""DeviceTaintRules: taints on devices that others than the driver add."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from berth_operator.core.claims.objects.fields import Field
from berth_operator.core.claims.objects.slices import DeviceTaint, PoolID


@dataclass(frozen=True, slots=True, kw_only=True)
class TaintRule:
    """A DeviceTaintRule; an empty driver, pool or device stands for all."""

    name: str
    selects: bool = True
    """Whether it has a selector: without one it selects no device."""
    driver: str = ""
    pool: str = ""
    device: str = ""
    taint: DeviceTaint

    def is_for(self, pool: PoolID) -> bool:
        """Return whether it may put its taint on devices of a pool."""
        return self.selects and self.driver in ("", pool.driver) and self.pool in ("", pool.pool)


def read(raw: Mapping[str, Any]) -> TaintRule:
    """Read a DeviceTaintRule of `resource.k8s.io/v1` or `v1beta2`.

    Raises:
        FieldError: a field cannot be read.
    """
    spec = Field(raw, "").at("spec")
    selector, taint = spec.at("deviceSelector"), spec.at("taint")
    return TaintRule(
        name=Field(raw, "").at("metadata").at("name").text(),
        selects=selector.value is not None,
        driver=selector.at("driver").text(),
        pool=selector.at("pool").text(),
        device=selector.at("device").text(),
        taint=DeviceTaint(*(taint.at(key).text() for key in ("key", "value", "effect"))),
    )
