"""A real Chromium on the real server of the dashboard, which reads recorded rows through a stand-in for kubectl."""

import copy
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.page import browsing
from tests.page.browsing import Window
from tests.page.dashboard import Dashboard, recorded
from tests.page.scene import Scene
from tests.page.stand_in import StandIn
from tests.programs import chromium

REQUIRED = "BERTH_REQUIRE_REAL_NODE"
"""Set where a machine without what a test needs is a mistake, as in CI."""
NODES, WAITING = 24, 30


@pytest.fixture(scope="session")
def chromium_path() -> Path:
    """Where Chromium is; a test that asks for it is skipped on machines that can have none."""
    path = chromium.find()
    reason = chromium.obstacle() or "Chromium is missing"
    if path is None and os.environ.get(REQUIRED):
        pytest.fail(f"{reason}; {REQUIRED} is set")
    if path is None:
        pytest.skip(reason)
    return path


@pytest.fixture(scope="module")
def browser(chromium_path: Path) -> Iterator[Browser]:
    """Chromium; one for each file, because Playwright's loop must end before a file with tests of asyncio begins."""
    with browsing.opened(chromium_path) as running:
        yield running


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder with a short name: the name of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="berth-page-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def stand_in(folder: Path) -> Iterator[StandIn]:
    """Recorded rows of a small fleet."""
    with StandIn(folder, Scene(NODES, waiting=WAITING)) as serving:
        yield serving


@pytest.fixture
def changed_scene(stand_in: StandIn) -> Iterator[Scene]:
    """Return a copy of the recorded rows to change; after the test the recorded ones are served again."""
    yield copy.deepcopy(stand_in.scene)
    stand_in.rows["fleet"].replace(stand_in.scene.fleet.values())
    stand_in.rows["holders"].replace(stand_in.scene.holders.values())
    stand_in.rows["queue"].replace(stand_in.scene.queue)


@pytest.fixture(scope="module")
def dashboard(folder: Path, stand_in: StandIn) -> Iterator[Dashboard]:
    """The server."""
    with Dashboard(folder, recorded(stand_in)) as running:
        yield running


@pytest.fixture(scope="module")
def cookies(browser: Browser, dashboard: Dashboard) -> Any:
    """What a browser keeps after it was at the printed address."""
    with browsing.window(browser, dashboard) as own:
        own.enter()
        return own.page.context.storage_state()


@pytest.fixture
def window(browser: Browser, dashboard: Dashboard, cookies: Any) -> Iterator[Window]:
    """A window that has the cookie."""
    with browsing.window(browser, dashboard, state=cookies) as own:
        yield own
