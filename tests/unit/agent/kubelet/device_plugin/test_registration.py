from pathlib import Path

import pytest

from berth_agent import files
from berth_agent.kubelet.device_plugin.plugin_server import socket_name
from berth_agent.kubelet.device_plugin.registration import (
    CRASH_WINDOW,
    MAX_CRASHES,
    CrashCounter,
    CrashLoopError,
    WatchTracker,
)


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        ("nvidia.com/gpu", "nvidia-gpu.sock"),
        ("nvidia.com/gpu.shared", "nvidia-gpu.shared.sock"),
        ("nvidia.com/mig-1g.5gb", "nvidia-mig-1g.5gb.sock"),
        ("berth.dev/mps", "berth-mps.sock"),
    ],
)
def test_sockets_are_called_as_nvidias(resource: str, name: str) -> None:
    assert socket_name(resource) == name


def test_a_socket_that_was_created_again_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    assert files.identity(path) is None
    path.touch()
    first = files.identity(path)
    assert files.identity(path) == first
    path.unlink()
    path.touch()
    assert files.identity(path) != first


def test_some_crashes_are_tolerated() -> None:
    crashes = CrashCounter()
    for second in range(MAX_CRASHES):
        crashes.count(second, what="a.sock")
    with pytest.raises(CrashLoopError, match=r"a\.sock broke 6 times within 60 minutes"):
        crashes.count(MAX_CRASHES, what="a.sock")


def test_crashes_of_long_ago_do_not_count() -> None:
    crashes = CrashCounter()
    for number in range(3 * MAX_CRASHES):
        crashes.count(number * CRASH_WINDOW / MAX_CRASHES, what="a.sock")


def played(story: str, until: int) -> list[int]:
    """Play what kubelet does at which second, look at each second, and give those at which it is registered again."""
    deeds = {int(second): deed for second, deed in (step.split() for step in story.split(";"))}
    listening, registered, streams = WatchTracker(), [], []
    for second in range(until):
        match deeds.get(second):
            case "registered":
                listening.registered(second)
            case "stream_started":
                streams.append(listening.stream_started(second))
            case "stream_ended":
                listening.stream_ended(streams.pop(0), second)
            case "newest_ended":
                listening.stream_ended(streams.pop(), second)
        if listening.is_overdue(second):
            registered.append(second)
            listening.back_off()
            listening.registered(second)
    return registered


@pytest.mark.parametrize(
    ("story", "again"),
    [
        ("0 registered; 1 stream_started", []),
        ("0 registered", [5, 15, 35, 75, 155, 315, 615, 915]),
        ("0 registered; 1 stream_started; 600 stream_ended; 602 stream_started", []),
        ("0 registered; 1 stream_started; 600 stream_ended; 606 stream_started", [605]),
        # A stream that kubelet cuts at once each time is no sign of life; one that lasts is.
        (
            "0 registered; 6 stream_started; 7 stream_ended; 18 stream_started; 19 stream_ended; 40 stream_started",
            [5, 17, 39],
        ),
        (
            "0 registered; 6 stream_started; 7 stream_ended; 18 stream_started; 800 stream_ended",
            [5, 17, 805, 815, 835, 875, 955],
        ),
        # A new stream may begin before the old one is known to have ended.
        ("0 registered; 1 stream_started; 10 stream_started; 11 stream_ended", []),
        # Kubelet keeps the stream of an earlier registration, but does not call the plugin.
        ("0 registered; 1 stream_started; 10 stream_started; 990 newest_ended", [995]),
    ],
)
def test_a_resource_that_kubelet_does_not_watch_is_registered_again(story: str, again: list[int]) -> None:
    assert played(story, 1000) == again
