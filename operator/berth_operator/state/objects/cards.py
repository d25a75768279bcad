"""The cards of a Device, read from its spec and checked for contradictions."""

import itertools
import operator
import sys
from collections import Counter
from typing import Final

from berth_api import allocation, names
from berth_api.allocation import device_ids, mig
from berth_api.device import DeviceInfo, DeviceSpec, MigInstance, MigStrategy, Topology
from berth_api.request import NVIDIA_GPU
from berth_api.resources import quantity
from berth_api.values import interning
from berth_api.values.caching import sized_cache
from berth_api.values.selectors import Labels
from berth_operator.core.values.inventory import NO_FACTS, CardFacts, CardInfo, Functions

Resources = tuple[tuple[str, str | int], ...]
Amounts = tuple[tuple[str, int], ...]

ALIKE: Final = 2**22
"""Bytes of each cache of parsed values: a fleet has few different cards."""
MAX_CACHED_LINKS: Final = 16
"""Maximum number of a card's links for which equal links are kept once."""
MAX_CARDS: Final = 64
"""Cards of one type on a node: the node with the most sets the width of the columns of all nodes."""
MAX_PROFILES: Final = 16
"""MIG profiles on a node; a card has ten at most."""
MAX_BANDWIDTH: Final = 10**15
"""Bytes per second; a hundred times as much as any GPU has."""
_NOWHERE: Final = Topology()
_LINK: Final = operator.attrgetter("minor", "type", "count")


def of_spec(spec: DeviceSpec) -> tuple[tuple[CardInfo, ...], tuple[str, ...]]:
    """Return the cards, and the contradictions, each with its field; cards with contradictions are not allocated.

    Of each type, the MAX_CARDS cards with the lowest minors are read.
    """
    surplus: list[str] = []
    for name, count in Counter(device.type for device in spec.devices).items():
        if count > MAX_CARDS:
            surplus.append(
                f"spec.devices: {count} cards of type {name}; {MAX_CARDS} are read, those with the lowest minors"
            )
    if surplus:
        ranked = sorted(spec.devices, key=lambda device: (device.type, device.minor))
        by_type = itertools.groupby(ranked, key=lambda device: device.type)
        kept = {id(device) for _, devices in by_type for device in itertools.islice(devices, MAX_CARDS)}
        spec = spec.model_copy(update={"devices": [device for device in spec.devices if id(device) in kept]})
    problems = _problems(spec)
    usable = zip(spec.devices, problems, strict=True)
    cards = tuple(_card(device, usable=not wrong, strategy=spec.mig_strategy) for device, wrong in usable)
    return cards, (*surplus, *itertools.chain.from_iterable(problems))


def _card(device: DeviceInfo, *, usable: bool, strategy: MigStrategy) -> CardInfo:
    in_mig_mode = _is_divided(device, strategy)
    # (id, resource) of each allocatable MIG instance, or of its replicas: one of each instance first.
    instances: tuple[tuple[str, str], ...] = ()
    # Resource -> bytes of the smallest instance, or of its replicas.
    smallest: dict[str, int] = {}
    if device.mig is not None and in_mig_mode and usable and device.health:
        with_names = ((instance, _resource(instance, strategy)) for instance in device.mig.instances)
        offered = [(instance, sys.intern(name)) for instance, name in with_names if name]
        numbers = range(max((instance.replicas for instance, _ in offered), default=0))
        instances = tuple(
            (instance.id if instance.replicas == 1 else f"{instance.id}{allocation.REPLICA_MARK}{number}", name)
            for number in numbers
            for instance, name in offered
            if number < instance.replicas
        )
        for instance, name in offered:
            memory = quantity.parse(instance.memory) // instance.replicas
            smallest[name] = min(smallest.get(name, memory), memory)
    subdevices = Counter(resource for _, resource in instances)
    if device.replicas > 1:
        subdevices[allocation.REPLICAS] = device.replicas
    if device.vf_groups:
        subdevices[allocation.FUNCTIONS] = sum(len(group.vfs) for group in device.vf_groups)
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
        failed=not device.health and usable and not in_mig_mode,
        amounts=(*_amounts(device.type, tuple(device.resources.items())), *sorted(subdevices.items()))
        if usable
        else (),
        numa=topology.node_id,
        socket=topology.socket_id,
        address=topology.bus_id or ("" if device.type == names.GPU else device.id),
        pcie=sys.intern(topology.pcie_id),
        module=device.module_id,
        labels=_labels(tuple(device.labels.items()), device.model, topology.node_id, topology.pcie_id),
        # To compare more links than any real machine has would take longer than to keep them.
        links=interning.intern(links) if len(links) <= MAX_CACHED_LINKS else links,
        functions=functions,
        instances=instances,
        instance_memory=tuple(sorted(smallest.items())),
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
def _bandwidth(value: str | int) -> int:
    """Return a memory bandwidth; 0 if the text is no quantity, because it only ranks nodes."""
    try:
        return min(max(quantity.parse(value), 0), MAX_BANDWIDTH)
    except quantity.QuantityError:
        return 0


