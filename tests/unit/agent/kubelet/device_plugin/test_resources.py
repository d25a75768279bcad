from typing import Any

import pytest

from berth_agent.vendor import Unit
from berth_agent.vendors.nvidia.hand_over import resources
from berth_agent.vendors.nvidia.hand_over.resources import LayoutError
from berth_api.device import DeviceSpec
from tests.objects.devices import GPU, options, spec

SMALL = "1g.10gb"
UNDIVIDED = "invalid MIG configuration: at least one device with migEnabled=true was not configured correctly: "
TWO_EACH = {0: (SMALL, SMALL), 1: (SMALL, SMALL)}


def offered(node: DeviceSpec, **chosen: Any) -> dict[str, list[str]]:
    return {
        offer.resource: [unit.id for unit in offer.units] for offer in resources.offers(node, options(**chosen)).offers
    }


CARDS = ["GPU-0", "GPU-1"]
INSTANCES = ["MIG-0-0", "MIG-0-1", "MIG-1-0", "MIG-1-1"]


@pytest.mark.parametrize(
    ("mig", "strategy", "expected"),
    [
        (TWO_EACH, "none", {GPU: CARDS}),
        (TWO_EACH, "single", {GPU: INSTANCES}),
        (TWO_EACH, "mixed", {"nvidia.com/mig-1g.10gb": INSTANCES}),
        ({0: (SMALL,)}, "none", {GPU: CARDS}),
        ({0: (SMALL,)}, "mixed", {"nvidia.com/mig-1g.10gb": ["MIG-0-0"], GPU: ["GPU-1"]}),
        ({0: ()}, "none", {GPU: CARDS}),
        ({0: ()}, "mixed", {GPU: ["GPU-1"]}),
        ({0: (), 1: ()}, "mixed", {}),
        (
            {0: ("3g.40gb", SMALL), 1: ("7g.80gb",)},
            "mixed",
            {
                "nvidia.com/mig-3g.40gb": ["MIG-0-0"],
                "nvidia.com/mig-1g.10gb": ["MIG-0-1"],
                "nvidia.com/mig-7g.80gb": ["MIG-1-0"],
            },
        ),
        (
            {0: (SMALL, "1g.10gb+me", "1g.10gb-me"), 1: ("1g.10gb+me.all", "1g.10gb+gfx")},
            "mixed",
            {
                "nvidia.com/mig-1g.10gb": ["MIG-0-0"],
                "nvidia.com/mig-1g.10gb.me": ["MIG-0-1"],
                "nvidia.com/mig-1g.10gb-me": ["MIG-0-2"],
                "nvidia.com/mig-1g.10gb.me.all": ["MIG-1-0"],
                "nvidia.com/mig-1g.10gb.gfx": ["MIG-1-1"],
            },
        ),
        ({0: ("1c.3g.40gb", "3g.40gb")}, "mixed", {"nvidia.com/mig-3g.40gb": ["MIG-0-1"], GPU: ["GPU-1"]}),
    ],
    ids=str,
)
def test_instances_are_offered_by_the_strategy(mig: Any, strategy: str, expected: dict[str, list[str]]) -> None:
    assert offered(spec(2, mig=mig), mig_strategy=strategy) == expected


@pytest.mark.parametrize(
    ("mig", "expected"),
    [
        (
            {0: (), 1: (SMALL,)},
            f"{UNDIVIDED}device 0 has no MIG devices configured",
        ),
        (
            {1: ()},
            f"{UNDIVIDED}device 1 has no MIG devices configured",
        ),
        (
            {0: (SMALL, "2g.20gb"), 1: (SMALL,)},
            "invalid MIG configuration: more than one MIG device type present on node",
        ),
        ({0: (SMALL,), 1: ("2g.20gb",)}, "invalid MIG configuration: more than one MIG device type present on node"),
        ({0: (SMALL,)}, "all devices on the node must be configured with the same migEnabled value"),
    ],
    ids=str,
)
def test_single_refuses_cards_that_are_not_divided_alike(mig: Any, expected: str) -> None:
    with pytest.raises(LayoutError) as error:
        resources.offers(spec(2, mig=mig), options(mig_strategy="single"))
    assert str(error.value) == expected


@pytest.mark.parametrize(
    ("mig", "expected"),
    [
        ({0: ()}, ("device 0 has no MIG devices configured",)),
        ({0: ("1c.3g.40gb",)}, ("MIG profile '1c.3g.40gb' does not match any resource patterns",)),
        ({0: (SMALL,)}, ()),
    ],
)
def test_mixed_warns_of_what_it_leaves_out(mig: Any, expected: tuple[str, ...]) -> None:
    assert resources.offers(spec(2, mig=mig), options(mig_strategy="mixed")).warnings == expected


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"slices": 2}, {GPU: ["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"]}),
        ({"slices": 2, "rename": True}, {f"{GPU}.shared": ["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"]}),
        ({"rename": True}, {GPU: CARDS}),
        ({"slices": 2, "of": "nvidia.com/mig-1g.10gb", "rename": True}, {GPU: CARDS}),
    ],
)
def test_slices_of_cards(chosen: Any, expected: dict[str, list[str]]) -> None:
    assert offered(spec(2), **chosen) == expected


