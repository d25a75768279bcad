"""The node's offers to kubelet: the resources, and the units of each resource.

A unit is what kubelet counts as one: a whole card, a MIG instance, or a replica `<id>::<n>` of a time-sliced card.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from berth_agent.configuration.options import VENDOR, Options
from berth_agent.vendor import MisconfiguredError, Offer, Offers, Unit
from berth_api.allocation import REPLICA_MARK, device_ids, mig
from berth_api.device import DeviceInfo, DeviceSpec, MigInstance

GPU: Final = f"{VENDOR}/gpu"
Shared = TypeVar("Shared", DeviceInfo, MigInstance)


class LayoutError(MisconfiguredError):
    """Cards in MIG mode are not divided as the strategy needs it; nothing can be offered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """A card or an instance."""

    resource: str
    id: str
    profile: str = ""
    """The profile of an instance that is offered by profile; empty otherwise."""


def device_of(unit: str) -> str:
    """Return the id of the card or instance that a unit is, or is a replica of."""
    return unit.partition(REPLICA_MARK)[0]


def offers(spec: DeviceSpec, options: Options, *, withheld: frozenset[str] = frozenset()) -> Offers:
    """Return what a node offers. Units of withheld cards are unhealthy, like units of unhealthy cards.

    Raises:
        LayoutError: the cards contradict the MIG strategy `single`.
    """
    gpus = [device for device in spec.devices if device.type == "gpu"]
    strategy = options.flags.mig_strategy
    if strategy == "single":
        _check_divided_alike(gpus)
    by_resource: dict[str, list[Unit]] = {}
    warnings = []
    for gpu in gpus:
        if strategy == "mixed" and is_divided(gpu) and not instances(gpu):
            warnings.append(f"device {gpu.minor} has no MIG devices configured")
        for device in _devices(gpu, strategy):
            if problem := device_ids.problem("gpu", device.id):
                warnings.append(f"device {gpu.minor}: id {problem}; it is not offered")
                continue
            if device.profile and (mig.is_part(device.profile) or not mig.is_profile(device.profile)):
                warnings.append(f"MIG profile '{device.profile}' does not match any resource patterns")
                continue
            healthy = gpu.health and gpu.id not in withheld
            numa = gpu.topology.node_id if gpu.topology else -1
            count = _replicas(device, options)
            ids = [f"{device.id}{REPLICA_MARK}{number}" for number in range(count)] if count > 1 else [device.id]
            by_resource.setdefault(_named(device, options), []).extend(
                Unit(id=unit_id, minor=gpu.minor, healthy=healthy, numa=numa) for unit_id in ids
            )
    by_name = tuple(Offer(resource=name, units=tuple(units)) for name, units in by_resource.items())
    return Offers(offers=by_name, warnings=tuple(warnings))


def shown(spec: DeviceSpec, options: Options) -> DeviceSpec:
    """Return the spec with the MIG strategy and the replicas with which its cards are offered."""
    strategy = options.flags.mig_strategy
    shown_devices = []
    for device in spec.devices:
        shown_device = device
        if device.type == "gpu":
            offered = list(_devices(device, strategy))
            if strategy == "none" or device.mig is None or not device.mig.enabled:
                shown_device = _with_replicas(device, offered[0], options)
            else:
                instances = [
                    _with_replicas(instance, unit, options)
                    for instance, unit in zip(device.mig.instances, offered, strict=True)
                ]
                mig_state = device.mig.model_copy(update={"instances": instances})
                shown_device = device.model_copy(update={"mig": mig_state})
        shown_devices.append(shown_device)
    update: dict[str, object] = {"mig_strategy": strategy, "devices": shown_devices}
    if options.sharing.one_at_most:
        update["replica_choice"] = "one"
    return spec.model_copy(update=update)


def is_divided(gpu: DeviceInfo) -> bool:
    """Return whether a card is in MIG mode."""
    return gpu.mig is not None and gpu.mig.enabled


def instances(gpu: DeviceInfo) -> Sequence[str]:
    """Return the ids of a card's MIG instances, in NVML's order."""
    return [instance.id for instance in gpu.mig.instances] if gpu.mig is not None and gpu.mig.enabled else []


def indices(spec: DeviceSpec) -> dict[str, str]:
    """Return NVML's index of each card, `3`, and of each instance, `3:0`. NVML counts cards by their PCI addresses."""
    gpus = [device for device in spec.devices if device.type == "gpu"]
    numbers = {}
    for index, gpu in enumerate(sorted(gpus, key=lambda device: device.topology.bus_id if device.topology else "")):
        numbers[gpu.id] = str(index)
        numbers |= {instance: f"{index}:{number}" for number, instance in enumerate(instances(gpu))}
    return numbers


def names_of_others(spec: DeviceSpec) -> Iterator[tuple[str, str]]:
    """Yield the ids of other device plugins for cards and instances, each with the UUID that it may stand for.

    Google's plugin names a card by its device node, `nvidia0`, and an instance by its GPU instance, `nvidia0/gi1`.
    A bare number may be NVML's index or the minor.
    """
    numbers = indices(spec)
    for gpu in (device for device in spec.devices if device.type == "gpu"):
        yield f"nvidia{gpu.minor}", gpu.id
        yield str(gpu.minor), gpu.id
        yield numbers[gpu.id], gpu.id
        for instance in gpu.mig.instances if gpu.mig is not None else ():
            yield f"nvidia{gpu.minor}/gi{instance.gpu_instance}", instance.id


def _devices(gpu: DeviceInfo, strategy: str) -> Iterator[_Device]:
    """Return the whole card, or its instances."""
    if strategy == "none" or not is_divided(gpu) or gpu.mig is None:
        yield _Device(resource=GPU, id=gpu.id)
        return
    for instance in gpu.mig.instances:
        if strategy == "single":
            yield _Device(resource=GPU, id=instance.id)
        else:
            yield _Device(resource=mig.resource(instance.profile), id=instance.id, profile=instance.profile)


def _named(device: _Device, options: Options) -> str:
    return f"{device.resource}.shared" if options.sharing.rename and _replicas(device, options) > 1 else device.resource


def _replicas(device: _Device, options: Options) -> int:
    return options.sharing.replicas.get(device.resource, 1)


def _with_replicas(shared: Shared, device: _Device, options: Options) -> Shared:
    replicas = _replicas(device, options)
    if replicas == shared.replicas == 1:
        return shared
    name = _named(device, options) if replicas > 1 else ""
    return shared.model_copy(update={"replicas": replicas, "replica_resource": name})


def _check_divided_alike(gpus: Sequence[DeviceInfo]) -> None:
    """Check that all cards have instances of one profile, or none has any, as strategy `single` needs it."""
    divided = [gpu for gpu in gpus if is_divided(gpu)]
    for gpu in divided:
        if not instances(gpu):
            raise LayoutError(
                "invalid MIG configuration: at least one device with migEnabled=true was not configured correctly: "
                f"device {gpu.minor} has no MIG devices configured"
            )
    if len({instance.profile for gpu in divided if gpu.mig for instance in gpu.mig.instances}) > 1:
        raise LayoutError("invalid MIG configuration: more than one MIG device type present on node")
    if divided and len(divided) < len(gpus):
        raise LayoutError("all devices on the node must be configured with the same migEnabled value")
