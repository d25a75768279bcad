from pathlib import Path

import pytest

from berth_agent.vendors.nvidia.hand_over import device_nodes
from berth_agent.vendors.nvidia.hand_over.device_nodes import DeviceNodes, MissingDeviceNodeError
from tests.devices import spec

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
