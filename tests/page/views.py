"""The tests' knowledge of the page: its views, their addresses, and where in the document the data are."""

from typing import Any, Final

from devcluster import waiting
from tests.page.browsing import Window
from tests.page.scene import Scene

PATHS: Final = {"fleet": "/", "queue": "/queue", "pod": "/pods/{pod}", "holders": "/holders", "health": "/health"}
NAMES: Final = tuple(PATHS)
STATE: Final = "document.querySelector('[data-state]')?.dataset.state"
SHOWN: Final = {
    "fleet": "document.querySelector('.summary[data-complete=true]') && document.querySelector('[data-node] canvas')",
    "queue": "document.querySelector('main tbody tr')",
    "holders": "document.querySelector('main tbody tr')",
    "pod": "document.querySelector('[data-message]')",
    "health": "document.querySelector('[data-finding]')",
}
"""View -> an expression that is true once its data are shown."""


def path(view: str, scene: Scene) -> str:
    """Return the address of a view; that of a pod is about one that waits for cards."""
    return PATHS[view].format(pod=waiting_pod(scene))


def waiting_pod(scene: Scene) -> str:
    """Return namespace and name of a single pod that no node has room for."""
    pod = next(
        each
        for each in scene.queue
        if each["state"] == "unschedulable" and "gang" not in each and "didn't match" in each["message"]
    )
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def wait(window: Window, view: str) -> None:
    """Wait until a view shows its data."""
    window.wait(f"document.querySelector('main[data-view={view}]') && {SHOWN[view]} && {STATE} === 'live'")


def wait_state(window: Window, state: str, *, deadline: float = waiting.PATIENCE) -> None:
    """Wait until the connection has a state."""
    window.wait(f"{STATE} === argument", state, seconds=deadline)


def nodes(window: Window) -> list[str]:
    """Return the names of the nodes that are in the document."""
    names: list[str] = window.page.evaluate("[...document.querySelectorAll('[data-node]')].map(e => e.dataset.node)")
    return names


def wait_held(window: Window, node: str, held: int) -> None:
    """Wait until a node is shown with so many cards that are not free."""
    label = f"document.querySelector('[data-node={node}]')?.getAttribute('aria-label')"
    numbers = rf"/(\d+) GPUs?, (\d+) free/.exec({label} ?? '')"
    window.wait(f"(([, all, free]) => all - free === argument)({numbers} ?? [])", held)


def message(window: Window) -> str:
    """Return the message of the pod whose view is shown; empty while there is none."""
    shown: Any = window.page.evaluate("document.querySelector('[data-message]')?.textContent ?? ''")
    return str(shown).strip()
