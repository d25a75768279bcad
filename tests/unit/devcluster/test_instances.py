"""Instance types as Karpenter's provider for kwok reads them, and which resources a new Node does not offer yet."""

import pytest

from devcluster.additions.instances import InstanceType, is_of_devices

KIND = InstanceType(name="g6.12xlarge", profile="l4", gpus=4, cpu="48", memory="192Gi", price=4.6)


def test_a_type_has_its_gpus_as_the_device_plugin_offers_them() -> None:
    read = KIND.for_karpenter()
    assert read["resources"] == {"cpu": "48", "memory": "192Gi", "nvidia.com/gpu": "4"}
    [offering] = read["offerings"]
    assert {each["key"]: each["values"] for each in offering["Requirements"]} == {
        "karpenter.sh/capacity-type": ["on-demand"],
        "topology.kubernetes.io/zone": ["zone-a"],
    }


@pytest.mark.parametrize(
    ("resource", "expected"),
    [("nvidia.com/gpu", True), ("kubernetes.io/gpu-core", True), ("koordinator.sh/gpu", True), ("cpu", False)],
)
def test_a_new_node_offers_no_devices(resource: str, *, expected: bool) -> None:
    assert is_of_devices(resource) is expected
