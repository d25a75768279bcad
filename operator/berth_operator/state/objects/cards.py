"""The cards of a Device, read from its spec and checked for contradictions."""

import itertools
import operator
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
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
"""Links of a card up to which equal ones are parsed once."""
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
    cards = tuple(_card(each, usable=not wrong, strategy=spec.mig_strategy) for each, wrong in usable)
    return cards, (*surplus, *itertools.chain.from_iterable(problems))


def _affordable(spec: DeviceSpec) -> tuple[DeviceSpec, tuple[str, ...]]:
    """Return a spec with at most MAX_CARDS cards of each type, those with the lowest minors, and the problems."""
    counts = Counter(each.type for each in spec.devices)
    if all(count <= MAX_CARDS for count in counts.values()):
        return spec, ()
    ranked = sorted(spec.devices, key=lambda each: (each.type, each.minor))
    grouped = itertools.groupby(ranked, key=lambda each: each.type)
    kept = {id(each) for _, cards in grouped for each in itertools.islice(cards, MAX_CARDS)}
    problems = (
        f"spec.devices: {count} cards of type {name}; {MAX_CARDS} are read, those with the lowest minors"
        for name, count in counts.items()
        if count > MAX_CARDS
    )
    return spec.model_copy(update={"devices": [each for each in spec.devices if id(each) in kept]}), tuple(problems)


def _card(device: DeviceInfo, *, usable: bool, strategy: MigStrategy) -> CardInfo:
    in_mig_mode = _is_divided(device, strategy)
    instances = _instances(device, strategy) if in_mig_mode and usable and device.health else ()
    topology = device.topology or _NOWHERE
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
        links=_of_links(tuple(map(_LINK, device.links))),
        functions=_functions(device),
        instances=instances,
        instance_memory=_instance_memory(device, strategy) if instances else (),
        parts=tuple(each.id for each in device.mig.instances) if device.mig else (),
        replica_resource=device.replica_resource,
        facts=_facts(device),
    )


@sized_cache(ALIKE)
def _labels(own: Labels, model: str, numa: int, pcie: str) -> Labels:
    """Return the device's own labels and those that every device has, for selectors."""
    known = (
        (names.DEVICE_MODEL, model),
        (names.DEVICE_NUMA_NODE, str(numa) if numa >= 0 else ""),
        (names.DEVICE_PCIE_SWITCH, pcie),
    )
    return tuple(sorted({**{key: value for key, value in known if value}, **dict(own)}.items()))


def _of_links(links: tuple[tuple[int, str, int], ...]) -> Links:
    # To weigh more than any real machine has would take longer than to parse them.
    return _links(links) if len(links) <= MAX_CACHED_LINKS else _links.uncached(links)


@sized_cache(ALIKE)
def _links(links: tuple[tuple[int, str, int], ...]) -> Links:
    """Return the link score to each linked card, by its minor."""
    return tuple(
        (minor, NVLINK * max(count, 1) if link_type == "NVLink" else LINKS[link_type])
        for minor, link_type, count in links
    )


def _facts(device: DeviceInfo) -> CardFacts:
    if device.multiprocessors is None and device.memory_bandwidth is None:
        return NO_FACTS
    return CardFacts(
        multiprocessors=device.multiprocessors or 0,
        memory_bandwidth=_bandwidth(device.memory_bandwidth or 0),
        encoders=device.encoders or 0,
        decoders=device.decoders or 0,
    )


@sized_cache(ALIKE)
def _bandwidth(value: str | int) -> int:
    """Return a memory bandwidth; 0 if it is no quantity, because it only ranks nodes."""
    try:
        return min(max(quantity.parse(value), 0), MAX_BANDWIDTH)
    except quantity.QuantityError:
        return 0


def _functions(device: DeviceInfo) -> Functions:
    if not device.vf_groups:
        return ()
    groups: Functions = tuple(
        (tuple(sorted(group.labels.items())), tuple((each.minor, each.bus_id) for each in group.vfs))
        for group in device.vf_groups
    )
    return interning.intern(groups)


def _is_divided(device: DeviceInfo, strategy: MigStrategy) -> bool:
    return strategy != "none" and device.mig is not None and device.mig.enabled


def _instances(device: DeviceInfo, strategy: MigStrategy) -> Instances:
    """Return (id, resource) of each allocatable MIG instance, or of its replicas: one of each instance first."""
    instances = device.mig.instances if device.mig else ()
    offered = [(each, sys.intern(name)) for each in instances if (name := _resource(each, strategy))]
    numbers = range(max((each.replicas for each, _ in offered), default=0))
    return tuple(
        (_subdevice_id(each, number), name) for number in numbers for each, name in offered if number < each.replicas
    )


def _instance_memory(device: DeviceInfo, strategy: MigStrategy) -> Amounts:
    """Return (resource, bytes of the smallest instance, or of its replicas) of a card in MIG mode."""
    smallest: dict[str, int] = {}
    for each in device.mig.instances if device.mig else ():
        name, memory = _resource(each, strategy), quantity.parse(each.memory) // each.replicas
        smallest[name] = min(smallest.get(name, memory), memory)
    return tuple(sorted((sys.intern(name), memory) for name, memory in smallest.items() if name))


