"""The parameters for drivers in an allocation, byte for byte as the claim and its classes have them.

kube-scheduler keeps these bytes, too. JSON values do not preserve them, so the watches drop the parameters. Berth reads
the parameters in protobuf, and only for allocations with configurations.
"""

from collections.abc import Awaitable, Mapping
from typing import Any, Final, Protocol

import orjson

from berth_client.wire import WireError
from berth_operator.binding.prebind import claim_objects, stored_claims
from berth_operator.binding.prebind.claim_objects import ResourceClaimError
from berth_operator.binding.prebind.stored_claims import StoredConfig
from berth_operator.core.claims.allocation.results import Allocation

Object = dict[str, Any]

CLASSES: Final = "/apis/resource.k8s.io/v1/deviceclasses"


class Read(Protocol):
    """Reads an object, or a list, at quorum in protobuf."""

    def __call__(self, path: str, params: Mapping[str, str] | None = None) -> Awaitable[bytes]:
        """Return its bytes; raise CallError."""


async def written(allocation: Allocation, read: Read) -> Object:
    """Return `status.allocation` with the stored parameters.

    Raises:
        CallError: a claim or class could not be read.
        NodeError: the allocation cannot be written.
        ResourceClaimError: the stored claim or class cannot be read, or a class's configurations have changed.
    """
    body, configs = allocation.written(), list(allocation.configs())
    try:
        stored = {name: await _stored(name, allocation, read) for name in {config.device_class for config in configs}}
    except WireError as error:
        raise ResourceClaimError(f"claim {allocation.claim}: cannot be read in protobuf: {error}") from error
    entries: list[Object] = []
    for config in configs:
        driver, of_class = config.entry["opaque"]["driver"], stored[config.device_class]
        if config.place >= len(of_class) or of_class[config.place].driver != driver:
            raise ResourceClaimError(f"the configurations of DeviceClass {config.device_class} changed in the meantime")
        exact = orjson.Fragment(of_class[config.place].parameters)
        entries.append({**config.entry, "opaque": {"driver": driver, "parameters": exact}})
    if entries:
        body["devices"]["config"] = entries
    return body


async def _stored(device_class: str, allocation: Allocation, read: Read) -> list[StoredConfig]:
    if device_class:
        # By a list: the account may list classes, not get one.
        return stored_claims.configs_of_class(await read(CLASSES, {"fieldSelector": f"metadata.name={device_class}"}))
    return stored_claims.configs_of_claim(await read(claim_objects.path(claim_objects.key_of(allocation.claim))))
