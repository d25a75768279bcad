from pathlib import Path
from typing import Any

import pytest

from berth_agent.app import BY_CDI
from berth_agent.configuration.settings import Settings
from berth_agent.dra.cdi import ClaimEdits
from berth_agent.vendors.nvidia.hand_over import device_nodes
from berth_agent.vendors.nvidia.hand_over.access import NvidiaHandOver
from berth_agent.vendors.nvidia.hand_over.device_nodes import DeviceNodes, MissingDeviceNodeError
from tests.objects.devices import spec

CAPABILITIES = {(0, 1, -1): 3, (0, 1, 0): 4, (0, 1, 2): 6}
MIG_MINORS = """config 1
monitor 2
gpu0/gi1/access 3
gpu0/gi1/ci0/access 4
gpu12/gi7/access 200
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "gdrdrv", "nvidia-fs0", "nvidia-fs1", "infiniband/uverbs0"):
        path = tmp_path / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    minors = tmp_path / "proc/driver/nvidia-caps/mig-minors"
    minors.parent.mkdir(parents=True)
    minors.write_text(MIG_MINORS)
    return tmp_path


def read(folder: Path) -> DeviceNodes:
    return device_nodes.read(dev=folder / "dev", proc=folder / "proc")


def test_control_nodes_that_are_not_there_are_left_out(machine: Path) -> None:
    assert read(machine).control == ("/dev/nvidiactl", "/dev/nvidia-uvm")


@pytest.mark.parametrize(
    ("registered", "control"),
    [
        pytest.param("195 nvidia\n195 nvidiactl\n510 nvidia-uvm", ["/dev/nvidiactl", "/dev/nvidia-uvm"], id="driver"),
        pytest.param("195 nvidia-frontend\n510 nvidia-uvm", ["/dev/nvidiactl", "/dev/nvidia-uvm"], id="older driver"),
        pytest.param("195 nvidia\n195 nvidiactl\n195 nvidia-modeset", ["/dev/nvidiactl"], id="without UVM"),
        pytest.param("  1 mem\n226 drm", [], id="no driver"),
    ],
)
def test_what_the_loaded_driver_needs_is_given_before_its_file_exists(
    tmp_path: Path, registered: str, control: list[str]
) -> None:
    """Another program creates the file. Until then, the container runtime refuses each start."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_text(f"Character devices:\n  1 mem\n{registered}\n\nBlock devices:\n  8 sd\n")
    assert list(read(tmp_path).control) == control


def test_a_claim_gets_what_the_loaded_driver_needs_as_a_pod_by_name_does(tmp_path: Path) -> None:
    (tmp_path / "devices").write_text("Character devices:\n510 nvidia-uvm\n")
    own: dict[str, Any] = {"dev_folder": tmp_path, "proc_root": tmp_path, "sysfs_root": tmp_path, **BY_CDI}
    hand_over = NvidiaHandOver(Settings(node_name="a", **own))
    nodes = ClaimEdits(hand_over.access(spec(1)), "GPU-0").edits["deviceNodes"]
    assert [node["path"] for node in nodes] == ["/dev/nvidia-uvm", "/dev/nvidia0"]


def test_capabilities_come_from_the_drivers_list(machine: Path) -> None:
    assert read(machine).capabilities == {(0, 1, -1): 3, (0, 1, 0): 4, (12, 7, -1): 200}


def test_further_nodes_by_their_class(machine: Path) -> None:
    assert read(machine).extras == {
        "gdrcopy": ("/dev/gdrdrv",),
        "gds": ("/dev/nvidia-fs0", "/dev/nvidia-fs1"),
        "mofed": ("/dev/infiniband/uverbs0",),
    }


def test_a_machine_without_any_has_none(tmp_path: Path) -> None:
    assert read(tmp_path) == DeviceNodes()


def test_imex_channels_that_must_be_there(machine: Path) -> None:
    with pytest.raises(
        MissingDeviceNodeError, match="nvidia-caps-imex-channels/channel0: not there, and --imex-required"
    ):
        device_nodes.check(read(machine), channels=[0])
    channel = machine / "dev/nvidia-caps-imex-channels/channel0"
    channel.parent.mkdir()
    channel.touch()
    device_nodes.check(read(machine), channels=[0])


def test_instances_have_their_cards_node_and_two_capabilities() -> None:
    paths = device_nodes.paths(spec(2, mig={0: ("1g.10gb", "1g.10gb")}), DeviceNodes(capabilities=CAPABILITIES))
    assert paths == {
        "GPU-0": ("/dev/nvidia0",),
        "MIG-0-0": ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3", "/dev/nvidia-caps/nvidia-cap4"),
        "MIG-0-1": ("/dev/nvidia0",),
        "GPU-1": ("/dev/nvidia1",),
    }
