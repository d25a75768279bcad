"""The status of a Device: conditions, and the held and free amounts of each card."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from berth_api import allocation, names
from berth_api.allocation import Grant, held, mig
from berth_api.device import MAX_DEVICES, MAX_HOLDERS, Condition, DeviceStatus, DeviceUse, Holder
from berth_api.names import GPU, GPU_MEMORY
from berth_api.objects import ownership
from berth_api.request import CARD
from berth_api.values import keys
from berth_operator.controllers.reconcile import sums
from berth_operator.controllers.reconcile.refusals import NOTHING_REFUSED, Refusals
from berth_operator.core.advice.card_amounts import free_amounts
from berth_operator.core.fleet.claim_charges import is_of_claim
from berth_operator.core.fleet.claims.store import MAX_SLICES
from berth_operator.core.fleet.kubelet_allocation import FOREIGN
from berth_operator.core.fleet.nodes.cards import card_id, is_counted, is_listed, is_unlocated, shown_minors
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.inventory import CardInfo
from berth_operator.state.cache.views import NodeView

_Key = tuple[str, int]
"""(type, minor) of a card."""
OWNED: Final = (names.READY, names.VALID, names.ACCOUNTED, names.GIVEN_BY_NAME, names.HELD_ONCE, names.BOUND_BY_BERTH)
"""The conditions that the operator writes, and `ResourcesWritten.*`; the agent writes others."""
BY_AGENT: Final[Mapping[str, Any]] = {
    "held": [],
    "boot_id": "",
    "withheld": [],
    "foreign": [],
    "claimed": [],
    "exceeding": [],
    "unheld": [],
    "uncertain": [],
    "running": [],
    "stopped": [],
}
"""The fields that the agent writes, with their empty values."""
MAX_TEXT: Final = 1024
MAX_TIME: Final = 40
MAX_ID: Final = 160


def wanted(view: NodeView, now: Callable[[], str], refusals: Refusals = NOTHING_REFUSED) -> DeviceStatus:
    """Return the status that the Device should show; `now` returns the time for conditions that change."""
    assert view.device is not None  # noqa: S101 - the caller looked
    cards = view.device.inventory.cards
    gpus = [card for card in cards if card.type == GPU]
    grants = [grant for charge in view.charges for grant in charge.grants]
    # Nothing of a card is allocated while a pod may hold any card, or MIG device, of the node.
    unknown = {device_type for charge in view.charges for device_type in charge.unknown}
    unlocated = any(map(is_unlocated, grants))
    blocked = {(card.type, card.minor) for card in cards if card.type in unknown or (unlocated and card.instances)}
    # Allocated GPUs are shown to hundredths: parts of cards by `held.hundredths`.
    totals = {card.minor: dict(card.amounts) for card in gpus}
    parts: defaultdict[int, list[dict[str, int]]] = defaultdict(list)
    for grant in grants:
        if grant.type == GPU:
            parts[grant.minor].append(dict(grant.amounts))
    allocated = sum(held.hundredths(of_card, totals.get(minor, {})) for minor, of_card in parts.items())
    # Other devices are shown as `type held/total`. A device counts as held if a pod holds any part of it.
    there = Counter(card.type for card in cards if card.type != GPU)
    in_use = Counter(device_type for device_type, _ in {(grant.type, grant.minor) for grant in grants})
    others = ", ".join(f"{device_type} {in_use[device_type]}/{count}" for device_type, count in sorted(there.items()))
    # Every size of memory once.
    sizes = dict.fromkeys(dict(card.amounts).get(GPU_MEMORY, 0) for card in gpus)
    return DeviceStatus(
        observed_generation=view.device.generation,
        gpus=len(gpus),
        healthy=sum(map(_is_usable, gpus)),
        blocked=sum(_is_usable(card) and (card.type, card.minor) in blocked for card in gpus),
        allocated=f"{round(allocated) / CARD:g}",
        model=", ".join(dict.fromkeys(card.model for card in gpus if card.model))[:MAX_TEXT],
        memory=", ".join(dict.fromkeys(allocation.text(GPU_MEMORY, size) for size in sizes if size))[:MAX_TEXT],
        others=others[:MAX_TEXT],
        devices=_uses(view, blocked),
        conditions=_conditions(view, now, refusals),
    )


def shown(view: NodeView) -> DeviceStatus:
    """Return the operator's part of the status that the Device shows now."""
    assert view.device is not None  # noqa: S101 - the caller looked
    status = view.device.status
    order = {owned: place for place, owned in enumerate(OWNED)}
    mine = [condition for condition in status.conditions if _is_ours(condition.type)]
    mine.sort(key=lambda condition: (order.get(condition.type, len(order)), condition.type))
    return status.model_copy(update={"conditions": mine, **BY_AGENT})


