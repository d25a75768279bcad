"""Pictures of the dashboard with recorded rows: `python -m tests.page.pictures [--all] FOLDER`.

Without `--all`, it writes the pictures in the documents: each view in the light theme, and a dark fleet, 1280 by 800.
With `--all`, it writes each view and the details of a node in three sizes and both themes, to look at.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.sync_api import Browser

from tests.bench import figures
from tests.page import browsing, views
from tests.page.browsing import THEMES, WIDE, Theme, Window
from tests.page.dashboard import Dashboard, recorded
from tests.page.installation import documents
from tests.page.scene import Scene
from tests.page.stand_in import StandIn
from tests.programs import chromium

NODES: Final = 120
SEED: Final = 7
SIZES: Final = ((360, 740), WIDE, (2560, 1440))
MOST: Final = 300_000
"""Bytes of a committed picture."""
DETAILS: Final = "details"
"""The fleet with the details of a node."""
SETTLED: Final = 1500
"""Milliseconds for what a view reads after its first data: colours of holders, cards of near nodes."""
FORBIDDEN: Final = (
    'clusterroles.rbac.authorization.k8s.io is forbidden: User "viewer" cannot list resource "clusterroles"'
)

Shot = tuple[str, str, Theme, tuple[int, int]]
"""Name of the file, view, theme, size."""


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="each view in three sizes and both themes")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    path = chromium.ensure()
    if path is None:
        raise SystemExit(chromium.obstacle())
    shots = list(_every()) if options.all else list(_chosen())
    with tempfile.TemporaryDirectory(prefix="berth-page-") as name:
        folder = Path(name)
        scene = Scene(NODES, seed=SEED)
        silent = [name for name, node in scene.fleet.items() if not node["reporting"]]
        stand_in = StandIn(folder, scene, documents(nodes=list(scene.fleet), silent=silent))
        stand_in.refuse("/apis/rbac.*", 403, FORBIDDEN)
        with stand_in, Dashboard(folder, recorded(stand_in)) as dashboard, browsing.opened(path) as browser:
            _take(browser, dashboard, stand_in, shots, options.folder)
    if not options.all and (large := _large(options.folder)):
        raise SystemExit(f"more than {MOST} bytes: {', '.join(large)}")


def _chosen() -> Iterator[Shot]:
    yield from ((f"dashboard-{view}", view, "light", WIDE) for view in views.NAMES)
    yield "dashboard-fleet-dark", "fleet", "dark", WIDE


def _every() -> Iterator[Shot]:
    for view in (*views.NAMES, DETAILS):
        for width, height in SIZES:
            for theme in THEMES:
                yield f"{view}-{width}-{theme}", view, theme, (width, height)


def _take(browser: Browser, dashboard: Dashboard, stand_in: StandIn, shots: list[Shot], folder: Path) -> None:
    with browsing.window(browser, dashboard) as first:
        state = first.enter().page.context.storage_state()
    for name, view, theme, size in shots:
        with browsing.window(browser, dashboard, theme=theme, size=size, state=state) as window:
            _show(window, stand_in.scene, view)
            _write(window, folder / f"{name}.png")


def _show(window: Window, scene: Scene, view: str) -> None:
    name = "fleet" if view == DETAILS else view
    window.open(views.path(name, scene))
    views.wait(window, name)
    if view == DETAILS:
        window.page.click("[data-node]")


def _write(window: Window, path: Path) -> None:
    """Write a picture, compressed as well as PNG can be."""
    window.page.wait_for_timeout(SETTLED)
    window.page.screenshot(path=path, animations="disabled")
    with Image.open(path) as image:
        image.convert("RGB").save(path, optimize=True)
    figures.say(f"{path}: {path.stat().st_size} bytes")


def _large(folder: Path) -> list[str]:
    return [each.name for each in sorted(folder.glob("*.png")) if each.stat().st_size > MOST]


if __name__ == "__main__":
    main()
