"""The site of the documents on a telephone, and its search."""

import functools
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from devcluster import waiting

ROOT = Path(__file__).parents[2]
TELEPHONE = ViewportSize(width=390, height=844)
WIDE = ViewportSize(width=1280, height=800)
PAGES = 24
"""Pages that are measured, of about 130: each takes Chromium a third of a second."""
IS_WIDER = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
MESSAGE = "0/7 nodes are available: 3 node(s) have too few healthy GPUs of model *B300* (31 requested), 4 Too many pods"
PASTE = """(input, text) => {
    const clipboardData = new DataTransfer();
    clipboardData.setData("text", text);
    const options = { clipboardData, bubbles: true, composed: true, cancelable: true };
    input.dispatchEvent(new ClipboardEvent("paste", options));
}"""


class Silent(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, *_: object) -> None:
        """Do nothing."""


@pytest.fixture(scope="module")
def site() -> Path:
    """The site, built."""
    subprocess.run(["make", "docs"], cwd=ROOT, check=True)
    return ROOT / ".build" / "site"


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """The address of a server of the site: a page from disk may not load the index of the search."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_no_page_scrolls_sideways_on_a_telephone(browser: Browser, site: Path) -> None:
    # The theme's script changes no width, and takes longer than all else.
    with browser.new_context(viewport=TELEPHONE, java_script_enabled=False) as context:
        page = context.new_page()
        # All pages have the same styles. Those with the longest words are the first to be too wide.
        widest = sorted(site.rglob("*.html"), key=longest_word, reverse=True)[:PAGES]
        assert [path.name for path in widest if is_wider(page, path)] == []


def longest_word(path: Path) -> int:
    return max(map(len, re.sub("<[^>]*>", " ", path.read_text()).split()))


def is_wider(page: Page, path: Path) -> bool:
    page.goto(path.as_uri())  # until styles are loaded, too
    return bool(page.evaluate(IS_WIDER))


def test_a_pasted_message_of_a_pod_finds_its_reason(browser: Browser, address: str) -> None:
    with browser.new_context(viewport=WIDE) as context:
        page = context.new_page()
        page.goto(f"{address}/docs/quick-start.html")
        page.get_by_role("button", name="Search").click()
        page.get_by_role("combobox", name="Search").evaluate(PASTE, MESSAGE)
        page.locator("a[href*='/docs/reasons.html?']").first.click()
        row = page.get_by_role("row").filter(has_text="too few healthy GPUs of model")
        expect(row).to_be_in_viewport(timeout=1000 * waiting.PATIENCE)
