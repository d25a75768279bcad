"""Audit whether the Device of a node says what is true; it shares no code with the agent.

What is true is what the simulated library has, what pods have by name, and what claims have. A Device does not list
instances that come and go with claims: it shows their cards as whole, and `status.claimed` names the instances.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from devcluster import waiting
from tests.nvml.fixture import NvmlFixture, mig_uuid

QUIET: Final = 30.0
"""Seconds after the last fault and the last change by which a Device must say what is true."""
OTHERS: Final = "instances of others"
"""Stands for the card in the names of their devices, which name no card."""

Facts = Mapping[tuple[str, str], object]
"""(UUID of a card, what of it) -> the value."""
Claimed = Iterable[tuple[str, str]]
"""(name of a claim, name of its device in the driver's pool) of each device that pods have by claim."""


def lies(device: Mapping[str, Any], real: Facts) -> list[str]:
    """Return in what a Device differs from what is true; `device` is empty if there is none."""
    if not device:
        return ["there is no Device"]
    shown = _shown(device["spec"]["devices"], device.get("status", {}))
    return [
        f"{card}: the Device says {what} {shown.get((card, what))}, and it is {real.get((card, what))}"
        for card, what in sorted({*shown, *real})
        if shown.get((card, what)) != real.get((card, what))
    ]


def facts(
    machine: NvmlFixture, *, on_demand: Collection[str] = (), held: Mapping[str, Collection[str]], claimed: Claimed
) -> Facts:
    """Return what is true.

    Args:
        machine: the cards.
        on_demand: UUIDs of the cards whose instances come and go with claims.
        held: UUIDs of the cards that each pod has by name.
        claimed: what pods have by claim.
    """
    found: dict[tuple[str, str], object] = {}
    places = []
    for index, gpu in enumerate(machine.gpus):
        made, is_whole = machine.gpu_instances(index), gpu.uuid in on_demand
        profiles = {profile.id: profile.name for profile in gpu.profiles}
        instances = sorted(
            (mig_uuid(gpu.uuid, one.id, compute), profiles[one.profile], one.id, compute)
            for one in made
            for compute in one.computes
        )
        found[gpu.uuid, "minor"] = gpu.minor
        found[gpu.uuid, "health"] = not (gpu.lost or gpu.remapped_failure)
        if gpu.mig_capable:
            found[gpu.uuid, "mig"] = (False, []) if is_whole else (machine.mig_enabled(index), instances)
        if is_whole:
            # One without a compute instance is no pod's.
            places += [(gpu.uuid, f"{one.profile}-{one.start}" if one.computes else f"{one}") for one in made]
    pods = [(card, pod) for pod, uuids in held.items() for card in uuids]
    by_claim = _of_claims(claimed, [gpu.uuid for gpu in machine.gpus])
    return found | _lists("held", pods) | _lists("claimed", by_claim) | _lists("instances", places)


def lasting(find: Callable[[], list[str]]) -> list[str]:
    """Return what is still found when nothing has happened for `QUIET` seconds."""
    found: list[str] = []

    def is_over() -> bool:
        found[:] = find()
        return not found

    waiting.within(is_over, seconds=QUIET)
    return found


def _shown(cards: Iterable[Mapping[str, Any]], status: Mapping[str, Any]) -> Facts:
    found: dict[tuple[str, str], object] = {}
    for card in cards:
        uuid, mig = card["id"], card.get("mig")
        found[uuid, "minor"], found[uuid, "health"] = card["minor"], card["health"]
        if mig:
            instances = [
                (one["id"], one["profile"], one["gpuInstance"], one["computeInstance"]) for one in mig["instances"]
            ]
            found[uuid, "mig"] = (mig["enabled"], sorted(instances))
    uuids = [uuid for uuid, what in found if what == "minor"]
    pods = [(one["id"], container["pod"]) for container in status.get("held", ()) for one in container["devices"]]
    by_claim = _of_claims([(one["claim"], one["device"]) for one in status.get("claimed", ())], uuids)
    places = [(card, place) for card, name in by_claim if (place := place_of(name.split()[-1], card))]
    return found | _lists("held", pods) | _lists("claimed", by_claim) | _lists("instances", places)


def place_of(device: str, card: str) -> str:
    """Return `19-4`, the profile's id and the first memory slice, for an instance on demand; empty for others."""
    return "-".join(device.removeprefix(card.lower()).split("-")[-2:]) if device.startswith(f"{card.lower()}-") else ""


def _of_claims(claimed: Claimed, cards: Sequence[str]) -> list[tuple[str, str]]:
    return [
        (next((card for card in cards if device.startswith(card.lower())), OTHERS), f"{claim} {device}")
        for claim, device in claimed
    ]


def _lists(what: str, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], object]:
    found = defaultdict[tuple[str, str], set[str]](set)
    for card, value in pairs:
        found[card, what].add(value)
    return {key: sorted(values) for key, values in found.items()}