def _is_divided(device: DeviceInfo, strategy: MigStrategy) -> bool:
    return strategy != "none" and device.mig is not None and device.mig.enabled


def _resource(instance: MigInstance, strategy: MigStrategy) -> str:
    """Return the resource that pods request for an instance or its replicas; empty if no device plugin offers it."""
    if strategy == "single":
        # Its name is `nvidia.com/gpu`; where it is renamed to `nvidia.com/gpu.shared`, it is not offered.
        return mig.resource(instance.profile) if instance.replica_resource in ("", NVIDIA_GPU) else ""
    return "" if mig.is_part(instance.profile) else instance.replica_resource or mig.resource(instance.profile)


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
    minors = {(device.type, device.minor) for device in spec.devices}
    # Each resource of a MIG profile has a column of all cards.
    resources = dict.fromkeys(_resource_of(instance) for _, instance in instances)
    counted = dict.fromkeys(itertools.islice(resources, MAX_PROFILES))
    # With strategy single, `nvidia.com/gpu` must not stand for different instances or cards.
    mixture = ""
    if spec.mig_strategy == "single":
        gpus = [device for device in spec.devices if device.type == names.GPU]
        in_mig_mode = [gpu.mig for gpu in gpus if gpu.mig is not None and gpu.mig.enabled]
        profiles = sorted({instance.profile for state in in_mig_mode for instance in state.instances})
        if len(profiles) > 1:
            mixture = f"migStrategy single, and instances of {' and '.join(profiles)}; allowed are those of one profile"
        elif in_mig_mode and len(in_mig_mode) < len(gpus):
            mixture = "migStrategy single, and other GPUs are not in MIG mode; allowed are all or none"

    found = []
    for position, device in enumerate(spec.devices):
        device_type, own = device.type, device.mig.instances if device.mig else []
        problems: list[str] = []
        named = {"id": device.id} | {f"mig.instances[{index}].id": instance.id for index, instance in enumerate(own)}
        for where, name in named.items():
            if problem := device_ids.problem(device_type, name):
                problems.append(f"{where}: {problem}")
        if ids[device_type, device.id] > 1:
            problems.append(f"id: {device.id} is used more than once among the {device_type} devices")
        problems += (
            f"links: minor {link.minor} is not another {device_type} device of this node"
            for link in device.links
            if (device_type, link.minor) not in minors or link.minor == device.minor
        )
        if device.mig is not None and device.mig.enabled:
            for index, instance in enumerate(own):
                where = f"mig.instances[{index}]"
                if ids[device_type, instance.id] > 1:
                    problems.append(f"{where}.id: {instance.id} is used more than once among the {device_type} devices")
                if not mig.is_profile(instance.profile):
                    problems.append(f"{where}.profile: {instance.profile} is not of the form 1g.10gb or 1g.10gb+me")
            if mixture:
                problems.append(f"mig: {mixture}")
        if device.replicas > 1 and _is_divided(device, spec.mig_strategy):
            problems.append(f"replicas: {device.replicas} of a card in MIG mode; allowed is 1")
        functions = Counter(vf.bus_id or str(vf.minor) for group in device.vf_groups for vf in group.vfs)
        for function, count in functions.items():
            if count > 1:
                problems.append(f"vfGroups: virtual function {function} is listed {count} times; allowed is once")
        if device.replicas > 1 and device_type != names.GPU:
            problems.append(f"replicas: {device.replicas} of a device that is no GPU; allowed is 1")
        problems += _resource_problems(device_type, tuple(device.resources.items()), healthy=device.health)
        for index, instance in enumerate(own):
            if _resource_of(instance) not in counted:
                problems.append(
                    f"mig.instances[{index}].profile: {instance.profile} is one too many; "
                    f"allowed are {MAX_PROFILES} different ones on a node"
                )
        found.append(tuple(f"spec.devices[{position}].{problem}" for problem in problems))
    return found


def _resource_of(instance: MigInstance) -> str:
    return instance.replica_resource or mig.resource(instance.profile)


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
