"""Fail a test that leaves something to the next one: sockets, tasks, processes, or objects that all tests share.

What fixtures of a module hold or start is checked when the module ends. Objects of the session are checked when the
session ends.
"""

import asyncio
import contextlib
import gc
import os
from asyncio import iscoroutinefunction
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest

from devcluster import Cluster, waiting
from devcluster.control_plane.api import Api, ApiError, close_idle
from devcluster.processes import state
from tests.harness import layers
from tests.programs import forking

SHARED: Final = pytest.StashKey[Cluster]()
"""The cluster that the tests of all workers share."""
FIXTURE_OF_TASKS: Final = "_no_task_left"
NAMESPACES: Final = "/api/v1/namespaces/"
"""Their end takes minutes after many tests, and no test looks into that of another: all must be asked to end."""
PATIENCE: Final = "leftovers_patience"
"""The option with the seconds within which what was asked to end must have ended."""
FORK_SERVER: Final = " from multiprocessing."
"""Part of the command lines of the server that forks, and of Python's own that goes with it: they live on."""
WIDE: Final = ("class", "module", "package")
FAILED: Final = pytest.StashKey[bool]()
"""Whether a test has failed already: then what it left means nothing more."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addini(PATIENCE, "seconds within which what a test has asked to end must have ended", default="60")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember that a test has failed."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Watch the tasks of tests that talk to real programs, from before their own fixtures; the others talk to none."""
    for item in items:
        if isinstance(item, pytest.Function) and not layers.is_first(item.path) and iscoroutinefunction(item.function):
            item.fixturenames.insert(0, FIXTURE_OF_TASKS)


@pytest.fixture
async def _no_task_left(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left and FAILED not in request.node.stash:
        # gRPC's own task ends when its core has noticed that a call was cancelled, which no caller can await
        _, left = await asyncio.wait(left, timeout=_patience(request.config))
        if left:
            pytest.fail(f"tasks were left: {left}")


@pytest.fixture(autouse=True, scope="module")
def _nothing_left_by_module(request: pytest.FixtureRequest) -> Iterator[None]:
    before = _Held(request.config)
    yield
    before.expect_no_more()


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    before = _Held(request.config)
    yield
    if FAILED not in request.node.stash and not _has_fixtures_of_module(request):
        before.expect_no_more()


def _patience(config: pytest.Config) -> float:
    return float(config.getini(PATIENCE))


def _has_fixtures_of_module(request: pytest.FixtureRequest) -> bool:
    """Return whether a fixture of the module may start something during a test, which ends with the module."""
    info = request.node._fixtureinfo  # no other way shows the scopes
    scopes = {name: fixtures[-1].scope for name, fixtures in info.name2fixturedefs.items()}
    return any(scope in WIDE and name != _nothing_left_by_module.__name__ for name, scope in scopes.items())


class _Held:
    """What this process holds, and has made in the shared cluster, at one moment."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._patience = config, _patience(config)
        self._sockets, self._children, self._shared = _sockets(), _children(), self._written()

    def _written(self) -> set[str]:
        cluster = self._config.stash.get(SHARED, None)
        return {path for path in cluster.api.shared if not path.startswith(NAMESPACES)} if cluster else set()

    def _begun(self) -> set[str]:
        """Return the processes that were begun since, without the shared cluster, which ends with the session."""
        begun, cluster = _children() - self._children, self._config.stash.get(SHARED, None)
        supervisor = state.supervisor(cluster.folder) if begun and cluster else None
        return {process for process in begun if process.partition(" ")[0] != str(supervisor)}

    def expect_no_more(self) -> None:
        """Wait until it holds no more than at that moment; fail if it does."""
        if written := self._written() - self._shared:
            expect_gone(self._config.stash[SHARED], written, self._patience)
        _expect_none(self._begun, "processes", self._patience)
        if _sockets() - self._sockets:
            close_idle()
            gc.collect()  # reports an abandoned socket here, and not in the test in which it would be found by chance
            _expect_none(lambda: (_sockets() - self._sockets) & _connections(), "connections", self._patience)


def expect_gone(cluster: Cluster, paths: Collection[str], seconds: float) -> None:
    """Wait for some seconds until objects of the whole cluster are gone, and namespaces at least deleted."""
    _expect_none(lambda: {path for path in paths if _is_left(cluster.api, path)}, "objects", seconds)
    cluster.api.shared.difference_update(paths)


def _is_left(api: Api, path: str) -> bool:
    try:
        metadata = api.get(path)["metadata"]
    except ApiError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return False
        raise
    return not (path.startswith(NAMESPACES) and "deletionTimestamp" in metadata)


def _expect_none(left: Callable[[], set[str]], what: str, seconds: float) -> None:
    """Wait for some seconds until nothing is left.

    Raises:
        pytest.fail.Exception: something stays.
    """
    if not waiting.within(lambda: not left(), seconds=seconds):
        pytest.fail(f"{what} were left: {sorted(left())}")


def _sockets() -> set[str]:
    """Return the inodes of this process' sockets."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 -- the fastest way, after each test
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
        except FileNotFoundError:  # that of the folder itself
            continue
        if target.startswith("socket:"):
            found.add(target.removeprefix("socket:[").removesuffix("]"))
    return found


def _connections() -> set[str]:
    """Return the inodes of all TCP sockets; gRPC keeps others of its own."""
    lines = [line for name in ("tcp", "tcp6") for line in Path("/proc/self/net", name).read_text().splitlines()[1:]]
    return {line.split()[9] for line in lines}


def _children() -> set[str]:
    """Return the running children of this process, and what is forked for it, with their command lines."""
    children: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended has none
            children.update((task / "children").read_text().split())
    return {each for each in map(_command, children) if each and FORK_SERVER not in each} | forking.running()


def _command(child: str) -> str:
    """Return the id and command line of a process; empty if it has ended."""
    try:
        state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        command = Path(f"/proc/{child}/cmdline").read_text().replace(chr(0), " ")[:200]
    except OSError:
        return ""
    return "" if state == "Z" else f"{child} {command}"
