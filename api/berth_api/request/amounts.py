"""The device resources that a pod requests: checked, and split into equal parts."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from berth_api import allocation, names
from berth_api.allocation import mig
from berth_api.names import FPGA, GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED, RDMA
from berth_api.request.hints import NO_HINT, Hint
from berth_api.request.kinds import BUILT_IN, Kinds, split
from berth_api.request.values import CARD, INSTANCE, NOTHING, PLUGIN_UNIT, REPLICA, DeviceRequest, Part, RequestError
from berth_api.request.written import NOTHING_WRITTEN, Written
from berth_api.resources import quantity
from berth_api.values.selectors import DOES_NOT_EXIST, EVERYTHING, LabelSelector, Requirement

NVIDIA_GPU: Final = "nvidia.com/gpu"
NVIDIA_SHARED: Final = allocation.REPLICAS
AMD_GPU: Final = "amd.com/gpu"
AMD_PARTITIONS: Final = {
    f"amd.com/{compute}_{memory}": f"{compute}_{memory}"
    for compute in ("spx", "dpx", "tpx", "qpx", "cpx")
    for memory in ("nps1", "nps2", "nps3", "nps4", "nps6", "nps8")
}
"""Resource of partitions of AMD's cards -> their compute and memory mode. Each partition is a GPU of its own in the
Device, with the mode in its label `berth.dev/partition` if it is offered by this resource."""
DCU_GPU: Final = "dcu.com/gpu"
NPU_CORE: Final = "huawei.com/npu-core"
NPU_CPU: Final = "huawei.com/npu-cpu"
NPU_DVPP: Final = "huawei.com/npu-dvpp"

VENDORS: Final = {
    NVIDIA_GPU: "nvidia",
    NVIDIA_SHARED: "nvidia",
    AMD_GPU: "amd",
    **dict.fromkeys(AMD_PARTITIONS, "amd"),
    DCU_GPU: "hygon",
    NPU_CORE: "huawei",
    NPU_CPU: "huawei",
    NPU_DVPP: "huawei",
}
"""Resource -> vendor, as in the vendor label of the Device. `Kinds.gpus` has those of added vendors."""

_OFFERED_BY_NOBODY: Final = (NPU_CORE, NPU_CPU, NPU_DVPP)
"""Resources of devices that neither Berth nor a device plugin writes to the Node."""

_COMMON: Final = (GPU, GPU_SHARED, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA, FPGA)

NO_HINTS: Final[Mapping[str, Hint]] = {}

Amounts = Mapping[str, int]


class _Requested(dict[str, int]):
    """Amounts by name without prefix, and how the user wrote them, for messages."""

    def __init__(self, amounts: Amounts, full_names: Mapping[str, str], written: Written) -> None:
        super().__init__(amounts)
        self._full_names, self._written = full_names, written

    @property
    def prefix(self) -> str:
        """Return the prefix that the user wrote."""
        other = any(name.startswith(names.OTHER_PREFIX) for name in self._full_names.values())
        return names.OTHER_PREFIX if other else names.PREFIX

    def only(self, amounts: Amounts) -> "_Requested":
        """Return some of these amounts, as they were written."""
        return _Requested(amounts, self._full_names, self._written)

    def text(self, *names: str) -> str:
        full_names = ((self.long(name), self[name]) for name in names or sorted(self))
        return ", ".join(f"{name}: {self._written.amount(name, total)}" for name, total in full_names)

    def long(self, name: str) -> str:
        return self._full_names[name]

    def error(self, message: str, *names: str) -> RequestError:
        """Return an error about some of these resources, or about all of them."""
        return RequestError(message, *map(self.long, names or sorted(self)))


def is_device(name: str, kinds: Kinds = BUILT_IN) -> bool:
    """Return whether a resource is counted on the cards of a Device."""
    if allocation.short(name) in _COMMON or name in VENDORS or mig.is_resource(name):
        return True
    return kinds.has(name) or name in kinds.gpus


def vendor_of(name: str, kinds: Kinds = BUILT_IN) -> str:
    """Return the vendor whose GPUs have a resource; empty if cards of any vendor have it, or none has."""
    if name in kinds.gpus:
        return kinds.gpus[name].name
    return "nvidia" if mig.is_resource(name) else VENDORS.get(name, "")


def is_counted_on_node(name: str) -> bool:
    """Return whether a resource must also fit the Node's allocatable, as in NodeResourcesFit.

    This is true for devices, too, because kubelet checks the Node as well as the cards. If the Node's sums, which Berth
    writes, do not show its devices yet, kubelet ends the pod for good. If a device plugin has not registered, kubelet
    starts the pod without devices.
    """
    return name not in _OFFERED_BY_NOBODY


def of_resources(
    total: Amounts,
    hints: Mapping[str, Hint] = NO_HINTS,
    kinds: Kinds = BUILT_IN,
    written: Written = NOTHING_WRITTEN,
) -> DeviceRequest:
    """Return a pod's total of resource requests (whole units, without zeros) as parts, split as the hints require.

    Errors quote the amounts as `written`.

    Raises:
        RequestError: the combination or an amount is not allowed.
    """
    device_amounts = {name: amount for name, amount in total.items() if is_device(name, kinds)}
    if not device_amounts:
        return NOTHING
    requested: dict[str, int] = {}
    origin: dict[str, str] = {}
    for name, amount in device_amounts.items():
        base = allocation.short(name)
        if base in requested:
            same = origin[base], name
            raise RequestError(f"{' and '.join(same)} are the same resource; request one of them", *same)
        requested[base], origin[base] = amount, name
    requested = _Requested(requested, origin, written)
    gpus = {name: amount for name, amount in requested.items() if name not in (RDMA, FPGA) and not kinds.has(name)}
    parts = _gpu_parts(requested.only(gpus), kinds)
    for kind in (RDMA, FPGA):
        if kind in requested:
            _check_percent(requested, kind)
            parts.append(split(kind, requested[kind], hints.get(kind, NO_HINT)))
    if others := [name for name in requested if name in kinds.nics]:
        parts.append(_other_nics(requested.only({name: requested[name] for name in others}), kinds, hints))
        if RDMA in requested:
            raise requested.error(
                f"{requested.long(RDMA)} and {others[0]} both request NICs; request one of them", RDMA, others[0]
            )
    parts += kinds.parts(requested, hints)
    cards, hundredths = requested.get(NVIDIA_GPU, 0), requested.get(GPU, CARD)
    if hundredths <= _MAX_CARDS:
        hint = f"did you mean {requested.long(GPU)}: {hundredths * CARD}?"
    else:
        hint = f"did you mean {names.PREFIX}{GPU}: {cards}?" if cards >= CARD else ""
    return DeviceRequest(
        parts=tuple(parts),
        vendor=next(filter(None, (vendor_of(name, kinds) for name in requested)), ""),
        prefix=requested.prefix,
        hint=hint,
    )


_MAX_CARDS: Final = 8
"""The number of cards of a large node. A request for at most this many hundredths of a card may mean whole cards."""


def check_size(total: Amounts, kinds: Kinds, written: Written) -> None:
    """Check that a pod's total of each device resource does not exceed the maximum that is counted.

    A larger total was truncated: later messages would name a number that the user did not write.

    Raises:
        RequestError: the total is larger.
    """
    for name, amount in total.items():
        if amount >= quantity.MAX and is_device(name, kinds):
            most = allocation.message_text(allocation.short(name), quantity.MAX)
            raise RequestError(f"{name}: {written.amount(name, amount)}; allowed are amounts below {most}", name)


# --- GPUs ---------------------------------------------------------------------------------------------------


def _gpu_parts(requested: _Requested, kinds: Kinds) -> list[Part]:
    if not requested:
        return []
    combination = frozenset(requested)
    if combination == {NVIDIA_SHARED}:
        return [Part(type=GPU, count=requested[NVIDIA_SHARED], amounts=(), unit=REPLICA)]
    if all(map(mig.is_resource, requested)):
        return [_instances(name, requested[name]) for name in sorted(requested)]
    is_added = len(combination) == 1 and combination <= kinds.gpus.keys()
    rule = _whole_cards if is_added else _GPU_RULES.get(combination)
    if rule is None:
        # The message ends with how to make a request of them.
        alone = [name for name in sorted(requested) if name in (*_ALONE, *kinds.gpus) or mig.is_resource(name)]
        if alone:
            first, *_ = sorted(alone, key=mig.is_resource)
            advice = f"{requested.long(first)} is allowed only by itself: remove it or the others"
        elif not requested.keys().isdisjoint((NPU_CORE, NPU_CPU, NPU_DVPP)):
            parts = f"{NPU_CPU}, {GPU_MEMORY}, {GPU_SHARED} and perhaps {NPU_DVPP}"
            advice = f"allowed are {NPU_CORE} with {GPU_MEMORY_RATIO}, or with {parts}"
        elif GPU_MEMORY in requested:
            advice = f"allowed is {GPU_MEMORY} or {GPU_MEMORY_RATIO}, not both: remove one of them"
        else:
            advice = f"add {GPU_MEMORY} or {GPU_MEMORY_RATIO}"
        raise requested.error(f"{requested.text()} is not a request for GPUs; {advice}")
    # The total is divided evenly over its cards.
    normal = rule(requested)
    ratio = normal.get(GPU_MEMORY_RATIO, 0)
    count = normal.get(GPU_SHARED) or (ratio // CARD if ratio > CARD else 1)
    amounts = {name: amount // count for name, amount in normal.items() if name != GPU_SHARED}
    for name in (GPU_CORE, GPU_MEMORY_RATIO):
        if amounts.get(name, 0) > CARD:
            raise requested.error(
                f"{requested.text()} puts {name} {amounts[name]} on each of {count} card(s); allowed are up to {CARD}: "
                f"spread it with {GPU_SHARED}"
            )
    part = Part(type=GPU, count=count, amounts=tuple(sorted(amounts.items())), selector=_of_mode(combination))
    return [replace(part, unit=PLUGIN_UNIT) if combination == {NVIDIA_GPU} else part]


def _of_mode(combination: frozenset[str]) -> LabelSelector:
    """Return what a request for AMD's cards requires of their partition mode, by which kubelet counts them."""
    if combination == {AMD_GPU}:
        return LabelSelector(requirements=(Requirement(key=names.DEVICE_PARTITION, operator=DOES_NOT_EXIST),))
    modes = tuple(AMD_PARTITIONS[name] for name in combination if name in AMD_PARTITIONS)
    return LabelSelector(requirements=(Requirement(key=names.DEVICE_PARTITION, values=modes),)) if modes else EVERYTHING


