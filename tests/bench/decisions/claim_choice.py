"""What the choice of devices for ResourceClaims leaves for others.

`python -m tests.bench.decisions.claim_choice --help` shows the arguments.

A third of the nodes have eight GPUs each, below four PCIe roots and at two NUMA nodes. Another third have four H100, on
which Berth's driver makes MIG instances on demand. The last third have four GPUs that are shared by memory. Pods with
one claim arrive at random (Poisson) and run for an exponential lifetime. A pod that cannot be placed at once is turned
away. The core's own `decide` places the pods on the same arrivals, with the strategy `FirstFit` and with
`Fragmentation`.

If claims have no preference, pods with CPU requests are spread over nodes as by kube-scheduler. Pods without CPU
requests fill one node after another.
"""

import argparse
import heapq
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from berth_agent.dra.devices import ListedDevice
from berth_agent.dra.partitions import PartitionedCard, partitioned
from berth_operator.core.claims.allocation.closeness import NUMA_NODE, PCIE_ROOT
from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.settings.configuration import Strategy
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.watches.claims import ResourceClaims
from tests.bench import figures
from tests.claims import objects
from tests.claims.objects import Object
from tests.claims.own import reported
from tests.nvml.mig_profiles import H100_80
from tests.objects.builders import lease, node, pod

WARM: Final = 3.0
"""Mean lifetimes before anything is counted."""
STRATEGIES: Final = ("FirstFit", "Fragmentation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of pods."""

    name: str
    part: str
    """Of the fleet."""
    share: float
    """Of the pods for this part of the fleet."""
    size: float
    """In GPUs."""
    request: Object


def _kind(name: str, part: str, share: float, size: float, model: str, **fields: Any) -> Kind:
    request = objects.request(where=f'device.attributes["gpu.io"].model == "{model}"', **fields)
    return Kind(name=name, part=part, share=share, size=size, request=request)


def _shared(memory: int, share: float) -> Kind:
    capacity = {"requests": {"memory": f"{memory}Gi"}}
    return _kind(f"{memory}Gi", "shared", share, memory / 80, "l40s", capacity=capacity)


KINDS: Final = (
    *(
        _kind(f"{n} GPUs", "whole", share, n, "h100", count=n)
        for n, share in ((1, 0.5), (2, 0.25), (4, 0.15), (8, 0.1))
    ),
    *(
        _kind(profile, "MIG", share, slices / 7, profile)
        for profile, slices, share in (("1g.10gb", 1, 0.4), ("2g.20gb", 2, 0.2), ("3g.40gb", 3, 0.2))
    ),
    _kind("whole", "MIG", 0.2, 1, "gpu"),
    *(_shared(memory, share) for memory, share in ((10, 0.4), (20, 0.3), (40, 0.2), (80, 0.1))),
)
CLOSE: Final[Mapping[float, str]] = {2: PCIE_ROOT, 4: NUMA_NODE}
"""Number of GPUs -> what they have in common if they are close."""
PROFILES: Final = reported(H100_80)
PARTS: Final = {"whole": 8, "MIG": 4, "shared": 4}
"""Part of the fleet -> GPUs of a node."""


@dataclass(slots=True)
class Outcome:
    """What came of the pods that were counted, by kind."""

    arrived: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    close: Counter[str] = field(default_factory=Counter)
    """Those with CLOSE GPUs."""


def main() -> None:
    """Run the benchmark."""
    options = _arguments()
    outcomes = {strategy: Outcome() for strategy in STRATEGIES}
    for seed in range(options.seeds):
        for strategy, outcome in outcomes.items():
            _simulate(outcome, strategy, options, seed)
            figures.say(f"seed {seed}, {strategy}: {outcome.refused.total()} of {outcome.arrived.total()} turned away")
    figures.result({"load": options.load, **{name: _summary(outcome) for name, outcome in outcomes.items()}})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.decisions.claim_choice", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("--nodes", type=int, default=12, help="in each part of the fleet")
    parser.add_argument("--load", type=float, default=0.9, help="of all GPUs, if all pods were placed")
    parser.add_argument("--lifetimes", type=float, default=15.0, help="that are counted")
    parser.add_argument("--cpu", type=int, default=4, help="requested for each GPU, of 64 of a node")
    parser.add_argument("--seeds", type=int, default=3)
    return parser.parse_args()


def _summary(outcome: Outcome) -> dict[str, Any]:
    """Return percentages: pods turned away and the GPUs that they wanted, and pods with close GPUs of those placed."""
    placed = outcome.arrived - outcome.refused
    return {
        "turned_away": {part: _turned_away(outcome, [kind for kind in KINDS if kind.part == part]) for part in PARTS},
        "close": {name: _percent(number, placed[name]) for name, number in outcome.close.items()},
    }


def _turned_away(outcome: Outcome, kinds: list[Kind]) -> dict[str, float]:
    by_kind = {kind.name: _percent(outcome.refused[kind.name], outcome.arrived[kind.name]) for kind in kinds}
    wanted = sum(kind.size * outcome.arrived[kind.name] for kind in kinds)
    return {**by_kind, "GPUs": _percent(sum(kind.size * outcome.refused[kind.name] for kind in kinds), wanted)}


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 2) if whole else 0.0


# --- the simulation ---------------------------------------------------------------------------------------------


