"""The mix of pods as an object that can be saved, so that a simulation scores nodes as the operator does.

The object has the exact weights. With other weights, two nodes whose scores are close may change places.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from berth_api.request.model import ModelConstraint
from berth_operator.core.fleet.pods.pod_mix import STEPS, LargeKind, MixWeights, PodMix, Typical

Object = dict[str, Any]
Floats = npt.NDArray[np.float64]

_WEIGHTS: Final = ("weight", "total", "unseen", "cpu")


def document(pod_mix: PodMix) -> Object:
    """Return the mix as an object."""
    counts, typical = pod_mix.counts, pod_mix.typical
    return {
        **{name: getattr(counts, name) for name in _WEIGHTS},
        "byCPU": _sparse(counts.by_cpu),
        "byShare": _sparse(counts.by_share),
        "demand": _demand(counts.demand, counts.demand.values()),
        "large": _large(counts.large, counts.large.values()),
        "typical": {
            "cpuPerCard": typical.cpu_per_card,
            "common": list(typical.common),
            "demand": _demand(typical.constraints, typical.demand.tolist()),
            "enough": _sparse(np.diff(typical.enough, prepend=0.0), typical.enough),
            "large": _large(typical.large, typical.large_demand.tolist()),
            "largeShare": typical.large_share,
        },
    }


def of_document(saved: Mapping[str, Any]) -> PodMix:
    """Return the mix that `document` has returned.

    Raises:
        LookupError, TypeError, ValueError, ArithmeticError: it is not of this form.
    """
    weight, total, unseen, cpu = (float(saved[name]) for name in _WEIGHTS)
    counts = MixWeights(weight=weight, total=total, unseen=unseen, cpu=cpu)
    _fill(counts.by_cpu, saved["byCPU"])
    _fill(counts.by_share, saved["byShare"])
    counts.demand = {_constraint(entry[0]): float(entry[1]) for entry in saved["demand"]}
    counts.large = {_kind(entry): float(entry[-1]) for entry in saved["large"]}
    return PodMix(_typical(saved["typical"]), counts)


def _typical(saved: Mapping[str, Any]) -> Typical:
    enough = np.zeros(STEPS)
    for step, value in saved["enough"]:
        enough[step:] = value
    return Typical(
        cpu_per_card=float(saved["cpuPerCard"]),
        common=tuple(map(int, saved["common"])),
        constraints=tuple(_constraint(entry[0]) for entry in saved["demand"]),
        demand=np.array([float(entry[1]) for entry in saved["demand"]]),
        enough=enough,
        large=tuple(map(_kind, saved["large"])),
        large_demand=np.array([float(entry[-1]) for entry in saved["large"]]),
        # An operator of an earlier version did not save it.
        large_share=float(saved.get("largeShare", 0.0)),
    )


def _sparse(where: Floats, values: Floats | None = None) -> list[list[float]]:
    """Return [index, value] where an array is not 0; the values are of another array, if given."""
    indices = np.flatnonzero(where).tolist()
    return [[index, float((where if values is None else values)[index])] for index in indices]


def _fill(array: Floats, pairs: Iterable[Sequence[float]]) -> None:
    for index, value in pairs:
        array[int(index)] = value


def _demand(constraints: Iterable[ModelConstraint], values: Iterable[float]) -> list[list[Any]]:
    return [[_of_constraint(constraint), value] for constraint, value in zip(constraints, values, strict=True)]


def _large(kinds: Iterable[LargeKind], values: Iterable[float]) -> list[list[Any]]:
    return [
        [kind.cards, kind.cpu, _of_constraint(kind.model), value] for kind, value in zip(kinds, values, strict=True)
    ]


def _kind(saved: Sequence[Any]) -> LargeKind:
    return LargeKind(cards=int(saved[0]), cpu=int(saved[1]), model=_constraint(saved[2]))


def _of_constraint(constraint: ModelConstraint) -> Object:
    return {name: value for name, value in asdict(constraint).items() if value}


def _constraint(saved: Mapping[str, Any]) -> ModelConstraint:
    lists = {name: tuple(saved[name]) for name in ("globs", "excluded") if name in saved}
    return ModelConstraint(**{**saved, **lists})