def body(name: str, status: DeviceStatus) -> dict[str, Any]:
    """Return the Device for a server-side apply."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Device",
        "metadata": {"name": name},
        "status": status.model_dump(by_alias=True, exclude_none=True, exclude=set(BY_AGENT)),
    }


def surplus(device: Mapping[str, Any], applied: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the merge patch that removes what others added to our part of a status that we applied; None for nothing.

    An apply removes no cards, amounts or conditions of other managers, such as a restored backup has.
    """
    ours = ownership.applied(device, names.OPERATOR).status
    status, removed = device.get("status") or {}, dict[str, Any]()
    if ownership.unowned(device, "status", ours, only=("devices",)) is not None:
        removed["devices"] = applied["status"]["devices"]
    types = {condition["type"] for condition in applied["status"]["conditions"]}
    conditions = status.get("conditions") or []
    kept = [condition for condition in conditions if condition["type"] in types or not _is_ours(condition["type"])]
    if kept != conditions:
        removed["conditions"] = kept
    return (
        {"metadata": {"resourceVersion": device["metadata"]["resourceVersion"]}, "status": removed} if removed else None
    )


def without_times(status: DeviceStatus) -> DeviceStatus:
    """Return a status without the times of its conditions, which change with each repetition."""
    conditions = [condition.model_copy(update={"last_transition_time": ""}) for condition in status.conditions]
    return status.model_copy(update={"conditions": conditions})


def _is_ours(condition_type: str) -> bool:
    return condition_type in OWNED or condition_type.startswith(f"{names.RESOURCES_WRITTEN}.")


def _is_usable(card: CardInfo) -> bool:
    """Return whether the card, or instances of it, can be allocated if they are free."""
    return card.healthy or bool(card.instances)