def _simulate(outcome: Outcome, strategy: str, options: argparse.Namespace, seed: int) -> None:
    cluster = _cluster(options.nodes)
    policy = _policy(strategy)
    ends: list[tuple[float, int]] = []
    for number, (now, kind, lifetime) in enumerate(_arrivals(options, random.Random(seed))):
        while ends and ends[0][0] <= now:
            _end(cluster, heapq.heappop(ends)[1])
        placement = _decided(cluster, policy, number, kind, options.cpu)
        if placement is not None:
            heapq.heappush(ends, (now + lifetime, number))
        if now >= WARM:
            outcome.arrived[kind.name] += 1
            outcome.refused[kind.name] += placement is None
            if placement is not None and kind.part == "whole" and kind.size in CLOSE:
                outcome.close[kind.name] += _is_close(placement, CLOSE[kind.size])


def _arrivals(options: argparse.Namespace, rng: random.Random) -> Iterator[tuple[float, Kind, float]]:
    """Yield (when, kind, lifetime) of each pod."""
    rates = [options.load * options.nodes * PARTS[kind.part] * kind.share / _mean_size(kind.part) for kind in KINDS]
    now = 0.0
    while (now := now + rng.expovariate(sum(rates))) < WARM + options.lifetimes:
        yield now, rng.choices(KINDS, rates)[0], rng.expovariate(1.0)


def _mean_size(part: str) -> float:
    return sum(kind.share * kind.size for kind in KINDS if kind.part == part)


def _policy(strategy: str) -> Policy:
    chosen = Strategy.model_validate({"claims": strategy})
    return Policy(weights=tuple(chosen.weights().items()), claim_strategy=strategy)


def _cluster(nodes: int) -> Cluster:
    cluster = Cluster(grace=1e9, clock=lambda: 0.0)
    cluster.set_own_pools(OwnPools(drivers=frozenset({objects.DRIVER})))
    to = ResourceClaims(cluster)
    to.put_class({"metadata": {"name": "gpu"}, "spec": {}})
    for part in PARTS:
        for name in (f"{part.lower()}-{number:02}" for number in range(nodes)):
            cluster.node_cache.put_node(node(name))
            cluster.node_cache.put_lease(lease(name))
            for raw in _slices(part, name):
                to.put_slice(raw)
    return cluster


def _slices(part: str, name: str) -> list[Object]:
    where: Object = {"pool": name, "nodeName": name}
    if part == "MIG":
        gpus = [_opened(f"gpu-{number}") for number in range(PARTS[part])]
        devices = [_with_model(device) for gpu in gpus for device in gpu.devices]
        counters = [gpu.counters for gpu in gpus]
        return [
            objects.slice_of(*devices, name=f"{name}-devices", count=2, **where),
            objects.slice_of(name=f"{name}-counters", count=2, sharedCounters=counters, **where),
        ]
    if part == "shared":
        shareable: Object = {"model": "l40s", "memory": "80Gi", "allowMultipleAllocations": True}
        devices = [objects.device(f"gpu-{number}", **shareable) for number in range(PARTS[part])]
    else:
        devices = [_at_its_place(number) for number in range(PARTS[part])]
    return [objects.slice_of(*devices, name=name, **where)]


def _opened(name: str) -> PartitionedCard:
    """Return what Berth's driver lists of a GPU on which it makes MIG instances."""
    card = ListedDevice(name=name, id=name, card=name, place="", attributes={"type": {"string": "gpu"}}, memory="80Gi")
    found = partitioned(card, PROFILES, opened=True, keeps_counters=True)
    assert found
    return found


def _with_model(device: Mapping[str, Any]) -> Object:
    """Return a device of a GPU with MIG whose model is its profile; that of the whole GPU is `gpu`."""
    attributes = device["attributes"]
    return {**device, "attributes": {"model": attributes.get("profile", attributes["type"])}}


def _at_its_place(number: int) -> Object:
    device = objects.device(f"gpu-{number}", model="h100")
    place = {PCIE_ROOT: {"string": f"pci0000:{number // 2}0"}, NUMA_NODE: {"int": number // 4}}
    return {**device, "attributes": device["attributes"] | place}


def _decided(cluster: Cluster, policy: Policy, number: int, kind: Kind, cpu: int) -> Placement | None:
    """Decide about a new pod, and charge its placement; None if there is none."""
    claim = objects.claim(kind.request, name=f"c-{number}")
    claim["metadata"]["uid"] = f"uid-{claim['metadata']['name']}"
    ResourceClaims(cluster).put_claim(claim)
    used = [{"name": "c", "resourceClaimName": f"c-{number}"}]
    cluster.put_pending(pod(f"p-{number}", {"cpu": f"{round(1000 * cpu * kind.size)}m"}, resourceClaims=used))
    outcome = decide(cluster.fleet, cluster.pending[f"uid-p-{number}"], policy)
    cluster.remove_pending(f"uid-p-{number}")
    if isinstance(outcome, Placement):
        cluster.fleet.charge(outcome.charge)
        return outcome
    ResourceClaims(cluster).remove_claim(f"ns/c-{number}")
    return None


def _end(cluster: Cluster, number: int) -> None:
    cluster.fleet.release(f"uid-p-{number}")
    ResourceClaims(cluster).remove_claim(f"ns/c-{number}")


def _is_close(placement: Placement, attribute: str) -> bool:
    results = placement.claims.allocations[0].results
    return len({each.device.attributes[attribute] for each in results}) == 1


if __name__ == "__main__":
    main()
