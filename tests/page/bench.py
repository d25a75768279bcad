"""How soon the page shows a fleet, and how long its updates block it: `python -m tests.page.bench`.

NODES, REPEAT and SECONDS are read from the environment. The page is the real one in a Chromium without a window, its
data come from the real server of `kubectl berth dashboard`, which reads recorded rows by a stand-in for kubectl. The
figures are medians:

* first_picture_s: from the navigation until all nodes in the window were painted, and stayed the same;
* longest_task_ms: the longest task of the page while pods come and go on a twentieth of the nodes each second, and all
  cards have new metrics each 15 s; 0 if no task took 50 ms, which is what Chromium reports.
"""

import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser

from tests import chromium
from tests.bench import figures
from tests.page import browsing
from tests.page.browsing import Window
from tests.page.dashboard import Dashboard, recorded
from tests.page.scene import Scene
from tests.page.stand_in import StandIn

PROBE: Final = Path(__file__).with_name("probe.js")
LIMITS: Final = {1000: (1.5, 100.0), 5000: (5.0, 300.0)}
"""Nodes -> seconds until the first picture, milliseconds of the longest task."""
METRICS_EVERY: Final = 15
"""Steps, of a second each."""
CALM: Final = 2000
"""Milliseconds without a change after which the first picture is complete."""


@dataclass(frozen=True, slots=True)
class Site:
    """What a bench looks at."""

    browser: Browser
    stand_in: StandIn
    dashboard: Dashboard
    cookies: Any

    @contextlib.contextmanager
    def window(self) -> Iterator[Window]:
        """Open a new window, with the probe."""
        with browsing.window(self.browser, self.dashboard, state=self.cookies) as own:
            own.page.add_init_script(path=PROBE)
            yield own


@contextlib.contextmanager
def site(nodes: int) -> Iterator[Site]:
    """Run all that a page needs."""
    path = chromium.ensure()
    if path is None:
        raise SystemExit(chromium.obstacle())
    with tempfile.TemporaryDirectory(prefix="berth-page-") as name:
        folder = Path(name)
        with (
            StandIn(folder, Scene(nodes)) as stand_in,
            Dashboard(folder, recorded(stand_in)) as dashboard,
            browsing.opened(path) as browser,
        ):
            with browsing.window(browser, dashboard) as first:
                cookies = first.enter().page.context.storage_state()
            yield Site(browser, stand_in, dashboard, cookies)


def main() -> None:
    """Run the benchmark; exit with 1 if a limit is not kept."""
    nodes, repeat = figures.number("NODES", 1000), figures.number("REPEAT", 5)
    seconds = figures.number("SECONDS", 20)
    figures.say_load()
    with site(nodes) as own:
        runs = [_run(own, seconds) for _ in range(repeat)]
    first, longest = (statistics.median(column) for column in zip(*runs, strict=True))
    sizes = {"nodes": nodes, "repeat": repeat, "seconds": seconds}
    figures.result({"bench": "page", "first_picture_s": round(first, 3), "longest_task_ms": round(longest), **sizes})
    most = LIMITS.get(nodes)
    if most and (first > most[0] or longest > most[1]):
        sys.exit(1)


def _run(own: Site, seconds: int) -> tuple[float, float]:
    with own.window() as window:
        window.open("/")
        first = first_picture(window)
        began = window.page.evaluate("performance.now()")
        churn(own, window, seconds)
        tasks = window.page.evaluate("began => berthProbe.tasks.filter(({ at }) => at >= began)", began)
    took = sorted(round(task["took"]) for task in tasks)
    figures.say(f"first picture {first:.2f} s; long tasks of updates: {took[-5:]} of {len(took)} ms")
    return first, max(took, default=0)


def first_picture(window: Window) -> float:
    """Return the seconds from the navigation until what is visible now was painted."""
    calm = "performance.now() - (berthProbe.seen.at(-1)?.at || Infinity) > argument && berthProbe.seen.at(-1).names"
    window.wait(calm, CALM)
    seen = window.page.evaluate("(berthProbe.stop(), berthProbe.seen)")
    return float(seen[-1]["at"]) / 1000


def churn(own: Site, window: Window, seconds: int) -> None:
    """Change the scene once a second."""
    for step in range(1, seconds + 1):
        began = time.monotonic()
        own.stand_in.change(own.stand_in.scene.step(measured=step % METRICS_EVERY == 0))
        window.page.wait_for_timeout(max(0.0, 1000 * (1 - (time.monotonic() - began))))


if __name__ == "__main__":
    main()
