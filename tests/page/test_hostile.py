"""Names and texts of a cluster stay text: they become no element, and no script runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser

from tests.page import browsing, views
from tests.page.browsing import Window
from tests.page.dashboard import Dashboard, recorded
from tests.page.installation import documents
from tests.page.scene import Scene
from tests.page.stand_in import StandIn

RAN = "window.berthRan=1"
IMAGE = f'<img src=x onerror="{RAN}">'
SCRIPT = f"</script><script>{RAN}</script>"
SHADE = f"<svg/onload={RAN}>"
TEXTS = (
    IMAGE,
    SCRIPT,
    SHADE,
    "__proto__",
    "constructor",
    "javascript:alert(1)",
    "${7*7}",
    "&lt;b&gt;",
    "\u202egpj.exe",
)
"""For fields in which Kubernetes allows any text: models, messages, reasons."""
NAMES = ("constructor", "tostring", "hasownproperty", "script", "onerror", "a" * 63)
"""What it allows as names of namespaces, pods and label values."""


def put(row: Any, **fields: Any) -> None:
    """Set fields of a row."""
    row.update(fields)


def hostile() -> Scene:
    """Return a scene in which every text is one of these."""
    scene = Scene(len(TEXTS), seed=5)
    for text, node in zip(TEXTS, scene.fleet.values(), strict=True):
        put(node, blocked=text, models={text: 8}, zone=NAMES[0], rack=NAMES[1])
        for card in node["devices"]:
            put(card, model=text, message=text, id=f"GPU-{text}", pcie=text, links={text: text})
    for number, holder in enumerate(scene.holders.values()):
        name, text = NAMES[number % len(NAMES)], TEXTS[number % len(TEXTS)]
        holder["metadata"] = {"name": f"{name}.{number}", "namespace": name, "uid": text}
        put(holder, owner={"kind": text, "name": text}, scheduler=text)
        for part in holder["devices"]:
            put(part, model=text, id=text)
    for number, pod in enumerate(scene.queue):
        name, text = NAMES[number % len(NAMES)], TEXTS[number % len(TEXTS)]
        pod["metadata"] = {"name": f"{name}.{number}", "namespace": name, "uid": text}
        put(pod, message=f"0/9 nodes are available: 9 {text}.", state="unschedulable", wakesOn=[text])
        put(pod, requests={text: 1}, scheduler=text, gang={"name": name, "members": 1, "required": 2})
    return scene


def explained(namespace: str, name: str) -> Any:
    """Return an explanation of which every text is hostile."""
    near = [{"node": text, "resources": {text: 1}, "cards": []} for text in TEXTS]
    groups = [{"reasons": [t], "counted": [t], "filters": [t], "count": 1, "nodes": [t]} for t in TEXTS]
    return {
        "metadata": {"name": name, "namespace": namespace},
        "state": "Waiting",
        "message": " ".join(TEXTS),
        "nodes": len(TEXTS),
        "groups": groups,
        "nearest": near,
        "fitsNow": False,
        "fitsWhenEmpty": 0,
        "newNodeHelps": False,
        "remedies": [{"kind": t, "answer": t, "message": t, "node": t, "newNode": True} for t in TEXTS],
        "outlook": [{"title": t, "message": t, "helps": True} for t in TEXTS],
        "changes": {"title": SCRIPT, "answers": [{"message": t, "helps": False} for t in TEXTS]},
        "claims": {
            "nodes": 1,
            "complete": False,
            "together": SCRIPT,
            "requests": [
                {
                    "claim": t,
                    "request": t,
                    "needed": 0,
                    "devices": 1,
                    "found": 0,
                    "most": 0,
                    "nodes": [t],
                    "enough": 0,
                    "matching": 0,
                    "leftOut": [{"devices": 1, "why": each, "selector": True} for each in TEXTS],
                }
                for t in TEXTS
            ],
        },
        "inVain": True,
        "preemption": {"possible": False, "message": SCRIPT},
        "gang": {"name": IMAGE, "members": 1, "required": 2, "firstWithoutPlace": SHADE},
        "reservation": {"node": IMAGE, "message": SCRIPT},
        "queue": {"position": 1, "of": 2, "state": IMAGE, "backoffSeconds": 0, "wakesOn": list(TEXTS)},
    }


@pytest.fixture(scope="module")
def stand_in(folder: Path) -> Iterator[StandIn]:
    broken = documents(version=f"0.0.1-{SHADE}")
    for answer in broken.values():
        for each in answer.get("items", ()):
            if "leaseDurationSeconds" in each.get("spec", {}):
                each["spec"].update(holderIdentity=IMAGE, renewTime="2020-01-01T00:00:00Z")
    with StandIn(folder, hostile(), broken) as serving:
        serving.explained = explained
        yield serving


@pytest.fixture(scope="module")
def dashboard(folder: Path, stand_in: StandIn) -> Iterator[Dashboard]:
    with Dashboard(folder, recorded(stand_in)) as running:
        yield running


@pytest.fixture(params=[False, True], ids=["with the policy", "without the policy"])
def window(request: pytest.FixtureRequest, browser: Browser, dashboard: Dashboard, cookies: Any) -> Iterator[Window]:
    """A window; without the policy the page's own escaping must do."""
    with browsing.window(browser, dashboard, state=cookies, bypass_csp=request.param) as own:
        yield own


PATHS = {
    "/": "fleet",
    "/?node=gpu-0000&colour=health": "fleet",
    "/?node=gpu-0001&group=rack&size=l&colour=use": "fleet",
    f"/?search={quote(IMAGE)}&group={quote(SCRIPT)}&colour=__proto__&size=constructor": "",
    "/queue": "queue",
    "/queue?group=namespace&sort=__proto__": "queue",
    "/pods/constructor/script.1": "pod",
    "/holders": "holders",
    "/health": "health",
}
"""Address -> view that has data then."""


def test_hostile_texts_stay_text(window: Window) -> None:
    for path, view in PATHS.items():
        window.open(path)
        if view:
            views.wait(window, view)
        else:
            views.wait_state(window, "live")
        assert window.page.evaluate("window.berthRan") is None, path
        made = "document.querySelectorAll('main :is(img, script, iframe, object, b), [onload], [onerror]').length"
        assert window.page.evaluate(made) == 0, path
        assert window.page.evaluate("[...document.links].every((link) => link.protocol === 'http:')"), path
        assert window.complaints == [], path
        if view in ("fleet", "queue", "pod"):
            text = window.page.evaluate("document.querySelector('main').textContent")
            assert any(markup in text for markup in (IMAGE, SCRIPT, SHADE)), path
