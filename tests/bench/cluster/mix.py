"""A seeded mix of pods as in a busy cluster. Each application is a class of its own.

The kinds come from karpenter's scheduling benchmark (plain, spread over zones, spread over hosts, affinity,
anti-affinity), with GPUs added: whole cards, several cards, and shares of one card. A fifth of the applications fit
nowhere, for several different reasons.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.objects import builders

Raw = dict[str, Any]
Spec = dict[str, Any]

ZONE: Final = "topology.kubernetes.io/zone"
HOST: Final = "kubernetes.io/hostname"
ZONES: Final = ("zone-a", "zone-b", "zone-c")
UNSCHEDULABLE: Final = 5
"""One in this many applications fits nowhere."""


def pods(count: int, seed: int, *, owned: bool = False) -> Iterator[Raw]:
    """Return one pod for each of `count` applications; each application is a ReplicaSet if the pods are owned."""
    rng = random.Random(seed)
    for number in range(count):
        app = f"app-{number}"
        hopeless = number % UNSCHEDULABLE == 0
        spec = rng.choice(HOPELESS if hopeless else KINDS)(app, rng)
        requests = {**_cpu(rng), **(spec.pop("gpus", None) or _gpus(rng))}
        metadata = {"ownerReferences": [builders.owner(app)]} if owned else {}
        yield builders.pod(app, requests, labels={"app": app, "tier": f"tier-{number % 7}"}, metadata=metadata, **spec)


def _cpu(rng: random.Random) -> Raw:
    return {"cpu": rng.choice(("250m", "500m", "1", "2")), "memory": rng.choice(("512Mi", "1Gi", "4Gi"))}


def _gpus(rng: random.Random) -> Raw:
    """Return a request for no card, one, several, or a share of one."""
    return rng.choice(
        (
            {},
            {builders.NVIDIA: "1"},
            {builders.NVIDIA: str(rng.choice((2, 2, 4)))},
            {builders.CORE: "50", builders.RATIO: "50"},
            {builders.CORE: "25", builders.MEMORY: "8Gi"},
        )
    )


# --- kinds that fit ----------------------------------------------------------------------------------------------


def _plain(_app: str, _rng: random.Random) -> Spec:
    return {}


def _spread(key: str, skew: int) -> Callable[[str, random.Random], Spec]:
    def kind(app: str, _rng: random.Random) -> Spec:
        constraint = {
            "topologyKey": key,
            "maxSkew": skew,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": app}},
        }
        return {"topologySpreadConstraints": [constraint]}

    return kind


def _among(kind: str, key: str, labels: Raw) -> Spec:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": labels}}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def _affinity(_app: str, rng: random.Random) -> Spec:
    return _among("podAffinity", ZONE, {"tier": f"tier-{rng.randrange(7)}"})


def _anti_affinity(app: str, _rng: random.Random) -> Spec:
    return _among("podAntiAffinity", HOST, {"app": app})


KINDS: Final = (_plain, _spread(ZONE, 3), _spread(HOST, 4), _affinity, _anti_affinity)


# --- kinds that fit nowhere --------------------------------------------------------------------------------------


def _nowhere(_app: str, _rng: random.Random) -> Spec:
    return {"nodeSelector": {ZONE: "zone-without-nodes"}}


def _too_many_cards(_app: str, _rng: random.Random) -> Spec:
    return {"gpus": {builders.NVIDIA: "9"}}


def _too_much_memory(_app: str, _rng: random.Random) -> Spec:
    return {"gpus": {"memory": "2Ti"}}


def _affinity_to_no_pod(_app: str, _rng: random.Random) -> Spec:
    return _among("podAffinity", ZONE, {"app": "app-without-pods"})


def _excluded_from_every_zone(_app: str, rng: random.Random) -> Spec:
    # Every zone has a pod of each tier.
    return _among("podAntiAffinity", ZONE, {"tier": f"tier-{rng.randrange(7)}"})


HOPELESS: Final = (_nowhere, _too_many_cards, _too_much_memory, _affinity_to_no_pod, _excluded_from_every_zone)
