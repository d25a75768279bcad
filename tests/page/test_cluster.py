"""The page on a real control plane, with agent, operators and the aggregated visibility API: `make page`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from devcluster import waiting
from devcluster.building import programs
from tests.bench import figures
from tests.conftest import prepare
from tests.integration.visibility.conftest import Installation
from tests.page import browsing, views
from tests.page.browsing import Window
from tests.page.constructed import CONSTRUCTED, WHOLE, Constructed
from tests.page.dashboard import Dashboard
from tests.programs.aggregated import own_world

pytestmark = pytest.mark.skipif(not os.environ.get("BERTH_PAGE"), reason="`make page` runs this")

CHANGES = 20
PROMPT = 2.0
"""Seconds until a change is visible, 90 % of them."""


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with own_world(tmp_path_factory.mktemp("page"), prepare) as world:
        installed = Installation(world)
        installed.apply()
        yield installed


def environment(installation: Installation) -> dict[str, str]:
    kubectl = str(programs.ensure(["kubectl"])["kubectl"])
    return {"BERTH_KUBECTL": kubectl, "KUBECONFIG": str(installation.arena.cluster.kubeconfig)}


@pytest.fixture(scope="module")
def window(browser: Browser, installation: Installation, folder: Path) -> Iterator[Window]:
    flags = ["-n", installation.arena.namespace]
    with (
        Dashboard(folder, environment(installation), *flags) as dashboard,
        browsing.window(browser, dashboard) as own,
    ):
        yield own.enter()


@pytest.mark.parametrize("case", CONSTRUCTED, ids=lambda case: case.name)
def test_page_condition_and_command_agree(installation: Installation, window: Window, case: Constructed) -> None:
    name = case.build(installation.world)
    world, namespace = installation.world, installation.arena.namespace
    window.open(f"/pods/{namespace}/{name}")

    def agree() -> bool:
        explained = _explained(installation, name)
        # The condition may gain its sentence about preemption meanwhile.
        return {world.message(name), explained["message"], views.message(window)} == {explained["message"]}

    waiting.until(agree, what="page, condition and command to agree")
    assert views.message(window).startswith(case.message)


def _explained(installation: Installation, name: str) -> Any:
    command = [sys.executable, "-m", "berth_kubectl", "explain", name, "-n", installation.arena.namespace, "-o", "json"]
    variables = {**os.environ, **environment(installation)}
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=variables)
    return json.loads(ended.stdout)


def test_a_change_is_visible_within_two_seconds(installation: Installation, window: Window) -> None:
    world = installation.world
    world.clear()
    [node] = world.nodes(1, gpus=8)
    window.open("/")
    views.wait_held(window, node, 0)
    took = []
    for change in range(CHANGES):
        name, grows = f"changes-{change // 2}", change % 2 == 0
        began = time.monotonic()
        if grows:
            world.pod(name, WHOLE)
        else:
            world.remove(name)
        views.wait_held(window, node, int(grows))
        took.append(time.monotonic() - began)
    p90 = figures.quantile(took, 0.9)
    figures.result({"bench": "page-change", "p50_s": round(figures.quantile(took, 0.5), 2), "p90_s": round(p90, 2)})
    assert p90 <= PROMPT, took


def test_a_killed_connection_is_shown_and_heals(installation: Installation, window: Window) -> None:
    window.open("/")
    views.wait_state(window, "live")
    for child in _children(window.dashboard.pid):
        os.kill(child, signal.SIGKILL)
    views.wait_state(window, "lost")
    views.wait_state(window, "live")
    assert installation.world.shown(next(iter(views.nodes(window))))


def test_a_killed_operator_is_shown_and_heals(installation: Installation, window: Window) -> None:
    world = installation.world
    window.open("/")
    views.wait_state(window, "live")
    [node] = views.nodes(window)
    for replica in (installation.leader, installation.standby):
        replica.process.kill()
    views.wait_state(window, "lost")
    assert node in views.nodes(window)  # what is known stays, with its age
    installation.start(installation.leader.port)
    views.wait_state(window, "live")
    world.pod("later", WHOLE)
    views.wait_held(window, node, 1)


def _children(pid: int) -> list[int]:
    """Return the processes that a process has started: the dashboard's is `kubectl proxy`."""
    threads = Path("/proc", str(pid), "task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
