"""ResourceClaims in memory, as the API server keeps them, with a watch that shows changes late, in virtual time."""

import asyncio
import copy
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from berth_api import names
from berth_client import wire
from berth_client.client import MERGE, PROTOBUF
from berth_client.errors import ApiError
from tests.objects.resource_claims import NVIDIA_DRIVER, claim

Raw = dict[str, Any]

LAG: Final = 0.5
"""Seconds until the watch shows a change."""
TOOK_PLACE: Final = "lost"


class Server:
    """ResourceClaims in memory, with the fence of one term; the watch shows every change after `lag` seconds."""

    def __init__(self, show: Callable[[Raw], None], forget: Callable[[str], None]) -> None:
        self.claims: dict[str, Raw] = {}
        self.reads: list[str] = []
        self.written = b""
        """What was written as JSON."""
        self.writes: list[str] = []
        """`claim` or `claim/status`, as they were carried out."""
        self.faults: dict[str, list[Exception | Callable[[], None]]] = {}
        """What the next writes of `claim` or `claim/status` answer, or what is done before they are carried out."""
        self.late: list[float] = []
        """How late the next writes are answered, in seconds."""
        self.lag, self.term, self.version = LAG, 1, 100
        self.seconds = 0.01
        """How long each call takes."""
        self.fenced = True
        self.pod_statuses: dict[str, Raw] = {}
        """Pod -> what was written of its status."""
        self.keeps_extended = True
        """Whether the feature gate DRAExtendedResource is on."""
        self.parameters: dict[str, bytes] = {}
        """Claim or class -> the parameters of its one configuration, as they are stored."""
        self._show, self._forget = show, forget

    # --- calls of the operator --------------------------------------------------------------------------------

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Raw:
        assert not params
        await asyncio.sleep(self.seconds)
        name = path.rpartition("/")[2]
        self.reads.append(name)
        if "/pods/" in path:
            return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}}
        return copy.deepcopy(self._known(name))

    async def get_protobuf(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        await asyncio.sleep(self.seconds)
        if params is not None:
            return _in_protobuf(b"", parameters=self.parameters[params["fieldSelector"].partition("=")[2]])
        name = path.rpartition("/")[2]
        status = (self._known(name).get("status") or {}).get("allocation")
        return _in_protobuf(name.encode(), parameters=self.parameters.get(name, b""), allocation=orjson.dumps(status))

    async def request(
        self, method: str, path: str, *, params: Mapping[str, str] | None, body: Any, content_type: str = ""
    ) -> Any:
        if method != "PUT":
            return await self._others(method, path, body, content_type)
        name, _, part = path.partition("/resourceclaims/")[2].partition("/")
        manager = (params or {})["fieldManager"]
        # As it arrives: parameters may be written byte by byte.
        if content_type == PROTOBUF:
            body = self._of_protobuf(name, body)
        else:
            sent = orjson.dumps(body)
            self.written += sent
            body = orjson.loads(sent)
        await asyncio.sleep(self.seconds)
        if params is not None and "dryRun" in params:
            return self._check(name, part, manager, body)
        faults = self.faults.get(f"{name}/{part}" if part else name)
        fault = faults.pop(0) if faults else None
        if callable(fault):
            fault()
        elif fault is not None and str(fault) != TOOK_PLACE:
            raise fault
        self._check(name, part, manager, body)
        self.writes.append(f"{name}/{part}" if part else name)
        if part:
            own = [{"manager": manager, "fieldsV1": {"f:status": {"f:allocation": {}}}}]
            self.change(name, status=body.get("status", {}), metadata={"managedFields": own})
        else:
            self.change(name, metadata={key: body["metadata"].get(key) for key in ("finalizers", "labels")})
        if isinstance(fault, Exception):
            raise fault
        await asyncio.sleep(self.late.pop(0) if self.late else 0.0)
        return copy.deepcopy(self.claims[name])

    async def _others(self, method: str, path: str, body: Any, content_type: str) -> Any:
        """Create or delete a claim, or patch the status of a pod."""
        await asyncio.sleep(self.seconds)
        name = path.rpartition("/resourceclaims/")[2]
        called = {"POST": "create", "DELETE": name}.get(method, path.removeprefix("/api/v1/namespaces/ns/"))
        if faults := self.faults.get(f"{method} {called}"):
            fault = faults.pop(0)
            assert isinstance(fault, Exception)
            raise fault
        self.writes.append(f"{method} {called}")
        if method == "POST":
            metadata = body["metadata"]
            made = f"{metadata['generateName']}{self.version}"
            self.change(made, metadata={**metadata, "name": made, "uid": f"uid-{made}"}, spec=body["spec"])
            return copy.deepcopy(self.claims[made])
        if method == "DELETE":
            known = self._known(name)["metadata"]
            if body["preconditions"] != {key: known[key] for key in ("uid", "resourceVersion")}:
                raise ApiError(409, "Conflict", "the object has been modified")
            assert not known.get("finalizers")
            self.remove(name)
            return {}
        assert content_type == MERGE
        self.pod_statuses[path.split("/")[6]] = body["status"] if self.keeps_extended else {}
        return {"status": body["status"] if self.keeps_extended else {}}

    def _of_protobuf(self, name: str, body: bytes) -> Raw:
        """Return the claim that is written: its spec and the allocation are those that were read."""
        message, known = wire.opened(body), self._known(name)
        assert wire.values(message, 2, 1, 3, 2, 1, 2, 1) == [self.parameters.get(name, b"")]
        labels = [
            [one.decode() for one in wire.values(each, 1) + wire.values(each, 2)]
            for each in wire.values(message, 1, 11)
        ]
        metadata = {
            "resourceVersion": wire.values(message, 1, 6)[0].decode(),
            "labels": dict(labels),
            "finalizers": [each.decode() for each in wire.values(message, 1, 14)],
        }
        fields = {"resource": 3, "name": 4, "uid": 5}
        references = [
            {field: wire.values(each, number)[0].decode() for field, number in fields.items()}
            for each in wire.values(message, 3, 2)
        ]
        allocation = [orjson.loads(each) for each in wire.values(message, 3, 1)]
        status = {"allocation": allocation[0], "reservedFor": references} if allocation else {}
        return {**known, "metadata": {**known["metadata"], **metadata}, "status": status}

    def _known(self, name: str) -> Raw:
        if name not in self.claims:
            raise ApiError(404, "NotFound", f"resourceclaims {name} not found")
        return self.claims[name]

    def _check(self, name: str, part: str, manager: str, body: Raw) -> None:
        known = self._known(name)
        if part and self.fenced and manager != f"berth/{self.term}":
            raise ApiError(403, "Forbidden", f"ValidatingAdmissionPolicy '{names.FENCE}-claims': {manager} is over")
        if part and self.fenced and names.FENCED_BY not in (known["metadata"].get("labels") or {}):
            raise ApiError(403, "Forbidden", f"only ResourceClaims with the label {names.FENCED_BY}")
        if body["metadata"]["resourceVersion"] != known["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")

    # --- changes on the server --------------------------------------------------------------------------------

    def change(self, name: str, *, metadata: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """Change a claim; others than the operator do so as well."""
        self.version += 1
        known = self.claims.get(name) or claim(name)
        merged = {**known["metadata"], **(metadata or {}), "resourceVersion": str(self.version)}
        self.claims[name] = {**known, **fields, "metadata": merged}
        asyncio.get_running_loop().call_later(self.lag, self._show, copy.deepcopy(self.claims[name]))

    def remove(self, name: str) -> None:
        del self.claims[name]
        asyncio.get_running_loop().call_later(self.lag, self._forget, f"ns/{name}")


def _in_protobuf(name: bytes, *, parameters: bytes, allocation: bytes = b"null") -> bytes:
    """Return a claim or a list of one class; what stands for the allocation is JSON."""
    opaque = wire.encoded(1, NVIDIA_DRIVER.encode()) + wire.encoded(2, wire.encoded(1, parameters))
    config = wire.encoded(1, opaque)
    if not name:
        return wire.MAGIC + _nested(2, 2, 2, 2, 1, value=config)
    status = _nested(3, 1, value=allocation) if allocation != b"null" else b""
    message = _nested(1, 1, value=name) + _nested(2, 1, 3, 2, value=config) + status
    return wire.MAGIC + wire.encoded(2, message)


def _nested(*path: int, value: bytes) -> bytes:
    for number in reversed(path):
        value = wire.encoded(number, value)
    return value