def _uses(view: NodeView, blocked: AbstractSet[_Key]) -> list[DeviceUse]:
    """Return the held and free amounts of each card, and its holders."""
    assert view.device is not None  # noqa: S101 - the caller looked
    cards = {(card.type, card.minor): card for card in view.device.inventory.cards}
    is_served = view.alive and view.node is not None and not view.device.foreign
    open_ = {key for key, card in cards.items() if is_served and _is_usable(card) and key not in blocked}
    held_parts: defaultdict[_Key, list[tuple[Charge, Grant]]] = defaultdict(list)
    shown = shown_minors(grant for charge in view.charges for grant in charge.grants)
    withheld = {(GPU, minor) for minor in view.device.agent_report.withheld}
    for charge in sorted(view.charges, key=lambda charge: charge.pod):
        for grant in charge.grants:
            held_parts[grant.type, shown[grant.type, grant.minor]].append((charge, grant))
    uses: list[DeviceUse] = []
    # Existing cards first: annotations may name more cards than `MAX_DEVICES`.
    for key in sorted({*cards, *held_parts}, key=lambda key: (key not in cards, key))[:MAX_DEVICES]:
        (device_type, minor), card, parts = key, cards.get(key), held_parts[key]
        amounts = dict(card.amounts) if card else {}
        hundredths = held.hundredths([dict(grant.amounts) for _, grant in parts], amounts)
        if card and card.instances:
            # In MIG mode only its instances are allocatable.
            amounts = {name: amount for name, amount in amounts.items() if mig.is_resource(name)}
        taken = Counter[str]()
        for _, grant in parts:
            taken.update(dict(grant.amounts))
        left = free_amounts(_shown_amounts(device_type, amounts), taken, len(parts), withheld=key in withheld)
        free = {name: int(amount) if key in open_ else 0 for name, amount in left.items()}
        # The agent itself reports what processes outside Kubernetes use, in `foreign` and `unheld`.
        pods = [(charge, grant) for charge, grant in parts if charge.pod != FOREIGN]
        holders: list[Holder] = []
        for charge, grant in pods[:MAX_HOLDERS]:
            namespace, name = keys.split(charge.pod)
            holders.append(
                Holder(
                    namespace=namespace,
                    name=name,
                    uid=charge.uid.rpartition("/")[2],
                    id=grant.id[:MAX_ID] if grant.is_subdevice else None,
                    resources=_resources(_shown_amounts(grant.type, dict(grant.amounts))),
                )
            )
        fields = {
            "type": device_type,
            "minor": minor,
            "id": next((card_id(grant) for _, grant in parts if not is_listed(grant)), None),
            "free": _resources(free),
            "held": round(hundredths) or None,
            "blocked": key in blocked or None,
            "holders": holders,
            "barred": card.bar.detail[:MAX_TEXT] if card and card.bar else None,
        }
        uses.append(DeviceUse.model_validate(fields))
    return uses


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


def _conditions(view: NodeView, now: Callable[[], str], refusals: Refusals) -> list[Condition]:
    """Return the conditions, in the order of `shown`."""
    assert view.device is not None  # noqa: S101 - the caller looked
    wrong = "; ".join(view.device.problems)[:MAX_TEXT]
    valid = (names.VALID, "False", "Contradiction", wrong) if wrong else (names.VALID, "True", "Consistent", "")
    verdicts = [_ready(view), valid, _accounted(view)]
    barred: dict[str, list[str]] = {}
    for card in sorted(view.device.inventory.cards, key=lambda card: (card.type, card.minor)):
        if card.bar is not None:
            barred.setdefault(card.bar.detail, []).append(f"{card.type} {card.minor}")
    if barred:
        message = "; ".join(f"{', '.join(cards)}: {detail}" for detail, cards in barred.items())
        verdicts.append((names.GIVEN_BY_NAME, "False", "CardsWithheld", message[:MAX_TEXT]))
    if view.doubled:
        message = "; ".join(f"{kind} {minor}: {', '.join(holders)}" for kind, minor, holders in view.doubled)
        verdicts.append((names.HELD_ONCE, "False", "TwoHolders", message[:MAX_TEXT]))
    if lacking := ", ".join(sorted(charge.pod for charge in view.charges if charge.lacks_cards)):
        message = f"another program bound these pods, so their containers see no GPU: {lacking}"
        verdicts.append((names.BOUND_BY_BERTH, "False", "AllocationMissing", message[:MAX_TEXT]))
    for kind in sorted(sums.plugin_kinds(view), key=lambda kind: kind.name):
        # Whether the Node shows the resources of a plug-in of which it has devices.
        written = f"{names.RESOURCES_WRITTEN}.{kind.name}"
        if view.node is None or all(card.type != kind.name for card in view.device.inventory.cards):
            continue
        if sums.status_patch(view, kind.resources) is None:
            verdicts.append((written, "True", "Written", ""))
        elif (refusal := refusals.of(kind)) is not None:
            verdicts.append((written, "False", *refusal))
        elif (before := _shown(view, written)) is not None:
            # A new leader has not tried yet: the Device keeps what it shows.
            verdicts.append((written, before.status, before.reason, before.message))
    conditions: list[Condition] = []
    for condition_type, state, reason, message in verdicts:
        before = _shown(view, condition_type)
        since = before.last_transition_time if before is not None and before.status == state else now()
        fields = {"type": condition_type, "status": state, "reason": reason, "message": message}
        conditions.append(Condition.model_validate({**fields, "lastTransitionTime": since}))
    return conditions


