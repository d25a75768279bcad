"""Headless Chromium, driven by Playwright, and what its pages report while a test looks at them."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright
from playwright.sync_api import TimeoutError as WaitedTooLong

from devcluster import waiting
from tests.page.dashboard import Dashboard

Theme = Literal["light", "dark"]
THEMES: Final[tuple[Theme, ...]] = ("light", "dark")
WIDE: Final = (1280, 800)
POLL: Final = 20
"""Milliseconds."""
SLICE: Final = 1000
"""Milliseconds for which the page itself looks, before the wait looks at its deadline."""
REFUSED: Final = "Failed to load resource"
"""Chromium's line about a status of 400 and above: what a page does then is for tests to see."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Browser]:
    """Run a Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(path))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Window:
    """A page with a profile of its own, and its complaints."""

    page: Page
    dashboard: Dashboard
    complaints: list[str] = field(default_factory=list)
    """What was written to the console as a warning or error, violations of the policy included, and exceptions."""

    def __post_init__(self) -> None:
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(REFUSED):
            self.complaints.append(message.text)

    def enter(self, path: str = "/") -> "Window":
        """Exchange the token, then open a path."""
        self.page.goto(self.dashboard.address)
        if path != "/":
            self.open(path)
        return self

    def open(self, path: str) -> None:
        """Open a path."""
        self.page.goto(self.dashboard.origin + path)

    def wait(self, expression: str, argument: Any = None, *, seconds: float = waiting.PATIENCE) -> None:
        """Wait until an expression, which may use `argument`, is true in the page."""
        # The page's policy forbids to evaluate text, but not to call a function that comes from outside.
        function = f"argument => ({expression})"

        def is_true() -> bool:
            try:
                self.page.wait_for_function(function, arg=argument, polling=POLL, timeout=SLICE)
            except WaitedTooLong:
                return False
            return True

        waiting.until(is_true, deadline=seconds, what=expression, poll=0, details=self._shown)

    def _shown(self) -> str:
        return f"{self.page.url} shows:\n{self.text()}\nand complains: {self.complaints}"

    def text(self) -> str:
        """Return what the page shows as text."""
        return self.page.inner_text("body")


@contextlib.contextmanager
def window(
    browser: Browser,
    dashboard: Dashboard,
    *,
    theme: Theme = "light",
    size: tuple[int, int] = WIDE,
    bypass_csp: bool = False,
    state: Any = None,
) -> Iterator[Window]:
    """Open a window; `state` has the cookies of another one, since a token works once."""
    width, height = size
    context: BrowserContext = browser.new_context(
        color_scheme=theme,
        viewport={"width": width, "height": height},
        bypass_csp=bypass_csp,
        storage_state=state,
        reduced_motion="reduce",
    )
    context.set_default_timeout(1000 * waiting.PATIENCE)
    try:
        yield Window(context.new_page(), dashboard)
    finally:
        context.close()
