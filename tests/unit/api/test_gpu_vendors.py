"""Vendors of GPUs that other distributions add: how they are declared and loaded, and how pods request their cards."""

import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any, Final

import pytest

from berth_api import request
from berth_api.plugins import PluginError
from berth_api.request import GpuVendor, KindError, Kinds, RequestError, gpu_vendors, nearest, share
from berth_api.resources import Container
from tests.builders import NVIDIA, gpus

CARDS: Final = "example.com/gpu"
EXAMPLE: Final = GpuVendor(name="example", cards=(CARDS,))
KINDS: Final = Kinds(gpus={CARDS: EXAMPLE})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"name": "Example"}, "vendor 'Example'; allowed are lower-case letters", id="name"),
        pytest.param({"name": ""}, "vendor ''", id="no name"),
        pytest.param({"cards": ()}, "vendor example: cards (); allowed is a tuple of at least one", id="no resource"),
        pytest.param({"cards": CARDS}, "allowed is a tuple", id="text"),
        pytest.param({"cards": ("gpu",)}, "resource 'gpu'; allowed are names such as example.com/gpu", id="no domain"),
        pytest.param({"cards": ("kubernetes.io/gpu",)}, "not of kubernetes.io", id="of Kubernetes"),
    ],
)
def test_a_wrong_declaration_is_refused_with_what_is_allowed(fields: Mapping[str, Any], message: str) -> None:
    with pytest.raises(KindError) as refused:
        GpuVendor(**{"name": "example", "cards": (CARDS,), **fields})
    assert message in str(refused.value)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("berth_vendors")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param((EXAMPLE,), {CARDS: "example"}, id="one"),
        pytest.param(
            (EXAMPLE, GpuVendor(name="other", cards=("other.com/a", "other.com/b"))),
            {CARDS: "example", "other.com/a": "other", "other.com/b": "other"},
            id="two",
        ),
        pytest.param((7,), "it names 7; allowed is a berth_api.request.GpuVendor", id="no vendor"),
        pytest.param((GpuVendor(name="amd", cards=(CARDS,)),), "amd belongs to Berth already", id="built-in vendor"),
        pytest.param(
            (GpuVendor(name="example", cards=(NVIDIA,)),), f"{NVIDIA} belongs to Berth already", id="built-in resource"
        ),
        pytest.param((EXAMPLE, EXAMPLE), "example belongs to plug-in v0 of an unknown", id="the same vendor twice"),
        pytest.param(
            (EXAMPLE, GpuVendor(name="other", cards=(CARDS,))), f"{CARDS} belongs to plug-in v0", id="a resource twice"
        ),
        pytest.param(
            (GpuVendor(name="example", cards=("example.com/npu",)),),
            "example.com/npu belongs to type npu already; allowed is a name that no other vendor uses",
            id="a resource of a plug-in",
        ),
    ],
)
def test_entry_points_name_vendors(module: ModuleType, values: tuple[Any, ...], expected: dict[str, str] | str) -> None:
    entries = []
    for number, value in enumerate(values):
        setattr(module, f"v{number}", value)
        entries.append(EntryPoint(name=f"v{number}", value=f"berth_vendors:v{number}", group=gpu_vendors.GROUP))
    taken = {"example.com/npu": "type npu"}
    if isinstance(expected, dict):
        loaded = gpu_vendors.load(entries, taken)
        assert {name: vendor.name for name, vendor in loaded.items()} == expected
        return
    with pytest.raises(PluginError) as refused:
        gpu_vendors.load(entries, taken)
    assert expected in str(refused.value)


def test_a_pod_requests_whole_cards_of_the_vendor() -> None:
    devices = request.of_pod({CARDS: 2, "cpu": 1000}, {}, {}, KINDS)
    assert (devices.parts, devices.vendor) == ((gpus(2, core=100, ratio=100),), "example")
    containers = [Container(name=name, requests={CARDS: 1}) for name in ("a", "b")]
    shares = share.of_pod(containers, devices, KINDS)
    assert [(part.container, part.first, part.end) for part in shares] == [("a", 0, 1), ("b", 1, 2)]
    # Without the distribution it is a resource like any other.
    assert not request.of_pod({CARDS: 2}, {}, {})


def test_its_cards_are_requested_alone() -> None:
    with pytest.raises(RequestError, match=f"{CARDS} is allowed only by itself"):
        request.of_pod({CARDS: 1, "kubernetes.io/gpu-core": 50}, {}, {}, KINDS)


def test_a_misspelt_name_is_answered_with_its_own() -> None:
    assert "did you mean example.com/gpu?" in nearest.hint({"example.com/gpus": 1}, [], KINDS)
