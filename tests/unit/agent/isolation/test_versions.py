"""Which versions of HAMi-core may be removed."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from berth_agent.vendors.nvidia.isolation.versions import old, unused

SWITCHED, LONG_AGO = 1000.0, 10.0


def checkpoint(*given: str) -> bytes:
    """Return kubelet's checkpoint, with pods that have these files of the node."""
    answers = [f"\n\x0eLD_PRELOAD\x12{path}\x18\x01".encode() for path in given]
    of_container = {"PodUID": "u", "ContainerName": "c", "ResourceName": "r", "DeviceIDs": {"-1": ["x"]}}
    entries: list[Any] = [{**of_container, "AllocResp": base64.b64encode(answer).decode()} for answer in answers]
    return json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1}).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for version in ("1", "1.1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "lib.so").touch()
    (tmp_path / "lock").mkdir()
    (tmp_path / "current").symlink_to("2")
    (tmp_path / "other").symlink_to("1")
    os.utime(tmp_path / "current", (SWITCHED, SWITCHED), follow_symlinks=False)
    for version in ("1", "1.1", "2"):
        os.utime(tmp_path / version, (LONG_AGO, LONG_AGO))
    return tmp_path


def names(versions: Any) -> list[str]:
    return [version.name for version in versions]


def test_old_versions_are_those_that_were_replaced_long_enough_ago(folder: Path) -> None:
    assert names(old(folder / "current", "lib.so", before=SWITCHED + 1)) == ["1", "1.1"]
    assert names(old(folder / "current", "lib.so", before=SWITCHED)) == []
    # Being installed, before the link leads there.
    os.utime(folder / "1.1", (SWITCHED + 5, SWITCHED + 5))
    assert names(old(folder / "current", "lib.so", before=SWITCHED + 1)) == ["1"]


def test_a_version_that_a_pod_has_stays(folder: Path) -> None:
    versions = [folder / "1", folder / "1.1"]
    assert names(unused(versions, checkpoint(f"{folder}/1.1/lib.so", "/dev/x"))) == ["1"]
    assert names(unused(versions, checkpoint(f"{folder}/1/lib.so", f"{folder}/1.1/lib.so"))) == []
    assert names(unused(versions, b'{"Data": {"PodDeviceEntries": null}}')) == ["1", "1.1"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"Data": {}}',
        '{"Data": {"PodDeviceEntries": {"a": 1}}}',
        '{"Data": {"PodDeviceEntries": [{}]}}',
        '{"Data": {"PodDeviceEntries": [{"AllocResp": "?"}]}}',
        '{"Data": {"PodDeviceEntries": [{"AllocResp": 7}]}}',
        "[" * 100_000,
    ],
)
def test_by_an_unknown_checkpoint_nothing_is_unused(text: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"."):
        unused([folder / "1"], text.encode())
