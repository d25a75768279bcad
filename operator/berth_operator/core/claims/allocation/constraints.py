"""Constraints between the devices of a claim, checked while the devices are chosen one by one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from berth_operator.core.claims.objects.requests import Constraint, Request
from berth_operator.core.claims.objects.slices import Attribute, Device


class Constrained(Protocol):
    """Devices chosen so far, as one constraint sees them; the last that was added is removed first."""

    @property
    def constraint(self) -> Constraint:
        """The constraint."""
        ...

    def add(self, device: Device) -> bool:
        """Add a device, and return whether the constraint still holds; if not, nothing is added."""
        ...

    def remove(self) -> None:
        """Remove the device that was added last."""
        ...


@dataclass(slots=True)
class _Chosen:
    constraint: Constraint
    values: list[Attribute] = field(default_factory=list)

    def remove(self) -> None:
        """Remove the last device."""
        self.values.pop()


class Matching(_Chosen):
    """All devices have the attribute with one value."""

    def add(self, device: Device) -> bool:
        """Add a device."""
        value = device.attributes.get(self.constraint.attribute)
        if value is None or (self.values and (not value.comparable or value != self.values[0])):
            return False
        self.values.append(value)
        return True


class Distinct(_Chosen):
    """All devices have the attribute, each with its own value."""

    def add(self, device: Device) -> bool:
        """Add a device."""
        value = device.attributes.get(self.constraint.attribute)
        if value is None or (self.values and not value.comparable) or value in self.values:
            return False
        self.values.append(value)
        return True


def of_claim(constraints: Sequence[Constraint]) -> tuple[Constrained, ...]:
    """Return the constraints of a claim without any devices yet."""
    return tuple(Distinct(constraint) if constraint.distinct else Matching(constraint) for constraint in constraints)


def on_request(constrained: Sequence[Constrained], request: Request) -> tuple[Constrained, ...]:
    """Return the constraints that concern a request."""
    return tuple(
        constraint
        for constraint in constrained
        if not constraint.constraint.requests or not constraint.constraint.requests.isdisjoint(request.names)
    )
