"""Devices on which expressions are compared, in the form of ResourceSlices."""

from decimal import Decimal
from typing import Any, Final

from berth_api.resources import quantity
from berth_operator.core.claims.selectors import DeviceView, Version, parse_version

DEVICES: Final[list[dict[str, Any]]] = [
    {
        "driver": "gpu.example.com",
        "name": "gpu-0",
        "attributes": {
            "model": {"string": "H100"},
            "index": {"int": 0},
            "healthy": {"bool": True},
            "driverVersion": {"version": "550.54.15"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:16"},
            "nic.example.com/speed": {"int": 400},
        },
        "capacity": {"memory": {"value": "80Gi"}, "multiprocessors": {"value": "132"}},
    },
    {
        "driver": "gpu.example.com",
        "name": "gpu-1",
        "attributes": {
            "model": {"string": "A100-SXM4"},
            "index": {"int": 1},
            "healthy": {"bool": False},
            "driverVersion": {"version": "525.0.0-rc.1+build.7"},
        },
        "capacity": {"memory": {"value": "40G"}},
    },
    {
        "driver": "nic.example.com",
        "name": "nic-0",
        "attributes": {
            "speed": {"int": 200},
            "model": {"string": "ConnectX-7"},
            "ip": {"string": "10.1.2.3"},
            "numa": {"int": -1},
            "firmware": {"version": "28.39.1002"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:16"},
        },
        "capacity": {},
    },
    {"driver": "gpu.example.com", "name": "bare", "attributes": {}, "capacity": {}},
    {
        "driver": "gpu.example.com",
        "name": "shared",
        "allowMultipleAllocations": True,
        "attributes": {
            "model": {"string": ""},
            "index": {"int": 9223372036854775807},
            "healthy": {"bool": True},
            "driverVersion": {"version": "550.54.15-alpha.beta"},
            "name": {"string": "quantity"},
        },
        "capacity": {
            "memory": {"value": "1500m"},
            "multiprocessors": {"value": "0"},
            "other.example.com/x": {"value": "-5"},
        },
    },
    {
        "driver": "gpu.example.com",
        "name": "odd",
        "attributes": {
            "gpu.example.com/model": {"string": "größe 42"},
            "index": {"int": 42},
            "healthy": {"string": "true"},
            "text": {"string": "42"},
            "date": {"string": "2026-01-02T03:04:05.678Z"},
            "span": {"string": "1h30m"},
            "list": {"string": "b,a,,c"},
            "driverVersion": {"string": "550.54.15"},
        },
        "capacity": {"memory": {"value": "80Gi"}, "nic.example.com/bandwidth": {"value": "100G"}},
    },
]


def view(raw: dict[str, Any]) -> DeviceView:
    """Return what a selector sees of a device."""
    return DeviceView(
        driver=raw["driver"],
        attributes={name: _attribute(value) for name, value in raw["attributes"].items()},
        capacity={name: _amount(value["value"]) for name, value in raw["capacity"].items()},
        allow_multiple_allocations=raw.get("allowMultipleAllocations", False),
    )


def _attribute(value: dict[str, Any]) -> bool | int | str | Version:
    ((kind, content),) = value.items()
    return parse_version(content) if kind == "version" else content


def _amount(text: str) -> Decimal:
    return quantity.exact(text)