def _instances(name: str, count: int) -> Part:
    if not mig.is_profile(name.removeprefix(mig.PREFIX)):
        example = mig.resource("1g.10gb")
        raise RequestError(f"{name}: {count} names no MIG profile; allowed are names such as {example}", name)
    return Part(type=GPU, count=count, amounts=((name, 1),), unit=INSTANCE)


def _whole_cards(requested: _Requested) -> Amounts:
    """Convert `nvidia.com/gpu: 2` to two whole cards."""
    (count,) = requested.values()
    return {GPU_CORE: CARD * count, GPU_MEMORY_RATIO: CARD * count}


def _percent(requested: _Requested) -> Amounts:
    """Convert `gpu: 50` to half of a card, `gpu: 200` to two cards."""
    _check_percent(requested, GPU)
    return {GPU_CORE: requested[GPU], GPU_MEMORY_RATIO: requested[GPU]}


def _parts_of_cards(requested: _Requested) -> Amounts:
    """Check cores, memory and ratio without `gpu.shared`: up to one card, or several whole cards."""
    _check_percent(requested, GPU_CORE)
    _check_percent(requested, GPU_MEMORY_RATIO)
    return requested


def _shared(requested: _Requested) -> Amounts:
    """Check that `gpu.shared: n` divides the amounts evenly over n cards."""
    cards = requested[GPU_SHARED]
    for name in (GPU_CORE, GPU_MEMORY_RATIO):
        amount = requested.get(name, 0)
        if amount % cards or amount // cards > CARD:
            text, allowed = requested.text(name, GPU_SHARED), f"multiples of {cards}, up to {CARD} on each card"
            raise requested.error(f"{text}; allowed are {allowed}", name, GPU_SHARED)
    if requested.get(GPU_MEMORY, cards) < cards:
        raise requested.error(f"{requested.text(GPU_MEMORY)} is less than a byte on each of {cards} cards", GPU_MEMORY)
    return requested


