"""Cards that Berth does not allocate by name: other schedulers may give them to ResourceClaims, or they are tainted."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from berth_api.allocation import mig
from berth_api.objects import device_text
from berth_operator.core.claims.objects.slices import PREVENTING, Device, DeviceTaint, Slice
from berth_operator.core.fleet.claims.drivers import DRIVERS, OTHER
from berth_operator.core.fleet.claims.matching import CardIndex, CardKey, match
from berth_operator.core.fleet.claims.store import MAX_SLICES, Claims
from berth_operator.core.values.inventory import Bar, CardInfo, DeviceInventory


def barred(claims: Claims, node: str, inventory: DeviceInventory) -> DeviceInventory:
    """Return a node's inventory without devices that must not be allocated by name; the same if there are none."""
    if not (bars := _bars(claims, node, inventory.cards)):
        return inventory
    cards = []
    for card in inventory.cards:
        bar = bars.get(CardKey(card.type, card.minor))
        if bar is not None and (card.healthy or card.instances):
            # Nothing of it is given; its amounts and the places of its instances stay, for charges.
            amounts = tuple((name, amount) for name, amount in card.amounts if not mig.is_resource(name))
            cards.append(replace(card, bar=bar, healthy=False, instances=(), instance_memory=(), amounts=amounts))
        else:
            cards.append(card)
    return replace(inventory, cards=tuple(cards))


def _bars(claims: Claims, node: str, cards: Collection[CardInfo]) -> Mapping[CardKey, Bar]:
    """Return why cards are barred; the first reason of each, so a slice counts before a taint."""
    devices, surplus = tuple(claims.devices_on(node)), claims.surplus_drivers(node)
    if not (devices or surplus or claims.anywhere):
        return {}
    index = CardIndex.of(cards)
    rules = {pool: claims.rules_on(pool) for pool in {device.pool for device in devices}}
    listed = {key: _for_many(slices) for card, key in index.by_id.items() if (slices := claims.anywhere.get(card))}
    served = {pool: claims.serves(pool) for pool in rules}
    tainted: dict[CardKey, Bar] = {}
    for device in devices:
        taints: list[DeviceTaint] = []
        # A slice of an older generation may stay, and lists taints that are over.
        if (device.taints or rules[device.pool]) and claims.device(device.id) is device:
            of_rules = (rule.taint for rule in rules[device.pool] if rule.device in ("", device.id.device))
            taints = [taint for taint in (*device.taints, *of_rules) if taint.effect in PREVENTING]
        if served[device.pool] and not taints:
            continue  # as most devices of Berth's pools; which cards a device may be takes longest to find
        same = match(device.id, device, index)
        keys = same.cards or _of_type(index, same.unknown)
        if not served[device.pool]:
            _add(listed, keys, _contested(claims, device) if claims.own.include(device.pool) else _listed(device))
        for taint in taints:
            _add(tainted, keys, _tainted(device, taint))
    for driver in surplus:
        if not claims.own.include_all(driver):
            _add(listed, _of_type(index, DRIVERS.get(driver, OTHER).device_type), _surplus(driver))
    return tainted | listed


def _of_type(index: CardIndex, device_type: str) -> frozenset[CardKey]:
    return frozenset(key for key in index.by_id.values() if key.type == device_type)


def _add(bars: dict[CardKey, Bar], keys: Collection[CardKey], bar: Bar) -> None:
    for key in keys:
        bars.setdefault(key, bar)


def _listed(device: Device) -> Bar:
    driver, pool, _ = device.id
    return Bar(
        reason=f"listed by {driver} for ResourceClaims",
        detail=(
            f"{device_text.listed_by(driver, pool)} so kube-scheduler may give it to a ResourceClaim; if no other "
            f"scheduler serves this pool, add {driver} to claims.drivers, or {driver}/{pool} to claims.pools, of the "
            "configuration"
        ),
    )


def _surplus(driver: str) -> Bar:
    return Bar(
        reason=f"{driver} has too many ResourceSlices",
        detail=(
            f"driver {driver} has more than {MAX_SLICES} ResourceSlices for this node, and Berth does not read the "
            "others, so each card may be listed for ResourceClaims; delete those that the driver does not need"
        ),
    )


def _for_many(slices: Mapping[str, Slice]) -> Bar:
    driver, pool = slices[min(slices)].pool
    return Bar(
        reason=f"listed by {driver} for ResourceClaims on many nodes",
        detail=f"listed by driver {driver} in pool {pool} for many nodes, so it is given to ResourceClaims alone",
    )


def _contested(claims: Claims, device: Device) -> Bar:
    driver, pool, _ = device.id
    keys = sorted(claims.foreign(device.pool))
    return Bar(
        reason=f"another scheduler allocates in pool {pool} of {driver}",
        detail=(
            f"another scheduler allocated devices of driver {driver} in pool {pool} to {len(keys)} ResourceClaim(s), "
            f"such as {keys[0]}, so Berth gives none of this pool; keep it from the pool (docs/claims.md), and delete "
            "the pods of these claims"
        ),
    )


def _tainted(device: Device, taint: DeviceTaint) -> Bar:
    shown = f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
    return Bar(reason=f"device taint {taint.key}:{taint.effect}", detail=f"device taint {shown} on {device.id}")