def _subdevice_id(instance: MigInstance, number: int) -> str:
    return instance.id if instance.replicas == 1 else f"{instance.id}{allocation.REPLICA_MARK}{number}"


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
    mixture = _mixture(spec) if spec.mig_strategy == "single" else ""
    listed = _first_resources(spec)
    ids: Counter[tuple[str, str]] = Counter((each.type, each.id) for each in spec.devices)
    ids.update((each.type, instance.id) for each in spec.devices if each.mig for instance in each.mig.instances)
    minors: set[tuple[str, int]] = {(each.type, each.minor) for each in spec.devices}
    return [
        tuple(
            f"spec.devices[{position}].{problem}"
            for problem in (
                *_problems_of(each, spec.mig_strategy, ids, minors, mixture),
                *_surplus_resources(each, listed),
            )
        )
        for position, each in enumerate(spec.devices)
    ]


def _first_resources(spec: DeviceSpec) -> Collection[str]:
    """Return the resources of the first MIG profiles, up to MAX_PROFILES: each has a column of all cards."""
    instances = (instance for each in spec.devices if each.mig for instance in each.mig.instances)
    return dict.fromkeys(itertools.islice(dict.fromkeys(map(_resource_of, instances)), MAX_PROFILES))


def _surplus_resources(device: DeviceInfo, listed: Collection[str]) -> Iterator[str]:
    for position, instance in enumerate(device.mig.instances if device.mig else ()):
        if _resource_of(instance) not in listed:
            yield (
                f"mig.instances[{position}].profile: {instance.profile} is one too many; "
                f"allowed are {MAX_PROFILES} different ones on a node"
            )


def _resource_of(instance: MigInstance) -> str:
    return instance.replica_resource or mig.resource(instance.profile)


def _mixture(spec: DeviceSpec) -> str:
    """Return why `nvidia.com/gpu` would stand for different instances or cards in MIG strategy single; empty if not."""
    gpus = [each for each in spec.devices if each.type == names.GPU]
    in_mig_mode = [each.mig for each in gpus if each.mig is not None and each.mig.enabled]
    profiles = sorted({instance.profile for each in in_mig_mode for instance in each.instances})
    if len(profiles) > 1:
        return f"migStrategy single, and instances of {' and '.join(profiles)}; allowed are those of one profile"
    if in_mig_mode and len(in_mig_mode) < len(gpus):
        return "migStrategy single, and other GPUs are not in MIG mode; allowed are all or none"
    return ""


def _problems_of(
    device: DeviceInfo,
    strategy: MigStrategy,
    ids: Mapping[tuple[str, str], int],
    minors: Collection[tuple[str, int]],
    mixture: str,
) -> Iterator[str]:
    device_type = device.type
    yield from _id_problems(device)
    if ids[device_type, device.id] > 1:
        yield f"id: {device.id} is used more than once among the {device_type} devices"
    for link in device.links:
        if (device_type, link.minor) not in minors or link.minor == device.minor:
            yield f"links: minor {link.minor} is not another {device_type} device of this node"
    if device.mig is not None and device.mig.enabled:
        yield from _mig_problems(device, ids)
        if mixture:
            yield f"mig: {mixture}"
    if device.replicas > 1 and _is_divided(device, strategy):
        yield f"replicas: {device.replicas} of a card in MIG mode; allowed is 1"
    if device.vf_groups:
        yield from _function_problems(device)
    if device.replicas > 1 and device_type != names.GPU:
        yield f"replicas: {device.replicas} of a device that is no GPU; allowed is 1"
    yield from _resource_problems(device_type, tuple(device.resources.items()), healthy=device.health)


def _id_problems(device: DeviceInfo) -> Iterator[str]:
    instances = enumerate(device.mig.instances if device.mig else ())
    named = {"id": device.id} | {f"mig.instances[{position}].id": each.id for position, each in instances}
    for where, name in named.items():
        if problem := device_ids.problem(device.type, name):
            yield f"{where}: {problem}"


def _mig_problems(device: DeviceInfo, ids: Mapping[tuple[str, str], int]) -> Iterator[str]:
    for position, instance in enumerate(device.mig.instances if device.mig else ()):
        if ids[device.type, instance.id] > 1:
            yield f"mig.instances[{position}].id: {instance.id} is used more than once among the {device.type} devices"
        if not mig.is_profile(instance.profile):
            yield f"mig.instances[{position}].profile: {instance.profile} is not of the form 1g.10gb or 1g.10gb+me"


def _function_problems(device: DeviceInfo) -> Iterator[str]:
    names_of = Counter(each.bus_id or str(each.minor) for group in device.vf_groups for each in group.vfs)
    for name, count in names_of.items():
        if count > 1:
            yield f"vfGroups: virtual function {name} is listed {count} times; allowed is once"


@sized_cache(ALIKE)
def _resource_problems(device_type: str, resources: Resources, *, healthy: bool) -> tuple[str, ...]:
    """Return the contradictions in a card's resources; cached, since most cards offer the same."""
    return tuple(_contradictions(device_type, resources, healthy=healthy))


def _contradictions(device_type: str, resources: Resources, *, healthy: bool) -> Iterator[str]:
    seen: dict[str, int] = {}
    for name, value in resources:
        try:
            amount = quantity.parse(value)
        except quantity.QuantityError as error:
            yield f"resources.{name}: {error}"
            return
        if amount < 0:
            yield f"resources.{name}: {value} is negative; allowed are quantities from 0"
        if seen.setdefault(allocation.short(name), amount) != amount:
            yield f"resources.{name}: {value} differs from the amount under the other prefix"
        if allocation.short(name) in (names.GPU_CORE, names.GPU_MEMORY_RATIO) and amount != 100:  # noqa: PLR2004
            yield f"resources.{name}: {value}; allowed is 100 for a card"
    if device_type == names.GPU and healthy and not seen.get(names.GPU_MEMORY):
        yield f"resources: a healthy GPU has no {names.PREFIX}{names.GPU_MEMORY}"
