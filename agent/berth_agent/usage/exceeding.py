"""Pods that use more memory of a card than their share. Pure functions, except for reading procfs."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from berth_agent.kubelet.admission.pods import Pod
from berth_agent.readings import ClaimedPart, Process
from berth_agent.usage import processes
from berth_api.allocation import Grant, short
from berth_api.device import MAX_DEVICES, DeviceInfo, DeviceSpec, ExceedingUse
from berth_api.names import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from berth_api.request import CARD
from berth_api.resources import quantity
from berth_api.values import keys

ALLOWANCE: Final = 2**30
"""Bytes above a share that do not count: the CUDA context of a process takes half of it on a large card."""


def exceeding(
    by_minor: Mapping[int, Iterable[Process]],
    pods: Iterable[Pod],
    spec: DeviceSpec,
    proc: Path,
    claimed: Iterable[ClaimedPart] = (),
) -> tuple[ExceedingUse, ...]:
    """Return the pods whose processes use more memory of a card than their share of it, and the allowance.

    `claimed` is what containers have by ResourceClaims.
    """
    by_claim: dict[str, dict[str, ClaimedPart]] = {}
    for of_pod in claimed:
        by_claim.setdefault(keys.join(of_pod.namespace, of_pod.pod), {})[of_pod.key] = of_pod
    cards = {card.id: card for card in spec.devices if card.type == GPU}
    used: dict[int, Mapping[str, int]] = {}
    uses = []
    for pod in pods:
        # The bytes of each card, by its minor, of which the pod has a part.
        shares: Counter[int] = Counter()
        for grant in pod.grants:
            card = cards.get(grant.visible)
            if card is not None and (part := share(grant, card)) is not None:
                shares[card.minor] += part
        for claimed_part in by_claim.get(pod.key, {}).values():
            card = cards.get(claimed_part.card)
            of_claim = claimed_share(claimed_part, card) if card is not None else None
            if card is not None and of_claim is not None and (part := share(of_claim, card)) is not None:
                shares[card.minor] += part
        for minor, limit in sorted(shares.items()):
            if minor not in used:
                used[minor] = processes.memory_by_pod(by_minor.get(minor, ()), proc)
            if (memory := used[minor].get(pod.uid, 0)) > limit + ALLOWANCE:
                uses.append(
                    ExceedingUse(
                        type=GPU,
                        minor=minor,
                        namespace=pod.namespace,
                        pod=pod.name,
                        pod_uid=pod.uid,
                        memory=processes.rounded(memory),
                        limit=quantity.format_bytes(limit),
                    )
                )
    return tuple(uses[:MAX_DEVICES])


def claimed_share(claimed: ClaimedPart, card: DeviceInfo) -> Grant | None:
    """Return a share of a card by claim, as an allocation would name it; None for what is no share."""
    if claimed.memory is None:
        return None
    whole = _memory(card)
    # At least 1: a ratio of 0 would not be a part.
    ratio = max(1, claimed.memory * CARD // whole) if whole else CARD
    amounts = ((GPU_CORE, claimed.cores), (GPU_MEMORY, claimed.memory), (GPU_MEMORY_RATIO, ratio))
    return Grant(type=GPU, minor=card.minor, id=card.id, amounts=tuple(amount for amount in amounts if amount[1]))


def _memory(card: DeviceInfo) -> int:
    """Return the bytes of a card; 0 if unknown."""
    return quantity.parse({short(name): amount for name, amount in card.resources.items()}.get(GPU_MEMORY, 0))


def share(grant: Grant, card: DeviceInfo) -> int | None:
    """Return the bytes of a card that a grant is; None for all of it, a subdevice, and of a card of unknown memory."""
    amounts = dict(grant.amounts)
    whole = _memory(card)
    ratio = amounts.get(GPU_MEMORY_RATIO, CARD)
    limit = amounts.get(GPU_MEMORY, whole * ratio // CARD)
    return limit if not grant.is_subdevice and ratio < CARD and 0 < limit < whole else None