def _npu_slice(requested: _Requested) -> Amounts:
    if requested[GPU_SHARED] > 1:
        text = requested.text(GPU_SHARED, NPU_CORE)
        raise requested.error(f"{text}; allowed is {GPU_SHARED}: 1", GPU_SHARED, NPU_CORE)
    if requested.get(NPU_DVPP, 0) > CARD:
        raise requested.error(f"{requested.text(NPU_DVPP)}; allowed are 1 to {CARD}", NPU_DVPP)
    return requested


def _other_nics(requested: _Requested, kinds: Kinds, hints: Mapping[str, Hint]) -> Part:
    """Return NICs that are requested by names of another plugin. Several names are different NICs, as of rails."""
    amounts = {name: amount * kinds.nics[name] for name, amount in requested.items()}
    if len(amounts) == 1 or all(amount % CARD == 0 for amount in amounts.values()):
        total = sum(amounts.values())
        if total > CARD and total % CARD:
            raise requested.error(
                f"{requested.text()} are {total} hundredths of NICs; allowed are one NIC or whole ones"
            )
        return split(RDMA, total, hints.get(RDMA, NO_HINT))
    [amount, *others] = set(amounts.values())
    if others or amount > CARD:
        raise requested.error(
            f"{requested.text()} are parts of NICs; allowed are equal parts, up to one NIC for each name, or whole NICs"
        )
    return Part(type=RDMA, count=len(amounts), amounts=((RDMA, amount),))


