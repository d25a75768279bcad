"""The cards of a Device, read from its spec and checked for contradictions."""

import itertools
import operator
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from berth_api import allocation, names
from berth_api.allocation import device_ids, mig
from berth_api.device import DeviceInfo, DeviceSpec, MigInstance, MigStrategy, Topology
from berth_api.request import NVIDIA_GPU
from berth_api.resources import quantity
from berth_api.values import interning
from berth_api.values.caching import sized_cache
from berth_api.values.selectors import Labels
from berth_operator.core.fleet.nodes.cards import LINKS, NVLINK
from berth_operator.core.values.inventory import NO_FACTS, CardFacts, CardInfo, Functions, Links

Resources = tuple[tuple[str, str | int], ...]
Amounts = tuple[tuple[str, int], ...]
Instances = tuple[tuple[str, str], ...]

ALIKE: Final = 2**22
"""Bytes of each cache of parsed values: a fleet has few different cards."""
MAX_CACHED_LINKS: Final = 16
"""Maximum number of a card's links for which equal links are parsed once."""
MAX_CARDS: Final = 64
"""Cards of one type on a node: the node with the most sets the width of the columns of all nodes."""
MAX_PROFILES: Final = 16
"""MIG profiles on a node; a card has ten at most."""
MAX_BANDWIDTH: Final = 10**15
"""Bytes per second; a hundred times as much as any GPU has."""
_NOWHERE: Final = Topology()
_LINK: Final = operator.attrgetter("minor", "type", "count")


def of_spec(spec: DeviceSpec) -> tuple[tuple[CardInfo, ...], tuple[str, ...]]:
    """Return the cards, and the contradictions, each with its field; cards with contradictions are not allocated."""
    spec, surplus = _affordable(spec)
    problems = _problems(spec)
    usable = zip(spec.devices, problems, strict=True)
    cards = tuple(_card(device, usable=not wrong, strategy=spec.mig_strategy) for device, wrong in usable)
    return cards, (*surplus, *itertools.chain.from_iterable(problems))


def _affordable(spec: DeviceSpec) -> tuple[DeviceSpec, tuple[str, ...]]:
    """Return a spec with at most MAX_CARDS cards of each type, the cards with the lowest minors, and the problems."""
    counts = Counter(device.type for device in spec.devices)
    if all(count <= MAX_CARDS for count in counts.values()):
        return spec, ()
    ranked = sorted(spec.devices, key=lambda device: (device.type, device.minor))
    by_type = itertools.groupby(ranked, key=lambda device: device.type)
    kept = {id(device) for _, devices in by_type for device in itertools.islice(devices, MAX_CARDS)}
    problems = (
        f"spec.devices: {count} cards of type {name}; {MAX_CARDS} are read, those with the lowest minors"
        for name, count in counts.items()
        if count > MAX_CARDS
    )
    devices = [device for device in spec.devices if id(device) in kept]
    return spec.model_copy(update={"devices": devices}), tuple(problems)


def _card(device: DeviceInfo, *, usable: bool, strategy: MigStrategy) -> CardInfo:
    in_mig_mode = _is_divided(device, strategy)
    instances = _instances(device, strategy) if in_mig_mode and usable and device.health else ()
    topology = device.topology or _NOWHERE
    links = tuple(map(_LINK, device.links))
    functions: Functions = ()
    if device.vf_groups:
        functions = interning.intern(
            tuple(
                (
                    tuple(sorted(group.labels.items())),
                    tuple((function.minor, function.bus_id) for function in group.vfs),
                )
                for group in device.vf_groups
            )
        )
    facts = NO_FACTS
    if device.multiprocessors is not None or device.memory_bandwidth is not None:
        facts = CardFacts(
            multiprocessors=device.multiprocessors or 0,
            memory_bandwidth=_bandwidth(device.memory_bandwidth or 0),
            encoders=device.encoders or 0,
            decoders=device.decoders or 0,
        )
    return CardInfo(
        type=device.type,
        minor=device.minor,
        id=device.id,
        model=sys.intern(device.model),
        healthy=device.health and usable and not in_mig_mode,
        amounts=(*_amounts(device.type, tuple(device.resources.items())), *_subdevice_amounts(device, instances))
        if usable
        else (),
        numa=topology.node_id,
        socket=topology.socket_id,
        address=topology.bus_id or ("" if device.type == names.GPU else device.id),
        pcie=sys.intern(topology.pcie_id),
        module=device.module_id,
        labels=_labels(tuple(device.labels.items()), device.model, topology.node_id, topology.pcie_id),
        # To weigh more links than any real machine has would take longer than to parse them.
        links=_links(links) if len(links) <= MAX_CACHED_LINKS else _links.uncached(links),
        functions=functions,
        instances=instances,
        instance_memory=_instance_memory(device, strategy) if instances else (),
        parts=tuple(instance.id for instance in device.mig.instances) if device.mig else (),
        replica_resource=device.replica_resource,
        facts=facts,
    )


