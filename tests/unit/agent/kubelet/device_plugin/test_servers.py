"""From when a kubelet counts as settled, whatever happens to the clock of the machine."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from berth_agent.kubelet.device_plugin.handler import Service
from berth_agent.kubelet.device_plugin.plugin_server import PluginServer
from berth_agent.kubelet.device_plugin.servers import SETTLING, PluginServers

pytestmark = pytest.mark.looptime

HOUR = 3600.0


def unused(_service: Service) -> PluginServer:
    raise AssertionError("there is nothing to serve")


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return how to set the machine's clock, by seconds relative to now."""
    now = time.time()
    return lambda seconds: monkeypatch.setattr(time, "time", lambda: now + seconds)


async def test_a_kubelet_settles_also_if_the_clock_was_set_back(
    tmp_path: Path, set_clock: Callable[[float], None]
) -> None:
    socket = tmp_path / "kubelet.sock"
    socket.touch()
    set_clock(-HOUR)
    servers = PluginServers(kubelet=socket, make=unused)
    await servers.keep(())
    assert not servers.settled
    await asyncio.sleep(SETTLING - 1)
    await servers.keep(())
    assert not servers.settled
    await asyncio.sleep(1)
    assert servers.settled
    socket.unlink()
    socket.touch()
    await servers.keep(())
    assert not servers.settled


async def test_a_kubelet_that_ran_before_the_agent_is_settled_at_once(
    tmp_path: Path, set_clock: Callable[[float], None]
) -> None:
    socket = tmp_path / "kubelet.sock"
    socket.touch()
    set_clock(SETTLING + 1)
    servers = PluginServers(kubelet=socket, make=unused)
    await servers.keep(())
    assert servers.settled
