"""The dashboard serves and relays the entries of a list, and nothing that only looks like one of them."""

from http import HTTPStatus
from pathlib import Path

import pytest

from berth_kubectl.dashboard import files, routes
from berth_kubectl.dashboard.routes import Context, Doctor, PageFile, PageView, RefusedError, Relayed, Route
from berth_kubectl.transport.request import Request
from tests.programs.dashboard import BASE, FLEET, Desk

LONGEST = ".".join(["a" * 63] * 3 + ["a" * 61])
SERVED: dict[str, Route] = {
    "/": PageView(),
    "/?colour=use&group=zone&search=%3Cb%3E": PageView(),
    "/queue": PageView(),
    "/holders?namespace=ml": PageView(),
    "/health": PageView(),
    "/pods/ml/train-0.a": PageView(),
    f"/pods/ml/{LONGEST}": PageView(),
    "/page/script/main.js": PageFile(path="script/main.js"),
    "/api/context": Context(),
    "/api/doctor": Doctor(),
    FLEET: Relayed(request=Request(path=FLEET)),
    f"{BASE}/namespaces/ml/queue": Relayed(request=Request(path=f"{BASE}/namespaces/ml/queue")),
    f"{BASE}/namespaces/ml/pods/a.b/explanation": Relayed(
        request=Request(path=f"{BASE}/namespaces/ml/pods/a.b/explanation")
    ),
    f"{BASE}/holders?fieldSelector=metadata.namespace%3Dml,metadata.name=a": Relayed(
        request=Request(path=f"{BASE}/holders", query=(("fieldSelector", "metadata.namespace=ml,metadata.name=a"),))
    ),
    f"{BASE}/queue?watch=1&resourceVersion=12&timeoutSeconds=600": Relayed(
        request=Request(
            path=f"{BASE}/queue", query=(("watch", "1"), ("resourceVersion", "12"), ("timeoutSeconds", "600"))
        ),
        watch=True,
    ),
    f"{BASE}/queue?watch=false": Relayed(request=Request(path=f"{BASE}/queue", query=(("watch", "false"),))),
}


@pytest.mark.parametrize("target", SERVED)
def test_what_is_served(target: str) -> None:
    assert routes.route(target) == SERVED[target]


NOT_FOUND = [
    *("", "//", "/queue/", "/Queue", "/queue;a", "/queue#a", "/pods", "/pods/ml", "/pods/ml/a/b", "/pods/ml/A"),
    *("/pods/ml/<b>", "/pods/ml/%3Cb%3E", "/pods/ml/..", "/pods/../a", "/pods/ml/a\n", "/pods/ml/-a", "/pods/m.l/a"),
    *("http://127.0.0.1/queue", "*", "/api", "/api/", "/api/context/", "/api/token", "/api/v1/secrets", "/version"),
    *(f"/pods/ml/{'a' * 64}", f"/pods/ml/{LONGEST}a", f"/pods/{'a' * 64}/a"),
    *(f"/{FLEET}", f"{FLEET}/", f"{FLEET}/node-1", f"{FLEET}\n", f"{FLEET}%20", f"{FLEET};a", f"{FLEET}s", BASE),
    *(f"{BASE}/../../../api/v1/secrets", f"{BASE}/fleet/../../../../api/v1/secrets", f"{BASE}/%2e%2e/fleet"),
    *(f"{BASE}/namespaces/../queue", f"{BASE}/namespaces/a%2Fb/queue", f"{BASE}/namespaces/a%2fqueue"),
    *(f"{BASE}/namespaces//queue", f"{BASE}/namespaces/ml/fleet", f"{BASE}/namespaces/ml/pods"),
    *(f"{BASE}/namespaces/ml/pods/a", f"{BASE}/namespaces/ml/pods/a/log", f"{BASE}/namespaces/ml/secrets"),
    *(f"{BASE}/namespaces/ml/pods/../explanation", f"{BASE}/namespaces/ml/pods/a%2F..%2Fb/explanation"),
    *(f"{BASE}/namespaces/ml/pods/a/explanation/", f"{BASE}/namespaces/ml/pods/a%3Fb/explanation"),
    *(FLEET.upper(), FLEET.replace("v1alpha1", "v1"), FLEET.replace(".", "x"), FLEET.replace("/apis", "/apis/")),
]
BAD = [
    *("/api/context?a=1", "/api/doctor?force=1", f"{BASE}/namespaces/ml/pods/a/explanation?watch=true"),
    *(f"{FLEET}?{query}" for query in ("limit=1", "continue=a", "labelSelector=a", "pretty=1", "as=admin", "a")),
    *(f"{FLEET}?{query}" for query in ("watch", "watch=", "watch=yes", "watch=true&watch=false", "Watch=true", "&")),
    *(f"{FLEET}?{query}" for query in ("resourceVersion=1%26limit=5", "resourceVersion=-1", "resourceVersion=1%0d%0a")),
    *(f"{FLEET}?{query}" for query in ("timeoutSeconds=99999", "timeoutSeconds=1s", f"resourceVersion={'1' * 21}")),
    *(f"{FLEET}?fieldSelector={value}" for value in ("spec.nodeName=a", "metadata.name!=a", "metadata.name", "")),
    *(
        f"{FLEET}?fieldSelector=metadata.name=a{end}"
        for end in ("%26watch", ",", "\n", ",metadata.name=b,metadata.name=c")
    ),
    f"{FLEET}?{'&'.join(['watch=true'] * 100)}",
]


@pytest.mark.parametrize(
    ("target", "status"),
    [*((target, HTTPStatus.NOT_FOUND) for target in NOT_FOUND), *((target, HTTPStatus.BAD_REQUEST) for target in BAD)],
)
def test_what_is_refused(target: str, status: HTTPStatus) -> None:
    with pytest.raises(RefusedError) as refused:
        routes.route(target)
    assert refused.value.status == status


def test_refused_targets_do_not_reach_the_cluster(desk: Desk) -> None:
    for target in (*NOT_FOUND, *BAD):
        if target.isprintable() and target and " " not in target:
            assert desk.client.open(target).status in (400, 404), target
    assert desk.upstream.requests == []


@pytest.mark.parametrize(
    "path",
    [
        "../handler.py",
        "%2e%2e/handler.py",
        "..%2fhandler.py",
        "/etc/passwd",
        "script/../index.html",
        "",
        ".",
        "index.html/",
    ],
)
def test_files_are_those_that_were_read_at_the_start(desk: Desk, path: str) -> None:
    assert desk.client.get(f"/page/{path}") == (404, b"the page has no such file\n")


def test_files_have_their_content_types(tmp_path: Path) -> None:
    for name in ("index.html", "script/main.js", "style/main.css", "vendor/LICENSE.txt", "vendor/.hidden", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    read = {path: (file.content_type, file.body) for path, file in files.read(tmp_path).items()}
    assert read == {
        "index.html": ("text/html; charset=utf-8", b"index.html"),
        "script/main.js": ("text/javascript; charset=utf-8", b"script/main.js"),
        "style/main.css": ("text/css; charset=utf-8", b"style/main.css"),
        "vendor/LICENSE.txt": ("text/plain; charset=utf-8", b"vendor/LICENSE.txt"),
    }


def test_a_page_without_its_index_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.read(tmp_path)


def test_views_are_the_index_and_the_context_is_that_of_the_command(desk: Desk) -> None:
    index = desk.client.get("/page/index.html")
    assert index[0] == 200
    assert desk.client.get("/") == desk.client.get("/pods/ml/a?b=c") == index
    assert desk.client.json("/api/context")[1]["context"] == "prod"
