"""An apply omits fields that an older definition lacks, and logs this once."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from berth_client.client import ApiClient
from berth_client.credentials import Login
from berth_client.errors import ApiError
from berth_client.schemas import KEPT_SECONDS, Schemas, pruned, undeclared
from berth_client.tokens import TokenSource
from tests.unit.client.server import Server

VERSION = "berth.dev/v1alpha1"
AMOUNTS = {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}}
CARD = {"type": "object", "properties": {"minor": {"type": "integer"}, "resources": AMOUNTS}}
SCHEMA = {
    "x-kubernetes-group-version-kind": [{"group": "berth.dev", "version": "v1alpha1", "kind": "Device"}],
    "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"allOf": [{"$ref": "#/components/schemas/ObjectMeta"}]},
        "spec": {"type": "object", "properties": {"devices": {"type": "array", "items": CARD}}},
        "other": {"type": "object", "properties": {"a": {}}, "x-kubernetes-preserve-unknown-fields": True},
    },
}
OPENAPI = {"components": {"schemas": {"ObjectMeta": {"properties": {"name": {}}}, "dev.berth.v1alpha1.Device": SCHEMA}}}
REFUSAL = {"message": "failed to create typed patch object: .spec.new: field not declared in schema", "code": 500}


def device(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": "Device", "metadata": {"name": "a", "labels": {"k": "v"}}, "spec": spec}


@pytest.mark.parametrize(
    ("body", "kept", "dropped"),
    [
        (device(), device(), []),
        (
            device(devices=[{"minor": 0, "resources": {"x": 1}}]),
            device(devices=[{"minor": 0, "resources": {"x": 1}}]),
            [],
        ),
        (device(new=1), device(), ["spec.new"]),
        (
            device(devices=[{"minor": 0, "links": [{"minor": 1}]}, {"minor": 1, "links": []}]),
            device(devices=[{"minor": 0}, {"minor": 1}]),
            ["spec.devices[].links"],
        ),
        ({**device(), "status": {"a": 1}}, device(), ["status"]),
        ({**device(), "other": {"a": 1, "b": {"c": 2}}}, {**device(), "other": {"a": 1, "b": {"c": 2}}}, []),
    ],
)
def test_only_declared_fields_are_kept(body: Any, kept: Any, dropped: list[str]) -> None:
    assert pruned(body, SCHEMA) == kept
    assert sorted(set(undeclared(body, SCHEMA))) == dropped


class Definition:
    """A server with a definition that lacks `spec.new` until it is updated."""

    def __init__(self, server: Server) -> None:
        self.server, self.is_old, self.publishes = server, True, True
        server.handler = self.answer

    async def answer(self, request: web.BaseRequest) -> web.Response:
        body = self.server.bodies[-1]
        if request.path.startswith("/openapi/v3/"):
            assert request.path == f"/openapi/v3/apis/{VERSION}"
            return web.json_response(OPENAPI, status=200 if self.publishes else 404)
        refused = self.is_old and "new" in body["spec"]
        return web.json_response(REFUSAL if refused else body, status=500 if refused else 200)


@pytest.fixture
async def definition(server: Server) -> Definition:
    return Definition(server)


@pytest.fixture
async def client(server: Server) -> AsyncIterator[ApiClient]:
    made = ApiClient.of(TokenSource(login=Login(server=server.url)), user_agent="test")
    yield made
    made.close()


async def apply(client: ApiClient, **spec: Any) -> Any:
    return (await client.apply("/x", device(**spec), "test"))["spec"]


async def test_fields_are_left_out_and_reported_once(definition: Definition, client: ApiClient) -> None:
    with capture_logs() as lines:
        assert await apply(client, devices=[], new=1) == {"devices": []}
        assert await apply(client, devices=[{"minor": 0}], new=2) == {"devices": [{"minor": 0}]}
    [line] = lines
    assert (line["log_level"], line["kind"], line["fields"]) == ("warning", "Device", ["spec.new"])
    assert "apply crds/" in line["event"]
    # One apply is refused, and the schema is read once.
    assert [request.method for request in definition.server.seen] == ["PATCH", "GET", "PATCH", "PATCH"]
    assert client.schemas.is_outdated("Device")


async def test_the_refusal_counts_if_the_schema_cannot_be_read(definition: Definition, client: ApiClient) -> None:
    definition.publishes = False
    with pytest.raises(ApiError, match="field not declared"):
        await apply(client, new=1)
    definition.publishes = True
    assert await apply(client, new=1) == {}


async def test_other_errors_read_no_schema(definition: Definition, client: ApiClient) -> None:
    definition.server.always(500, {"message": "etcdserver: request timed out", "code": 500})
    with pytest.raises(ApiError, match="etcdserver"):
        await apply(client, new=1)
    assert len(definition.server.seen) == 1


async def test_an_updated_definition_is_used_after_a_while() -> None:
    now = 0.0

    async def read(_path: str) -> Any:
        return OPENAPI

    schemas = Schemas(read=read, clock=lambda: now)
    await schemas.learn(device(new=1), ApiError(500, "", ""))
    assert schemas.declared(device(new=1)) == device()
    now = KEPT_SECONDS
    assert schemas.declared(device(new=1)) == device(new=1)
    assert not schemas.is_outdated("Device")
