"""Scenarios in which Berth's preference has chosen, and the matching questions to upstream's allocator.

A pinned scenario leaves upstream no choice. Each request that does not request all devices selects the devices that it
got. Of subrequests, only the one that was taken is left. So upstream accepts a placement exactly if it gives it.
"""

import copy
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

from berth_operator.core.claims.allocation import closeness

Object = dict[str, Any]

ID: Final = "judge.io/id"


def with_places(drawn: Object, seed: int) -> Object:
    """Return a scenario whose devices mostly have PCIe roots, NUMA nodes and partitions, as drivers publish them."""
    rng = random.Random(seed)
    attributes = [name for name in (closeness.PCIE_ROOT, closeness.NUMA_NODE) if rng.random() < 0.7]
    attributes += [closeness.PARTITION.format(2)] if rng.random() < 0.2 else []
    placed = copy.deepcopy(drawn)
    for device in _devices(placed):
        for name in attributes:
            value = {"int": rng.randrange(2)} if name != closeness.PCIE_ROOT else {"string": f"pci{rng.randrange(4)}"}
            device["attributes"] |= {name: value} if rng.random() < 0.9 else {}
    return placed


def pinned(drawn: Object, outcome: Mapping[str, Any]) -> Object:
    """Return a scenario in which nothing but an outcome of ours can be allocated."""
    scenario = copy.deepcopy(drawn)
    for each in scenario["slices"]:
        driver, pool = each["spec"]["driver"], each["spec"]["pool"]["name"]
        for device in each["spec"].get("devices", ()):
            device["attributes"][ID] = {"string": f"{driver}/{pool}/{device['name']}"}
    for claim, allocation in zip(scenario["claims"], outcome["results"], strict=True):
        given: dict[str, list[str]] = {}
        for result in allocation["devices"].get("results", ()):
            name = "/".join(result[key] for key in ("driver", "pool", "device"))
            given.setdefault(result["request"], []).append(name)
        for request in claim["spec"]["devices"]["requests"]:
            _pin(scenario, request, given)
    return scenario


def _pin(scenario: Object, request: Object, given: Mapping[str, list[str]]) -> None:
    name = request["name"]
    if choices := request.get("firstAvailable"):
        request["firstAvailable"] = [each for each in choices if f"{name}/{each['name']}" in given]
        wanted = [(each, given[f"{name}/{each['name']}"]) for each in request["firstAvailable"]]
    else:
        wanted = [(request["exactly"], given.get(name, []))]
    for exactly, devices in wanted:
        if exactly["allocationMode"] != "All":
            # In a class of its own, because selectors of the class come first and may fail for other devices.
            of_class = next(
                each for each in scenario["classes"] if each["metadata"]["name"] == exactly["deviceClassName"]
            )
            exactly["deviceClassName"] = f"pinned-{len(scenario['classes'])}"
            scenario["classes"].append(_only(of_class, exactly["deviceClassName"], devices))


def _only(of_class: Object, name: str, devices: list[str]) -> Object:
    """Return a class that selects some devices of another class."""
    only: Object = {"cel": {"expression": f'device.attributes["judge.io"].id in {json.dumps(devices)}'}}
    spec = of_class["spec"]
    return {"metadata": {"name": name}, "spec": {**spec, "selectors": [only, *spec.get("selectors", ())]}}


def _devices(scenario: Object) -> Iterator[Object]:
    for each in scenario["slices"]:
        yield from each["spec"].get("devices", ())


def placement(outcome: Object) -> Object:
    """Return an outcome with devices in an order that does not depend on which was tried first.

    It has no configurations: they follow from the classes, of which a pinned scenario has others.
    """
    for allocation in outcome["results"] or ():
        allocation["devices"].pop("config", None)
        allocation["devices"].get("results", []).sort(key=lambda each: json.dumps(each, sort_keys=True))
    return outcome
