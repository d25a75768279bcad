"""An API server with one Node and its Device that tracks which manager owns which field, as server-side apply does."""

import copy
import itertools
from http import HTTPStatus
from typing import Any

from berth_api import names
from berth_client.errors import ApiError, CallError
from tests.objects.managed_fields import KEYS, fields_of, key_of

PATH = "/apis/berth.dev/v1alpha1/devices/a"
STATUS = f"{PATH}/status"
Raw = dict[str, Any]


class DeviceServer:
    """Serves the Node `a` and its Device to an agent."""

    def __init__(self) -> None:
        self.schemas, self.is_old = self, False
        self.device: Raw | None = None
        self.errors: dict[str, CallError] = {}
        """The answers to the applies that fail, by path."""
        self.writes: list[str] = []
        """The paths of the agent's writes."""
        self._owned: dict[tuple[str, str], Raw] = {}
        """(manager, subresource) -> its fields, as `fieldsV1`."""
        self._versions = itertools.count(1)

    # --- what the agent calls -----------------------------------------------------------------------------------

    def is_outdated(self, _kind: str) -> bool:
        return self.is_old

    async def list(self, path: str, _params: object, *, accept: str) -> tuple[list[Any], str]:
        assert "PartialObjectMetadata" in accept
        if path.endswith("nodes"):
            return [{"metadata": {"name": "a", "uid": "1"}}], "1"
        return ([] if self.device is None else [{"metadata": self.device["metadata"]}]), "1"

    async def get(self, path: str) -> Any:
        assert path == PATH
        if self.device is None:
            raise ApiError(HTTPStatus.NOT_FOUND, "NotFound", "devices")
        return copy.deepcopy(self.device)

    async def apply(self, path: str, body: Any, manager: str, *, force: bool) -> Any:
        assert force
        self.writes.append(path)
        if path in self.errors:
            raise self.errors[path]
        self.write(manager, "spec" if path == PATH else "status", body)
        return copy.deepcopy(self.device)

    async def merge_patch(self, path: str, body: Any) -> Any:
        assert self.device is not None
        self.writes.append(path)
        for part in body.keys() - {"metadata"}:
            for key, value in body[part].items():
                self.device[part].pop(key) if value is None else self.device[part].update({key: value})
        self._show()
        return copy.deepcopy(self.device)

    # --- what a test calls --------------------------------------------------------------------------------------

    def write(self, manager: str, part: str, body: Raw) -> None:
        """Apply the spec or the status of a body by force."""
        if self.device is None:
            self.device = {"metadata": {**body["metadata"], "uid": "d"}, "spec": {}, "status": {}}
        wanted = copy.deepcopy(body.get(part) or {})
        fields = {f"f:{part}": fields_of(wanted)}
        for (other, _), owned in self._owned.items():
            if other != manager:
                _take(owned.get(f"f:{part}", {}), self.device[part], wanted)
        _merge(self.device[part], wanted)
        self._owned[manager, "status" if part == "status" else ""] = fields
        self._show()

    def delete(self) -> None:
        self.device = None
        self._owned.clear()

    def _show(self) -> None:
        assert self.device is not None
        version = str(next(self._versions))
        entries = [
            {"manager": manager, "operation": "Apply", "subresource": subresource, "fieldsV1": fields, "time": version}
            for (manager, subresource), fields in self._owned.items()
        ]
        self.device["metadata"] |= {"resourceVersion": version, "managedFields": entries}


def _take(owned: Raw, shown: Raw, wanted: Raw) -> None:
    """Take the fields that change from a manager."""
    for key, value in wanted.items():
        if key in KEYS and key in shown:
            items = {key_of(key, item): item for item in shown[key]}
            for item in value:
                _take(owned.get(f"f:{key}", {}).get(key_of(key, item), {}), items.get(key_of(key, item), {}), item)
        elif shown.get(key) != value:
            owned.pop(f"f:{key}", None)


def _merge(shown: Raw, wanted: Raw) -> None:
    for key, value in wanted.items():
        if key in KEYS and key in shown:
            items = {key_of(key, item): item for item in shown[key]}
            for item in value:
                items.setdefault(key_of(key, item), {}).update(item)
            shown[key] = list(items.values())
        else:
            shown[key] = value


def foreign(part: str, **fields: Any) -> Raw:
    """Return what another manager applies."""
    return {"apiVersion": names.API_VERSION, "kind": "Device", "metadata": {"name": "a"}, part: fields}
