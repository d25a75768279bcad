"""Berth's own order of devices for the requests of one search. kube-scheduler uses the order of lists.

The first devices for a request are the best ones. They cost least (`stock`), and few recent requests match them. They
are also close to each other and to the devices of the pod's other requests (`closeness`). The search takes the first
solution in this order. The order only decides which valid solution comes first.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from berth_operator.core.claims.allocation.closeness import Closeness, groups
from berth_operator.core.claims.allocation.plans import RequestPlan
from berth_operator.core.claims.objects.allocated import Allocated
from berth_operator.core.claims.objects.slices import Device, DeviceID
from berth_operator.core.claims.pools.pools import NodePools
from berth_operator.core.claims.pools.stock import Stock, scale_of

MAX_RANKED: Final = 256
"""Devices that are compared for one request. Further devices stay in their order."""
MAX_LOOKS: Final = 2_000
"""Devices that are compared for all requests of a search, each about two microseconds."""
DIGITS: Final = 6
"""Decimals of costs that count."""

Rank = tuple[bool, float, int]


class Preference:
    """The order for one search: its requests take their best devices from the stock, one after the other."""

    def __init__(
        self, pools: NodePools, allocated: Allocated, links: Mapping[DeviceID, Hashable] | None = None
    ) -> None:
        """Create the order of a node. `links` are equal for devices with NVLinks between all of them."""
        self._pools = pools
        self._allocated = allocated
        self._links = links or {}
        self._stock = Stock(pools, allocated)
        self._picked: list[Device] = []
        self._matching: dict[Device, int] = {}
        """How many recent requests match a device."""
        self.looks = 0
        """How many devices were compared."""

    def order(self, plan: RequestPlan, devices: Sequence[Device]) -> Sequence[Device]:
        """Return the devices for a plan's request, the best first; raise AllocationError if a selector fails."""
        if len(devices) <= 1 or plan.request.admin or self.looks >= MAX_LOOKS:
            return devices
        compared = devices[:MAX_RANKED]
        candidates = []
        for device in compared:
            self.looks += 1
            if self._allocated.exclude(device.id) or not plan.selects(device):
                continue
            held = self._allocated.capacity.get(device.id)
            if device.shareable and not plan.has_capacity(device, () if held is None else (held,)):
                continue
            if device.shareable or device not in self._picked:
                candidates.append(device)
        scale = scale_of(candidates)
        ranks = {device: self._rank(device, scale) for device in candidates}
        best = self._group(plan, ranks)
        first = self._pick(best, plan.count, ranks, scale)
        rest = [*sorted(_without(best, first), key=ranks.__getitem__), *_without(candidates, best)]
        for device in first if plan.request.parent else ():
            # The search takes another subrequest perhaps.
            self._stock.take(device, -1)
        self._picked += [] if plan.request.parent else first
        return [*first, *rest, *_without(compared, candidates), *devices[MAX_RANKED:]]

    def _group(self, plan: RequestPlan, ranks: Mapping[Device, Rank]) -> list[Device]:
        """Return the candidates with equal values of the attributes that constraints want to be equal."""
        names = [
            constrained.constraint.attribute for constrained in plan.constraints if not constrained.constraint.distinct
        ]
        if not names:
            return list(ranks)

        def values(device: Device) -> Hashable:
            values = tuple(device.attributes.get(name) for name in names)
            return None if None in values else values

        def rank(group: Sequence[Device]) -> tuple[bool, list[Rank], int]:
            return values(group[0]) not in touched, [ranks[device] for device in group[: plan.count]], len(group)

        touched = set(map(values, self._picked))
        alike = [sorted(group, key=ranks.__getitem__) for group in groups(ranks, values) if len(group) >= plan.count]
        return min(alike, key=rank, default=list(ranks))

    def _pick(
        self, candidates: Sequence[Device], number: int, ranks: dict[Device, Rank], scale: Mapping[str, int]
    ) -> list[Device]:
        """Take a number of devices from the stock: the cheapest devices and, among equally cheap ones, the closest."""
        picked: list[Device] = []
        while candidates and len(picked) < number and self.looks < MAX_LOOKS:
            lowest = min(map(ranks.__getitem__, candidates))
            equal = [device for device in candidates if ranks[device] == lowest]
            # What is taken from counters changes the costs of others.
            wanted = 1 if equal[0].consumes else min(number - len(picked), len(equal))
            close = Closeness(number=wanted, links=self._links, picked=(*self._picked, *picked))
            chosen = close.closest(equal) if len(equal) > wanted else equal
            picked += chosen
            candidates = _without(candidates, chosen)
            for device in chosen:
                self._stock.take(device)
            if chosen[0].consumes and len(picked) < number:
                ranks.update({device: self._rank(device, scale) for device in candidates})
        return picked

    def _rank(self, device: Device, scale: Mapping[str, int]) -> Rank:
        self.looks += 1
        cost = round(self._stock.cost(device, scale), DIGITS)
        if device not in self._matching:
            self._matching[device] = self._pools.selected.matching(device)
        return bool(device.binding_conditions), cost, self._matching[device]


def _without(devices: Sequence[Device], others: Sequence[Device]) -> list[Device]:
    left = set(others)
    return [device for device in devices if device not in left]
