"""How much of its cards each container may use, enforced by a library in the container (HAMi-core).

Only containers into which the library was injected (`manifests/components/hami-core`) have limits: their environment
reads them from annotations.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from berth_api import allocation, names, resources
from berth_api.allocation import Grant

_MEASURES: Final = (names.GPU, names.GPU_MEMORY_RATIO, names.GPU_MEMORY)
"""The resource by which a request is measured: the first of these that the pod requests."""
_READ: Final = names.LIMIT_PREFIX.format("memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A container's fraction of what its pod is allocated."""

    container: str
    memory: Fraction
    core: Fraction
    """0 if the container requests no core; it is then not limited."""


def of_pod(spec: Mapping[str, Any], containers: Sequence[resources.Container], *, labelled: bool) -> tuple[Limit, ...]:
    """Return the limits of the containers that read them; if the request comes from labels, each may use all."""
    reading = {
        each["name"] for kind in ("initContainers", "containers") for each in spec.get(kind) or () if _reads(each)
    }
    if not reading:
        return ()
    total = _short(resources.combined(containers))
    measure = next((name for name in _MEASURES if name in total), "")
    return tuple(
        _limit(each.name, _short(each.requests), total, measure, labelled=labelled)
        for each in containers
        if each.name in reading
    )


def is_limit(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry of `env` reads a memory limit from an annotation."""
    return _READ in (((entry.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath") or "")


def _reads(container: Mapping[str, Any]) -> bool:
    return any(is_limit(entry) for entry in container.get("env") or ())


def _short(amounts: Mapping[str, int]) -> dict[str, int]:
    return {allocation.short(name): amount for name, amount in amounts.items()}


def _limit(name: str, own: Mapping[str, int], total: Mapping[str, int], measure: str, *, labelled: bool) -> Limit:
    if labelled:
        return Limit(container=name, memory=Fraction(1), core=Fraction(1))
    memory = Fraction(own.get(measure, 0), total[measure]) if measure else Fraction(0)
    core = names.GPU_CORE if names.GPU_CORE in total else names.GPU
    return Limit(
        container=name, memory=memory, core=Fraction(own.get(core, 0), total[core]) if core in total else Fraction(0)
    )


def annotations(limit: Limit, seen: Sequence[Grant], cards: int) -> Iterator[tuple[str, str]]:
    """Yield (annotation, value) for each limit of a container on each card that it sees; the pod has `cards` cards.

    A pod gets the same amount of each card, so a container that sees fewer cards may use more of each. The library
    treats 0 as no limit.
    """
    for what, part, name in (("memory", limit.memory, names.GPU_MEMORY), ("sm", limit.core, names.GPU_CORE)):
        for number, grant in enumerate(seen):
            amount = int(dict(grant.amounts).get(name, 0) * part * cards / len(seen))
            yield f"{limit.container}{names.LIMIT_PREFIX.format(what)}{number}", str(amount)