def _ready(view: NodeView) -> _Verdict:
    if not view.alive:
        # Since when: a time, because each new text is written, and an agent that is not heard does not change it.
        since = f" since {view.last_renewal[:MAX_TIME]}" if view.last_renewal else ""
        message = f"the node's Lease is not renewed{since}; its devices are not allocated"
        return names.READY, "Unknown", "AgentNotHeard", message
    if view.node is None:
        return names.READY, "False", "NodeMissing", "there is no Node of this name, or it is not selected"
    if view.device is not None and view.device.foreign:
        message = f"{view.device.foreign}; no device is allocated until the agent has written it again"
        return names.READY, "False", "ChangedByOther", message[:MAX_TEXT]
    if (driver := _shown(view, names.DRIVER_LOADED)) is not None and driver.status == "False":
        return names.READY, "False", driver.reason, driver.message
    return names.READY, "True", "AgentHeard", "the node's Lease is renewed"


def is_ready(view: NodeView) -> bool:
    """Return whether the Device of a node that has one is ready."""
    return _ready(view)[1] == "True"


def _shown(view: NodeView, condition_type: str) -> Condition | None:
    conditions = view.device.conditions if view.device else ()
    return next((condition for condition in conditions if condition.type == condition_type), None)


def _accounted(view: NodeView) -> _Verdict:
    unknown = [*filter(None, (_unknown(view, of_claims=True), _unknown(view, of_claims=False)))]
    grants = ((charge.pod, grant) for charge in view.charges for grant in charge.grants)
    if pods := sorted(f"{pod} ({grant.id})" for pod, grant in grants if is_unlocated(grant)):
        why = (
            "no MIG device is allocated: these pods hold MIG devices that the Device no longer lists, and their "
            "allocations do not name the GPU (delete the pods to end this)"
        )
        unknown.append(("ParentUnknown", f"{why}: {', '.join(pods)}"))
    if view.surplus_drivers:
        why = (
            f"Berth uses {MAX_SLICES} ResourceSlices of a driver on a node and does not read further ones of "
            f"{', '.join(view.surplus_drivers)} (delete all slices of the driver with this nodeName; the driver "
            "creates those that it needs)"
        )
        unknown.append(("TooManySlices", why))
    if not unknown:
        return names.ACCOUNTED, "True", "AllKnown", ""
    # All of them: each is about devices of other types.
    return names.ACCOUNTED, "False", unknown[0][0], "; ".join(message for _, message in unknown)[:MAX_TEXT]


def _with_finalizers(charge: Charge) -> str:
    """Return a pod's name, and what keeps the pod if it is being deleted."""
    kept = f" (being deleted, kept by finalizer {', '.join(charge.finalizers)})" if charge.finalizers else ""
    return f"{charge.pod}{kept}"


def _unknown(view: NodeView, *, of_claims: bool) -> tuple[str, str] | None:
    """Return the reason and message if the devices of claims, or of pods, are not known."""
    charges = [charge for charge in view.charges if charge.unknown and is_of_claim(charge) == of_claims]
    if not charges:
        return None
    types = " or ".join(sorted({device_type for charge in charges for device_type in charge.unknown}))
    why = (
        "the devices of these ResourceClaims are in no ResourceSlice, or have no attribute by which the cards are known"
        if of_claims
        else "the allocation of these pods is missing, cannot be read, names too few devices or was not written by a "
        "trusted scheduler"
    )
    pods = ", ".join(sorted(_with_finalizers(charge) for charge in charges))
    return "ClaimUnknown" if of_claims else "AllocationUnknown", f"no {types} is allocated: {why}: {pods}"
