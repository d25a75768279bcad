"""Random nodes whose slices Berth's driver lists in any order, and the claims of several pods that fit: `fitting`.

The claims take devices that were chosen before, so they fit: as the claims of one pod, and as those of a gang. Each pod
has up to six claims. Most nodes have cards on which MIG instances are made on demand, and others give shares.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from berth_api.names import DRA_DRIVER
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.gang import decide_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.cluster import Cluster
from tests.claims import own, scenario
from tests.objects.builders import every_pod, gang, node, pod
from tests.objects.resource_claims import ClaimsInTurns

Object = dict[str, Any]
Claims = Sequence[Sequence[Object]]
"""The requests of each claim of a pod."""

Outcome = TypeVar("Outcome", list[Placement] | Failure, Placement | Failure)

NODE: Final = "node"
MAX_CLAIMS: Final = 6
TURN: Final = 8_000
MAX_TURNS: Final = 50
ORDERS: Final = ("as listed", "reversed", "by profile", "any")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """Slices of a node, and the claims of each pod of a gang that fits there."""

    slices: Sequence[Object]
    members: Sequence[Claims]


def fitting(seed: int) -> Fitting:
    """Return what a seed draws."""
    rng = random.Random(seed)
    draw = own.Draw(rng, NODE)
    draw.models = [rng.choice([*own.MODELS])] * rng.randint(1, 3) if rng.random() < 0.5 else draw.models
    slices = [dict(made) for made in draw.manifests()]
    wanted = list(_shares(rng, slices) if draw.gives_shares else _instances(rng, slices))
    rng.shuffle(wanted)
    members = []
    while wanted:
        claims = [_requests(rng, wanted) for _ in range(rng.choice((1, 1, 1, 2, 3, MAX_CLAIMS))) if wanted]
        members.append(claims)
    return Fitting(slices=in_order(slices, rng.choice(ORDERS), rng), members=members)


def in_order(slices: Sequence[Object], order: str, rng: random.Random) -> list[Object]:
    """Return slices with their devices in another order, each slice with a name."""
    ordered = []
    for number, made in enumerate(slices):
        devices = list(made["spec"].get("devices", ()))
        if order == "reversed":
            devices.reverse()
        elif order == "by profile":
            devices.sort(key=lambda device: str(device["attributes"].get("profile")))
        elif order == "any":
            rng.shuffle(devices)
        spec = made["spec"] | ({"devices": devices} if devices else {})
        ordered.append({"metadata": {"name": f"{NODE}-{number}"}, "spec": spec})
    if order != "as listed":
        rng.shuffle(ordered)
    return ordered


def _instances(rng: random.Random, slices: Sequence[Object]) -> Iterator[Object]:
    """Yield requests for devices that fit together, as long as any fits."""
    left = {
        counters["name"]: {name: int(entry["value"]) for name, entry in counters["counters"].items()}
        for made in slices
        for counters in made["spec"].get("sharedCounters", ())
    }
    devices = [device for made in slices for device in made["spec"].get("devices", ())]
    # Half of the nodes have small instances only.
    small = rng.random() < 0.5
    for device in sorted(devices, key=lambda device: (small * len(_counters(device)), rng.random())):
        of_set = left.get(device["consumesCounters"][0]["counterSet"], {}) if "consumesCounters" in device else {}
        if all(of_set.get(name, 0) >= amount for name, amount in _counters(device).items()):
            for name, amount in _counters(device).items():
                of_set[name] -= amount
            yield _request_for(rng, device)


def _counters(device: Object) -> dict[str, int]:
    uses = device.get("consumesCounters", ())
    return {name: int(entry["value"]) for use in uses for name, entry in use["counters"].items()}


def _request_for(rng: random.Random, device: Object) -> Object:
    """Return a request that a device meets, and mostly others as well."""
    profile = device["attributes"].get("profile", {}).get("string")
    if profile is None:
        return {"deviceClassName": own.GPU, "selectors": []}
    memory = int(device["capacity"]["memory"]["value"].removesuffix("Mi"))
    least = rng.choice((memory, rng.randint(1, memory)))
    selectors = [
        f'device.attributes["{DRA_DRIVER}"].profile == "{profile}"',
        f'device.capacity["{DRA_DRIVER}"].memory.compareTo(quantity("{least}Mi")) >= 0',
    ]
    chosen = rng.choice((None, None, *selectors, selectors[1]))
    return {"deviceClassName": own.MIG, "selectors": [{"cel": {"expression": chosen}}] if chosen else []}


def _shares(rng: random.Random, slices: Sequence[Object]) -> Iterator[Object]:
    """Yield requests for shares that take all of the memory of all cards."""
    for made in slices:
        for _ in made["spec"].get("devices", ()):
            left = 40
            while left:
                taken = min(left, rng.choice((5, 10, 10, 15, 20, 25, 40)))
                left -= taken
                yield {"deviceClassName": own.GPU, "capacity": {"requests": {"memory": f"{taken}Gi", "cores": "0"}}}


def _requests(rng: random.Random, wanted: list[Object]) -> list[Object]:
    """Return the requests of a claim, which take some of what is wanted."""
    requests: list[Object] = []
    for number in range(rng.choice((1, 1, 2, 3))):
        if not wanted:
            break
        exactly = wanted.pop()
        alike = [other for other in wanted if other == exactly and "capacity" not in exactly]
        more = alike[: rng.choice((0, 0, 1, 2, 5))]
        for _ in more:
            wanted.remove(exactly)
        one = {**exactly, "allocationMode": "ExactCount", "count": 1 + len(more)}
        request: Object = {"name": f"req-{number}", "exactly": one}
        if one["deviceClassName"] == own.MIG and rng.random() < 0.1:
            other = {**one, "count": rng.randint(1, 3), "selectors": _profile(rng)}
            request = {"name": f"req-{number}", "firstAvailable": [{"name": "a", **other}, {"name": "b", **one}]}
        requests.append(request)
    return requests


def _profile(rng: random.Random) -> list[Object]:
    name = rng.choice([profile.name for model in own.MODELS.values() for profile in model])
    return [{"cel": {"expression": f'device.attributes["{DRA_DRIVER}"].profile == "{name}"'}}]


class Board:
    """A cluster with one node, and the pods of a gang."""

    def __init__(self, slices: Sequence[Object], members: Sequence[Claims]) -> None:
        self.cluster = Cluster(grace=20.0, clock=lambda: 100.0)
        self.cluster.set_own_pools(OwnPools(drivers=frozenset({DRA_DRIVER})))
        self._objects, self._pods = ClaimsInTurns(self.cluster), every_pod(self.cluster)
        for device_class in own.CLASSES:
            self._objects.put_class(device_class)
        self.cluster.node_cache.put_node(node(NODE, allocatable={"cpu": "64"}))
        for made in slices:
            self._objects.put_slice(made)
        self.members = [self._member(f"m{number}", claims) for number, claims in enumerate(members)]

    def _member(self, name: str, claims: Claims) -> PendingPod:
        used = []
        for number, requests in enumerate(claims):
            metadata = {"name": f"{name}-{number}", "namespace": "ns", "uid": f"uid-claim-{name}-{number}"}
            self._objects.put_claim({"metadata": metadata, "spec": {"devices": {"requests": list(requests)}}})
            used.append({"name": f"c{number}", "resourceClaimName": metadata["name"]})
        self.cluster.put_pending(pod(name, {"cpu": "1"}, resourceClaims=used))
        return self.cluster.pending[f"uid-{name}"]

    def of_gang(self) -> list[Placement] | Failure:
        """Return what is decided about the gang, after as many turns of the loop as it takes."""
        return self._decided(lambda: decide_gang(self.cluster.fleet, gang(*self.members), Policy()))

    def of_pod(self) -> Placement | Failure:
        """Return what is decided about the first pod."""
        return self._decided(lambda: decide(self.cluster.fleet, self.members[0], Policy()))

    def _decided(self, decision: Callable[[], Outcome]) -> Outcome:
        work = self.cluster.fleet.claims.supply.work
        for _ in range(MAX_TURNS):
            work.refill(TURN)
            outcome = decision()
            if not (isinstance(outcome, Failure) and work.unfinished):
                break
        return outcome


def claims_of(members: Sequence[Claims]) -> list[Object]:
    """Return the claims of all pods."""
    return [
        {
            "metadata": {"name": f"m{member}-{number}", "namespace": "ns", "uid": f"uid-{member}-{number}"},
            "spec": {"devices": {"requests": list(requests)}},
        }
        for member, claims in enumerate(members)
        for number, requests in enumerate(claims)
    ]


def written(drawn: Fitting, placements: Sequence[Placement]) -> tuple[Object, Object]:
    """Return the scenario of a gang's claims on the node, and its outcome, as those of one pod."""
    allocations = {str(one.claim): one for placement in placements for one in placement.claims.allocations}
    claims = claims_of(drawn.members)
    results = [allocations[f"ns/{claim['metadata']['name']}"].written() for claim in claims]
    for one in results:
        for result in one["devices"]["results"]:
            if "shareID" in result:
                result["shareID"] = scenario.SHARE_ID
    return own.asked(drawn.slices, claims, []), {"results": results}


def split(counts: Sequence[int], place: int, *, expression: str) -> list[list[Object]]:
    """Return claims of so many instances; the claim at a place also wants one that an expression selects."""

    def exactly(count: int, selectors: list[Object]) -> Object:
        mode = {"allocationMode": "ExactCount", "count": count}
        return {"deviceClassName": own.MIG, **mode, **({"selectors": selectors} if selectors else {})}

    claims: list[list[Object]] = [[{"name": "a", "exactly": exactly(count, [])}] for count in counts]
    claims[place].append({"name": "b", "exactly": exactly(1, [{"cel": {"expression": expression}}])})
    return claims


def splits(total: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write a number as a sum, in each order of the terms."""
    if not total:
        yield ()
    for first in range(1, total + 1):
        yield from ((first, *rest) for rest in splits(total - first))


def divided(model: str) -> list[Object]:
    """Return the slices of a node with one card, on which all instances are made on demand."""
    draw = own.Draw(random.Random(0), NODE)
    draw.gives_shares, draw.models, draw.opened_part = False, [model], 1.0
    return [dict(made) for made in draw.manifests()]
