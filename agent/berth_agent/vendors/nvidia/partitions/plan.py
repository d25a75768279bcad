"""What to do next for a partition, given what is recorded and what NVML shows. Pure functions.

The keeper does one step, looks at the card again, and calls `next_step` again. `Record` is on the disk before the next
step. So a crash between two steps changes nothing: the next step follows from the record and the card.

NVML has no place for the name of an owner. An instance is ours if it has the recorded id and the recorded placement.
Before there is an id, it is ours if it is at the recorded placement, has no compute instance, and the record says that
it is about to be made: this is recorded while the placement is free, immediately before the instance is made.
"""

from dataclasses import dataclass, replace

from berth_agent.vendor import Placement, RefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A GPU instance on a card."""

    id: int
    placement: Placement
    computes: tuple[int, ...] = ()
    """Ids of its compute instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCard:
    """A card, as NVML shows it."""

    mig: bool
    at_once: bool
    """Whether its MIG mode changes without a reset."""
    instances: tuple[Instance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What is recorded about a partition."""

    card: str
    """UUID."""
    placement: Placement
    boot: str
    """The boot in which it is made. Instances do not outlive a boot."""
    wanted: bool = True
    placing: bool = False
    """Whether the placement was free and our GPU instance is about to be made."""
    instance: int | None = None
    """Id of our GPU instance."""
    compute: int | None = None
    """Id of our compute instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Replace the record."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class TurnOn:
    """Turn MIG mode on."""


@dataclass(frozen=True, slots=True)
class CreateInstance:
    """Make the GPU instance at the recorded placement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateCompute:
    """Make the compute instance that has all of the GPU instance."""

    instance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyCompute:
    """Destroy our compute instance."""

    instance: int
    compute: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyInstance:
    """Destroy our GPU instance, which has no compute instance any more."""

    instance: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove the record: nothing of the partition is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The partition is complete, and recorded."""

    instance: int
    compute: int


Step = Record | TurnOn | CreateInstance | CreateCompute | DestroyCompute | DestroyInstance | Forget | Made


def after_boot(intent: Intent, *, boot: str) -> Record | Forget | None:
    """Return the first step for a partition of an earlier boot, or None if it is of the current one.

    Nothing of it is left. So its card does not matter, which may have been removed meanwhile.
    """
    if intent.boot == boot:
        return None
    fresh = replace(intent, boot=boot, placing=False, instance=None, compute=None)
    return Record(intent=fresh) if intent.wanted else Forget()


def next_step(intent: Intent, card: SeenCard) -> Step:
    """Return the next step for a partition of the current boot.

    Args:
        intent: what is recorded.
        card: its card.

    Raises:
        RefusedError: it cannot be made or destroyed, with the reason.
    """
    own = our_instance(intent, card)
    if own is not None and intent.instance is None:
        return Record(intent=replace(intent, instance=own.id))
    if own is not None and intent.compute is None and len(own.computes) == 1:
        return Record(intent=replace(intent, compute=own.computes[0]))
    if own is not None and (foreign := [number for number in own.computes if number != intent.compute]):
        raise RefusedError(f"GPU instance {own.id} has compute instances that Berth did not make: {foreign}")
    return _making(intent, card, own) if intent.wanted else _destroying(own)


def _making(intent: Intent, card: SeenCard, own: Instance | None) -> Step:
    if own is not None and own.computes:
        return Made(instance=own.id, compute=own.computes[0])
    if own is not None:
        lost = intent.compute is not None  # somebody destroyed it
        return Record(intent=replace(intent, compute=None)) if lost else CreateCompute(instance=own.id)
    if intent.instance is not None:
        return Record(intent=replace(intent, placing=False, instance=None, compute=None))
    if not card.mig:
        if not card.at_once:
            raise RefusedError("MIG mode is off; to turn it on, the card needs a reset: nvidia-smi -mig 1, then reboot")
        return TurnOn()
    for other in card.instances:
        if other.placement.overlaps(intent.placement):
            raise RefusedError(f"GPU instance {other.id} occupies memory slice {other.placement.start}")
    return CreateInstance() if intent.placing else Record(intent=replace(intent, placing=True))


def _destroying(own: Instance | None) -> Step:
    if own is None:
        return Forget()
    if own.computes:
        return DestroyCompute(instance=own.id, compute=own.computes[0])
    return DestroyInstance(instance=own.id)


def our_instance(intent: Intent, card: SeenCard) -> Instance | None:
    """Return the GPU instance that was made for this record in the current boot, if it is there."""
    for instance in card.instances:
        if instance.placement != intent.placement:
            continue
        if intent.instance is not None:
            return instance if instance.id == intent.instance else None
        if intent.placing and not instance.computes:
            return instance
    return None


def unfinished(intent: Intent, *, boot: str) -> bool:
    """Return whether a partition is rolled back when the process starts."""
    return not intent.wanted or intent.compute is None or intent.boot != boot
