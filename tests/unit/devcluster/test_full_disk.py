"""A cluster that does not start because the disk is full says so, and does not show etcd's stack."""

import os
from pathlib import Path

import pytest

from devcluster.control_plane import components, supervisor
from devcluster.errors import DevclusterError

FULL = "panic: write etcd/member/wal/0.tmp: no space left on device"
STACK = "".join(f"goroutine {number}\\n" for number in range(20))


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (
            f"{FULL}\\n{STACK}",
            "the disk of {folder} is full: free 1 GB there, or name a folder on another disk by TMPDIR",
        ),
        ("panic: address in use", "etcd ended with code 2; its last lines:\npanic: address in use"),
    ],
)
def test_the_error_of_a_start_names_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, message: str
) -> None:
    etcd = tmp_path / "broken.sh"
    etcd.write_text(f"#!/bin/sh\nprintf '{log}'\nexit 2\n")
    etcd.chmod(0o700)
    (tmp_path / components.CERTIFICATES).mkdir()
    monkeypatch.chdir(tmp_path)
    reader, writer = os.pipe()
    with os.fdopen(writer, "w"), os.fdopen(reader) as owner:
        monkeypatch.setattr("sys.stdin", owner)
        with pytest.raises(DevclusterError) as raised:
            supervisor.Supervisor(supervisor.Inbox()).start(programs={"etcd": str(etcd)}, token="", extra_args={})
    assert str(raised.value).startswith(message.format(folder=tmp_path))
