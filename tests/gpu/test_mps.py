"""NVIDIA's Multi-Process Service keeps its promises for a share (decision 35), with the test's own daemon."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from berth_agent.vendors.nvidia.isolation.control import ControlError, MpsControl
from berth_agent.vendors.nvidia.isolation.daemon import MpsDaemon
from berth_agent.vendors.nvidia.isolation.limits import DefaultLimits
from devcluster import waiting
from tests.gpu import machine
from tests.gpu.clients import Client, Seen, client
from tests.gpu.look import look

CONTROL: Final = "nvidia-cuda-mps-control"
MEMORY, THREADS, PIPE = (
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PIPE_DIRECTORY",
)
DEFAULT: Final = 3072
"""MiB of memory that the daemon allows by default."""
MORE: Final = 2 * DEFAULT
CONTEXT: Final = 1024
"""MiB that a context of CUDA takes at most."""
OUT_OF_MEMORY: Final = 2
PATIENCE: Final = 60

_MISSING: Final = machine.obstacle() or ("" if shutil.which(CONTROL) else f"no {CONTROL}")
pytestmark = pytest.mark.skipif(bool(_MISSING), reason=_MISSING)


class Daemon:
    """A daemon, and clients that use it."""

    def __init__(self, folder: Path) -> None:
        self.variables = {PIPE: str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}

    def control(self, command: str) -> str:
        """Send a command to the daemon; return what it says."""
        environment = os.environ | self.variables
        done = subprocess.run(
            [CONTROL], check=False, env=environment, input=command, capture_output=True, text=True, timeout=PATIENCE
        )
        return done.stdout.strip()

    def client(self, wanted: int, **variables: str) -> AbstractContextManager[Client]:
        """Run a client that allocates so many MiB, and holds them until the end of the block."""
        return client(wanted, **self.variables | variables)

    def seen(self, wanted: int, **variables: str) -> Seen:
        """Return what a client sees that ends at once."""
        with self.client(wanted, **variables) as (_, seen):
            return seen


@pytest.fixture
def prefix() -> list[str]:
    """Return what the daemon is started by."""
    return []


@pytest.fixture
def daemon(tmp_path: Path, prefix: list[str]) -> Iterator[Daemon]:
    made = Daemon(tmp_path)
    command = [*prefix, CONTROL, "-f", "-multiuser-server"]
    with subprocess.Popen(command, env=os.environ | made.variables, stdout=subprocess.DEVNULL) as process:
        waiting.until((tmp_path / "control").exists, what="the daemon")
        made.control(f"set_default_device_pinned_mem_limit 0 {DEFAULT}M")
        made.control("set_default_active_thread_percentage 50")
        yield made
        made.control("quit -t 1")
        process.wait(PATIENCE)


@pytest.fixture
def whole(tmp_path: Path) -> int:
    """Return the number of the card's multiprocessors."""
    return int(Daemon(tmp_path / "none").seen(0)["multiprocessors"])


def is_limited(seen: Seen, limit: int) -> bool:
    return bool(seen["error"] == OUT_OF_MEMORY and limit - CONTEXT < seen["allocated"] < limit)


def test_a_client_has_the_limits_of_its_variables(daemon: Daemon, whole: int) -> None:
    seen = daemon.seen(MORE, **{MEMORY: "0=2G", THREADS: "25"})
    assert is_limited(seen, 2048)
    assert seen["multiprocessors"] <= whole / 4


@pytest.mark.parametrize("variables", [{}, {MEMORY: "0=10G", THREADS: "90"}], ids=["none", "more"])
def test_the_daemons_defaults_hold_for_those_without_variables_and_cannot_be_raised(
    daemon: Daemon, whole: int, variables: dict[str, str]
) -> None:
    seen = daemon.seen(MORE, **variables)
    assert is_limited(seen, DEFAULT)
    assert seen["multiprocessors"] <= whole / 2


@pytest.mark.parametrize("limit", ["none", "0=0G", "7=1G"])
def test_a_memory_limit_that_is_none_takes_the_default_away(daemon: Daemon, whole: int, limit: str) -> None:
    """So it is cooperative; if this fails, the driver has become stricter, and the documents may say so."""
    seen = daemon.seen(MORE, **{MEMORY: limit, THREADS: "none"})
    assert (seen["error"], seen["allocated"]) == (0, MORE)
    assert seen["multiprocessors"] <= whole / 2


def test_a_process_that_does_not_find_the_daemon_has_no_limits(daemon: Daemon, whole: int, tmp_path: Path) -> None:
    seen = daemon.seen(MORE, **{PIPE: str(tmp_path / "elsewhere"), MEMORY: "0=1G", THREADS: "25"})
    assert (seen["error"], seen["allocated"], seen["multiprocessors"]) == (0, MORE, whole)


def test_a_neighbour_does_not_notice_who_wants_too_much(daemon: Daemon) -> None:
    with daemon.client(1024) as neighbour:
        assert is_limited(daemon.seen(MORE), DEFAULT)
        with daemon.client(1024) as later:
            assert (neighbour.seen["error"], later.seen["error"]) == (0, 0)
            # The server, and the two that hold memory.
            [processes, *_] = look().processes.values()
            assert len(processes) == 3


@pytest.mark.parametrize("prefix", [["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]], ids=[""])
def test_the_daemon_needs_no_capability(daemon: Daemon) -> None:
    """The DaemonSet berth-mps drops them all; if this fails, it has to keep one."""
    assert is_limited(daemon.seen(MORE), DEFAULT)


async def test_the_agent_sets_limits_and_finds_what_others_change(daemon: Daemon, tmp_path: Path) -> None:
    agent = MpsDaemon(MpsControl(program=CONTROL, folder=tmp_path))
    await agent.ensure(DefaultLimits(memory={0: 2048}, threads=25))
    assert is_limited(daemon.seen(MORE), 2048)
    # A server runs now, and its later clients have the new limits.
    await agent.ensure(DefaultLimits(memory={0: 4096}, threads=75))
    assert is_limited(daemon.seen(MORE), 4096)
    said = daemon.control("get_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0")
    daemon.control("set_default_device_pinned_mem_limit 0 1G")
    assert daemon.control("get_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0") != said
    await agent.ensure(DefaultLimits(memory={0: 4096}, threads=75))
    assert daemon.control("get_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0") == said
    with daemon.client(512):
        await agent.look_for_lost_servers()
        since = agent.since
        daemon.control(f"shutdown_server {daemon.control('get_server_list')} -f")
        await agent.look_for_lost_servers()
        assert agent.since > since


@pytest.mark.usefixtures("daemon")
async def test_the_agent_notices_that_the_daemon_was_killed(tmp_path: Path) -> None:
    agent = MpsDaemon(MpsControl(program=CONTROL, folder=tmp_path))
    await agent.ensure(DefaultLimits())
    # Its socket stays.
    os.kill(int((tmp_path / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)
    with pytest.raises(ControlError):
        await agent.ensure(DefaultLimits())
