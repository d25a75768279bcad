"""A pod's requests to a node, computed as Kubernetes does.

Containers run together, so their requests add up. Init containers run one after another before the containers. So each
needs only what sidecars (restartable init containers) that started earlier leave. Sidecars stay and add up. Processor
time is in thousandths of a core. Everything else is in whole units, rounded up.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from berth_api.resources import quantity

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"
HUGE_PAGES: Final = "hugepages-"

Amounts = dict[str, int]
"""Resource name -> amount."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container's name, kind and requests."""

    name: str
    requests: Mapping[str, int]
    init: bool = False
    sidecar: bool = False


class ResourceError(ValueError):
    """A quantity in a pod cannot be parsed; the message names the field."""


def amounts(raw: Mapping[str, Any] | None, where: str = "") -> Amounts:
    """Parse a resource list such as `spec.containers[0].resources.requests`, without zeros.

    Raises:
        ResourceError: a quantity is invalid; the message names `where`, the resource and the problem.
    """
    out: Amounts = {}
    for name, value in (raw or {}).items():
        try:
            amount = quantity.parse_milli(value) if name == CPU else quantity.parse(value)
        except quantity.QuantityError as error:
            raise ResourceError(f"{where}.{name}: {error}") from error
        if amount < 0:
            raise ResourceError(f'{where}.{name}: "{value}" is negative; allowed are amounts from 0')
        if amount:
            out[name] = amount
    return out


def from_limits(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a template with missing requests set to the limits, as the API server does in its pods."""
    completed = {
        kind: [_completed(container) for container in spec.get(kind) or ()] for kind in ("containers", "initContainers")
    }
    return {**_completed(spec), **completed}


def _completed(holder: Mapping[str, Any]) -> dict[str, Any]:
    resources = holder.get("resources")
    if not resources:
        return dict(holder)
    requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {**holder, "resources": {**resources, "requests": requests}}


def containers(spec: Mapping[str, Any]) -> tuple[Container, ...]:
    """Return a pod's init containers and containers, in the order in which kubelet admits them."""
    parsed = [
        _container(container, f"spec.initContainers[{i}]", init=True)
        for i, container in enumerate(spec.get("initContainers") or ())
    ]
    parsed += [
        _container(container, f"spec.containers[{i}]") for i, container in enumerate(spec.get("containers") or ())
    ]
    return tuple(parsed)


def _container(raw: Mapping[str, Any], where: str, *, init: bool = False) -> Container:
    return Container(
        name=raw.get("name", ""),
        requests=amounts((raw.get("resources") or {}).get("requests"), f"{where}.resources.requests"),
        init=init,
        sidecar=init and raw.get("restartPolicy") == "Always",
    )


def total(spec: Mapping[str, Any]) -> Amounts:
    """Return what the whole pod requests of its node, by the rules above, with overhead."""
    return completed(combined(containers(spec)), level(spec), spec)


def level(spec: Mapping[str, Any]) -> Amounts:
    """Return the requests at the pod's level, with zeros; only some resources can be requested there."""
    raw = (spec.get("resources") or {}).get("requests") or {}
    raw = {name: value for name, value in raw.items() if is_of_pod_level(name)}
    return {**dict.fromkeys(raw, 0), **amounts(raw, "spec.resources.requests")}


def is_of_pod_level(name: str) -> bool:
    """Return whether a resource can be requested at the pod's level."""
    return name in (CPU, MEMORY) or name.startswith(HUGE_PAGES)


def completed(needed: Mapping[str, int], of_pod: Mapping[str, int], spec: Mapping[str, Any]) -> Amounts:
    """Return the total: the containers' requests, replaced by those at the pod's level, plus overhead."""
    replaced = {name: amount for name, amount in {**needed, **of_pod}.items() if amount}
    return added(replaced, amounts(spec.get("overhead"), "spec.overhead"))


def combined(parts: Iterable[Container]) -> Amounts:
    """Return the maximum that the containers request at any time."""
    running: Amounts = {}
    sidecars: Amounts = {}
    peak: Amounts = {}
    for part in parts:
        if part.sidecar:
            sidecars = added(sidecars, part.requests)
            peak = highest(peak, sidecars)
        elif part.init:
            peak = highest(peak, added(sidecars, part.requests))
        else:
            running = added(running, part.requests)
    return highest(peak, added(running, sidecars))


def added(left: Mapping[str, int], right: Mapping[str, int]) -> Amounts:
    """Return the sum of two resource lists, each amount truncated to `quantity.MAX`."""
    out = dict(left)
    for name, amount in right.items():
        out[name] = min(out.get(name, 0) + amount, quantity.MAX)
    return out


def highest(left: Mapping[str, int], right: Mapping[str, int]) -> Amounts:
    """Return the larger of the two amounts of each resource."""
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in {**left, **right}}
