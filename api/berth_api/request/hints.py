"""Koordinator's annotations that restrict the devices of a pod: hints per type, joint allocation, partitions."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

from berth_api import allocation, names
from berth_api.names import GPU, RDMA
from berth_api.request.annotations import Annotations, Body, body, check_fields, choice
from berth_api.request.values import Exclusive, Joint, Part, PartitionSpec, RequestError, Scope
from berth_api.resources import quantity
from berth_api.values import selectors
from berth_api.values.selectors import EVERYTHING, LabelSelector

APPLY_FOR_ALL: Final = "ApplyForAll"
REQUESTS_AS_COUNT: Final = "RequestsAsCount"
STRATEGIES: Final = (APPLY_FOR_ALL, REQUESTS_AS_COUNT)
SCOPES: Final = ("Device", "PCIe", "NUMANode", "Node")
SAME_PCIE: Final = "SamePCIe"
RESTRICTED: Final = "Restricted"
POLICIES: Final = (RESTRICTED, "BestEffort")

_FIELDS: Final = ("selector", "vfSelector", "allocateStrategy", "requiredTopologyScope", "exclusivePolicy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """How devices of one type are chosen."""

    selector: LabelSelector = EVERYTHING
    functions: LabelSelector | None = None
    strategy: str = ""
    scope: Scope = ""
    exclusive: Exclusive = ""

    @property
    def is_scoped(self) -> bool:
        """Return whether all cards must be within one device, PCIe switch or NUMA node."""
        return self.scope not in ("", "Node")

    def applied(self, part: Part) -> Part:
        """Return a part of a request with this hint; GPUs have no virtual functions to allocate."""
        functions = None if part.type == GPU else self.functions
        # A resource may select cards, too.
        selector = LabelSelector(requirements=(*part.selector.requirements, *self.selector.requirements))
        return replace(part, selector=selector, functions=functions, scope=self.scope, exclusive=self.exclusive)


NO_HINT: Final = Hint()


def of_types(annotations: Annotations, types: Collection[str] = allocation.TYPES) -> Mapping[str, Hint]:
    """Return the hint of each device type that the annotation names.

    Raises:
        RequestError: the annotation is invalid.
    """
    name = names.ALLOCATE_HINT
    hints = body(annotations, name, *types) or {}
    return {kind: _hint(hint, f"annotation {name}: {kind}") for kind, hint in hints.items() if hint is not None}


def _hint(raw: object, where: str) -> Hint:
    if not isinstance(raw, dict):
        raise RequestError(f"{where}: not an object; allowed are the fields {', '.join(_FIELDS)}")
    check_fields(raw, where, *_FIELDS)
    return Hint(
        selector=_selector(raw, where, "selector") or EVERYTHING,
        functions=_selector(raw, where, "vfSelector"),
        strategy=choice(raw, where, "allocateStrategy", *STRATEGIES),
        scope=cast(Scope, choice(raw, where, "requiredTopologyScope", *SCOPES)),
        exclusive=cast(Exclusive, choice(raw, where, "exclusivePolicy", *allocation.EXCLUSIVES)),
    )


def _selector(raw: Body, where: str, name: str) -> LabelSelector | None:
    if raw.get(name) is None:
        return None
    try:
        return selectors.read(raw[name])
    except selectors.SelectorError as error:
        raise RequestError(f"{where}.{name}: {error}") from error


def joint(
    annotations: Annotations,
    requested: Iterable[str],
    hints: Mapping[str, Hint],
    types: Collection[str] = allocation.TYPES,
    *,
    by_others: bool = False,
) -> Joint | None:
    """Return which of the requested types are allocated jointly; None if the annotation names fewer than two of them.

    A type whose devices are all requested (ApplyForAll) is left out, because there is no choice to make. Pods that
    request NICs by names of other plugins (`by_others`) have no annotations of Berth: their GPUs and NICs are joint.

    Raises:
        RequestError: the annotation is invalid.
    """
    name = names.JOINT_ALLOCATE
    fields = body(annotations, name, "deviceTypes", "requiredScope")
    if fields is None:
        fields = {"deviceTypes": [GPU, RDMA]} if by_others else {}
    same = choice(fields, f"annotation {name}", "requiredScope", SAME_PCIE) == SAME_PCIE
    placed = {kind for kind in requested if hints.get(kind, NO_HINT).strategy != APPLY_FOR_ALL}
    named, allowed = fields.get("deviceTypes") or [], ", ".join(types)
    if not isinstance(named, list):
        raise RequestError(f"annotation {name}: deviceTypes is not a list; allowed are lists of {allowed}")
    if unknown := [kind for kind in named if kind not in types]:
        raise RequestError(f'annotation {name}: deviceTypes "{unknown[0]}"; allowed are {allowed}')
    joined = tuple(dict.fromkeys(kind for kind in named if kind in placed))
    return Joint(types=joined, same_pcie=same, exact=by_others and RDMA in joined) if len(joined) > 1 else None


def partition(annotations: Annotations) -> PartitionSpec | None:
    """Return what the pod requires of its partition; None without the annotation.

    Raises:
        RequestError: the annotation is invalid.
    """
    name = names.PARTITION_SPEC
    fields = body(annotations, name, "allocatePolicy", "ringBusBandwidth")
    if fields is None:
        return None
    return PartitionSpec(
        restricted=choice(fields, f"annotation {name}", "allocatePolicy", *POLICIES) == RESTRICTED,
        bandwidth=_bandwidth(fields.get("ringBusBandwidth"), f"annotation {name}"),
    )


def _bandwidth(value: object, where: str) -> int | None:
    if value is None:
        return None
    try:
        bandwidth = quantity.parse(value) if isinstance(value, str | int) and not isinstance(value, bool) else -1
    except quantity.QuantityError as error:
        raise RequestError(f"{where}: ringBusBandwidth {error}") from error
    if not 0 <= bandwidth < quantity.MAX:
        raise RequestError(f"{where}: ringBusBandwidth {value!r}; allowed are quantities such as 200Gi")
    return bandwidth
