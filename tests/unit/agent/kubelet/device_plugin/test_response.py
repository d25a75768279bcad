from typing import Any

import pytest

from berth_agent.kubelet.device_plugin.offered_ids import InvalidRequestError, OfferedIds
from berth_agent.kubelet_api.deviceplugin_pb2 import CDIDevice, ContainerAllocateResponse
from berth_agent.vendors.nvidia.hand_over import resources, response
from berth_agent.vendors.nvidia.hand_over.device_nodes import CONTROL
from tests.objects.devices import GPU, machine, options, spec

INSTANCES = spec(2, mig={1: ("1g.10gb", "1g.10gb")})
CAPABILITIES = {(1, 1, -1): 12, (1, 1, 0): 13, (1, 2, -1): 21, (1, 2, 0): 22}
LISTED = "/var/run/nvidia-container-devices"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
WRONG = f'invalid allocation request for "{GPU}": invalid request: '
OWN = "k8s.device-plugin.nvidia.com"


def answer(*ids: str, node: Any = None, there: Any = None, **chosen: Any) -> ContainerAllocateResponse:
    context = machine(node or spec(4), options(**chosen), **(there or {}))
    return response.compose(context, ids, key="t")


def environment(*ids: str, **chosen: Any) -> dict[str, str]:
    return dict(answer(*ids, **chosen).envs)


def names(*ids: str, **chosen: Any) -> list[str]:
    return [cdi_device.name for cdi_device in answer(*ids, **chosen).cdi_devices]


@pytest.mark.parametrize(
    ("ids", "chosen", "expected"),
    [
        (["GPU-0"], {}, "GPU-0"),
        (["GPU-3", "GPU-1"], {}, "GPU-3,GPU-1"),
        (["GPU-1::0"], {"slices": 2}, "GPU-1"),
        (["GPU-1::0", "GPU-1::1"], {"slices": 2}, "GPU-1"),
        (["GPU-1::0", "GPU-0::1", "GPU-1::1"], {"slices": 2}, "GPU-1,GPU-0"),
        (["GPU-3", "GPU-1"], {"device_id_strategy": "index"}, "3,1"),
        (["GPU-1::0", "GPU-1::1"], {"slices": 2, "device_id_strategy": "index"}, "1"),
        (["MIG-1-1"], {"node": INSTANCES}, "MIG-1-1"),
        (["MIG-1-1", "MIG-1-0"], {"node": INSTANCES, "device_id_strategy": "index"}, "1:1,1:0"),
    ],
)
def test_each_strategy_names_each_device_once(ids: list[str], chosen: Any, expected: str) -> None:
    qualified = [f"{OWN}/gpu={name}" for name in expected.split(",")]
    envvar = ContainerAllocateResponse(envs={VISIBLE: expected})
    annotation = ContainerAllocateResponse(annotations={"cdi.k8s.io/nvidia-device-plugin_t": ",".join(qualified)})
    cri = ContainerAllocateResponse(cdi_devices=[CDIDevice(name=name) for name in qualified])
    assert answer(*ids, **chosen) == envvar
    assert answer(*ids, **chosen, device_list_strategy=("cdi-annotations",)) == annotation
    assert answer(*ids, **chosen, device_list_strategy=("cdi-cri",)) == cri
    annotation.MergeFrom(cri)
    annotation.MergeFrom(envvar)
    assert answer(*ids, **chosen, device_list_strategy=("envvar", "cdi-annotations", "cdi-cri")) == annotation


def test_volume_mounts_name_devices_by_files() -> None:
    allocated = answer("GPU-1", "GPU-2::0", device_list_strategy=("volume-mounts",))
    assert dict(allocated.envs) == {VISIBLE: LISTED}
    assert [(mount.host_path, mount.container_path, mount.read_only) for mount in allocated.mounts] == [
        ("/dev/null", f"{LISTED}/GPU-1", False),
        ("/dev/null", f"{LISTED}/GPU-2", False),
    ]


def test_the_prefix_of_cdi_annotations_is_an_option() -> None:
    allocated = answer("GPU-1", cdi_annotation_prefix="a.b/", device_list_strategy=("cdi-annotations",))
    assert dict(allocated.annotations) == {"a.b/nvidia-device-plugin_t": f"{OWN}/gpu=GPU-1"}


def test_nvidia_ctks_specification_has_its_own_vendor() -> None:
    context = response.AllocationContext(
        spec=spec(1), options=options(device_list_strategy=("cdi-cri",)), vendor="nvidia.com"
    )
    (device,) = response.compose(context, ["GPU-0"], key="t").cdi_devices
    assert device.name == "nvidia.com/gpu=GPU-0"


@pytest.mark.parametrize(
    ("flag", "variable", "kind", "path"),
    [
        ("gdrcopy_enabled", "NVIDIA_GDRCOPY", "gdrcopy", "/dev/gdrdrv"),
        ("gds_enabled", "NVIDIA_GDS", "gds", "/dev/nvidia-fs0"),
        ("mofed_enabled", "NVIDIA_MOFED", "mofed", "/dev/infiniband/uverbs0"),
    ],
)
def test_further_devices(flag: str, variable: str, kind: str, path: str) -> None:
    enabled: dict[str, Any] = {flag: True}
    there = {"extras": {kind: (path,)}}
    assert environment("GPU-1", **enabled) == {VISIBLE: "GPU-1", variable: "enabled"}
    only = answer("GPU-1", device_list_strategy=("cdi-cri",), there=there, **enabled)
    assert [cdi_device.name for cdi_device in only.cdi_devices] == [f"{OWN}/gpu=GPU-1", f"{OWN}/{kind}=all"]
    assert not only.envs
    # What the node does not have has no CDI device.
    assert names("GPU-1", device_list_strategy=("cdi-cri",), **enabled) == [f"{OWN}/gpu=GPU-1"]


