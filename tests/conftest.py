"""One cluster for all workers of a session, started by the first test that uses it, with one arena for each test."""

import asyncio
import functools
import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog

from devcluster import Arena, Cluster, real_node
from devcluster.additions import agents, installation
from devcluster.building import downloads, programs
from devcluster.control_plane import audit
from tests.harness import late, layers, leftovers, rights
from tests.programs import chromium, shared_cluster
from tests.programs.prometheus import Prometheus
from tests.stand_ins.proxy import FaultProxy

# The duration of an example depends more on the machine than on the code, and a verdict must not hang on luck. Of
# examples that are the same each time, more would find nothing new.
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.register_profile("berth", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("berth")

CLUSTERS = {"cluster", "own_cluster", "site"}
"""Fixtures that start a cluster."""
REAL_NODES = {"root_on_linux"}
"""Fixtures of tests with a real node."""
MONITORING = {"prometheus", "promtool"}
"""Fixtures of tests with a real Prometheus."""
PACKAGING = {"helm"}
"""Fixtures of tests with a real Helm."""
DRA_DRIVERS = {"dra_driver"}
"""Fixtures of tests with a DRA driver on a real node."""
PAGES = {"chromium_path"}
"""Fixtures of tests with a real Chromium."""
WAITING = ("integration/clients/test_reinstall.py", "integration/test_bench.py", "chaos", "node", "integration")
"""Files and folders of tests that mostly wait, in the order in which they run; the others follow."""
SAFETY = ("attacks", "chaos", "integration/clients/test_fence", "node/test_choice_holds.py")
"""Folders and files that audit what must never happen: a card given twice, a pod lost, a write after a term's end."""
TESTS = Path(__file__).parent
GUARD = layers.Guard()
UNLISTED_REQUESTS = 7
"""The exit code of a session whose tests passed; none of pytest's own."""
CRDS = TESTS.parent / "crds"
IDLE_CYCLES = 8
"""How often a test in virtual time looks for input before its clock moves: what it sends itself has arrived by then."""
PLAIN = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
"""The default draws each traceback with all its variables, which takes longer than most tests."""


def pytest_configure(config: pytest.Config) -> None:
    """Isolate the session from any real cluster and event loop; let its clusters log what programs ask."""
    if audit.VARIABLE not in os.environ:  # a worker has that of its session
        folder = tempfile.mkdtemp(prefix="berth-audit-")
        os.environ[audit.VARIABLE] = folder
        config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))
    _log_plainly()
    # Otherwise pytest-asyncio on Python 3.11 makes an event loop that is never closed.
    asyncio.set_event_loop(None)
    os.environ["KUBECONFIG"] = os.devnull
    os.environ[downloads.VARIABLE] = ""  # what tests start builds its programs
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        os.environ.pop(name, None)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session if a program asked an API server for what docs/rights.md does not list."""
    if not hasattr(session.config, "workerinput") and rights.compared(Path(os.environ[audit.VARIABLE])).extra:
        session.exitstatus = UNLISTED_REQUESTS


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave modules and collected tests, which stay, out of all garbage collections: each would look at all of them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let no test of the first layer start a compiled program."""
    GUARD.watch(item)
    try:
        return (yield)
    finally:
        GUARD.watch(None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print requests that docs/rights.md does not list; in `make e2e` also the rights that nothing used."""
    comparison = rights.compared(Path(os.environ[audit.VARIABLE]))
    for line in comparison.lines(with_unused=bool(os.environ.get("BERTH_REQUIRE_RIGHTS"))):
        terminalreporter.write_line(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the audits, let virtual clocks move soon, and put files of a few long tests first: they would end alone."""
    for item in items:
        if item.get_closest_marker("looptime"):
            item.add_marker(pytest.mark.looptime(noop_cycles=IDLE_CYCLES), append=False)
        if item.path.relative_to(TESTS).as_posix().startswith(SAFETY):
            item.add_marker(late.SAFETY)
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    path = item.path.relative_to(TESTS).as_posix()
    return next((place for place, start in enumerate(WAITING) if path.startswith(start)), len(WAITING))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build missing programs before the first test: it takes minutes, and no test's timeout allows for it.

    Tests of the first layer have none, whatever they call their fixtures.
    """
    used = {name for item in session.items if not layers.is_first(item.path) for name in _fixtures(item)}
    needed = programs.CLUSTER if used & CLUSTERS else ()
    if used & REAL_NODES and not real_node.obstacle():
        needed = (*needed, *programs.REAL_NODE, *(programs.CLAIMS if used & DRA_DRIVERS else ()))
    if used & MONITORING:
        needed = (*needed, *programs.MONITORING)
    if used & PACKAGING:
        needed = (*needed, *programs.PACKAGING)
    if session.config.option.collectonly:
        return
    if used & PAGES:
        chromium.ensure()
    if needed:
        capture = session.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            programs.ensure(needed)


def _fixtures(item: pytest.Item) -> set[str]:
    """Return the names of a test's fixtures, without its parameters: a parameter may be called `cluster` too."""
    parameters = item.callspec.params if hasattr(item, "callspec") else ()
    return set(getattr(item, "fixturenames", ())) - set(parameters)


@pytest.fixture(scope="session")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Iterator[Cluster]:
    """Return a real control plane on loopback, with Berth's CRDs; all workers share it, so change nothing global."""
    base = tmp_path_factory.getbasetemp()
    with shared_cluster.opened(base if worker_id == "master" else base.parent, prepare=prepare) as running:
        assert running.server.startswith("https://127.0.0.1:")
        request.config.stash[leftovers.SHARED] = running
        yield running
        own = {running.api.path_of(each) for each in installation.documents(installation.BASE / "namespace.yaml")}
        leftovers.expect_gone(running, running.api.shared - own, float(request.config.getini(leftovers.PATIENCE)))


def prepare(cluster: Cluster) -> None:
    """Install in a new control plane what all tests expect."""
    cluster.install_crds(CRDS)
    agents.apply_rights(cluster)
    cluster.play_device_plugins()
    cluster.api.shared.clear()


@pytest.fixture
def proxy(cluster: Cluster, tmp_path: Path) -> Iterator[FaultProxy]:
    """Start a proxy to the API server on which single requests can fail; request it first, so that it stops last."""
    with FaultProxy(server=cluster.server, ca_file=cluster.ca_file, folder=tmp_path) as running:
        yield running


@pytest.fixture
def arena(cluster: Cluster, tmp_path: Path) -> Iterator[Arena]:
    """Open an arena: a namespace, node label, scheduler name and lease name of the test's own."""
    own = Arena(cluster=cluster, folder=tmp_path)
    own.open()
    yield own
    own.close()


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    """Start a Prometheus that scrapes nothing yet."""
    with Prometheus(folder=tmp_path / "prometheus") as running:
        yield running


@pytest.fixture(scope="session")
def helm() -> Path:
    """Return where Helm is."""
    return programs.ensure(programs.PACKAGING)["helm"]


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Return where promtool is."""
    return programs.ensure(programs.MONITORING)["promtool"]


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Undo what a program configures that a test runs in its own process: later tests capture log lines."""
    yield
    _log_plainly()


def _log_plainly() -> None:
    structlog.reset_defaults()
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], PLAIN])
