"""ResourceClaims in memory, as the API server keeps them, with a watch that shows changes late, in virtual time."""

import asyncio
import copy
from collections.abc import Callable, Mapping
from typing import Any, Final

from berth_api import names
from berth_client.client import MERGE
from berth_client.errors import ApiError
from tests.resource_claims import claim

Raw = dict[str, Any]

LAG: Final = 0.5
"""Seconds until the watch shows a change."""
TOOK_PLACE: Final = "lost"


class Server:
    """ResourceClaims in memory, with the fence of one term; the watch shows every change after `lag` seconds."""

    def __init__(self, show: Callable[[Raw], None], forget: Callable[[str], None]) -> None:
        self.claims: dict[str, Raw] = {}
        self.reads: list[str] = []
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

    async def request(
        self, method: str, path: str, *, params: Mapping[str, str] | None, body: Any, content_type: str = ""
    ) -> Any:
        if method != "PUT":
            return await self._others(method, path, body, content_type)
        name, _, part = path.partition("/resourceclaims/")[2].partition("/")
        manager = (params or {})["fieldManager"]
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
            self.change(name, status=copy.deepcopy(body.get("status", {})), metadata={"managedFields": own})
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
