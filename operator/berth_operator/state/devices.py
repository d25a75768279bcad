"""Devices from the API, read once at the edge, and checked against themselves."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from berth_api import allocation, names, quantity
from berth_api.device import DeviceInfo, DeviceSpec, DeviceStatus
from berth_operator.core.cards import CardInfo
from berth_operator.core.fleet import DEFAULT_VENDOR, DeviceInventory

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord:
    """A Device as the operator read it."""

    name: str
    uid: str
    generation: int
    inventory: DeviceInventory
    problems: tuple[str, ...]
    """What contradicts itself, each naming the field; those cards are not handed out."""
    status: DeviceStatus
    driver_version: str = ""


def record(device: Object, known: DeviceRecord | None = None) -> DeviceRecord:
    """Read a Device; of one whose spec is still the one that is known only the status is read."""
    metadata = device["metadata"]
    vendor = (metadata.get("labels") or {}).get(names.VENDOR_LABEL) or DEFAULT_VENDOR
    if known is not None and (known.uid, known.generation) == (metadata["uid"], metadata.get("generation")):
        inventory = replace(known.inventory, vendor=vendor)
        return replace(known, inventory=inventory, status=_status(device))
    spec, problems = _spec(device)
    cards = [(i, each, tuple(_problems(spec, i, each))) for i, each in enumerate(spec.devices)]
    return DeviceRecord(
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation") or 0,
        inventory=DeviceInventory(
            cards=tuple(_card(each, usable=not wrong) for _, each, wrong in cards),
            vendor=vendor,
        ),
        problems=problems + tuple(text for _, _, wrong in cards for text in wrong),
        status=_status(device),
        driver_version=spec.driver_version,
    )


def _spec(device: Object) -> tuple[DeviceSpec, tuple[str, ...]]:
    """Read the spec; one that the CRD of another version let through, but that we cannot read, counts as empty."""
    try:
        return DeviceSpec.model_validate(device.get("spec") or {}), ()
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in first["loc"])
        return DeviceSpec(), (f"spec{place}: {first['msg']}",)


def _status(device: Object) -> DeviceStatus:
    """Read the status; one that we cannot read counts as empty, and is written anew."""
    try:
        return DeviceStatus.model_validate(device.get("status") or {})
    except ValidationError:
        return DeviceStatus()


def _card(device: DeviceInfo, *, usable: bool) -> CardInfo:
    sliced = device.mig is not None and device.mig.enabled
    return CardInfo(
        type=device.type,
        minor=device.minor,
        id=device.id,
        model=device.model,
        healthy=device.health and usable and not sliced,
        amounts=tuple(sorted(_amounts(device).items())) if usable else (),
    )


def _amounts(device: DeviceInfo) -> dict[str, int]:
    """Give what the card offers; a card that does not say so is 100 hundredths of itself."""
    whole = {names.GPU: (names.GPU_CORE, names.GPU_MEMORY_RATIO)}.get(device.type, (device.type,))
    found = {allocation.short(name): quantity.parse(value) for name, value in device.resources.items()}
    return {**dict.fromkeys(whole, 100), **found}


def _problems(spec: DeviceSpec, position: int, device: DeviceInfo) -> Iterator[str]:
    where = f"spec.devices[{position}]"
    ids = Counter((each.type, each.id) for each in spec.devices)
    if ids[device.type, device.id] > 1:
        yield f"{where}.id: {device.id} stands more than once among the {device.type} devices"
    minors = {each.minor for each in spec.devices if each.type == device.type}
    for link in device.links:
        if link.minor not in minors or link.minor == device.minor:
            yield f"{where}.links: minor {link.minor} is not another {device.type} device of this node"
    yield from _resource_problems(where, device)


def _resource_problems(where: str, device: DeviceInfo) -> Iterator[str]:
    seen: dict[str, int] = {}
    for name, value in device.resources.items():
        try:
            amount = quantity.parse(value)
        except quantity.QuantityError as error:
            yield f"{where}.resources.{name}: {error}"
            return
        if amount < 0:
            yield f"{where}.resources.{name}: {value} is negative"
        if seen.setdefault(allocation.short(name), amount) != amount:
            yield f"{where}.resources.{name}: {value}; under its other prefix it is another amount"
        if allocation.short(name) in (names.GPU_CORE, names.GPU_MEMORY_RATIO) and amount != 100:  # noqa: PLR2004
            yield f"{where}.resources.{name}: {value}; a card has 100"
    if device.type == names.GPU and device.health and not _amounts(device).get(names.GPU_MEMORY):
        yield f"{where}.resources: a healthy GPU has no {names.PREFIX}{names.GPU_MEMORY}"
