"""Owners of processes, by their cgroups."""

import errno
import time
from pathlib import Path

import pytest

from berth_agent.readings import Process
from berth_agent.usage import processes
from tests.objects.amd_trees import refused

UID = "1f2e3d4c-5b6a-4788-9900-aabbccddeeff"
STATIC = "0123456789abcdef0123456789abcdef"
OTHER = "2f2e3d4c-5b6a-4788-9900-aabbccddeeff"
SLICE = f"kubepods-burstable-pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("text", "uid"),
    [
        (f"0::/kubepods/pod{UID}/abc\n", UID),
        (f"0::/kubepods/besteffort/pod{UID}/abc\n", UID),
        (f"0::/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-abc.scope\n", UID),
        (f"12:memory:/kubepods/burstable/pod{UID}/abc\n1:name=systemd:/kubepods/burstable/pod{UID}/abc\n", UID),
        (f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-{SLICE}/abc\n", UID),
        (f"0::/kubepods/burstable/pod{STATIC}/abc\n", STATIC),
        # A container may name cgroups below its own as it likes.
        (f"0::/kubepods/burstable/pod{UID}/abc/kubepods/burstable/pod{OTHER}/abc\n", UID),
        (f"0::/kubepods.slice/{SLICE}/abc.scope/{SLICE.replace('1', '2')}/abc.scope\n", UID),
        # Relative to the cgroup of an agent with a cgroup namespace of its own.
        (f"0::/../../pod{UID}/abc\n", UID),
        (f"0::/../../../pod{UID}/abc\n", UID),
        (f"0::/../../../besteffort/pod{UID}/abc/kubepods/pod{OTHER}\n", UID),
        (f"0::/../../{SLICE}/cri-containerd-abc.scope\n", UID),
        (f"0::/../../../../user.slice/pod{UID}\n", None),
        ("0::/../../../../system.slice/sshd.service\n", None),
        ("0::/system.slice/docker-0123456789abcdef.scope\n", None),
        (f"0::/user.slice/pod{UID}\n", None),
        ("0::/\n", None),
        ("", None),
    ],
)
def test_a_cgroup_names_a_pod_or_none(text: str, uid: str | None) -> None:
    assert processes.pod_of(text) == uid


def test_a_pod_is_found_in_time_that_grows_with_the_path() -> None:
    began = time.process_time()
    for name in ("kubepods/pod", "kubepods/burstable/pod", ":/.."):
        assert processes.pod_of("0::/" + name * 20_000) is None
    # It takes 3 ms. Time that grows with the square of the length would be 15 s.
    assert time.process_time() - began < 2.0


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    for pid, text in {10: f"0::/kubepods/pod{UID}/c\n", 11: "0::/user.slice\n", 12: "0::/init.scope\n"}.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(text)
    (tmp_path / "13").mkdir()
    (tmp_path / "sys").mkdir()
    return tmp_path


def test_pods_have_processes(proc: Path) -> None:
    assert processes.pods_with_processes(proc) == {UID}


def test_processes_of_no_pod_are_foreign_unless_they_ended(proc: Path) -> None:
    foreign = processes.foreign(
        {
            0: [Process(pid=10, memory=5)],
            3: [Process(pid=12, memory=2**30 + 1), Process(pid=11), Process(pid=10, memory=2**40)],
            2: [Process(pid=99), Process(pid=13)],
            1: [],
        },
        proc,
    )
    assert [use.model_dump(by_alias=True) for use in foreign] == [
        {"type": "gpu", "minor": 3, "processes": 2, "memory": "2Gi"}
    ]


CONTAINER = "c0ffee" * 10 + "abcd"


@pytest.mark.parametrize(
    ("text", "container"),
    [
        (f"0::/kubepods/burstable/pod{UID}/{CONTAINER}\n", CONTAINER),
        (f"0::/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{CONTAINER}.scope\n", CONTAINER),
        (f"0::/kubepods/pod{UID}/{CONTAINER}/init.scope\n", CONTAINER),
        (f"12:memory:/kubepods/pod{UID}/{CONTAINER}\n1:name=systemd:/kubepods/pod{UID}/{CONTAINER}\n", CONTAINER),
        (f"0::/kubepods/pod{UID}/abc\n", ""),
        ("", ""),
    ],
)
def test_a_cgroup_names_a_container_or_none(text: str, container: str) -> None:
    assert processes.container_of(text) == container


def test_memory_counts_for_the_container_and_outside_of_pods_for_none(proc: Path) -> None:
    (proc / "14").mkdir()
    (proc / "14" / "cgroup").write_text(f"0::/kubepods/pod{UID}/{CONTAINER}\n")
    listed = [
        *(Process(pid=14, memory=1), Process(pid=14, memory=2), Process(pid=10, memory=0)),
        *(Process(pid=11, memory=8), Process(pid=12, memory=16)),
        Process(pid=99, memory=32),
    ]
    assert processes.memory_by_owner(listed, proc) == {(UID, CONTAINER): 3, processes.OUTSIDE: 24}


def test_a_cgroup_of_any_name_ends_nothing(proc: Path) -> None:
    """A tenant may make cgroups below its own."""
    (proc / "15").mkdir()
    (proc / "15" / "cgroup").write_bytes(f"0::/kubepods/pod{STATIC}/".encode() + b"\xff\xfe\n")
    (proc / "16").mkdir()
    (proc / "16" / "cgroup").touch()
    with refused(proc / "16" / "cgroup", errno.EIO):
        assert processes.pods_with_processes(proc) == {UID, STATIC}
        assert processes.foreign({0: [Process(pid=15), Process(pid=16)]}, proc) == ()
