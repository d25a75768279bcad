"""Consumable capacity: how much a request takes of a device by each capacity's policy, and whether it is left.

Rounding follows `DRAFractionalCapacityRange`. A range whose fields are all thousandths is rounded in thousandths, any
other range in whole units.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from berth_operator.core.claims.objects.amounts import MAX_INT64, MILLI, UNIT, ExactQuantity
from berth_operator.core.claims.objects.fields import Field, FieldError


class CapacityError(ValueError):
    """A request is negative, or too large or too fine to be rounded. The allocation ends with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A policy's `validRange`."""

    least: ExactQuantity
    most: ExactQuantity | None = None
    step: ExactQuantity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPolicy:
    """A capacity's `requestPolicy`."""

    default: ExactQuantity | None = None
    values: tuple[ExactQuantity, ...] = ()
    range: Range | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCapacity:
    """A capacity of a device."""

    value: ExactQuantity
    policy: RequestPolicy | None = None


def read(item: Field) -> DeviceCapacity:
    """Read one capacity of a device; raise FieldError."""
    value, policy = item.at("value").quantity(), item.at("requestPolicy")
    if policy.value is None:
        return DeviceCapacity(value=value)
    default, valid, range_ = _optional(policy.at("default")), policy.at("validRange"), None
    values = tuple(value.quantity() for value in policy.at("validValues").items())
    if valid.value is not None:
        step = _optional(valid.at("step"))
        if step is not None and step.amount <= 0:
            raise FieldError(f"{valid.path}.step: {step} is not greater than zero")
        range_ = Range(least=valid.at("min").quantity(), most=_optional(valid.at("max")), step=step)
    return DeviceCapacity(value=value, policy=RequestPolicy(default=default, values=values, range=range_))


def _optional(item: Field) -> ExactQuantity | None:
    return None if item.value is None else item.quantity()


def consumed(
    capacities: Mapping[str, DeviceCapacity], requested: Mapping[str, ExactQuantity], *, fractional: bool = True
) -> dict[str, ExactQuantity] | None:
    """Return what a request consumes of each capacity of a device; None if the device lacks one that it names.

    Raises:
        CapacityError: an amount cannot be computed.
    """
    if not requested.keys() <= capacities.keys():
        return None
    amounts = {}
    for name, capacity in capacities.items():
        try:
            amounts[name] = _rounded(capacity, requested.get(name), fractional=fractional)
        except CapacityError as error:
            raise CapacityError(f'capacity "{name}": {error}') from error
        if amounts[name].amount < 0:
            raise CapacityError(f'capacity "{name}": capacity value is negative')
    return amounts


def lacking(capacities: Mapping[str, DeviceCapacity], requested: Mapping[str, ExactQuantity]) -> str:
    """Return the first requested capacity that a device could not give even if it were free; empty if it has all.

    Raises:
        CapacityError: an amount cannot be computed.
    """
    for name in requested:
        if name not in capacities:
            return name
    amounts = consumed(capacities, requested) or {}
    for name in requested:
        if not fits({name: capacities[name]}, amounts, ()):
            return name
    return ""


def fits(
    capacities: Mapping[str, DeviceCapacity],
    consumed: Mapping[str, ExactQuantity],
    held: Iterable[Mapping[str, int]],
    *,
    fractional: bool = True,
) -> bool:
    """Return whether amounts obey the policies and are left in addition to the held amounts, in billionths."""
    shares = tuple(held)
    for name, capacity in capacities.items():
        amount = consumed[name]
        if capacity.policy is not None and _violates(amount, capacity.policy, fractional=fractional):
            return False
        if amount.amount + sum(share.get(name, 0) for share in shares) > capacity.value.amount:
            return False
    return True


def _rounded(capacity: DeviceCapacity, requested: ExactQuantity | None, *, fractional: bool) -> ExactQuantity:
    policy = capacity.policy
    if requested is None:
        return capacity.value if policy is None or policy.default is None else policy.default
    if policy is None:
        return requested
    valid = policy.range
    if valid is None:
        return next((value for value in policy.values if requested.amount <= value.amount), requested)
    if requested.amount < valid.least.amount:
        return valid.least
    if valid.step is None:
        return requested
    unit = _unit(valid, fractional=fractional)
    if (unit == MILLI and not _is_milli(requested)) or requested.amount > MAX_INT64 * UNIT:
        raise CapacityError(f"request {requested} cannot be rounded to steps of {valid.step}")
    least, step = _in(unit, valid.least), _in(unit, valid.step)
    steps = -(-(_in(unit, requested) - least) // step)
    if least + step * steps > MAX_INT64:
        raise CapacityError(f"request {requested} rounded up to steps of {valid.step} is too large")
    return ExactQuantity((least + step * steps) * unit, valid.step.format)


def _violates(amount: ExactQuantity, policy: RequestPolicy, *, fractional: bool) -> bool:
    """Return whether a policy does not allow an amount; it always allows its default."""
    if policy.default is not None and amount.amount == policy.default.amount:
        return False
    valid = policy.range
    if valid is None:
        return bool(policy.values) and all(amount.amount != value.amount for value in policy.values)
    if valid.most is not None and amount.amount > valid.most.amount:
        return True
    if valid.step is None:
        return False
    unit = _unit(valid, fractional=fractional)
    if unit == MILLI and not _is_milli(amount):
        return True
    return (_in(unit, amount) - _in(unit, valid.least)) % _in(unit, valid.step) != 0


def _unit(valid: Range, *, fractional: bool) -> int:
    """Return the unit in which a range is computed, in billionths."""
    fields = filter(None, (valid.least, valid.most, valid.step))
    return MILLI if fractional and all(map(_is_milli, fields)) else UNIT


def _is_milli(quantity: ExactQuantity) -> bool:
    return quantity.amount % MILLI == 0 and abs(quantity.amount) <= MAX_INT64 * MILLI


def _in(unit: int, quantity: ExactQuantity) -> int:
    """Return a quantity in a unit, rounded up."""
    return -(-quantity.amount // unit)