@sized_cache(ALIKE)
def _labels(own: Labels, model: str, numa: int, pcie: str) -> Labels:
    """Return the device's own labels and the labels that every device has, for selectors."""
    known = (
        (names.DEVICE_MODEL, model),
        (names.DEVICE_NUMA_NODE, str(numa) if numa >= 0 else ""),
        (names.DEVICE_PCIE_SWITCH, pcie),
    )
    return tuple(sorted({**{key: value for key, value in known if value}, **dict(own)}.items()))


@sized_cache(ALIKE)
def _links(links: tuple[tuple[int, str, int], ...]) -> Links:
    """Return the link score to each linked card, by its minor."""
    return tuple(
        (minor, NVLINK * max(count, 1) if link_type == "NVLink" else LINKS[link_type])
        for minor, link_type, count in links
    )


@sized_cache(ALIKE)
def _bandwidth(value: str | int) -> int:
    """Return a memory bandwidth; 0 if the text is no quantity, because it only ranks nodes."""
    try:
        return min(max(quantity.parse(value), 0), MAX_BANDWIDTH)
    except quantity.QuantityError:
        return 0


def _is_divided(device: DeviceInfo, strategy: MigStrategy) -> bool:
    return strategy != "none" and device.mig is not None and device.mig.enabled


def _instances(device: DeviceInfo, strategy: MigStrategy) -> Instances:
    """Return (id, resource) of each allocatable MIG instance, or of its replicas: one of each instance first."""
    instances = device.mig.instances if device.mig else ()
    offered = [(instance, sys.intern(name)) for instance in instances if (name := _resource(instance, strategy))]
    numbers = range(max((instance.replicas for instance, _ in offered), default=0))
    return tuple(
        (instance.id if instance.replicas == 1 else f"{instance.id}{allocation.REPLICA_MARK}{number}", name)
        for number in numbers
        for instance, name in offered
        if number < instance.replicas
    )


def _instance_memory(device: DeviceInfo, strategy: MigStrategy) -> Amounts:
    """Return (resource, bytes of the smallest instance, or of its replicas) of a card in MIG mode."""
    smallest: dict[str, int] = {}
    for instance in device.mig.instances if device.mig else ():
        name, memory = _resource(instance, strategy), quantity.parse(instance.memory) // instance.replicas
        smallest[name] = min(smallest.get(name, memory), memory)
    return tuple(sorted((sys.intern(name), memory) for name, memory in smallest.items() if name))


def _resource(instance: MigInstance, strategy: MigStrategy) -> str:
    """Return the resource that pods request for an instance or its replicas; empty if no device plugin offers it."""
    if strategy == "single":
        # Its name is `nvidia.com/gpu`; where it is renamed to `nvidia.com/gpu.shared`, it is not offered.
        return mig.resource(instance.profile) if instance.replica_resource in ("", NVIDIA_GPU) else ""
    return "" if mig.is_part(instance.profile) else instance.replica_resource or mig.resource(instance.profile)


def _subdevice_amounts(device: DeviceInfo, instances: Instances) -> Amounts:
    """Return the number of replicas, MIG instances and virtual functions of a card."""
    if not instances and device.replicas == 1 and not device.vf_groups:
        return ()
    counts = Counter(resource for _, resource in instances)
    if device.replicas > 1:
        counts[allocation.REPLICAS] = device.replicas
    if device.vf_groups:
        counts[allocation.FUNCTIONS] = sum(len(group.vfs) for group in device.vf_groups)
    return tuple(sorted(counts.items()))


@sized_cache(ALIKE)
def _amounts(device_type: str, resources: Resources) -> Amounts:
    """Return a card's amounts; where the spec has none, a card counts as 100 hundredths."""
    whole = {names.GPU: (names.GPU_CORE, names.GPU_MEMORY_RATIO)}.get(device_type, (device_type,))
    amounts = {allocation.short(name): quantity.parse(value) for name, value in resources}
    return tuple(sorted({**dict.fromkeys(whole, 100), **amounts}.items()))


def _problems(spec: DeviceSpec) -> list[tuple[str, ...]]:
    """Return the contradictions of each device, in the order of the spec."""
    instances = [(device, instance) for device in spec.devices if device.mig for instance in device.mig.instances]
    ids: Counter[tuple[str, str]] = Counter((device.type, device.id) for device in spec.devices)
    ids.update((device.type, instance.id) for device, instance in instances)
    resources = dict.fromkeys(_resource_of(instance) for _, instance in instances)
    node = _Node(
        strategy=spec.mig_strategy,
        mixture=_mixture(spec) if spec.mig_strategy == "single" else "",
        ids=ids,
        minors={(device.type, device.minor) for device in spec.devices},
        resources=dict.fromkeys(itertools.islice(resources, MAX_PROFILES)),
    )
    return [
        tuple(f"spec.devices[{position}].{problem}" for problem in _problems_of(device, node))
        for position, device in enumerate(spec.devices)
    ]


