"""The judges: long tests that `make test` and `make e2e` do not have, each in a form that takes minutes."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

_OPERATOR: Final = ("api/", "client/", "operator/berth_operator/")
_DECISIONS: Final = (
    "operator/berth_operator/binding/",
    "operator/berth_operator/core/",
    "operator/berth_operator/state/",
)
_DRIVER: Final = ("agent/berth_agent/dra/", "agent/berth_agent/kubelet/", "tests/node/")
_PARTITIONS: Final = ("agent/berth_agent/dra/", "agent/berth_agent/vendors/nvidia/partitions/")
_CLAIMS: Final = ("operator/berth_operator/core/claims/", "operator/berth_operator/core/fleet/claims/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """One judge."""

    name: str
    """Its target of make."""
    short: str
    """The arguments of the short form; `{seed}` is a number that the commit draws."""
    paths: tuple[str, ...]
    """Beginnings of the paths that concern it."""

    def command(self, seed: int) -> list[str]:
        """Return the command of the short form."""
        return ["make", self.name, *(word.format(seed=seed).replace("+", " ") for word in self.short.split())]

    def concerns(self, changed: Collection[str]) -> bool:
        """Return whether one of these files concerns it."""
        return any(path.startswith(self.paths) for path in changed)


JUDGES: Final = (
    Judge(name="month", short="SEED={seed} EVENTS=60 PODS=200", paths=(*_DECISIONS, "tests/chaos/")),
    Judge(name="chaos", short="SEED={seed} FAST=1 FAULTS=20 PODS=200", paths=(*_OPERATOR, "tests/chaos/")),
    Judge(
        name="chaos-devices",
        short="SEED={seed} BINDS=500",
        paths=("agent/berth_agent/inventory/", "agent/berth_agent/publishing/", "tests/chaos/"),
    ),
    Judge(name="driver-chaos", short="SEED={seed} PODS=30", paths=_DRIVER),
    Judge(name="partitions-chaos", short="SEED={seed} PODS=30", paths=(*_DRIVER, *_PARTITIONS)),
    Judge(name="partitions-storm", short="SEED={seed} CLAIMS=300", paths=(*_PARTITIONS, "tests/nvml/")),
    Judge(name="claims-audit", short="SEED={seed} PODS=120 FAULTS=5", paths=(*_CLAIMS, "tests/chaos/")),
    Judge(
        name="limits-storm",
        short="SEED={seed} PODS=300",
        paths=("agent/berth_agent/isolation/", "operator/berth_operator/core/filters/"),
    ),
    Judge(name="upgrade-e2e", short="ROUNDS=1", paths=("charts/", "crds/", "images/", "manifests/", "release/")),
    Judge(name="dra-integration", short="ARGS=--recorded+--only+GA", paths=_CLAIMS),
    Judge(
        name="podgroup-integration",
        short="ARGS=--recorded+--only+groups",
        paths=("operator/berth_operator/binding/gangs.py", "operator/berth_operator/core/queue/"),
    ),
    Judge(name="test-versions", short="VERSIONS=1.37", paths=("charts/", "crds/", "manifests/", "tests/differential/")),
)
