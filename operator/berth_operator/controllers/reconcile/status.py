"""The status of a Device: conditions, and the held and free amounts of each card."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from berth_api import allocation, names
from berth_api.allocation import Grant, held, mig
from berth_api.device import MAX_DEVICES, MAX_HOLDERS, Condition, DeviceStatus, DeviceUse, Holder
from berth_api.names import GPU, GPU_MEMORY
from berth_api.request import CARD, Kind
from berth_api.values import keys
from berth_operator.controllers.reconcile import sums
from berth_operator.controllers.reconcile.refusals import NOTHING_REFUSED, Refusals
from berth_operator.core.advice.card_amounts import free_amounts
from berth_operator.core.fleet.claim_charges import is_of_claim
from berth_operator.core.fleet.kubelet_allocation import FOREIGN
from berth_operator.core.fleet.nodes.cards import card_id, is_counted, is_listed, is_unlocated, shown_minors
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.inventory import CardInfo
from berth_operator.state.cache.views import NodeView

_Key = tuple[str, int]
"""(type, minor) of a card."""
OWNED: Final = (names.READY, names.VALID, names.ACCOUNTED, names.GIVEN_BY_NAME)
"""The conditions that the operator writes, and `ResourcesWritten.*`; the agent writes others."""
BY_AGENT: Final[Mapping[str, Any]] = {
    "held": [],
    "boot_id": "",
    "withheld": [],
    "foreign": [],
    "claimed": [],
    "exceeding": [],
    "unheld": [],
}
"""The fields that the agent writes, with their empty values."""
MAX_TEXT: Final = 1024
MAX_TIME: Final = 40
MAX_ID: Final = 160


def wanted(view: NodeView, now: Callable[[], str], refusals: Refusals = NOTHING_REFUSED) -> DeviceStatus:
    """Return the status that the Device should show; `now` returns the time for conditions that change."""
    assert view.device is not None  # noqa: S101 - the caller looked
    gpus = [card for card in view.device.inventory.cards if card.type == GPU]
    blocked = _blocked(view.device.inventory.cards, view.charges)
    return DeviceStatus(
        observed_generation=view.device.generation,
        gpus=len(gpus),
        healthy=sum(map(_is_usable, gpus)),
        blocked=sum(_is_usable(card) and (card.type, card.minor) in blocked for card in gpus),
        allocated=_allocated(view),
        model=", ".join(dict.fromkeys(card.model for card in gpus if card.model))[:MAX_TEXT],
        memory=_memory(gpus),
        others=_others(view),
        devices=_uses(view, blocked),
        conditions=[_condition(view, now, each) for each in _verdicts(view, refusals)],
    )


def shown(view: NodeView) -> DeviceStatus:
    """Return the operator's part of the status that the Device shows now."""
    assert view.device is not None  # noqa: S101 - the caller looked
    status = view.device.status
    mine = sorted((each for each in status.conditions if _is_owned(each.type)), key=lambda each: _order(each.type))
    return status.model_copy(update={"conditions": mine, **BY_AGENT})


def _is_owned(condition_type: str) -> bool:
    return condition_type in OWNED or condition_type.startswith(f"{names.RESOURCES_WRITTEN}.")


def _order(condition_type: str) -> tuple[int, str]:
    return (OWNED.index(condition_type) if condition_type in OWNED else len(OWNED)), condition_type


