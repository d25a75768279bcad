"""Results of an allocation, as in `status.allocation` of a claim."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from berth_operator.core.claims.bounds.errors import NodeError
from berth_operator.core.claims.objects.allocated import Allocated
from berth_operator.core.claims.objects.amounts import ExactQuantity
from berth_operator.core.claims.objects.nodes import NAME
from berth_operator.core.claims.objects.requests import DeviceClass, Request, ResourceClaim
from berth_operator.core.claims.objects.slices import Device, DeviceID

Object = dict[str, Any]

MAX_SUBREQUESTS: Final = 8
"""The maximum number of subrequests of a request. The first subrequest adds as much to the score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A device that is allocated for a request."""

    request: Request
    device: Device
    consumed: Mapping[str, ExactQuantity] | None = None
    """The capacity that the share consumes; None if the device is not shareable."""
    share_id: str = ""

    def written(self, *, binding_conditions: bool = True) -> Object:
        """Return the entry of `devices.results`."""
        device, request = self.device, self.request
        fields: Object = dict(zip(("driver", "pool", "device"), device.id, strict=True))
        fields["request"] = request.full_name
        optional = {
            "adminAccess": request.admin or None,
            "tolerations": list(request.raw_tolerations),
            "shareID": self.share_id,
            "consumedCapacity": {name: str(amount) for name, amount in (self.consumed or {}).items()},
            "bindingConditions": list(device.binding_conditions) if binding_conditions else None,
            "bindingFailureConditions": list(device.binding_failure_conditions) if binding_conditions else None,
        }
        return fields | {key: value for key, value in optional.items() if value}


class AppliedConfig(NamedTuple):
    """A configuration that applies to an allocation."""

    entry: Object
    """The entry in the form of `devices.config`."""
    device_class: str
    """The class that has it; empty for the claim itself."""
    place: int
    """Its place among the configurations of the class or claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What a claim gets."""

    claim: ResourceClaim
    results: tuple[Result, ...]
    chosen: tuple[tuple[Request, DeviceClass], ...]
    """For each request of the claim, the request itself or the subrequest that was taken, and its class."""
    node: str
    """The name of the node for which the allocation was made."""

    def written(self, *, binding_conditions: bool = True) -> Object:
        """Return `status.allocation`, without the timestamp; raise NodeError."""
        results = [result.written(binding_conditions=binding_conditions) for result in self.results]
        devices = {"results": results, "config": [config.entry for config in self.configs()]}
        selector = node_selector([result.device for result in self.results], self.node)
        allocation: Object = {"devices": {key: value for key, value in devices.items() if value}}
        return allocation if selector is None else allocation | {"nodeSelector": selector}

    def held(self) -> Allocated:
        """Return what it takes of devices."""
        taken = [result for result in self.results if not result.request.admin]
        capacity: dict[DeviceID, dict[str, int]] = {}
        for result in taken:
            if result.share_id:
                amounts = capacity.setdefault(result.device.id, {})
                for name, quantity in (result.consumed or {}).items():
                    amounts[name] = amounts.get(name, 0) + quantity.amount
        return Allocated(
            devices={result.device.id for result in taken if not result.share_id},
            shared=capacity.keys(),
            capacity=capacity,
        )

    def score(self) -> int:
        """Return how well preferences of `firstAvailable` are met: 8 for a first subrequest, 7 for a second."""
        taken = {result.request.full_name for result in self.results}
        return sum(
            MAX_SUBREQUESTS - place
            for request in self.claim.requests
            if request.prioritized
            for place, choice in enumerate(request.choices)
            if choice.full_name in taken
        )

    def configs(self) -> Iterator[AppliedConfig]:
        """Yield configurations: each class's once, in the order of requests, and the claim's that apply."""
        by_class: dict[str, tuple[DeviceClass, list[str]]] = {}
        for request, device_class in self.chosen:
            by_class.setdefault(device_class.name, (device_class, []))[1].append(request.full_name)
        for device_class, names in by_class.values():
            for place, config in enumerate(device_class.config):
                yield AppliedConfig(self._applied("FromClass", names, config.raw), device_class.name, place)
        for place, config in enumerate(self.claim.config):
            if not config.requests or any(self._named(request, config.requests) for request, _ in self.chosen):
                yield AppliedConfig(self._applied("FromClaim", config.requests, config.raw), "", place)

    def _applied(self, source: str, names: Sequence[str], raw: Mapping[str, Any]) -> Object:
        """Return an entry of `devices.config`, without `requests` if it applies to all requests."""
        everything = all(self._named(request, names) for request, _ in self.chosen)
        return {"source": source, **({"requests": list(names)} if names and not everything else {}), **raw}

    @staticmethod
    def _named(request: Request, names: Sequence[str]) -> bool:
        return any(name in names for name in request.names)


def node_selector(devices: Sequence[Device], node: str) -> Object | None:
    """Return the selector of the nodes where all devices can be reached; None for all nodes.

    Raises:
        NodeError: a slice has a selector with more than one term.
    """
    if any(device.nodes.name or device.binds_to_node for device in devices):
        field = {"key": NAME, "operator": "In", "values": [node]}
        return {"nodeSelectorTerms": [{"matchFields": [field]}]}
    term: dict[str, list[Object]] = {}
    for device in devices:
        terms = device.nodes.selector.get("nodeSelectorTerms") or []
        if len(terms) > 1:
            raise NodeError(f"unsupported ResourceSlice.NodeSelector with {len(terms)} terms")
        for key in ("matchExpressions", "matchFields"):
            _add_new(term.setdefault(key, []), terms[0].get(key) or () if terms else ())
    kept = {key: requirements for key, requirements in term.items() if requirements}
    return {"nodeSelectorTerms": [kept]} if kept else None


def _add_new(known: list[Object], requirements: Sequence[Object]) -> None:
    for requirement in requirements:
        if all(_identity(requirement) != _identity(other) for other in known):
            known.append(requirement)


def _identity(requirement: Object) -> tuple[str, str, frozenset[str]]:
    return requirement.get("key", ""), requirement["operator"], frozenset(requirement.get("values") or ())
