"""The parameters for drivers in an allocation, byte for byte as in the claim and its classes, as in kube-scheduler.

JSON values do not preserve these bytes, so the watches drop them. For allocations with configurations only, the
parameters are read in protobuf.
"""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, Protocol

import orjson

from berth_client.wire import WireError
from berth_operator.binding.prebind import claim_objects, stored_claims
from berth_operator.binding.prebind.claim_objects import ResourceClaimError
from berth_operator.binding.prebind.stored_claims import StoredConfig
from berth_operator.core.dra.results import Allocation, AppliedConfig

Object = dict[str, Any]

CLASSES: Final = "/apis/resource.k8s.io/v1/deviceclasses"


class Read(Protocol):
    """Reads an object, or a list, at quorum in protobuf."""

    def __call__(self, path: str, params: Mapping[str, str] | None = None) -> Awaitable[bytes]:
        """Return its bytes; raise CallError."""


async def written(allocation: Allocation, read: Read) -> Object:
    """Return `status.allocation` with the parameters as they are stored.

    Raises:
        CallError: a claim or class could not be read.
        NodeError: the allocation cannot be written.
        ResourceClaimError: what is stored cannot be read, or a class has other configurations than it had.
    """
    body, configs = allocation.written(), list(allocation.configs())
    try:
        stored = {name: await _stored(name, allocation, read) for name in {each.device_class for each in configs}}
    except WireError as error:
        raise ResourceClaimError(f"claim {allocation.claim}: cannot be read in protobuf: {error}") from error
    if configs:
        body["devices"]["config"] = [_exact(each, stored[each.device_class]) for each in configs]
    return body


async def _stored(device_class: str, allocation: Allocation, read: Read) -> list[StoredConfig]:
    if device_class:
        # By a list: the account may list classes, not get one.
        return stored_claims.configs_of_class(await read(CLASSES, {"fieldSelector": f"metadata.name={device_class}"}))
    return stored_claims.configs_of_claim(await read(claim_objects.path(claim_objects.key_of(allocation.claim))))


def _exact(config: AppliedConfig, stored: Sequence[StoredConfig]) -> Object:
    driver = config.entry["opaque"]["driver"]
    if config.place >= len(stored) or stored[config.place].driver != driver:
        raise ResourceClaimError(f"the configurations of DeviceClass {config.device_class} changed in the meantime")
    parameters = orjson.Fragment(stored[config.place].parameters)
    return {**config.entry, "opaque": {"driver": driver, "parameters": parameters}}