@pytest.mark.parametrize(
    ("strategy", "of", "rename", "name"),
    [
        ("mixed", "nvidia.com/mig-1g.10gb", False, "nvidia.com/mig-1g.10gb"),
        ("mixed", "nvidia.com/mig-1g.10gb", True, "nvidia.com/mig-1g.10gb.shared"),
        ("single", GPU, False, GPU),
        ("single", GPU, True, f"{GPU}.shared"),
    ],
)
def test_slices_of_instances(strategy: str, of: str, rename: bool, name: str) -> None:
    ids = offered(spec(1, mig={0: (SMALL,)}), mig_strategy=strategy, slices=3, of=of, rename=rename)
    assert ids == {name: ["MIG-0-0::0", "MIG-0-0::1", "MIG-0-0::2"]}


@pytest.mark.parametrize(
    ("node", "chosen", "withheld"),
    [
        (spec(2, unhealthy=(1,)), {}, []),
        (spec(2, unhealthy=(1,)), {"slices": 3}, []),
        (spec(2, unhealthy=(1,), mig=TWO_EACH), {}, []),
        (spec(2, unhealthy=(1,), mig=TWO_EACH), {"slices": 2, "of": "nvidia.com/mig-1g.10gb"}, []),
        (spec(2), {}, ["GPU-1"]),
        (spec(2), {"slices": 3}, ["GPU-1", "GPU-7"]),
        (spec(2, mig=TWO_EACH), {"mig_strategy": "single"}, ["GPU-1"]),
        (spec(2, unhealthy=(1,)), {}, ["GPU-1"]),
    ],
)
def test_all_units_of_a_card_are_unhealthy_together(node: DeviceSpec, chosen: Any, withheld: list[str]) -> None:
    (offer,) = resources.offers(node, options(**chosen), withheld=frozenset(withheld)).offers
    assert {unit.minor: unit.healthy for unit in offer.units} == {0: True, 1: False}
    assert all(unit.healthy == (unit.minor == 0) for unit in offer.units)


def test_a_unit_knows_its_numa_node() -> None:
    (offer,) = resources.offers(spec(4), options()).offers
    assert offer.units[3] == Unit(id="GPU-3", minor=3, healthy=True, numa=1)


def test_nics_are_not_offered() -> None:
    assert offered(spec(1, rdma=2, fpga=1)) == {GPU: ["GPU-0"]}


def test_a_device_lists_the_replicas_of_its_cards() -> None:
    shown = resources.shown(spec(2, rdma=1, mig={1: (SMALL,)}), options(slices=4, mig_strategy="none"))
    assert [device.replicas for device in shown.devices] == [4, 4, 1]
    assert shown.mig_strategy == "none"
    assert [device.replica_resource for device in shown.devices] == [GPU, GPU, ""]
    assert shown.replica_choice == "scheduler"
    assert resources.shown(shown, options(slices=4, one_at_most=True)).replica_choice == "one"
    again = resources.shown(shown, options(mig_strategy="none"))
    assert [(device.replicas, device.replica_resource) for device in again.devices] == 3 * [(1, "")]


@pytest.mark.parametrize(
    ("strategy", "of", "name"),
    [("mixed", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.shared"), ("single", GPU, f"{GPU}.shared")],
)
def test_a_device_lists_the_replicas_of_its_instances(strategy: str, of: str, name: str) -> None:
    chosen = options(mig_strategy=strategy, slices=3, of=of, rename=True)
    shown = resources.shown(spec(1, mig={0: (SMALL, SMALL)}), chosen)
    for shown_spec, expected in ((shown, (3, name)), (resources.shown(shown, options(mig_strategy=strategy)), (1, ""))):
        (card,) = shown_spec.devices
        assert card.mig is not None
        assert [(instance.replicas, instance.replica_resource) for instance in card.mig.instances] == 2 * [expected]
        assert card.replicas == 1


def test_cards_are_counted_by_their_addresses() -> None:
    node = spec(2, mig={1: (SMALL, SMALL)})
    backwards = node.model_copy(
        update={
            "devices": [
                device.model_copy(update={"topology": other.topology})
                for device, other in zip(node.devices, reversed(node.devices), strict=True)
            ]
        }
    )
    assert resources.indices(node) == {"GPU-0": "0", "GPU-1": "1", "MIG-1-0": "1:0", "MIG-1-1": "1:1"}
    assert resources.indices(backwards) == {"GPU-0": "1", "GPU-1": "0", "MIG-1-0": "0:0", "MIG-1-1": "0:1"}


@pytest.mark.parametrize(
    ("unit", "device"),
    [
        ("GPU-0", "GPU-0"),
        ("GPU-0::12", "GPU-0"),
        ("MIG-GPU-0/3/0", "MIG-GPU-0/3/0"),
        ("MIG-GPU-0/3/0::1", "MIG-GPU-0/3/0"),
    ],
)
def test_a_unit_is_of_the_device_before_the_first_mark(unit: str, device: str) -> None:
    assert resources.device_of(unit) == device
