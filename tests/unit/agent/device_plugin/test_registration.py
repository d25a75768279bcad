from pathlib import Path

import pytest

from berth_agent.device_plugin import registration
from berth_agent.device_plugin.registration import CRASH_WINDOW, MAX_CRASHES, Crashes, CrashLoopError
from berth_agent.device_plugin.server import socket_name


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        ("nvidia.com/gpu", "nvidia-gpu.sock"),
        ("nvidia.com/gpu.shared", "nvidia-gpu.shared.sock"),
        ("nvidia.com/mig-1g.5gb", "nvidia-mig-1g.5gb.sock"),
    ],
)
def test_sockets_are_called_as_nvidias(resource: str, name: str) -> None:
    assert socket_name(resource) == name


def test_a_socket_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    assert registration.identity(path) is None
    path.touch()
    first = registration.identity(path)
    assert registration.identity(path) == first
    path.unlink()
    path.touch()
    assert registration.identity(path) != first


def test_some_crashes_are_borne() -> None:
    crashes = Crashes()
    for second in range(MAX_CRASHES):
        crashes.count(second, what="a.sock")
    with pytest.raises(CrashLoopError, match=r"a\.sock broke 6 times within 60 minutes"):
        crashes.count(MAX_CRASHES, what="a.sock")


def test_crashes_of_long_ago_do_not_count() -> None:
    crashes = Crashes()
    for number in range(3 * MAX_CRASHES):
        crashes.count(number * CRASH_WINDOW / MAX_CRASHES, what="a.sock")