def _check_percent(requested: _Requested, name: str) -> None:
    amount = requested.get(name, 0)
    if amount > CARD and amount % CARD:
        allowed = f"1 to {CARD} (part of a card) or multiples of {CARD}"
        raise requested.error(f"{requested.text(name)}; allowed are {allowed}", name)


_Rule = Callable[[_Requested], Amounts]
_GPU_RULES: Final[dict[frozenset[str], _Rule]] = {
    **{frozenset({name}): _whole_cards for name in (NVIDIA_GPU, AMD_GPU, *AMD_PARTITIONS, DCU_GPU)},
    frozenset({GPU}): _percent,
    frozenset({GPU_MEMORY}): _parts_of_cards,
    frozenset({GPU_MEMORY_RATIO}): _parts_of_cards,
    frozenset({GPU_CORE, GPU_MEMORY}): _parts_of_cards,
    frozenset({GPU_CORE, GPU_MEMORY_RATIO}): _parts_of_cards,
    frozenset({NPU_CORE, GPU_MEMORY_RATIO}): _parts_of_cards,
    frozenset({GPU_SHARED, GPU_MEMORY}): _shared,
    frozenset({GPU_SHARED, GPU_MEMORY_RATIO}): _shared,
    frozenset({GPU_SHARED, GPU_CORE, GPU_MEMORY}): _shared,
    frozenset({GPU_SHARED, GPU_CORE, GPU_MEMORY_RATIO}): _shared,
    frozenset({GPU_SHARED, NPU_CORE, NPU_CPU, GPU_MEMORY}): _npu_slice,
    frozenset({GPU_SHARED, NPU_CORE, NPU_CPU, GPU_MEMORY, NPU_DVPP}): _npu_slice,
}
"""The allowed combinations, each with its check and normal form."""

_ALONE: Final = (GPU, NVIDIA_GPU, NVIDIA_SHARED, AMD_GPU, *AMD_PARTITIONS, DCU_GPU)
"""Resources that are requested by themselves. MIG profiles' resources are, too."""
