"""The kinds of the visibility API: options, tables, and documents that name every field and no other."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from berth_api.objects.visibility import API_VERSION, GROUP, VERSION, FleetNode, PodExplanation
from berth_operator.apis.aggregated import options
from berth_operator.apis.aggregated.chunks import Chunk
from berth_operator.apis.aggregated.frames import Form
from berth_operator.apis.aggregated.openapi import V2, V3
from berth_operator.apis.visibility.documents import DOCUMENTS, OBJECTS
from berth_operator.apis.visibility.kinds import FLEET, HOLDERS, KINDS, QUEUE, RowKind
from berth_operator.core.fleet.claims.store import OwnPools
from tests.claims.objects import claim, request
from tests.objects.builders import A100, pod, whole
from tests.objects.resource_claims import NVIDIA_DRIVER, ClaimsInTurns, gpu, resource_slice
from tests.unit.visibility.test_explainer import SCHEDULER, Scene, in_a_gang, refused, reserved
from tests.unit.visibility.test_row_cache import State

HEAD = {"apiVersion", "kind"}


@pytest.mark.parametrize(
    ("kind", "query", "selected"),
    [
        (QUEUE, {}, ["a", "b"]),
        (QUEUE, {"fieldSelector": "metadata.name=b"}, ["b"]),
        (QUEUE, {"fieldSelector": "metadata.namespace!=ns"}, []),
        (QUEUE, {"labelSelector": "!app"}, ["a", "b"]),
        (QUEUE, {"labelSelector": "app"}, []),
        (FLEET, {"fieldSelector": "metadata.name!=n1"}, []),
    ],
)
@pytest.mark.looptime
async def test_rows_are_selected_by_their_names_and_have_no_labels(
    kind: RowKind, query: Mapping[str, str], selected: list[str]
) -> None:
    state = State()
    state.add_node("n1")
    state.add_waiting("a", "b")
    cache = state.queue if kind is QUEUE else state.fleet
    await cache.refresh()
    found = cache.select(options.read(kind, "", query).selection)
    assert [each.key[1] for each in found] == selected


def table(cache: Any) -> list[list[Any]]:
    chunk = Chunk.of(cache, options.read(cache.kind, "", {}))
    body = orjson.loads(Form(cache.kind, table=True).many(chunk))
    names = [column["name"] for column in body["columnDefinitions"]]
    assert all(len(row["cells"]) == len(names) for row in body["rows"])
    return [row["cells"] for row in body["rows"]]


@pytest.mark.looptime
async def test_tables_for_kubectl() -> None:
    state = State()
    state.add_node("n1", cards=2)
    state.bind("holds", metadata={"ownerReferences": [{"kind": "Job", "name": "train", "controller": True}]})
    state.add_waiting("waits", created="1970-01-01T00:00:00Z")
    await asyncio.sleep(7)
    for cache in (state.fleet, state.queue, state.holders):
        await cache.refresh()
    assert table(state.fleet) == [["n1", "Ready", 2, 1, 0, A100, ""]]
    assert table(state.queue) == [["waits", 1, "active", 0, 7, "kubernetes.io/gpu=100", ""]]
    assert table(state.holders) == [["holds", "n1", "gpu 0", "Job/train", "", "", "berth-scheduler"]]
    state.cluster.node_cache.remove_node("n1")
    await asyncio.sleep(1)
    await state.fleet.refresh()
    assert table(state.fleet)[0][1:] == ["Blocked", 2, 0, 0, A100, "there is no Node of this name"]


@pytest.mark.looptime
async def test_every_field_of_a_row_is_written_and_no_other() -> None:
    state = State()
    state.add_node("n1", cards=2, **{"topology.kubernetes.io/zone": "z"})
    state.bind("holds")
    state.add_waiting("waits")
    state.add_waiting("member", labels={"pod-group.scheduling.sigs.k8s.io": "g"})
    for cache in (state.fleet, state.queue, state.holders):
        await cache.refresh()
        written = {field for entry in cache.select(options.Selection()) for field in orjson.loads(entry.body)}
        assert written == OBJECTS[cache.kind.name].__annotations__.keys() | HEAD


@pytest.mark.looptime
async def test_every_field_of_an_explanation_is_written_and_no_other() -> None:
    written = set[str]()
    for setup in (refused, reserved, in_a_gang, with_a_claim, bound):
        scene = Scene()
        setup(scene)
        written |= (await scene.explain("p")).keys()
    assert written == PodExplanation.__annotations__.keys() | HEAD


def test_the_published_schemas_are_those_of_the_types() -> None:
    definitions = DOCUMENTS[V2]["definitions"]
    node = definitions[f"{GROUP}.{VERSION}.FleetNode"]
    assert node["description"] == "A node with a Device, its cards and what is free. It names no pods."
    assert node["properties"].keys() == FleetNode.__annotations__.keys() | HEAD
    card = node["properties"]["devices"]
    assert (card["type"], card["items"]["type"]) == ("array", "object")
    fields = card["items"]["properties"]
    assert fields["numaNode"] == {"type": "integer", "description": "-1 if it is not known."}
    assert fields["free"]["additionalProperties"] == {"type": "integer"}
    assert (fields["barred"]["type"], fields["metrics"]["properties"]["power"]["type"]) == ("string", "number")
    assert definitions[f"{GROUP}.{VERSION}.PodExplanation"]["properties"]["gang"]["properties"].keys() == {
        "name", "members", "required", "firstWithoutPlace",
    }  # fmt: skip


def with_a_claim(scene: Scene) -> None:
    scene.cluster.set_own_pools(OwnPools(drivers=frozenset({NVIDIA_DRIVER})))
    to = ClaimsInTurns(scene.cluster)
    to.put_slice(resource_slice(gpu(0), gpu(1), node="n1"))
    to.put_class({"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "false"}}]}})
    to.put_claim({**claim(request(count=2)), "metadata": {"name": "c", "namespace": "ns", "uid": "uid-c"}})
    scene.add(pod("p", schedulerName=SCHEDULER, resourceClaims=[{"name": "c", "resourceClaimName": "c"}]))


def bound(scene: Scene) -> None:
    scene.add(pod("p", {"kubernetes.io/gpu": "100"}, on="n1", allocated=whole(0), schedulerName=SCHEDULER))


def test_discovery_names_what_is_served() -> None:
    resources = DOCUMENTS[f"/apis/{API_VERSION}"]["resources"]
    assert {each["name"]: (each["namespaced"], each["kind"], each["verbs"]) for each in resources} == {
        "fleet": (False, "FleetNode", ["list", "watch"]),
        "queue": (True, "QueuedPod", ["list", "watch"]),
        "holders": (True, "Holder", ["list", "watch"]),
        "pods/explanation": (True, "PodExplanation", ["get"]),
    }
    assert [kind.plural for kind in KINDS] == [FLEET.plural, QUEUE.plural, HOLDERS.plural]
    [path] = DOCUMENTS[V3]["paths"]
    assert path == f"apis/{API_VERSION}"
