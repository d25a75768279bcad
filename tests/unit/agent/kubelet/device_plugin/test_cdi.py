import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from berth_agent.kubelet.device_plugin.cdi_folder import CdiFolder
from berth_agent.vendors.nvidia.hand_over import cdi
from tests.objects.devices import machine, options, spec

CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm")
ONLY = ("cdi-cri",)


def specification(node: Any = None, kind: str = "gpu", there: Any = None, **chosen: Any) -> Any:
    context = machine(node or spec(2), options(**{"device_list_strategy": ONLY} | chosen), **(there or {}))
    return cdi.specifications(context).get(kind)


def nodes_of(specification: Any) -> dict[str, list[str]]:
    return {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for device in specification["devices"]
    }


@pytest.mark.parametrize("strategies", [("envvar",), ("volume-mounts",), ("envvar", "volume-mounts")])
def test_there_is_none_where_no_strategy_needs_it(strategies: tuple[str, ...]) -> None:
    assert specification(device_list_strategy=strategies) is None


def test_each_card_has_its_node_and_all_share_the_control_nodes() -> None:
    gpus = specification(there={"control": CONTROL})
    assert (gpus["cdiVersion"], gpus["kind"]) == ("0.5.0", "k8s.device-plugin.nvidia.com/gpu")
    assert nodes_of(gpus) == {
        "GPU-0": ["/dev/nvidia0"],
        "GPU-1": ["/dev/nvidia1"],
        "all": ["/dev/nvidia0", "/dev/nvidia1"],
    }
    assert gpus["containerEdits"] == {
        "deviceNodes": [{"path": path, "hostPath": path} for path in CONTROL],
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
    }


def test_with_envvar_in_addition_the_specification_sets_no_environment() -> None:
    assert "env" not in specification(device_list_strategy=("envvar", "cdi-cri"))["containerEdits"]


@pytest.mark.parametrize(
    ("strategy", "names"),
    [("uuid", ["GPU-0", "MIG-0-0", "MIG-0-1", "GPU-1", "all"]), ("index", ["0", "0:0", "0:1", "1", "all"])],
)
def test_devices_have_the_names_that_containers_get(strategy: str, names: list[str]) -> None:
    there = {"capabilities": {(0, 1, -1): 3, (0, 1, 0): 4}}
    gpus = specification(spec(2, mig={0: ("1g.10gb", "1g.10gb")}), there=there, device_id_strategy=strategy)
    assert list(nodes_of(gpus)) == names
    assert nodes_of(gpus)[names[1]] == ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3", "/dev/nvidia-caps/nvidia-cap4"]


@pytest.mark.parametrize(
    ("enabled", "there", "expected"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_further_devices_where_asked_for_and_there(enabled: bool, there: bool, expected: bool) -> None:
    devices = specification(
        kind="gds", gds_enabled=enabled, there={"extras": {"gds": ("/dev/nvidia-fs0",)} if there else {}}
    )
    assert (devices is not None) == expected
    if devices:
        assert (devices["kind"], nodes_of(devices)) == (
            "k8s.device-plugin.nvidia.com/gds",
            {"all": ["/dev/nvidia-fs0"]},
        )


def test_imex_channels() -> None:
    channels = specification(kind="imex-channel", imex_channel_ids=(0,), there={"channels": (0,)})
    assert nodes_of(channels) == {"0": ["/dev/nvidia-caps-imex-channels/channel0"]}


def wanted(cards: int) -> dict[str, Any]:
    return cdi.specifications(machine(spec(cards), options(device_list_strategy=ONLY)))


FILE = "k8s.device-plugin.nvidia.com-gpu.json"


def test_the_file_follows_the_devices(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path / "cdi")
    folder.write(wanted(1))
    assert nodes_of(orjson.loads((tmp_path / "cdi" / FILE).read_bytes())).keys() == {"GPU-0", "all"}
    folder.write(wanted(2))
    assert nodes_of(orjson.loads((tmp_path / "cdi" / FILE).read_bytes())).keys() == {"GPU-0", "GPU-1", "all"}
    folder.write({})
    assert list((tmp_path / "cdi").iterdir()) == []


def test_a_file_that_is_right_is_left_alone(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path)
    folder.write(wanted(1))
    before = (tmp_path / FILE).stat().st_ino
    folder.write(wanted(1))
    assert (tmp_path / FILE).stat().st_ino == before


def test_a_file_that_another_program_deleted_is_written_again(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path / "cdi")
    folder.write(wanted(1))
    shutil.rmtree(tmp_path / "cdi")
    folder.write(wanted(1))
    assert nodes_of(orjson.loads((tmp_path / "cdi" / FILE).read_bytes())).keys() == {"GPU-0", "all"}


@pytest.mark.parametrize("content", [b"", b"{", b'{"cdiVersion": "9.0.0", "devices": []}'])
def test_a_file_that_another_program_damaged_is_written_again(tmp_path: Path, content: bytes) -> None:
    """The runtime would find none of the file's devices, so that no container starts."""
    folder = CdiFolder(tmp_path)
    folder.write(wanted(1))
    before = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content)
    folder.write(wanted(1))
    assert (tmp_path / FILE).read_bytes() == before


def test_after_a_failed_write_the_files_before_it_are_written_again(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path)
    folder.write(wanted(1))
    (tmp_path / "k8s.device-plugin.nvidia.com-gds.json").mkdir()
    with pytest.raises(OSError, match="gds"):
        folder.write(wanted(2) | {"gds": {"kind": "k8s.device-plugin.nvidia.com/gds"}})
    assert nodes_of(orjson.loads((tmp_path / FILE).read_bytes())).keys() == {"GPU-0", "GPU-1", "all"}
    (tmp_path / "k8s.device-plugin.nvidia.com-gds.json").rmdir()
    folder.write(wanted(1))
    assert nodes_of(orjson.loads((tmp_path / FILE).read_bytes())).keys() == {"GPU-0", "all"}


def test_files_of_an_earlier_run_go_and_those_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "k8s.device-plugin.nvidia.com-gds.json").touch()
    (tmp_path / "nvidia.com-gpu.json").touch()
    CdiFolder(tmp_path).write({})
    assert [file.name for file in tmp_path.iterdir()] == ["nvidia.com-gpu.json"]