def _resource_of(instance: MigInstance) -> str:
    return instance.replica_resource or mig.resource(instance.profile)


def _mixture(spec: DeviceSpec) -> str:
    """Return why `nvidia.com/gpu` would stand for different instances or cards in MIG strategy single; empty if not."""
    gpus = [device for device in spec.devices if device.type == names.GPU]
    in_mig_mode = [gpu.mig for gpu in gpus if gpu.mig is not None and gpu.mig.enabled]
    profiles = sorted({instance.profile for state in in_mig_mode for instance in state.instances})
    if len(profiles) > 1:
        return f"migStrategy single, and instances of {' and '.join(profiles)}; allowed are those of one profile"
    if in_mig_mode and len(in_mig_mode) < len(gpus):
        return "migStrategy single, and other GPUs are not in MIG mode; allowed are all or none"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """What the contradictions of a device depend on in addition: the other devices of its node."""

    strategy: MigStrategy
    mixture: str
    ids: Mapping[tuple[str, str], int]
    """(type, id) -> how many devices and MIG instances have it."""
    minors: Collection[tuple[str, int]]
    resources: Collection[str]
    """The resources of the first MIG profiles, up to MAX_PROFILES: each has a column of all cards."""


def _problems_of(device: DeviceInfo, node: _Node) -> Iterator[str]:
    device_type, instances = device.type, device.mig.instances if device.mig else []
    named = {"id": device.id} | {f"mig.instances[{index}].id": instance.id for index, instance in enumerate(instances)}
    for where, name in named.items():
        if problem := device_ids.problem(device_type, name):
            yield f"{where}: {problem}"
    if node.ids[device_type, device.id] > 1:
        yield f"id: {device.id} is used more than once among the {device_type} devices"
    for link in device.links:
        if (device_type, link.minor) not in node.minors or link.minor == device.minor:
            yield f"links: minor {link.minor} is not another {device_type} device of this node"
    if device.mig is not None and device.mig.enabled:
        for index, instance in enumerate(instances):
            if node.ids[device_type, instance.id] > 1:
                yield f"mig.instances[{index}].id: {instance.id} is used more than once among the {device_type} devices"
            if not mig.is_profile(instance.profile):
                yield f"mig.instances[{index}].profile: {instance.profile} is not of the form 1g.10gb or 1g.10gb+me"
        if node.mixture:
            yield f"mig: {node.mixture}"
    if device.replicas > 1 and _is_divided(device, node.strategy):
        yield f"replicas: {device.replicas} of a card in MIG mode; allowed is 1"
    functions = Counter(function.bus_id or str(function.minor) for group in device.vf_groups for function in group.vfs)
    for function, count in functions.items():
        if count > 1:
            yield f"vfGroups: virtual function {function} is listed {count} times; allowed is once"
    if device.replicas > 1 and device_type != names.GPU:
        yield f"replicas: {device.replicas} of a device that is no GPU; allowed is 1"
    yield from _resource_problems(device_type, tuple(device.resources.items()), healthy=device.health)
    for index, instance in enumerate(instances):
        if _resource_of(instance) not in node.resources:
            yield (
                f"mig.instances[{index}].profile: {instance.profile} is one too many; "
                f"allowed are {MAX_PROFILES} different ones on a node"
            )


@sized_cache(ALIKE)
def _resource_problems(device_type: str, resources: Resources, *, healthy: bool) -> tuple[str, ...]:
    """Return the contradictions in a card's resources; cached, since most cards offer the same."""
    problems: list[str] = []
    seen: dict[str, int] = {}
    for name, value in resources:
        try:
            amount = quantity.parse(value)
        except quantity.QuantityError as error:
            return (*problems, f"resources.{name}: {error}")
        if amount < 0:
            problems.append(f"resources.{name}: {value} is negative; allowed are quantities from 0")
        if seen.setdefault(allocation.short(name), amount) != amount:
            problems.append(f"resources.{name}: {value} differs from the amount under the other prefix")
        if allocation.short(name) in (names.GPU_CORE, names.GPU_MEMORY_RATIO) and amount != 100:  # noqa: PLR2004
            problems.append(f"resources.{name}: {value}; allowed is 100 for a card")
    if device_type == names.GPU and healthy and not seen.get(names.GPU_MEMORY):
        problems.append(f"resources: a healthy GPU has no {names.PREFIX}{names.GPU_MEMORY}")
    return tuple(problems)
