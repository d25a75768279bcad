"""How much of its cards each container may use. MPS, or a library in the container (HAMi-core), gets these limits.

Only containers that admission has prepared (`manifests/components/isolation`) have limits. Their environment reads them
from annotations. The limits are cooperative: a process can drop its variables (docs/decisions/0035-mps.md).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from berth_api import allocation, names, resources
from berth_api.allocation import Grant
from berth_api.request import CARD
from berth_api.request.isolation import HAMI_CORE, MPS

_MEASURES: Final = (names.GPU, names.GPU_MEMORY_RATIO, names.GPU_MEMORY)
"""Resources that measure a request: the first of these that the pod requests."""
_READ: Final = {names.LIMIT_PREFIX.format("memory"): HAMI_CORE, names.MPS_MEMORY_SUFFIX: MPS}
"""Part of the path of an annotation -> the mode of a container that reads it."""
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A container's fraction of what its pod is allocated."""

    container: str
    isolation: str = HAMI_CORE
    """The mode, which decides about the form of the annotations."""
    memory: Fraction
    core: Fraction
    """0 if the container requests no core. It is then not limited."""


def of_pod(spec: Mapping[str, Any], containers: Sequence[resources.Container], *, labelled: bool) -> tuple[Limit, ...]:
    """Return the limits of the containers that read them; if the request comes from labels, each may use all."""
    modes = {
        each["name"]: mode
        for kind in ("initContainers", "containers")
        for each in spec.get(kind) or ()
        if (mode := _mode(each))
    }
    if not modes:
        return ()
    total = _short(resources.combined(containers))
    measure = next((name for name in _MEASURES if name in total), "")
    return tuple(
        Limit(
            container=each.name,
            isolation=modes[each.name],
            **_parts(_short(each.requests), total, measure, labelled=labelled),
        )
        for each in containers
        if each.name in modes
    )


def is_limit(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry of `env` reads a memory limit from an annotation."""
    return bool(_mode_of(entry))


def _mode(container: Mapping[str, Any]) -> str:
    return next(filter(None, map(_mode_of, container.get("env") or ())), "")


def _mode_of(entry: Mapping[str, Any]) -> str:
    path = ((entry.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath") or ""
    return next((mode for name, mode in _READ.items() if name in path), "")


def _short(amounts: Mapping[str, int]) -> dict[str, int]:
    return {allocation.short(name): amount for name, amount in amounts.items()}


def _parts(own: Mapping[str, int], total: Mapping[str, int], measure: str, *, labelled: bool) -> dict[str, Fraction]:
    if labelled:
        return {"memory": Fraction(1), "core": Fraction(1)}
    core = names.GPU_CORE if names.GPU_CORE in total else names.GPU
    return {
        "memory": Fraction(own.get(measure, 0), total[measure]) if measure else Fraction(0),
        "core": Fraction(own.get(core, 0), total[core]) if core in total else Fraction(0),
    }


def annotations(limit: Limit, seen: Sequence[Grant], cards: int) -> Iterator[tuple[str, str]]:
    """Yield (annotation, value) for the limits of a container on the cards that it sees; the pod has `cards` cards.

    A pod gets the same amount of each card, so a container that sees fewer cards may use more of each.
    """
    memory = _on_each(limit.memory, names.GPU_MEMORY, seen, cards)
    cores = _on_each(limit.core, names.GPU_CORE, seen, cards)
    if limit.isolation == MPS:
        yield from _of_mps(limit.container, memory, cores)
    else:
        # The library treats 0 as no limit.
        for what, amounts in (("memory", memory), ("sm", cores)):
            for number, amount in enumerate(amounts):
                yield f"{limit.container}{names.LIMIT_PREFIX.format(what)}{number}", str(amount)


def _on_each(part: Fraction, name: str, seen: Sequence[Grant], cards: int) -> list[int]:
    return [int(dict(grant.amounts).get(name, 0) * part * cards / len(seen)) for grant in seen]


def _of_mps(container: str, memory: Sequence[int], cores: Sequence[int]) -> Iterator[tuple[str, str]]:
    # With 0M neither this limit nor the daemon's default would hold.
    sizes = (f"{number}={max(amount // _MIB, 1)}M" for number, amount in enumerate(memory))
    yield container + names.MPS_MEMORY_SUFFIX, ",".join(sizes)
    yield container + names.MPS_THREADS_SUFFIX, str(min((amount for amount in cores if amount), default=CARD))
