"""Random nodes as drivers publish them, and claims whose constraints leave few of their devices: `scenario`.

GPUs are divided into MIG devices that take from counters and have capacities. NICs may be shared, and many devices are
held. Where upstream finds devices within its time, Berth does so within its bounds (`make dra-rows`).
"""

import random
from collections.abc import Sequence
from typing import Any, Final

from tests.claims.generate import FEATURES

Object = dict[str, Any]

CALLS: Final = 8_000
"""Devices that upstream chooses before it ends a search: a second or more, of the ten that kube-scheduler has."""
PROFILES: Final = {"1g": (1, (0, 1, 2, 3, 4, 5, 6)), "2g": (2, (0, 2, 4)), "3g": (4, (0, 4))}
"""MIG profile -> its memory slices, and where its instances may begin."""
ATTRIBUTES: Final = ("root", "numa", "model", "link")
KINDS: Final = ("mig", "mig", "1g", "2g", "3g", "gpu", "nic", "nic", "any")


def scenario(seed: int) -> Object:
    """Return the scenario of a seed, as `upstream/main.go` reads it."""
    return Draw(random.Random(seed)).scenario()


class Draw:
    """The draws of one scenario."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.gpus, self.nics = rng.randint(2, 8), rng.randint(1, 8)
        self.capacities, self.held_part = rng.choice((0, 1, 4, 15)), rng.choice((0.1, 0.4, 0.7))
        self.missing = rng.choice((0.0, 0.0, 0.1))
        self.slices: list[Object] = []
        self.held: list[Object] = []

    def scenario(self) -> Object:
        self._publish_gpus()
        self._publish("nic.io", [{"devices": [self._nic(number) for number in range(self.nics)]}])
        return {
            "features": list(FEATURES),
            "node": {"metadata": {"name": "node"}},
            "classes": [
                {"metadata": {"name": kind}, "spec": {"selectors": _selectors(kind)}} for kind in dict.fromkeys(KINDS)
            ],
            "slices": self.slices,
            "claims": [self._claim(number) for number in range(self.rng.choice((1, 1, 1, 2)))],
            "held": self.held,
            "calls": CALLS,
        }

    def _publish(self, driver: str, contents: Sequence[Object]) -> None:
        for number, content in enumerate(contents):
            pool = {"name": "node", "generation": 1, "resourceSliceCount": len(contents)}
            spec = {"driver": driver, "pool": pool, "nodeName": "node", **content}
            self.slices.append({"metadata": {"name": f"{driver}-{number}"}, "spec": spec})

    def _publish_gpus(self) -> None:
        devices, sets = [], []
        for gpu in range(self.gpus):
            places = self._places(gpu)
            counters = {f"slice-{number}": {"value": "1"} for number in range(8)}
            sets.append({"name": f"gpu-{gpu}", "counters": counters})
            devices.append(self._device(f"gpu-{gpu}", "gpu", places, gpu, range(8)))
            for profile, (size, starts) in PROFILES.items():
                devices += [
                    self._device(f"gpu-{gpu}-{profile}-{start}", profile, places, gpu, range(start, start + size))
                    for start in starts
                ]
        taken = [device for device in devices if self.rng.random() < self.held_part / 8]
        self.held += [{"driver": "gpu.io", "pool": "node", "device": device["name"]} for device in taken]
        self._publish("gpu.io", [{"devices": devices}, {"sharedCounters": sets}])

    def _device(self, name: str, kind: str, places: Object, gpu: int, slices: range) -> Object:
        used = {f"slice-{number}": {"value": "1"} for number in slices}
        made: Object = {
            "name": name,
            "attributes": {**places, "kind": {"string": kind}},
            "consumesCounters": [{"counterSet": f"gpu-{gpu}", "counters": used}],
        }
        if self.capacities:
            made["capacity"] = {f"c-{number}": {"value": str(len(slices))} for number in range(self.capacities)}
        return made

    def _nic(self, number: int) -> Object:
        made: Object = {
            "name": f"nic-{number}",
            "attributes": {**self._places(number), "kind": {"string": "nic"}},
        }
        held: Object = {"driver": "nic.io", "pool": "node", "device": made["name"]}
        if self.rng.random() < 0.2:
            policy = {"default": "2", "validRange": {"min": "1", "step": "1"}}
            made |= {"allowMultipleAllocations": True, "capacity": {"rate": {"value": "4", "requestPolicy": policy}}}
            held |= {"shareID": "share", "capacity": {"rate": self.rng.choice("1234")}}
        if self.rng.random() < self.held_part:
            self.held.append(held)
        return made

    def _places(self, number: int) -> Object:
        places = {
            "place.io/root": {"string": f"root-{number if self.rng.random() < 0.8 else self.rng.randrange(8)}"},
            "place.io/numa": {"int": self.rng.choice((number // 4, number % 2))},
            "place.io/model": {"string": self.rng.choice("xyz")},
            "place.io/link": {"string": self.rng.choice("ab")},
        }
        return {name: value for name, value in places.items() if self.rng.random() >= self.missing}

    def _claim(self, number: int) -> Object:
        requests = [self._request(each) for each in range(self.rng.choice((1, 2, 2, 3, 3, 4, 5)))]
        names = [request["name"] for request in requests]
        constraints = [self._constraint(names) for _ in range(self.rng.choice((1, 1, 2, 2, 3)))]
        devices = {"requests": requests, "constraints": constraints}
        return {"metadata": {"name": f"claim-{number}", "namespace": "ns"}, "spec": {"devices": devices}}

    def _request(self, number: int) -> Object:
        name = f"req-{number}"
        if self.rng.random() < 0.85:
            return {"name": name, "exactly": self._exactly()}
        return {"name": name, "firstAvailable": [{"name": f"sub-{each}", **self._exactly()} for each in range(2)]}

    def _exactly(self) -> Object:
        kind = self.rng.choice(KINDS)
        exactly: Object = {
            "deviceClassName": kind,
            "allocationMode": "ExactCount",
            "count": self.rng.choice((1, 1, 1, 2, 2, 3, 4)),
        }
        if kind == "nic" and self.rng.random() < 0.1:
            exactly["capacity"] = {"requests": {"rate": self.rng.choice("123")}}
        return exactly

    def _constraint(self, names: Sequence[str]) -> Object:
        kind = self.rng.choice(("matchAttribute", "matchAttribute", "matchAttribute", "distinctAttribute"))
        some = {} if self.rng.random() < 0.4 else {"requests": self.rng.sample(names, self.rng.randint(1, len(names)))}
        return {kind: f"place.io/{self.rng.choice(ATTRIBUTES)}", **some}


def _selectors(kind: str) -> list[Object]:
    gpu = 'device.attributes["gpu.io"].kind'
    if kind == "any":
        return []
    of_gpu = {"mig": f'{gpu} != "gpu"'}.get(kind, f'{gpu} == "{kind}"')
    expression = 'device.driver == "nic.io"' if kind == "nic" else f'device.driver == "gpu.io" && {of_gpu}'
    return [{"cel": {"expression": expression}}]
