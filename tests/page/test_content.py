"""The content of the views, and whether it fits, in windows of three sizes."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.page import browsing, views
from tests.page.browsing import Window
from tests.page.dashboard import Dashboard
from tests.page.scene import Scene
from tests.page.stand_in import StandIn

SIZES = ((360, 740), (1280, 800), (2560, 1440))
NODES = "[...document.querySelectorAll('[data-node]')]"
NO_ROOM = """selectors => [document.documentElement, ...document.querySelectorAll(selectors)]
    .filter((box) => box.scrollWidth > box.clientWidth)
    .map((box) => `${box.className || box.tagName}: ${box.scrollWidth} > ${box.clientWidth}`)"""


@pytest.fixture(params=SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def sized(request: pytest.FixtureRequest, browser: Browser, dashboard: Dashboard, cookies: Any) -> Iterator[Window]:
    """A window of each size."""
    with browsing.window(browser, dashboard, size=request.param, state=cookies) as own:
        yield own


@pytest.mark.parametrize("view", views.NAMES)
def test_what_a_view_shows_has_room(sized: Window, stand_in: StandIn, view: str) -> None:
    sized.open(views.path(view, stand_in.scene))
    views.wait(sized, view)
    boxes = ".top, .top nav, .figure, .group-head h2, .bar-text, .command, .checked"
    assert sized.page.evaluate(NO_ROOM, boxes) == []
    if view == "fleet":
        assert sized.page.evaluate(f"{NODES}[0].getBoundingClientRect().bottom < innerHeight")
        sized.page.click("[data-node]")
        sized.page.wait_for_selector(".card-table")
        assert sized.page.evaluate(NO_ROOM, ".details, .details .table-box:has(.card-table)") == []


def test_rows_of_the_queue_are_as_high_as_their_table_counts_them(sized: Window) -> None:
    """Else the rows that are not in the document are taken for higher or lower than they are."""
    sized.open("/queue")
    views.wait(sized, "queue")
    rows = "[...document.querySelectorAll('main tr[data-pod]')]"
    heights = sized.page.evaluate(f"{rows}.map((row) => [row.getBoundingClientRect().height, row.style.height])")
    assert {round(height) for height, _ in heights} == {float(style.removesuffix("px")) for _, style in heights}


def test_boxes_of_nodes_fill_their_rows(window: Window) -> None:
    for size in ("s", "m", "l"):
        window.open(f"/?group=none&size={size}")
        views.wait(window, "fleet")
        right = f"Math.max(...{NODES}.map((node) => node.getBoundingClientRect().right))"
        missing = window.page.evaluate(f"document.querySelector('.grid').getBoundingClientRect().right - {right}")
        assert abs(missing) <= 1, size


def _spoil(scene: Scene) -> tuple[set[str], set[str]]:
    """Report a failed card and a silent agent; return the nodes with failed cards, and those that are not usable."""
    first, second, *_ = scene.fleet.values()
    card = first["devices"][0]
    card["healthy"], card["message"] = False, "Xid 79"
    second["reporting"], second["blocked"] = False, "the agent is silent"
    failed = {name for name, node in scene.fleet.items() if not all(card["healthy"] for card in node["devices"])}
    unusable = {name for name, node in scene.fleet.items() if node["blocked"]}
    return failed, unusable


def test_figures_search_for_the_nodes_that_they_count(window: Window, stand_in: StandIn, changed_scene: Scene) -> None:
    failed, unusable = _spoil(changed_scene)
    stand_in.rows["fleet"].replace(changed_scene.fleet.values())
    for title, nodes in (("Failed", failed), ("Nodes not usable", unusable)):
        window.open("/?size=s")
        views.wait(window, "fleet")
        figure = window.page.locator(".figure", has_text=title)
        figure.get_by_role("button", name="Only these").click()
        window.wait(f"{NODES}.map((node) => node.dataset.node).sort().join() === argument", ",".join(sorted(nodes)))
    silent = sum(not node["reporting"] for node in changed_scene.fleet.values())
    assert f"{silent} silent" in figure.inner_text()
    figure.get_by_role("button", name="Only these").click()
    window.wait(f"{NODES}.length === argument", len(changed_scene.fleet))


def test_a_pod_above_its_share_and_a_card_that_another_pod_uses_are_marked(
    window: Window, stand_in: StandIn, changed_scene: Scene
) -> None:
    holder = next(iter(changed_scene.holders.values()))
    holder["exceeding"] = [{"type": "gpu", "minor": 0, "memory": 52 * 2**30, "limit": 40 * 2**30}]
    stand_in.rows["holders"].replace(changed_scene.holders.values())
    changed_scene.fleet[holder["node"]]["devices"][0]["unheld"] = 1
    stand_in.rows["fleet"].replace(changed_scene.fleet.values())
    pod = f"[data-pod='{holder['metadata']['namespace']}/{holder['metadata']['name']}']"
    text = "uses 52Gi of GPU 0, its share is 40Gi"
    window.open(f"/holders?search={holder['metadata']['name']}")
    views.wait(window, "holders")
    assert window.page.locator(f"{pod} .tag").get_attribute("title") == text
    window.open(f"/?node={holder['node']}")
    window.wait(f'document.querySelector(".details {pod}")?.innerText.includes(argument)', text)
    window.wait(
        "document.querySelector('.card-table .fault')?.innerText.includes('1 pod uses it and does not hold it')"
    )
    window.open("/?search=unheld")
    window.wait(f"{NODES}.map((node) => node.dataset.node).join() === argument", holder["node"])


def test_reasons_in_the_queue_begin_with_what_differs(window: Window) -> None:
    window.open("/queue")
    views.wait(window, "queue")
    shown = window.page.evaluate("[...document.querySelectorAll('.why')].map((why) => [why.innerText, why.title])")
    counted = [(text, message) for text, message in shown if "nodes are available" in message]
    assert counted
    assert [text for text, _ in counted if "nodes are available" in text or not text[:1].isdigit()] == []


GATHERED = """([pods]) => import("/page/script/data/queue.js").then(({ toQueued, gathered }) =>
    gathered(pods.map(toQueued)).map((row) => [row.pods ? row.title : row.name, row.pods?.length ?? 1, row.created]))"""
HEAD = "0/9 nodes are available: "


def queued(scene: Scene, name: str, **fields: Any) -> Any:
    """Return a row of the queue that differs from the other ones by its name and these fields."""
    row = {**scene.queue[0], "state": "unschedulable", "message": f"{HEAD}9 Insufficient cpu.", "reservedNode": ""}
    created = fields.pop("created", "2026-01-01T00:00:00Z")
    return {**row, "metadata": {"name": name, "namespace": "team", "creationTimestamp": created}, **fields}


def test_pods_that_differ_only_in_generated_names_are_one_row(window: Window, stand_in: StandIn) -> None:
    def row(name: str, **fields: Any) -> Any:
        return queued(stand_in.scene, name, **fields)

    window.open("/queue")
    old, young = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    tables: list[tuple[list[Any], list[list[Any]]]] = [
        ([row("train-x7k2p", created=young), row("train-zz4bq")], [["train-…", 2, old]]),
        ([row("train-0-x7k2p"), row("train-1-zz4bq")], [["train-…", 2, old]]),
        ([row("web-0", position=4), row("web-1", position=9, waitingSeconds=5)], [["web-…", 2, old]]),
        ([row("web-0"), row("web-1", message=f"{HEAD}7 Insufficient cpu.")], [["web-…", 2, old]]),
        ([row("web-0"), row("web-1", message=f"{HEAD}9 Insufficient memory.")], [["web-0", 1, old], ["web-1", 1, old]]),
        ([row("web-0"), row("web-1", requests={"cpu": 1})], [["web-0", 1, old], ["web-1", 1, old]]),
        ([row("web-0"), row("web-1", priority=7)], [["web-0", 1, old], ["web-1", 1, old]]),
        ([row("web-0"), row("web-1", state="active")], [["web-0", 1, old], ["web-1", 1, old]]),
        ([row("web-0"), row("web-1", gang={"name": "ring"})], [["web-0", 1, old], ["web-1", 1, old]]),
        ([row("web-front"), row("web-back")], [["web-front", 1, old], ["web-back", 1, old]]),
        ([row("web-0"), row("other"), row("web-1")], [["web-…", 2, old], ["other", 1, old]]),
    ]
    for pods, expected in tables:
        assert window.page.evaluate(GATHERED, [pods]) == expected


def test_sixty_equal_pods_are_one_row_that_opens(window: Window, stand_in: StandIn, changed_scene: Scene) -> None:
    pods = [queued(changed_scene, f"trainer-{place}", position=place) for place in range(1, 61)]
    other = queued(changed_scene, "single", position=61)
    stand_in.rows["queue"].replace([*pods, other])
    window.open("/queue")
    views.wait(window, "queue")
    rows = "[...document.querySelectorAll('main tbody tr')]"
    assert window.page.evaluate(f"{rows}.length") == 2
    toggle = window.page.get_by_role("button", name="trainer-… 60 pods", expanded=False)
    toggle.focus()
    window.page.keyboard.press("Enter")
    window.wait(f"{rows}.length === 62")
    assert "open=team" in window.page.url
    assert window.page.evaluate(f"{rows}.slice(0, 3).map((row) => row.dataset.pod ?? row.dataset.pods)") == [
        "team/trainer-…",
        "team/trainer-1",
        "team/trainer-2",
    ]
    window.page.get_by_role("button", name="trainer-… 60 pods", expanded=True).click()
    window.wait(f"{rows}.length === 2")
    window.open("/queue?search=trainer-7")
    views.wait(window, "queue")
    assert window.page.evaluate(f"{rows}[0].dataset.pod") == "team/trainer-7"
    assert window.complaints == []


def test_a_waiting_pod_has_its_requests_and_its_waiting_time(window: Window, stand_in: StandIn) -> None:
    window.open(views.path("pod", stand_in.scene))
    window.wait("/Requests[^]*gpu 8[^]*Waiting[^]*Priority/.test(document.querySelector('.pod-facts')?.innerText)")
    stand_in.refuse(".*queue", 403, "not at all")
    window.open(views.path("pod", stand_in.scene))
    views.wait(window, "pod")
    window.page.wait_for_selector("[data-forbidden=queue]")
    assert "queue.visibility.berth.dev" in window.page.inner_text("[data-forbidden=queue]")
    assert window.page.locator(".pod-facts").count() == 0
    assert window.complaints == []
    stand_in.accept()


def test_a_waiting_pod_has_the_sentences_of_the_operator_and_no_others(window: Window, stand_in: StandIn) -> None:
    path = views.path("pod", stand_in.scene)
    _, _, namespace, name = path.split("/")
    explained = stand_in.scene.explanation(namespace, name)
    assert explained is not None
    window.open(path)
    views.wait(window, "pod")
    shown = [each.splitlines() for each in window.page.locator(".outlook li").all_inner_texts()]
    assert shown == [
        *([each["title"], each["message"]] for each in explained["outlook"]),
        *([each["message"]] for each in explained["changes"]["answers"]),
    ]
    assert window.page.inner_text("#changes-title") == explained["changes"]["title"]


def test_health_says_which_faults_were_looked_for_and_not_found(window: Window) -> None:
    window.open("/health")
    views.wait(window, "health")
    found = set(window.page.evaluate("[...document.querySelectorAll('[data-finding]')].map((e) => e.dataset.finding)"))
    lines = window.page.evaluate("[...document.querySelectorAll('.checked li')].map((line) => line.innerText)")
    said = dict(line.strip().split(" ", 1) for line in lines)
    assert found
    assert said == {check: "finding" if check in found else "no finding" for check in said}
    assert found <= set(said)


def test_instances_are_drawn_where_they_are_on_their_card(
    window: Window, stand_in: StandIn, changed_scene: Scene
) -> None:
    holder = next(pod for pod in changed_scene.holders.values() if len(pod["devices"]) >= 2)
    node = changed_scene.fleet[holder["node"]]
    upper, lower = ({"start": start, "size": 4, "of": 8} for start in (0, 4))
    parts: list[Any] = holder["devices"][:2]
    for part, placement in zip(parts, (upper, lower), strict=True):
        card: Any = next(one for one in node["devices"] if one["id"] == part["id"])
        part |= {"amounts": {"nvidia.com/mig-3g.40gb": 1}, "placement": placement}
        made = {"profile": "3g.40gb", "minor": card["minor"], "free": False, "placement": placement}
        card |= {"mig": [made], "held": 43}
    stand_in.rows["holders"].replace(changed_scene.holders.values())
    stand_in.rows["fleet"].replace(changed_scene.fleet.values())
    window.open(f"/?node={holder['node']}")
    rows = "[...document.querySelectorAll('.card-table tr:has(td span[title])')]"
    titles = ["3g.40gb: memory slices 0 to 3 of 8", "3g.40gb: memory slices 4 to 7 of 8"]
    window.wait(f"{rows}.map((row) => row.querySelector('td span[title]').title).join() === argument", ",".join(titles))
    # At a fourth of each card's height, and at three fourths.
    drawn = window.page.evaluate(
        f"""() => {rows}.map((row) => {{
            const canvas = row.querySelector("canvas");
            const pixel = (part) => [canvas.width / 2, canvas.height * part, 1, 1];
            const shade = (part) => String(canvas.getContext("2d").getImageData(...pixel(part)).data);
            return [shade(0.25), shade(0.75)];
        }})"""
    )
    [[held, free], [top, bottom]] = drawn
    assert held != free
    assert (top, bottom) == (free, held)
    assert window.page.evaluate(f"{rows}[0].innerText.includes('in 1 instance')")


def test_a_card_that_is_given_to_claims_alone_has_not_failed(
    window: Window, stand_in: StandIn, changed_scene: Scene
) -> None:
    for shown in changed_scene.fleet.values():
        for card in shown["devices"]:
            card["healthy"] = True
    name, node = next(iter(changed_scene.fleet.items()))
    node["devices"][0] |= {"healthy": False, "barred": "listed by gpu.nvidia.com for ResourceClaims", "free": {}}
    stand_in.rows["fleet"].replace(changed_scene.fleet.values())
    window.open(f"/?node={name}")
    row = "document.querySelector('.card-table .barred')?.innerText"
    window.wait(f"{row} === argument", "not given by name: listed by gpu.nvidia.com for ResourceClaims")
    window.open("/?search=failed")
    window.wait("document.querySelector('main').innerText.includes(argument)", "No node")
    # Claims do not get this one either.
    node["devices"][0]["barred"] = "device taint gpu.nvidia.com/unhealthy:NoExecute"
    stand_in.rows["fleet"].replace(changed_scene.fleet.values())
    window.open("/?search=failed&size=s")
    window.wait(f"{NODES}.map((node) => node.dataset.node).join() === argument", name)