@pytest.mark.parametrize(
    ("strategy", "there", "expected"),
    [
        ("envvar", (0,), {VISIBLE: "GPU-1", "NVIDIA_IMEX_CHANNELS": "0"}),
        ("envvar", (), {VISIBLE: "GPU-1"}),
        ("volume-mounts", (0,), {VISIBLE: LISTED}),
    ],
)
def test_imex_channels_in_the_environment(strategy: str, there: tuple[int, ...], expected: dict[str, str]) -> None:
    nodes = {"channels": there}
    assert environment("GPU-1", imex_channel_ids=(0,), device_list_strategy=(strategy,), there=nodes) == expected


@pytest.mark.parametrize(
    ("ids", "chosen", "expected"),
    [
        (["GPU-1"], {}, [*CONTROL, "/dev/nvidia1"]),
        (["GPU-3", "GPU-1"], {}, [*CONTROL, "/dev/nvidia3", "/dev/nvidia1"]),
        (["GPU-1::0", "GPU-1::1"], {"slices": 2}, [*CONTROL, "/dev/nvidia1"]),
        (
            ["MIG-1-0"],
            {"node": INSTANCES},
            [*CONTROL, "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"],
        ),
        (
            ["MIG-1-0", "MIG-1-1"],
            {"node": INSTANCES},
            [*CONTROL, "/dev/nvidia1", *(f"/dev/nvidia-caps/nvidia-cap{number}" for number in (12, 13, 21, 22))],
        ),
    ],
)
def test_device_nodes_are_passed_where_asked_for(ids: list[str], chosen: Any, expected: list[str]) -> None:
    there = {"control": CONTROL, "capabilities": CAPABILITIES}
    allocated = answer(*ids, **chosen, there=there, pass_device_specs=True)
    assert [(device.container_path, device.host_path, device.permissions) for device in allocated.devices] == [
        (path, path, "rw") for path in expected
    ]


@pytest.mark.parametrize(
    ("roots", "expected"),
    [
        ({"nvidia_driver_root": "/run/nvidia/driver"}, "/run/nvidia/driver/dev/nvidia1"),
        ({"nvidia_driver_root": "/run/nvidia/driver", "nvidia_dev_root": "/"}, "/dev/nvidia1"),
        ({"nvidia_dev_root": "/host/"}, "/host/dev/nvidia1"),
    ],
)
def test_device_nodes_come_from_the_drivers_root(roots: Any, expected: str) -> None:
    (node,) = answer("GPU-1", pass_device_specs=True, **roots).devices
    assert (node.host_path, node.container_path) == (expected, "/dev/nvidia1")


def test_device_nodes_are_passed_in_addition_to_cdi_but_not_with_cdi_only() -> None:
    assert answer("GPU-1", pass_device_specs=True, device_list_strategy=("envvar", "cdi-cri")).devices
    assert not answer("GPU-1", pass_device_specs=True, device_list_strategy=("cdi-cri",)).devices


def check(*ids: str, one_at_most: bool = False, **chosen: Any) -> None:
    (offer,) = resources.offers(spec(2), options(**chosen)).offers
    OfferedIds(offer).check(ids, one_at_most=one_at_most)


@pytest.mark.parametrize(
    ("ids", "chosen", "expected"),
    [
        (["GPU-7"], {}, f"{WRONG}unknown device: GPU-7"),
        (["GPU-0", "x"], {}, f"{WRONG}unknown device: x"),
        (["GPU-0::0"], {}, f"{WRONG}unknown device: GPU-0::0"),
        (["GPU-0"], {"slices": 2}, f"{WRONG}unknown device: GPU-0"),
        (
            ["GPU-0::2"],
            {"slices": 2, "rename": True},
            f'invalid allocation request for "{GPU}.shared": invalid request: unknown device: GPU-0::2',
        ),
        (
            ["GPU-0::0", "GPU-1::0"],
            {"slices": 2, "one_at_most": True},
            f"{WRONG}maximum request size for shared resources is 1; found 2",
        ),
        (
            ["GPU-0::0", "GPU-7::0"],
            {"slices": 2, "one_at_most": True},
            f"{WRONG}unknown device: GPU-7::0",
        ),
    ],
)
def test_a_wrong_request_is_refused_with_nvidias_message(ids: list[str], chosen: Any, expected: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        check(*ids, **chosen)
    assert str(error.value) == expected


@pytest.mark.parametrize(
    ("ids", "chosen"),
    [
        (["GPU-0", "GPU-1"], {}),
        (["GPU-0", "GPU-1"], {"one_at_most": True}),
        (["GPU-0::0", "GPU-1::0"], {"slices": 2}),
        (["GPU-0::0"], {"slices": 2, "one_at_most": True}),
    ],
)
def test_a_right_request_passes(ids: list[str], chosen: Any) -> None:
    check(*ids, **chosen)
