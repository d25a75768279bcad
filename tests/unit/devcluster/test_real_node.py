"""What a real node is made of: its control groups, its image and its configuration."""

import hashlib
import json
import os
import tarfile
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from devcluster import DevclusterError
from devcluster.__main__ import main
from devcluster.processes import cgroups
from devcluster.real_node import config, image, obstacle

NEEDED = "cpu cpuset memory pids"

SETUP = config.NodeSetup(
    node="real-0",
    folder=Path("/data/real-0"),
    group="berth-7-real-0",
    programs={name: Path(f"/programs/{name}") for name in ("kubelet", "containerd", "containerd-shim-runc-v2", "runc")},
    tools=Path("/tools"),
    seccomp=True,
    labels={"a": "b", "c": "d"},
)
KUBECONFIG = yaml.safe_dump({"users": [{"name": "devcluster", "user": {"token": "secret"}}]})


def _unified(folder: Path, *, controllers: str, handed_down: str = "") -> Path:
    """Write what a machine with one hierarchy has; return its table of mounts."""
    root = folder / "cgroup"
    root.mkdir()
    (root / "cgroup.controllers").write_text(f"{controllers}\n")
    (root / "cgroup.subtree_control").write_text(handed_down)
    table = folder / "mounts"
    table.write_text(f"tmpfs /tmp tmpfs rw 0 0\ncgroup2 {root} cgroup2 rw,nosuid 0 0\n")
    return table


def _split(folder: Path, *controllers: str) -> Path:
    """Write the same of a machine with a hierarchy for each controller."""
    lines = []
    for controller in controllers:
        (folder / controller).mkdir()
        lines.append(f"cgroup {folder / controller} cgroup rw,relatime,{controller} 0 0\n")
    table = folder / "mounts"
    table.write_text("".join(lines))
    return table


def test_group_is_made_in_every_hierarchy(tmp_path: Path) -> None:
    cgroups.make("berth-7-n", table=_split(tmp_path, *NEEDED.split(), "name=systemd"))

    assert {path.parent.name for path in tmp_path.glob("*/berth-7-n")} == {*NEEDED.split(), "name=systemd"}


def test_controllers_are_handed_down_where_there_is_one_hierarchy(tmp_path: Path) -> None:
    table = _unified(tmp_path, controllers=f"{NEEDED} misc", handed_down="cpu cpuset memory\n")

    cgroups.make("berth-7-n", table=table)

    assert (tmp_path / "cgroup" / "berth-7-n").is_dir()
    assert (tmp_path / "cgroup" / "cgroup.subtree_control").read_text() == "+pids"


@pytest.mark.parametrize(
    ("present", "missing"),
    [
        pytest.param("cpu cpuset pids", "memory", id="one is missing"),
        pytest.param("cpu", "cpuset, memory, pids", id="most are missing"),
    ],
)
def test_missing_controllers_are_named(tmp_path: Path, present: str, missing: str) -> None:
    table = _split(tmp_path, *present.split())

    with pytest.raises(DevclusterError, match=rf"does not give {missing} \("):
        cgroups.make("berth-7-n", table=table)

    assert not list(tmp_path.glob("*/berth-7-n"))


def test_root_that_hands_nothing_down_is_named(tmp_path: Path) -> None:
    table = _unified(tmp_path, controllers=NEEDED)
    control = tmp_path / "cgroup" / "cgroup.subtree_control"
    control.unlink()
    # Read like an empty file, refused when written: as the kernel does in a container's group.
    control.symlink_to("/proc/sys/kernel/ostype")

    with pytest.raises(DevclusterError, match="does not hand down the controller cpu"):
        cgroups.make("berth-7-n", table=table)


def test_image_is_what_its_digests_say(tmp_path: Path) -> None:
    (tmp_path / "box").write_bytes(b"program")
    image.write(tmp_path / "image.tar", program=tmp_path / "box")

    with tarfile.open(tmp_path / "image.tar") as archive:
        files = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    [listed] = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(files[_blob(listed["digest"])])
    for described in (listed, manifest["config"], *manifest["layers"]):
        content = files[_blob(described["digest"])]
        assert described["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
        assert described["size"] == len(content)
    assert listed["annotations"]["io.containerd.image.name"] == image.NAME
    assert json.loads(files[_blob(manifest["config"]["digest"])])["config"]["Entrypoint"] == ["/box"]


def test_kubelet_acts_as_its_node() -> None:
    [user] = yaml.safe_load(SETUP.files(kubeconfig=KUBECONFIG)["kubeconfig"])["users"]

    assert user["user"] == {"token": "secret", "as": "system:node:real-0", "as-groups": ["system:nodes"]}


def test_daemons_meet_in_the_nodes_own_places() -> None:
    files = SETUP.files(kubeconfig=KUBECONFIG)
    kubelet, containerd = yaml.safe_load(files["kubelet.yaml"]), tomllib.loads(files["containerd.toml"])
    runtime = containerd["plugins"]["io.containerd.cri.v1.runtime"]

    assert kubelet["containerRuntimeEndpoint"] == f"unix://{containerd['grpc']['address']}"
    assert kubelet["cgroupRoot"] == "/berth-7-real-0"
    assert runtime["cdi_spec_dirs"] == ["/data/real-0/cdi"]
    assert runtime["cni"] == {"bin_dirs": ["/tools"], "conf_dir": "/data/real-0/cni", "use_internal_loopback": True}
    assert containerd["plugins"]["io.containerd.cri.v1.images"]["pinned_images"] == {"sandbox": image.NAME}
    assert "--node-labels=a=b,c=d" in SETUP.kubelet()


def test_without_root_there_is_a_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert main(["up", "--real-node"]) == 1

    assert capsys.readouterr().err == f"devcluster: {obstacle()}\n"
    assert "a real node needs root" in str(obstacle())


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


@pytest.mark.parametrize(("seccomp", "runtime"), [(True, "/programs/runc"), (False, "/tools/runc-without-seccomp")])
def test_profiles_are_removed_only_before_an_runc_that_knows_none(seccomp: bool, runtime: str) -> None:
    setup = replace(SETUP, seccomp=seccomp)

    containerd = tomllib.loads(setup.files(kubeconfig=KUBECONFIG)["containerd.toml"])

    runc = containerd["plugins"]["io.containerd.cri.v1.runtime"]["containerd"]["runtimes"]["runc"]
    assert runc["options"]["BinaryName"] == runtime