def body(name: str, status: DeviceStatus) -> dict[str, Any]:
    """Return the Device for a server-side apply."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Device",
        "metadata": {"name": name},
        "status": status.model_dump(by_alias=True, exclude_none=True, exclude=set(BY_AGENT)),
    }


def _memory(gpus: Iterable[CardInfo]) -> str:
    """Return the memory of each GPU, every size once."""
    sizes = (dict(card.amounts).get(GPU_MEMORY, 0) for card in gpus)
    return ", ".join(dict.fromkeys(allocation.text(GPU_MEMORY, each) for each in sizes if each))[:MAX_TEXT]


def _is_usable(card: CardInfo) -> bool:
    """Return whether the card, or instances of it, can be allocated if they are free."""
    return card.healthy or bool(card.instances)


def _blocked(cards: Iterable[CardInfo], charges: Sequence[Charge]) -> AbstractSet[_Key]:
    """Return the cards of which nothing is allocated because a pod may hold any card, or MIG device, of the node."""
    unknown = {device_type for charge in charges for device_type in charge.unknown}
    unlocated = any(is_unlocated(grant) for charge in charges for grant in charge.grants)
    return {(card.type, card.minor) for card in cards if card.type in unknown or (unlocated and card.instances)}


def _allocated(view: NodeView) -> str:
    """Return the number of allocated GPUs, to hundredths: parts of cards by `held.hundredths`."""
    assert view.device is not None  # noqa: S101 - the caller looked
    totals = {card.minor: dict(card.amounts) for card in view.device.inventory.cards if card.type == GPU}
    parts: defaultdict[int, list[dict[str, int]]] = defaultdict(list)
    for charge in view.charges:
        for grant in charge.grants:
            if grant.type == GPU:
                parts[grant.minor].append(dict(grant.amounts))
    allocated = sum(held.hundredths(each, totals.get(minor, {})) for minor, each in parts.items())
    return f"{round(allocated) / CARD:g}"


def _others(view: NodeView) -> str:
    """Return `type held/total` for each type except GPUs; a device counts as held if a pod holds any part of it."""
    assert view.device is not None  # noqa: S101 - the caller looked
    there = Counter(card.type for card in view.device.inventory.cards if card.type != GPU)
    in_use = Counter(
        device_type for device_type, _ in {(grant.type, grant.minor) for each in view.charges for grant in each.grants}
    )
    return ", ".join(f"{device_type} {in_use[device_type]}/{count}" for device_type, count in sorted(there.items()))[
        :MAX_TEXT
    ]


def _uses(view: NodeView, blocked: AbstractSet[_Key]) -> list[DeviceUse]:
    assert view.device is not None  # noqa: S101 - the caller looked
    cards = {(card.type, card.minor): card for card in view.device.inventory.cards}
    is_served = view.alive and view.node is not None
    open_ = {key for key, card in cards.items() if is_served and _is_usable(card) and key not in blocked}
    holders: dict[_Key, list[tuple[Charge, Grant]]] = {}
    shown = shown_minors(grant for charge in view.charges for grant in charge.grants)
    withheld = {(GPU, minor) for minor in view.device.agent_report.withheld}
    for charge in sorted(view.charges, key=lambda each: each.pod):
        for grant in charge.grants:
            holders.setdefault((grant.type, shown[grant.type, grant.minor]), []).append((charge, grant))
    # Existing cards first: annotations may name more cards than `MAX_DEVICES`.
    keys = sorted({*cards, *holders}, key=lambda key: (key not in cards, key))[:MAX_DEVICES]
    return [
        _use(
            key,
            cards.get(key),
            holders.get(key, []),
            is_open=key in open_,
            is_blocked=key in blocked,
            withheld=key in withheld,
        )
        for key in keys
    ]


def _totals(card: CardInfo) -> dict[str, int]:
    """Return the allocatable amounts of a card; in MIG mode only its instances."""
    amounts = dict(card.amounts)
    return {name: amount for name, amount in amounts.items() if mig.is_resource(name)} if card.instances else amounts


def _use(
    key: _Key,
    card: CardInfo | None,
    held_parts: list[tuple[Charge, Grant]],
    *,
    is_open: bool,
    is_blocked: bool,
    withheld: bool,
) -> DeviceUse:
    device_type, minor = key
    counted, taken = _shown_amounts(device_type, _totals(card) if card else {}), Counter[str]()
    hundredths = held.hundredths([dict(grant.amounts) for _, grant in held_parts], dict(card.amounts) if card else {})
    # The agent itself reports what these processes use, in `foreign` and `unheld`.
    pods = [(charge, grant) for charge, grant in held_parts if charge.pod != FOREIGN]
    for _, grant in held_parts:
        taken.update(dict(grant.amounts))
    left = free_amounts(counted, taken, len(held_parts), withheld=withheld)
    free = {name: int(amount) if is_open else 0 for name, amount in left.items()}
    return DeviceUse.model_validate(
        {
            "type": device_type,
            "minor": minor,
            "id": next((card_id(grant) for _, grant in held_parts if not is_listed(grant)), None),
            "free": _resources(free),
            "held": round(hundredths) or None,
            "blocked": is_blocked or None,
            "holders": [_holder(charge, grant) for charge, grant in pods[:MAX_HOLDERS]],
            "barred": card.bar.detail[:MAX_TEXT] if card and card.bar else None,
        }
    )


def _holder(charge: Charge, grant: Grant) -> Holder:
    namespace, name = keys.split(charge.pod)
    known = _shown_amounts(grant.type, dict(grant.amounts))
    subdevice_id = grant.id[:MAX_ID] if grant.is_subdevice else None
    uid = charge.uid.rpartition("/")[2]
    return Holder(namespace=namespace, name=name, uid=uid, id=subdevice_id, resources=_resources(known))


def _shown_amounts(device_type: str, amounts: dict[str, int]) -> dict[str, int]:
    """Return the amounts that are counted on cards of a type and have a resource name."""
    return {
        name: amount
        for name, amount in amounts.items()
        if is_counted(device_type, name) and name != allocation.FUNCTIONS
    }


def _resources(amounts: dict[str, int]) -> dict[str, str | int]:
    return {
        allocation.long(name, names.PREFIX): allocation.text(name, amount) for name, amount in sorted(amounts.items())
    }


# --- conditions -----------------------------------------------------------------------------------------------

_Verdict = tuple[str, str, str, str]
"""type, status, reason, message"""


def _verdicts(view: NodeView, refusals: Refusals) -> Iterator[_Verdict]:
    """Yield the conditions, in the order of `shown`."""
    yield from (_ready(view), _valid(view), _accounted(view))
    if (verdict := _given_by_name(view)) is not None:
        yield verdict
    for kind in sorted(sums.plugin_kinds(view), key=lambda kind: kind.name):
        if (verdict := _written(view, kind, refusals.of(kind))) is not None:
            yield verdict


def _written(view: NodeView, kind: Kind, refusal: tuple[str, str] | None) -> _Verdict | None:
    """Return whether the Node shows a plug-in's resources; None if that is neither so nor refused."""
    condition_type = f"{names.RESOURCES_WRITTEN}.{kind.name}"
    cards = view.device.inventory.cards if view.device else ()
    if view.node is None or all(card.type != kind.name for card in cards):
        return None
    if sums.status_patch(view, kind.resources) is None:
        return condition_type, "True", "Written", ""
    if refusal is not None:
        return condition_type, "False", *refusal
    # A new leader has not tried yet: the Device keeps what it shows.
    before = _shown(view, condition_type)
    return None if before is None else (condition_type, before.status, before.reason, before.message)


