"""Which requests the server answers: the token works once, and then a cookie and the right Host are needed."""

import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser

from tests.page import browsing
from tests.page.browsing import Window
from tests.page.dashboard import Dashboard, recorded
from tests.page.stand_in import API, StandIn

POLICY = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
}


@pytest.fixture(scope="module")
def entered(browser: Browser, folder: Path, stand_in: StandIn) -> Iterator[Window]:
    """A server, and a window that was the first at the printed address."""
    with Dashboard(folder, recorded(stand_in)) as own, browsing.window(browser, own) as window:
        yield window.enter()


def ask(dashboard: Dashboard, path: str, *, method: str = "GET", **headers: str) -> tuple[int, str, Any]:
    """Return status, body and headers of a request, by default with the right Host and without a cookie."""
    port = urlsplit(dashboard.origin).port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def cookie(window: Window) -> dict[str, Any]:
    [own] = window.page.context.cookies()
    return dict(own)


def header(window: Window) -> str:
    return f"{cookie(window)['name']}={cookie(window)['value']}"


def test_the_token_becomes_a_cookie_and_leaves_the_address(entered: Window) -> None:
    assert entered.page.url == f"{entered.dashboard.origin}/"
    token = entered.dashboard.address.partition("token=")[2]
    own = cookie(entered)
    assert own["name"] == f"berth-{urlsplit(entered.dashboard.origin).port}"
    assert (own["httpOnly"], own["sameSite"], own["path"]) == (True, "Strict", "/")
    assert token not in own["value"]
    assert entered.page.evaluate("document.cookie") == ""
    assert token not in entered.page.evaluate("JSON.stringify(history.state) + location.href + document.referrer")


def test_a_second_use_of_the_token_is_refused(entered: Window, browser: Browser) -> None:
    with browsing.window(browser, entered.dashboard) as other:
        answer = other.page.goto(entered.dashboard.address)
        assert answer is not None
        assert answer.status == 401
        assert not other.page.context.cookies()
        assert "kubectl berth dashboard" in other.text()


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 401),
        ("/api/context", {}, 401),
        (f"{API}fleet", {}, 401),
        ("/page/script/main.js", {}, 401),
        ("/?token=wrong", {}, 401),
        ("/", {"Cookie": "berth-1=x"}, 401),
        ("/", {"Host": "evil.example"}, 421),
        (f"{API}fleet", {"Host": "evil.example:80"}, 421),
        ("/", {"Host": "127.0.0.1:1"}, 421),
    ],
)
def test_a_request_without_cookie_or_with_another_host_is_refused(
    entered: Window, path: str, headers: dict[str, str], status: int
) -> None:
    answered, body, _ = ask(entered.dashboard, path, **headers)
    assert (answered, "gpu-0000" in body) == (status, False)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/queue", 200),
        ("GET", "/pods/a/b", 200),
        ("GET", "/api/context", 200),
        ("GET", f"{API}fleet", 200),
        ("POST", "/", 405),
        ("DELETE", f"{API}fleet", 405),
        ("GET", "/api/v1/secrets", 404),
        ("GET", "/api/v1/namespaces/default/pods", 404),
        ("GET", f"{API}fleet/../../../../api/v1/secrets", 404),
        ("GET", f"{API}namespaces/a%2Fb/queue", 404),
        ("GET", "/page/../index.html", 404),
        ("GET", "/page/%2e%2e/server.py", 404),
    ],
)
def test_only_some_paths_and_one_method_are_answered(entered: Window, method: str, path: str, status: int) -> None:
    answered, _, headers = ask(entered.dashboard, path, method=method, Cookie=header(entered))
    assert answered == status
    assert {each.strip() for each in headers["Content-Security-Policy"].split(";")} == POLICY
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Opener-Policy"] == headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-store"


def test_nothing_secret_reaches_the_browser(entered: Window, stand_in: StandIn) -> None:
    _, context, _ = ask(entered.dashboard, "/api/context", Cookie=header(entered))
    assert str(stand_in.socket) not in context
    assert not [each for each in stand_in.requests if not each.startswith((API, "/api", "/version"))]
