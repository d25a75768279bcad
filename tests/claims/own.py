"""Random nodes as Berth's driver publishes them, and claims for what they list: `scenario`.

Most nodes make MIG instances on demand, others give shares of their cards. Upstream's allocator must give the devices
that ours gives (`make dra-rows`), and so must kube-scheduler (`tests/integration/scheduler/test_own_slices.py`).
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from berth_agent.dra import partitions, slices
from berth_agent.dra.devices import ListedDevice
from berth_agent.vendor import PartitionableCard, PartitionProfile
from berth_api.names import DRA_DRIVER
from tests.claims import scenario as scenarios
from tests.claims.generate import FEATURES
from tests.nvml import mig_profiles
from tests.nvml.mig_profiles import MigProfile

Object = dict[str, Any]

CLASSES: Final = list(
    yaml.safe_load_all((Path(__file__).parents[2] / "manifests/components/dra/classes.yaml").read_text())
)
MODELS: Final[Mapping[str, Sequence[MigProfile]]] = {
    "H100": mig_profiles.H100_80,
    "A100": mig_profiles.A100_40,
    "A30": mig_profiles.A30,
}
BEFORE_HOPPER: Final = frozenset({"A100", "A30"})
"""Models whose cards are never listed as whole if they are open for instances."""
GPU: Final = DRA_DRIVER
MIG: Final = f"mig.{DRA_DRIVER}"


def reported(profiles: Sequence[MigProfile]) -> tuple[PartitionProfile, ...]:
    """Return profiles as the agent reads them from NVML."""
    return tuple(
        PartitionProfile(
            id=profile.id,
            name=profile.name,
            slices=profile.slices,
            instances=profile.instances,
            memory_mib=profile.memory_mib,
            engines={
                "multiprocessors": profile.multiprocessors,
                "copyEngines": profile.copy_engines,
                "decoders": profile.decoders,
                "encoders": 0,
                "jpegEngines": profile.jpegs,
                "ofaEngines": profile.ofas,
            },
            size=profile.size,
            starts=profile.starts,
        )
        for profile in profiles
    )


def scenario(seed: int) -> Object:
    """Return the scenario of a seed, as `upstream/main.go` reads it: some claims, after earlier ones were allocated."""
    draw = Draw(random.Random(seed))
    held: list[Object] = []
    listed = [
        {"metadata": {"name": f"slice-{number}"}, "spec": made["spec"]} for number, made in enumerate(draw.manifests())
    ]
    for number in range(draw.rng.randrange(6)):
        earlier = asked(listed, [draw.claim(f"earlier-{number}")], held)
        held += taken(scenarios.outcome(earlier), number)
    return asked(listed, [draw.claim(f"claim-{number}") for number in range(draw.rng.choice((1, 1, 2)))], held)


def asked(listed: Sequence[Object], claims: Sequence[Object], held: Sequence[Object], node: str = "node") -> Object:
    """Return the scenario of claims on a node with some slices, of which other claims hold some devices."""
    return {
        "features": list(FEATURES),
        "node": {"metadata": {"name": node}},
        "classes": CLASSES,
        "slices": list(listed),
        "claims": list(claims),
        "held": list(held),
    }


def taken(outcome: Mapping[str, Any], number: int) -> list[Object]:
    """Return what an outcome holds, for later scenarios; `number` keeps its shares apart from those of others."""
    held: list[Object] = []
    for allocation in outcome["results"] or ():
        for result in allocation["devices"]["results"]:
            one = {name: result[name] for name in ("driver", "pool", "device")}
            if consumed := result.get("consumedCapacity"):
                one |= {"shareID": f"{number}-{len(held)}", "capacity": consumed}
            held.append(one)
    return held


class Draw:
    """The draws of one node."""

    def __init__(self, rng: random.Random, node: str = "node") -> None:
        self.rng, self.node = rng, node
        self.gives_shares = rng.random() < 0.3
        self.models = [rng.choice([*MODELS]) for _ in range(rng.randint(2, 4))]
        self.opened_part = 0.8
        """The part of the cards on which instances can be made."""

    def manifests(self) -> list[Object]:
        """Return the slices as the driver creates them."""
        cards = [
            ListedDevice(
                name=f"gpu-{number}",
                id=f"{number}",
                card=f"{number}",
                place=f"0000:{number:02x}:00.0",
                attributes={"type": {"string": "gpu"}, "productName": {"string": model}},
                memory=f"{80 if model == 'H100' else 40}Gi",
                shared=self.gives_shares,
            )
            for number, model in enumerate(self.models)
        ]
        opened = {
            card.id: found
            for card, model in zip(cards, self.models, strict=True)
            if not self.gives_shares and self.rng.random() < self.opened_part and (found := _opened(card, model))
        }
        writes = slices.plan(
            slices.by_card(cards, with_taints=True, partitioned=opened),
            [],
            node=self.node,
            counters=slices.counters_of(opened),
        )
        return [slices.manifest(one.card, one.spec, None) for one in writes if isinstance(one, slices.Create)]

    def claim(self, name: str) -> Object:
        """Return a claim for some of what the node may list."""
        requests = [self._request(f"req-{number}") for number in range(self.rng.choice((1, 1, 1, 2)))]
        devices: Object = {"requests": requests}
        if self.rng.random() < 0.15:
            devices["constraints"] = [
                {"matchAttribute": f"{DRA_DRIVER}/{self.rng.choice(('parentUUID', 'productName'))}"}
            ]
        return {"metadata": {"name": name, "namespace": "ns"}, "spec": {"devices": devices}}

    def _request(self, name: str) -> Object:
        if self.rng.random() < 0.15:
            return {
                "name": name,
                "firstAvailable": [{"name": f"sub-{number}", **self._device()} for number in range(2)],
            }
        return {"name": name, "exactly": self._device()}

    def _device(self) -> Object:
        count = {"allocationMode": "ExactCount", "count": self.rng.choice((1, 1, 1, 1, 2))}
        if self.gives_shares or self.rng.random() < 0.1:
            amounts = {"memory": self.rng.choice(("1Mi", "10Gi", "20Gi", "12345678", "50Gi")), "cores": self._cores()}
            some = {key: value for key, value in amounts.items() if self.gives_shares and self.rng.random() < 0.7}
            return {"deviceClassName": GPU, **count, **({"capacity": {"requests": some}} if some else {})}
        profile = self.rng.choice([profile.name for model in self.models for profile in MODELS[model]])
        of_profile = f'device.attributes["{DRA_DRIVER}"].profile == "{profile}"'
        of_size = f'device.capacity["{DRA_DRIVER}"].memory.compareTo(quantity("{self.rng.choice((9, 18, 30))}Gi")) >= 0'
        expression = of_profile if self.rng.random() < 0.8 else of_size
        return {"deviceClassName": MIG, **count, "selectors": [{"cel": {"expression": expression}}]}

    def _cores(self) -> str:
        return str(self.rng.choice((0, 10, 25, 50, 100)))


def _opened(card: ListedDevice, model: str) -> partitions.PartitionedCard | None:
    found = PartitionableCard(
        card=card.id,
        is_partitioned=True,
        changes_at_once=model not in BEFORE_HOPPER,
        profiles=reported(MODELS[model]),
        made={},
        foreign=(),
    )
    return partitions.on_card(card, found)