def _ready(view: NodeView) -> _Verdict:
    if not view.alive:
        return (
            names.READY,
            "Unknown",
            "AgentNotHeard",
            f"{_renewal(view)}; its devices are not allocated",
        )
    if view.node is None:
        return names.READY, "False", "NodeMissing", "there is no Node of this name, or it is not selected"
    if (driver := _shown(view, names.DRIVER_LOADED)) is not None and driver.status == "False":
        return names.READY, "False", driver.reason, driver.message
    return names.READY, "True", "AgentHeard", "the node's Lease is renewed"


def is_ready(view: NodeView) -> bool:
    """Return whether the Device of a node that has one is ready."""
    return _ready(view)[1] == "True"


def _renewal(view: NodeView) -> str:
    """Return since when the agent has been silent: a time, because each new text is written."""
    # An agent that is not heard does not change the time.
    return f"the node's Lease is not renewed{f' since {view.last_renewal[:MAX_TIME]}' if view.last_renewal else ''}"


def _shown(view: NodeView, condition_type: str) -> Condition | None:
    conditions = view.device.conditions if view.device else ()
    return next((each for each in conditions if each.type == condition_type), None)


def _valid(view: NodeView) -> _Verdict:
    problems = view.device.problems if view.device else ()
    if not problems:
        return names.VALID, "True", "Consistent", ""
    return names.VALID, "False", "Contradiction", "; ".join(problems)[:MAX_TEXT]


def _given_by_name(view: NodeView) -> _Verdict | None:
    """Return which cards are not given by name, and why; None if all are."""
    cards: dict[str, list[str]] = {}
    for card in sorted(view.device.inventory.cards if view.device else (), key=lambda each: (each.type, each.minor)):
        if card.bar is not None:
            cards.setdefault(card.bar.detail, []).append(f"{card.type} {card.minor}")
    if not cards:
        return None
    message = "; ".join(f"{', '.join(each)}: {detail}" for detail, each in cards.items())
    return names.GIVEN_BY_NAME, "False", "CardsWithheld", message[:MAX_TEXT]


def _accounted(view: NodeView) -> _Verdict:
    found = [each for each in (_unknown(view, of_claims=True), _unknown(view, of_claims=False)) if each is not None]
    if unlocated := _unlocated(view):
        found.append(("ParentUnknown", unlocated))
    if not found:
        return names.ACCOUNTED, "True", "AllKnown", ""
    # All of them: each is about devices of other types.
    return names.ACCOUNTED, "False", found[0][0], "; ".join(message for _, message in found)[:MAX_TEXT]


def _unknown(view: NodeView, *, of_claims: bool) -> tuple[str, str] | None:
    """Return the reason and message if the devices of claims, or of pods, are not known."""
    charges = [each for each in view.charges if each.unknown and is_of_claim(each) == of_claims]
    if not charges:
        return None
    types = " or ".join(sorted({device_type for each in charges for device_type in each.unknown}))
    why = (
        "the devices of these ResourceClaims are in no ResourceSlice, or have no attribute by which the cards are known"
        if of_claims
        else "the allocation of these pods is missing, cannot be read, names too few devices or was not written by a "
        "trusted scheduler"
    )
    pods = ", ".join(sorted(each.pod for each in charges))
    return "ClaimUnknown" if of_claims else "AllocationUnknown", f"no {types} is allocated: {why}: {pods}"


def _unlocated(view: NodeView) -> str:
    """Return the message if the card of MIG instances is not known; else an empty text."""
    grants = ((charge.pod, grant) for charge in view.charges for grant in charge.grants)
    pods = sorted(f"{pod} ({grant.id})" for pod, grant in grants if is_unlocated(grant))
    message = (
        "no MIG device is allocated: these pods hold MIG devices that the Device no longer lists, and their "
        "allocations do not name the GPU (delete the pods to end this): "
    )
    return message + ", ".join(pods) if pods else ""


def _condition(view: NodeView, now: Callable[[], str], verdict: _Verdict) -> Condition:
    condition_type, status, reason, message = verdict
    before = _shown(view, condition_type)
    since = before.last_transition_time if before is not None and before.status == status else now()
    return Condition.model_validate(
        {"type": condition_type, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}
    )
