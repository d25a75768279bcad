"""Random scenarios: small clusters with every feature of the allocator. About half of the claims can be met."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

Object = dict[str, Any]

FEATURES: Final = (
    "AdminAccess",
    "ConsumableCapacity",
    "DeviceBindingAndStatus",
    "DeviceTaints",
    "FractionalCapacityRange",
    "PartitionableDevices",
    "PrioritizedList",
)
DRIVERS: Final = ("a.io", "b.io")
ZONES: Final = ("east", "west")
MODELS: Final = ("x", "y", "z")
EFFECTS: Final = ("NoSchedule", "NoExecute", "None")
SELECTORS: Final = (
    'device.attributes["a.io"].model == "x"',
    'device.attributes["a.io"].model == "y"',
    '"fast" in device.attributes["a.io"] && device.attributes["a.io"].fast',
    'device.attributes["a.io"].numa >= 0',
    'device.attributes["a.io"].numa == 1',
    'device.attributes["a.io"].model != "z"',
    '"memory" in device.capacity["a.io"] && device.capacity["a.io"].memory.compareTo(quantity("2Gi")) >= 0',
    'device.driver == "a.io"',
    "true",
    "false",
)
POLICIES: Final[Sequence[Object | None]] = (
    None,
    {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}},
    {"default": "1Gi", "validRange": {"min": "1Gi", "max": "3Gi", "step": "512Mi"}},
    {"default": "2Gi", "validValues": ["1Gi", "2Gi", "4Gi"]},
    {"default": "1Gi", "validRange": {"min": "512Mi"}},
)
FRACTIONS: Final[Sequence[Object | None]] = (
    {"default": "100m", "validRange": {"min": "100m", "max": "1", "step": "100m"}},
    {"default": "1", "validRange": {"min": "500m", "step": "250m"}},
    {"default": "1", "validRange": {"min": "1", "step": "2"}},
)
EXTREMES: Final = ("100E", "9223372036854775807", "-1", "1u", "8Ei")


def scenario(seed: int, *, small: bool = False) -> Object:
    """Return the scenario of a seed, as `upstream/main.go` reads it; a small one has few devices and attributes."""
    return Draw(random.Random(seed), small=small).scenario()


class Draw:
    """The draws of one scenario."""

    def __init__(self, rng: random.Random, *, small: bool) -> None:
        self.rng = rng
        self.small = small
        self.nodes = [f"node-{number}" for number in range(rng.randint(1, 4))]
        self.drivers = DRIVERS[: 1 + (rng.random() < 0.35)]
        self.uses = {
            theme: rng.random() < odds
            for theme, odds in (
                ("admin", 0.15),
                ("binding", 0.15),
                ("capacity", 0.35),
                ("counters", 0.3),
                ("defects", 0.15),
                ("extremes", 0.04),
                ("large", 0.03),
                ("partial_attributes", 0.1),
                ("per_device", 0.15),
                ("taints", 0.2),
            )
        }
        self.slices: list[Object] = []
        self.held: list[Object] = []

    def scenario(self) -> Object:
        for _ in range(self.rng.randint(1, 2) if self.small else self.rng.randint(2, 4)):
            self._pool(self.rng.choice(self.drivers))
        self.rng.shuffle(self.slices)
        return {
            "features": self._features(),
            "node": {"metadata": {"name": self.nodes[0], "labels": {"zone": self.rng.choice(ZONES)}}},
            "classes": [self._class(name) for name in ("any", "some")],
            "slices": self.slices,
            "claims": [self._claim(number) for number in range(self._few(3))],
            "held": self.held,
        }

    def _few(self, most: int) -> int:
        """Return a number from 1 to `most`, mostly 1 or 2."""
        return min(self.rng.choice((1, 1, 1, 1, 1, 2, 2, 3)), most)

    def _odds(self, odds: float) -> bool:
        return self.rng.random() < odds

    def _with(self, theme: str, odds: float) -> bool:
        return self.uses[theme] and self._odds(odds)

    def _features(self) -> list[str]:
        off = self.rng.choice(FEATURES) if self._odds(0.05) else ""
        return [name for name in FEATURES if name != off]

    # Slices

    def _pool(self, driver: str) -> None:
        name = self.rng.choice(("shared", self.nodes[0], self.nodes[0], self.rng.choice(self.nodes)))
        if any(each["spec"]["driver"] == driver and each["spec"]["pool"]["name"] == name for each in self.slices):
            return
        counters = self._counter_sets() if self.uses["counters"] and self._odds(0.8) else []
        contents: list[Object] = [{"devices": []} for _ in range(self._few(3))]
        for number in range(self._devices()):
            place = self.rng.randrange(len(contents))
            contents[place]["devices"].append(self._device(driver, name, number, counters))
        if counters:
            contents.append({"sharedCounters": counters})
        self._publish(driver, name, contents)

    def _devices(self) -> int:
        if self.small:
            return self.rng.randint(1, 4)
        return 33 if self._with("large", 0.7) else self.rng.randint(2, 7)

    def _publish(self, driver: str, pool: str, contents: list[Object]) -> None:
        count, generation = len(contents), self.rng.randint(1, 2)
        if self._with("defects", 0.3):
            count += self.rng.choice((1, 1, -1))
        for number, content in enumerate(contents):
            newer = generation + (self._with("defects", 0.1))
            spec: Object = {
                "driver": driver,
                "pool": {"name": pool, "generation": newer, "resourceSliceCount": max(count, 1)},
                **(self._slice_nodes(content, pool)),
                **content,
            }
            name = f"{self.rng.choice('pqr')}-{driver}-{pool}-{number}"
            self.slices.append({"metadata": {"name": name}, "spec": spec})
        if self._with("defects", 0.2):
            self._duplicate(driver, pool)

    def _duplicate(self, driver: str, pool: str) -> None:
        """Let a device or a counter set have the name of another."""
        slices = [each["spec"] for each in self.slices if each["spec"]["driver"] == driver]
        for field in self.rng.sample(("devices", "sharedCounters"), 2):
            named = [one for spec in slices if spec["pool"]["name"] == pool for one in spec.get(field, ())]
            if len(named) > 1:
                named[-1]["name"] = named[0]["name"]
                return

    def _slice_nodes(self, content: Object, pool: str) -> Object:
        if "sharedCounters" not in content and self._with("per_device", 0.6):
            for device in content["devices"]:
                device.update(self._nodes(pool))
            return {"perDeviceNodeSelection": True}
        return self._nodes(pool)

    def _nodes(self, pool: str) -> Object:
        if pool in self.nodes:
            return {"nodeName": pool} if self._odds(0.95) else {"nodeName": self.rng.choice(self.nodes)}
        draw = self.rng.random()
        if draw < 0.5:
            return {"allNodes": True}
        if draw < 0.8:
            return {"nodeSelector": {"nodeSelectorTerms": [self._term()]}}
        return {"nodeName": self.rng.choice((self.nodes[0], self.rng.choice(self.nodes)))}

    def _term(self) -> Object:
        if self._odds(0.2):
            named = {"key": "metadata.name", "operator": "In", "values": [self.nodes[0]]}
            return {"matchFields": [named]}
        operator = self.rng.choice(("In", "In", "NotIn", "Exists"))
        values = {} if operator == "Exists" else {"values": self.rng.sample(ZONES, self.rng.randint(1, 2))}
        return {"matchExpressions": [{"key": "zone", "operator": operator, **values}]}

    def _counter_sets(self) -> list[Object]:
        return [
            {"name": f"set-{number}", "counters": {name: {"value": self._amount(8)} for name in ("memory", "cores")}}
            for number in range(self.rng.randint(1, 2))
        ]

    def _amount(self, most: int) -> str:
        return str(self.rng.randint(1, most))

    def _device(self, driver: str, pool: str, number: int, counters: Sequence[Object]) -> Object:
        device: Object = {"name": f"dev-{number}", "attributes": self._attributes()}
        if self._with("capacity", 0.8):
            device["capacity"] = self._capacity()
            if self._odds(0.6):
                device["allowMultipleAllocations"] = True
        elif self._with("capacity", 0.2):
            device["allowMultipleAllocations"] = True
        if counters and self._odds(0.8):
            device["consumesCounters"] = self._consumption(counters)
        if self._with("taints", 0.4):
            device["taints"] = [self._taint() for _ in range(self._few(2))]
        if self._with("binding", 0.4):
            device |= {"bindingConditions": ["attached"], "bindingFailureConditions": ["failed"]}
            device |= {"bindsToNode": True} if self._odds(0.5) else {}
        self._hold(driver, pool, device)
        return device

    def _attributes(self) -> Object:
        missing = 0.2 if self.uses["partial_attributes"] else 0.0
        drawn = {
            self.rng.choice(("model", "a.io/model")): {"string": self.rng.choice(MODELS)},
            "a.io/numa": {"int": self.rng.randint(0, 1)},
            "fast": {"bool": self._odds(0.5)},
            "a.io/version": {"version": self.rng.choice(("1.0.0", "1.1.0"))},
        }
        if self.small:
            drawn = dict(list(drawn.items())[:2])
        return {name: value for name, value in drawn.items() if not self._odds(missing)}

    def _capacity(self) -> Object:
        amounts: Object = {"memory": {"value": self.rng.choice(("2Gi", "4Gi", "8Gi"))}}
        if policy := self.rng.choice(POLICIES):
            amounts["memory"]["requestPolicy"] = policy
        if self._odds(0.3):
            amounts["cores"] = {"value": self.rng.choice(("1", "2", "4"))}
            if self._odds(0.7):
                amounts["cores"]["requestPolicy"] = self.rng.choice(FRACTIONS)
        return amounts

    def _consumption(self, counters: Sequence[Object]) -> list[Object]:
        chosen = self.rng.sample(list(counters), self.rng.randint(1, len(counters)))
        consumption = []
        for each in chosen:
            names = self.rng.sample(sorted(each["counters"]), self.rng.randint(1, 2))
            name = "unknown" if self._with("defects", 0.02) else each["name"]
            counted = {"unknown" if self._with("defects", 0.02) else one: {"value": self._amount(2)} for one in names}
            consumption.append({"counterSet": name, "counters": counted})
        return consumption

    def _taint(self) -> Object:
        return {"key": self.rng.choice("kl"), "value": self.rng.choice("vw"), "effect": self.rng.choice(EFFECTS)}

    def _hold(self, driver: str, pool: str, device: Mapping[str, Any]) -> None:
        """Let another claim hold a device, or a share of it."""
        if not self._odds(0.12):
            return
        held = {"driver": driver, "pool": pool, "device": device["name"]}
        if not device.get("allowMultipleAllocations"):
            self.held.append(held)
            return
        for number in range(self._few(2)):
            capacity = {name: "1" if name == "cores" else "1Gi" for name in device.get("capacity", ())}
            self.held.append(held | {"shareID": f"share-{number}"} | ({"capacity": capacity} if capacity else {}))

    # Claims and classes

    def _class(self, name: str) -> Object:
        spec: Object = {}
        if name == "some":
            spec["selectors"] = self._selectors(0.7)
        if self._odds(0.15):
            spec["config"] = [{"opaque": {"driver": "a.io", "parameters": {"class": name}}}]
        return {"metadata": {"name": name}, "spec": spec}

    def _selectors(self, odds: float) -> list[Object]:
        return [{"cel": {"expression": self.rng.choice(SELECTORS)}}] if self._odds(odds) else []

    def _claim(self, number: int) -> Object:
        requests = [self._request(each) for each in range(self._few(3))]
        devices: Object = {"requests": requests}
        names = [name for request in requests for name in _names(request)]
        if self._odds(0.27):
            devices["constraints"] = [self._constraint(names) for _ in range(self._few(2))]
        if self._odds(0.2):
            devices["config"] = [self._config(names) for _ in range(self._few(2))]
        return {"metadata": {"name": f"claim-{number}", "namespace": "ns"}, "spec": {"devices": devices}}

    def _request(self, number: int) -> Object:
        name = f"req-{number}"
        if not self._odds(0.3):
            return {
                "name": name,
                "exactly": self._exactly() | ({"adminAccess": True} if self._with("admin", 0.5) else {}),
            }
        subrequests = [{"name": f"sub-{each}"} | self._exactly() for each in range(self.rng.randint(1, 3))]
        return {"name": name, "firstAvailable": subrequests}

    def _exactly(self) -> Object:
        exactly: Object = {"deviceClassName": self.rng.choice(("any", "any", "some"))}
        if self._odds(0.003):
            exactly["deviceClassName"] = "missing"
        if self._odds(0.1):
            exactly["allocationMode"] = "All"
        else:
            exactly |= {"allocationMode": "ExactCount", "count": self._count()}
        if selectors := self._selectors(0.2):
            exactly["selectors"] = selectors
        if self._with("taints", 0.5):
            exactly["tolerations"] = [self._toleration() for _ in range(self._few(2))]
        if self._with("capacity", 0.5):
            exactly["capacity"] = {"requests": self._requested()}
        return exactly

    def _count(self) -> int:
        if self._with("extremes", 0.3):
            return self.rng.choice((2, 33, 2**62, 2**63 - 1))
        if self._with("large", 0.5):
            return self.rng.choice((4, 30, 31, 32))
        return self.rng.choice((1, 1, 1, 1, 1, 2, 2, 3))

    def _requested(self) -> Object:
        if self._with("extremes", 0.5):
            return {"memory": self.rng.choice(EXTREMES)}
        requested = {"memory": self.rng.choice(("256Mi", "1Gi", "1536Mi", "2Gi", "3Gi", "1G"))}
        if self._odds(0.15):
            requested["cores"] = self.rng.choice(("50m", "150m", "1", "1100m", "3"))
        if self._odds(0.03):
            requested["unknown"] = "1"
        return requested

    def _toleration(self) -> Object:
        key = self.rng.choice("kl")
        operator = self.rng.choice(({"key": key, "operator": "Exists"}, {"key": key, "value": self.rng.choice("vw")}))
        if self._odds(0.2):
            operator = {"operator": "Exists"}
        return operator | ({"effect": self.rng.choice(EFFECTS)} if self._odds(0.3) else {})

    def _constraint(self, names: Sequence[str]) -> Object:
        attribute = self.rng.choice(("a.io/model", "a.io/numa", "a.io/fast", "a.io/version"))
        kind = self.rng.choice(("matchAttribute", "matchAttribute", "distinctAttribute"))
        return {kind: attribute} | self._for_some(names)

    def _config(self, names: Sequence[str]) -> Object:
        return {"opaque": {"driver": "a.io", "parameters": {"n": self.rng.randrange(1000)}}} | self._for_some(names)

    def _for_some(self, names: Sequence[str]) -> Object:
        if self._odds(0.4):
            return {}
        return {"requests": self.rng.sample(names, self.rng.randint(1, len(names)))}


def _names(request: Mapping[str, Any]) -> list[str]:
    """Return the names by which a claim refers to a request and its subrequests."""
    name = request["name"]
    return [name, *(f"{name}/{each['name']}" for each in request.get("firstAvailable", ()))]
