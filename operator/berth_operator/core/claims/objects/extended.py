"""The ResourceClaim for a pod's extended resources: one request for each container and resource.

The claim exists only in memory until a node is chosen. Init containers use the devices of the containers that run after
them. If init containers need more, the excess is requested once, for the init container that needs the most.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from berth_operator.core.claims.objects.requests import EXACT, Alternatives, Request

CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of resources that name a DeviceClass implicitly, without `extendedResourceName` in the class."""
IN_MEMORY: Final = "<extended-resources>"
"""The name of the claim before it is made, which no claim can have."""


class ExtendedRequest(NamedTuple):
    """A container's request for an extended resource, which a DeviceClass may provide."""

    resource: str
    container: str
    position: int
    """The container's place among the init containers, followed by the others."""
    place: int
    """The resource's index among the names of all resources that the container requests, in order."""
    amount: int
    short_lived: bool
    """Whether it is an init container that ends before the next one starts."""


class RequestMapping(NamedTuple):
    """Which request of a pod's claim for extended resources a container gets its devices of."""

    container: str
    resource: str
    request: str


Wanted = tuple[Request | None, list[RequestMapping]]
"""A container's own requests, in addition to what it uses of other containers, and the source of its devices."""


def providers(classes: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return which DeviceClass provides each extended resource.

    `classes` has the resource name and creation time of each class. Each class provides the resource of its own name,
    too. If several classes name one resource, the newest class provides it. Among classes of the same second, the first
    by name provides it.
    """
    by_name = {CLASS_PREFIX + name: name for name in classes}
    # Two stable sorts: the last one of a resource counts.
    ordered = sorted(sorted(classes, reverse=True), key=lambda name: classes[name][1])
    return by_name | {classes[name][0]: name for name in ordered if classes[name][0]}


def requests(
    extended: Sequence[ExtendedRequest], classes: Mapping[str, str]
) -> tuple[tuple[Alternatives, ...], tuple[RequestMapping, ...]]:
    """Return the requests for extended resources, by name, and their mappings.

    `classes` maps each resource to the DeviceClass that provides it; other resources are left out.
    """
    made: list[Request] = []
    mappings: list[RequestMapping] = []
    for resource, device_class in sorted(classes.items()):
        of_resource = [request for request in extended if request.resource == resource]
        lasting = {
            request.position: _wanted(request, device_class, ()) for request in of_resource if not request.short_lived
        }
        short = []
        for request in of_resource:
            if request.short_lived:
                later = [own for position, (own, _) in lasting.items() if position > request.position]
                short.append(_wanted(request, device_class, later))
        own = [request for request, _ in short if request is not None]
        # Init containers run one after the other: what the first with the largest request has serves all of them.
        largest = max(own, key=lambda request: request.count, default=None)
        shared = {request.name: largest.name for request in own} if largest is not None else {}
        made += [request for request, _ in lasting.values() if request is not None]
        made += [] if largest is None else [largest]
        mappings += [mapping for _, some in lasting.values() for mapping in some]
        for _, some in short:
            mappings += [mapping._replace(request=shared.get(mapping.request, mapping.request)) for mapping in some]
    made.sort(key=lambda request: request.name)
    alternatives = (Alternatives(name=request.name, choices=(request,), prioritized=False) for request in made)
    return tuple(alternatives), tuple(mappings)


def spec(claimed: Sequence[Alternatives]) -> dict[str, Any]:
    """Return the spec of a claim with these requests."""
    items = [
        {
            "name": request.name,
            "exactly": {"deviceClassName": request.device_class, "allocationMode": EXACT, "count": request.count},
        }
        for alternatives in claimed
        for request in alternatives.choices
    ]
    return {"devices": {"requests": items}}


def _wanted(extended: ExtendedRequest, device_class: str, reusable: Sequence[Request | None]) -> Wanted:
    mappings: list[RequestMapping] = []
    missing = extended.amount
    for request in filter(None, reusable):
        mappings.append(RequestMapping(extended.container, extended.resource, request.name))
        missing -= request.count
        if missing <= 0:
            return None, mappings
    name = f"container-{extended.position}-request-{extended.place}"
    made = Request(name=name, device_class=device_class, count=missing, capacity={})
    return made, [*mappings, RequestMapping(extended.container, extended.resource, name)]
