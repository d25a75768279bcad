"""Whether the page's memory grows: `python -m tests.page.heap`.

NODES and MINUTES are read from the environment. Pods come and go on a twentieth of the nodes each second, and the page
changes its view every 20 s. Its heap is measured on the fleet after a forced collection, at a fifth of the time and at
its end (minutes 2 and 10), and may grow by a tenth.
"""

import sys
from typing import Any, Final

from tests.bench import figures
from tests.page.bench import Site, churn, first_picture, site
from tests.page.browsing import Window

GROWTH: Final = 1.1
EARLY: Final = 0.2
STAY: Final = 20
"""Seconds in one view."""
VIEWS: Final = ("/queue", "/", "/holders", "/", "/health", "/")


def main() -> None:
    """Run the benchmark; exit with 1 if the heap grows by more than it may."""
    nodes, minutes = figures.number("NODES", 1000), float(figures.number("MINUTES", 10))
    with site(nodes) as own, own.window() as window:
        window.open("/")
        first_picture(window)
        early = _after(own, window, EARLY * minutes * 60)
        late = _after(own, window, (1 - EARLY) * minutes * 60)
    grown = late / early
    sizes = {"nodes": nodes, "minutes": minutes}
    heaps = {"early_mb": round(early / 1e6, 1), "late_mb": round(late / 1e6, 1), "ratio": round(grown, 3)}
    figures.result({"bench": "page-heap", **heaps, **sizes})
    if grown > GROWTH:
        sys.exit(1)


def _after(own: Site, window: Window, seconds: float) -> float:
    """Return the bytes of the heap after some seconds of changes."""
    for turn in range(max(1, round(seconds / STAY))):
        window.page.click(f'nav a[href^="{VIEWS[turn % len(VIEWS)]}"]')
        churn(own, window, STAY)
        figures.say(f"heap {_heap(window) / 1e6:.1f} MB in {VIEWS[turn % len(VIEWS)]}")
    window.page.click('nav a[href^="/"]')
    churn(own, window, STAY)
    return _heap(window)


def _heap(window: Window) -> float:
    session = window.page.context.new_cdp_session(window.page)
    session.send("HeapProfiler.collectGarbage")
    usage: dict[str, Any] = session.send("Runtime.getHeapUsage")
    session.detach()
    return float(usage["usedSize"])


if __name__ == "__main__":
    main()
