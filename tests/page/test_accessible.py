"""Every view with the keyboard only, and without findings of axe-core in both themes."""

from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.page import browsing, views
from tests.page.browsing import THEMES, Theme, Window
from tests.page.dashboard import Dashboard
from tests.page.stand_in import StandIn

AXE = (resources.files("axe_playwright_python") / "axe.min.js").read_text()
RUN = """async () => {
    const { violations } = await axe.run(document, { resultTypes: ["violations"] });
    return violations.flatMap(({ id, nodes }) => nodes.map(({ target }) => `${id}: ${target}`));
}"""
MOST_STOPS = 400
NARROW = (360, 740)
FOCUSABLE = """() => {
    const isShown = (element) => element.checkVisibility({ visibilityProperty: true });
    const all = document.querySelectorAll("a[href], button, input, select, summary, [tabindex]");
    const stops = [...all].filter((element) => element.tabIndex >= 0 && !element.disabled && isShown(element));
    window.berthStops = new Set(stops);
    return stops.length;
}"""
LEFT = """() => {
    window.berthStops.delete(document.activeElement);
    const { type, name } = document.activeElement;
    // Of a group of radio buttons the keyboard reaches one, and arrow keys the others.
    if (type === "radio") document.getElementsByName(name).forEach((each) => window.berthStops.delete(each));
    return window.berthStops.size;
}"""


@pytest.fixture(scope="module", params=THEMES)
def themed(request: pytest.FixtureRequest, browser: Browser, dashboard: Dashboard, cookies: Any) -> Iterator[Window]:
    """A window in which axe may run, though the page's policy forbids other scripts."""
    theme: Theme = request.param
    with browsing.window(browser, dashboard, theme=theme, state=cookies, bypass_csp=True) as own:
        yield own


@pytest.mark.parametrize("view", views.NAMES)
def test_axe_finds_nothing(themed: Window, stand_in: StandIn, view: str) -> None:
    themed.open(views.path(view, stand_in.scene))
    views.wait(themed, view)
    if view == "fleet":
        themed.page.click("[data-node]")
        themed.page.wait_for_selector("aside.details")
    themed.page.add_script_tag(content=AXE)
    assert themed.page.evaluate(RUN) == []


@pytest.mark.parametrize("view", views.NAMES)
def test_a_view_has_no_complaint_and_every_control_is_reached_by_the_keyboard(
    window: Window, stand_in: StandIn, view: str
) -> None:
    window.open(views.path(view, stand_in.scene))
    views.wait(window, view)
    window.page.evaluate(FOCUSABLE)
    left = -1
    for _ in range(MOST_STOPS):
        window.page.keyboard.press("Tab")
        left = window.page.evaluate(LEFT)
        if not left:
            break
    assert left == 0, window.page.evaluate("[...window.berthStops].map((each) => each.outerHTML.slice(0, 200))")
    assert window.complaints == []


def focus(window: Window, script: str, *, key: str = "Tab") -> None:
    """Press a key until the focused element `e` is the one that is looked for."""
    for _ in range(MOST_STOPS):
        window.page.keyboard.press(key)
        if window.page.evaluate(f"((e) => {script})(document.activeElement)"):
            return
    raise AssertionError(f"{key} never reaches {script}")


def test_views_are_changed_by_the_keyboard(window: Window) -> None:
    window.open("/")
    views.wait(window, "fleet")
    for view in ("queue", "holders", "health", "fleet"):
        # A new view has the focus on its content, which follows the navigation.
        focus(window, f"e.closest('nav') && e.textContent.trim().toLowerCase() === '{view}'", key="Shift+Tab")
        window.page.keyboard.press("Enter")
        views.wait(window, view)
    window.open("/queue")
    views.wait(window, "queue")
    focus(window, "e.getAttribute('href')?.startsWith('/pods/')")
    window.page.keyboard.press("Enter")
    window.wait("location.pathname.startsWith('/pods/') && document.querySelector('main[data-view=pod]')")
    window.page.go_back()
    views.wait(window, "queue")


def test_nodes_are_walked_and_opened_by_the_keyboard(window: Window) -> None:
    window.open("/")
    views.wait(window, "fleet")
    first, second, *_ = views.nodes(window)
    at = "document.activeElement.dataset.node"
    focus(window, f"e.dataset.node === '{first}'")
    window.page.keyboard.press("ArrowRight")
    window.wait(f"{at} === '{second}'")
    window.page.keyboard.press("Enter")
    window.wait("document.querySelector('aside.details')?.contains(document.activeElement)")
    assert second in window.page.inner_text("aside.details")
    assert f"node={second}" in window.page.url
    window.page.keyboard.press("Escape")
    window.wait(f"!document.querySelector('aside.details') && {at} === '{second}'")
    window.page.keyboard.press("End")
    window.wait(f"{at} && {at} !== '{second}'")
    assert window.complaints == []


def test_on_a_narrow_window_the_keyboard_stays_in_the_details_that_cover_the_page(
    browser: Browser, dashboard: Dashboard, cookies: Any, stand_in: StandIn
) -> None:
    del stand_in  # It answers.
    with browsing.window(browser, dashboard, size=NARROW, state=cookies) as narrow:
        narrow.open("/")
        views.wait(narrow, "fleet")
        node = views.nodes(narrow)[0]
        narrow.page.click(f"[data-node={node}]")
        narrow.wait("document.querySelector('aside.details')?.contains(document.activeElement)")
        for _ in range(narrow.page.evaluate(FOCUSABLE)):
            assert narrow.page.evaluate("!!document.activeElement.closest('aside.details')")
            narrow.page.keyboard.press("Tab")
        narrow.page.keyboard.press("Escape")
        narrow.wait(f"document.activeElement.dataset.node === '{node}'")
        assert narrow.complaints == []


def test_the_first_stop_skips_to_the_content(window: Window) -> None:
    window.open("/queue")
    views.wait(window, "queue")
    window.page.keyboard.press("Tab")
    window.page.keyboard.press("Enter")
    window.wait("document.activeElement.id === 'main'")
